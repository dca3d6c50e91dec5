//! Pre-tokenizers: split text into pre-tokens before BPE; no token spans two of them.
//!
//! Each family's pattern is published as a regular expression, quoted in the comment of its function. They
//! are written by hand because each is a handful of rules over character classes, and a general regex engine
//! with look-ahead is many times slower. The tests compare them with pre-tokens derived from the patterns by
//! hand.

mod cased;
mod gpt2;
mod stages;
mod words;

use super::classes::Class;

/// A pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splitter {
    /// The pattern of GPT-2.
    Gpt2,
    /// Each digit alone, then the pattern of GPT-2: SmolLM, StarCoder, Command R.
    DigitsGpt2,
    /// The pattern of Llama 3 and its relatives.
    Words(words::Words),
    /// The patterns that look at case: Mistral's Tekken, GPT-4o.
    Cased(cased::Cased),
    /// Runs of punctuation, then GPT-2, then groups of three digits: for files that name no pre-tokenizer.
    Default,
    /// The pattern of Falcon.
    Falcon,
    /// The pattern of DeepSeek Coder.
    DeepSeekCoder,
    /// `[^\n]+|\n+`: Gemma 4.
    Lines,
}

/// A pre-tokenizer, and the defaults that its name in GGUF files implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pre {
    pub(super) splitter: Splitter,
    /// Whether a pre-token that is in the vocabulary becomes that token regardless of the merges.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added by default.
    pub(super) add_bos: bool,
}

const fn plain(splitter: Splitter) -> Pre {
    Pre { splitter, ignore_merges: false, add_bos: false }
}

const LLAMA3: Pre = Pre { splitter: Splitter::Words(words::LLAMA3), ignore_merges: true, add_bos: true };
const QWEN2: Pre = plain(Splitter::Words(words::QWEN2));
const TEKKEN: Pre = Pre { splitter: Splitter::Cased(cased::TEKKEN), ignore_merges: true, add_bos: true };

/// All supported names.
const NAMES: [(&str, Pre); 31] = [
    ("default", plain(Splitter::Default)),
    ("gpt-2", plain(Splitter::Gpt2)),
    ("phi-2", plain(Splitter::Gpt2)),
    ("mpt", plain(Splitter::Gpt2)),
    ("olmo", plain(Splitter::Gpt2)),
    ("smollm", plain(Splitter::DigitsGpt2)),
    ("starcoder", plain(Splitter::DigitsGpt2)),
    ("refact", plain(Splitter::DigitsGpt2)),
    ("command-r", plain(Splitter::DigitsGpt2)),
    ("codeshell", plain(Splitter::DigitsGpt2)),
    ("llama-bpe", LLAMA3),
    ("llama3", LLAMA3),
    ("llama-v3", LLAMA3),
    ("falcon3", LLAMA3),
    ("dbrx", plain(Splitter::Words(words::LLAMA3))),
    ("smaug-bpe", plain(Splitter::Words(words::LLAMA3))),
    ("glm4", Pre { add_bos: false, ..LLAMA3 }),
    ("chatglm-bpe", plain(Splitter::Words(words::LLAMA3))),
    ("qwen2", QWEN2),
    ("deepseek-r1-qwen", QWEN2),
    ("megrez", QWEN2),
    ("stablelm2", QWEN2),
    ("hunyuan", QWEN2),
    ("grok-2", QWEN2),
    ("qwen35", plain(Splitter::Words(words::QWEN35))),
    ("tekken", TEKKEN),
    ("pixtral", LLAMA3),
    ("gpt-4o", plain(Splitter::Cased(cased::GPT4O))),
    ("llama4", plain(Splitter::Cased(cased::GPT4O))),
    ("falcon", plain(Splitter::Falcon)),
    ("deepseek-coder", plain(Splitter::DeepSeekCoder)),
];

impl Pre {
    /// The pre-tokenizer with this name.
    pub(super) fn named(name: &str) -> Option<Pre> {
        NAMES.iter().find(|row| row.0 == name).map(|row| row.1)
    }

    /// All names, for messages.
    pub(super) fn names() -> String {
        NAMES.map(|row| row.0).join(", ")
    }
}

impl Splitter {
    /// Calls `give` with the pre-tokens in order. Concatenated they are the text; none is empty.
    pub(super) fn split<'a>(self, text: &'a str, mut give: impl FnMut(&'a str)) {
        match self {
            Splitter::Gpt2 => each(text, gpt2::piece, &mut give),
            Splitter::DigitsGpt2 => stages::digits_gpt2(text, &mut give),
            Splitter::Words(words) => each(text, |text, at| words.piece(text, at), &mut give),
            Splitter::Cased(cased) => each(text, |text, at| cased.piece(text, at), &mut give),
            Splitter::Default => stages::default(text, &mut give),
            Splitter::Falcon => stages::falcon(text, &mut give),
            Splitter::DeepSeekCoder => stages::deepseek_coder(text, &mut give),
            Splitter::Lines => each(text, line, &mut give),
        }
    }
}

/// The end of `[^\n]+|\n+`.
fn line(text: Text<'_>, at: usize) -> usize {
    let is_break = |byte: u8| byte == b'\n';
    let rest = &text.0.as_bytes()[at..];
    let breaks = rest.first().is_some_and(|&byte| is_break(byte));
    at + rest.iter().position(|&byte| is_break(byte) != breaks).unwrap_or(rest.len())
}

/// Splits the text; `piece` returns the end of the pre-token at a position.
fn each<'a>(text: &'a str, piece: impl Fn(Text<'a>, usize) -> usize, give: &mut impl FnMut(&'a str)) {
    let mut start = 0;
    while start < text.len() {
        let end = piece(Text(text), start);
        debug_assert!(end > start, "a piece has at least one character");
        give(&text[start..end]);
        start = end;
    }
}

/// Random access to a text. Positions are character boundaries.
#[derive(Clone, Copy)]
struct Text<'a>(&'a str);

impl Text<'_> {
    /// The class of the character at a position ([`Class::END`] with `\0` at the end) and the next position.
    #[inline]
    fn look(self, at: usize) -> (char, Class, usize) {
        match self.0[at..].chars().next() {
            Some(c) => (c, Class::of(c), at + c.len_utf8()),
            None => ('\0', Class::END, at),
        }
    }

    #[inline]
    fn class(self, at: usize) -> Class {
        self.look(at).1
    }

    /// The byte at a position, for comparisons with ASCII characters.
    fn byte(self, at: usize) -> Option<u8> {
        self.0.as_bytes().get(at).copied()
    }

    /// The end of the run of matching characters that starts at `at`.
    #[inline]
    fn run(self, mut at: usize, fits: impl Fn(Class) -> bool) -> usize {
        loop {
            let (_, class, next) = self.look(at);
            if next == at || !fits(class) {
                return at;
            }
            at = next;
        }
    }

    /// The end of the run of these ASCII characters.
    fn run_of(self, mut at: usize, set: &[u8]) -> usize {
        while self.byte(at).is_some_and(|byte| set.contains(&byte)) {
            at += 1;
        }
        at
    }

    /// The end of an English contraction (`'s`, `'ll`, …) that starts here.
    fn contraction(self, at: usize, any_case: bool) -> Option<usize> {
        if self.byte(at)? != b'\'' {
            return None;
        }
        let letter = |at| self.byte(at).map(|byte| if any_case { byte.to_ascii_lowercase() } else { byte });
        match (letter(at + 1)?, letter(at + 2)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r', Some(b'e')) | (b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
            _ => None,
        }
    }

    /// The end of `\s+(?!\S)|\s+` for the whitespace from `start` to `end`: the last character is left to the
    /// next pre-token unless it is the only one.
    fn spaces(self, start: usize, end: usize) -> usize {
        if end == self.0.len() {
            return end;
        }
        let last = self.0[start..end].char_indices().next_back().map_or(0, |(offset, _)| offset);
        if last == 0 { end } else { start + last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pre-tokens of a text, for the tests of the patterns.
    pub(super) fn pieces(splitter: Splitter, text: &str) -> Vec<&str> {
        let mut pieces = Vec::new();
        splitter.split(text, |piece| pieces.push(piece));
        pieces
    }

    #[test]
    fn names_are_there_once() {
        for (i, (name, _)) in NAMES.iter().enumerate() {
            assert!(NAMES[..i].iter().all(|row| row.0 != *name), "{name}");
        }
        assert_eq!(Pre::named("gpt-3"), None);
        assert!(Pre::names().contains("llama-bpe, llama3"));
    }

    #[test]
    fn lines_are_parted_from_their_breaks() {
        assert_eq!(pieces(Splitter::Lines, "a b\n\n\r\n c"), ["a b", "\n\n", "\r", "\n", " c"]);
        assert_eq!(pieces(Splitter::Lines, "\n漢"), ["\n", "漢"]);
    }

    proptest::proptest! {
        /// For every pattern and any text, nothing is lost or repeated, and no pre-token is empty.
        #[test]
        fn pieces_are_the_text(text in "\\PC{0,40}|[ \\s'a-zA-Z0-9\u{301}é漢🦀.\r\n/]{0,40}") {
            for (name, pre) in NAMES.into_iter().chain([("lines", plain(Splitter::Lines))]) {
                let pieces = pieces(pre.splitter, &text);
                proptest::prop_assert!(pieces.iter().all(|piece| !piece.is_empty()), "{name}");
                proptest::prop_assert_eq!(pieces.concat(), text.as_str(), "{}", name);
            }
        }
    }
}
