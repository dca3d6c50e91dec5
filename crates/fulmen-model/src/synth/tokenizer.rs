//! A small byte-level BPE vocabulary that can encode any text.

use super::ModelShape;
use crate::gguf::{Array, Metadata};

/// Merges of frequent English letter groups; each produces a token. `Ġ` represents a space.
const MERGES: [&str; 24] = [
    "Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "Ġ w", "o u", "n d", "e n",
    "Ġ c", "i s", "o r", "e s", "i t", "Ġa nd", "in g", "Ġ o", "t o", "l l",
];

/// The last tokens of the vocabulary, which text never encodes to.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
    {{ message['content'] }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// GGUF token types.
const NORMAL: i32 = 1;
const CONTROL_TYPE: i32 = 3;

/// The character for a byte in byte-level vocabularies: the byte itself if printable, otherwise one from
/// U+0100 on.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count();
    u32::try_from(before)
        .ok()
        .and_then(|before| char::from_u32(256 + before))
        .unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The tokens: one per byte, one per merge, placeholders without a merge, and the control tokens.
fn tokens(vocabulary: usize) -> Vec<String> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    let ordinary = vocabulary.saturating_sub(CONTROL.len());
    tokens.extend((tokens.len()..ordinary).map(|id| format!("tok{id:06}")));
    tokens.truncate(ordinary);
    tokens.extend(CONTROL.map(str::to_owned));
    tokens
}

pub(super) fn describe(shape: &ModelShape, metadata: &mut Metadata) {
    let tokens = tokens(shape.vocabulary);
    let first_control = tokens.len().saturating_sub(CONTROL.len());
    let types: Vec<i32> =
        (0..tokens.len()).map(|id| if id < first_control { NORMAL } else { CONTROL_TYPE }).collect();
    let id = |control: usize| u32::try_from(first_control + control).unwrap_or(u32::MAX);
    let llama = shape.architecture == "llama";
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", if llama { "llama-bpe" } else { "qwen2" });
    metadata.set("tokenizer.ggml.tokens", Array::strings(tokens));
    metadata.set("tokenizer.ggml.token_type", Array::numbers(&types));
    metadata.set("tokenizer.ggml.merges", Array::strings(MERGES));
    metadata.set("tokenizer.ggml.bos_token_id", id(0));
    metadata.set("tokenizer.ggml.eos_token_id", id(2));
    metadata.set("tokenizer.ggml.padding_token_id", id(0));
    metadata.set("tokenizer.ggml.add_bos_token", llama);
    metadata.set("tokenizer.chat_template", TEMPLATE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_distinct_and_merges_produce_tokens() {
        for vocabulary in [512, 1024, 2000] {
            let tokens = tokens(vocabulary);
            assert_eq!(tokens.len(), vocabulary);
            let set: std::collections::HashSet<&String> = tokens.iter().collect();
            assert_eq!(set.len(), vocabulary);
            for merge in MERGES {
                for piece in merge.split(' ').chain([merge.replace(' ', "").as_str()]) {
                    assert!(set.contains(&piece.to_owned()), "{piece}");
                }
            }
        }
        assert_eq!(
            (byte_char(b' '), byte_char(b'\n'), byte_char(b'a'), byte_char(0xad)),
            ('Ġ', 'Ċ', 'a', 'Ń')
        );
    }
}
