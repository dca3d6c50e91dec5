//! A tokenizer from the metadata of a GGUF file.

use super::{SpacePrefix, TokenType, Tokenizer, TokenizerError, TokenizerParts};
use crate::gguf::{Metadata, MetadataError};

/// Ends of a generation that files name beside the end of the text.
pub(super) fn ends(metadata: &Metadata) -> Result<Vec<u32>, MetadataError> {
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(metadata.opt_u32(key)?);
    }
    const LIST: &str = "tokenizer.ggml.eos_token_ids";
    for found in metadata.opt_integers(LIST)?.unwrap_or_default() {
        let wrong = || MetadataError::Range { key: LIST.to_owned(), expected: "u32", found: found.into() };
        ends.push(u32::try_from(found).map_err(|_| wrong())?);
    }
    Ok(ends)
}

impl Tokenizer {
    /// The tokenizer that the metadata of a GGUF file describe (`tokenizer.ggml.*`).
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(TokenizerParts::from_metadata(metadata)?)
    }
}

impl TokenizerParts {
    /// The parts that the metadata of a GGUF file describe (`tokenizer.ggml.*`). Only their types are checked here.
    pub fn from_metadata(metadata: &Metadata) -> Result<TokenizerParts, TokenizerError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| metadata.opt_u32(&key(name));
        let flag = |name: &str| metadata.opt_bool(&key(name));
        let model = metadata.string(&key("model"))?;
        let owned = |text: &str| text.to_owned();
        let prefix = |add| if add { SpacePrefix::Always } else { SpacePrefix::Never };
        let types = metadata.opt_integers(&key("token_type"))?.unwrap_or_default();
        let types = types
            .into_iter()
            .enumerate()
            .map(|(id, found)| TokenType::from_number(found).ok_or(TokenizerError::TokenType { id, found }));
        let merges = match model {
            // Byte-level BPE without merges would give bytes, which no model wants.
            "gpt2" => metadata.strings(&key("merges"))?.map(owned).collect(),
            _ => Vec::new(),
        };
        Ok(TokenizerParts {
            model: model.to_owned(),
            pre: metadata.opt_string(&key("pre"))?.map(owned),
            tokens: metadata.strings(&key("tokens"))?.map(owned).collect(),
            scores: metadata.opt_numbers::<f32>(&key("scores"))?.into_iter().flatten().collect(),
            types: types.collect::<Result<_, _>>()?,
            merges,
            ignore_merges: None,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            unknown: id("unknown_token_id")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            space_prefix: flag("add_space_prefix")?.map(prefix),
            nfc: flag("nfc")?.unwrap_or(false),
            ends: ends(metadata)?,
            strips: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Array;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.pre", "smollm");
        metadata.set("tokenizer.ggml.tokens", Array::strings(["a", "b", "ab", "<|im_end|>", "<s>"]));
        metadata.set("tokenizer.ggml.token_type", Array::numbers(&[1i32, 1, 1, 3, 3]));
        metadata.set("tokenizer.ggml.merges", Array::strings(["a b"]));
        metadata.set("tokenizer.ggml.bos_token_id", 4u32);
        metadata.set("tokenizer.ggml.eos_token_id", 3u32);
        metadata.set("tokenizer.ggml.add_bos_token", true);
        metadata
    }

    #[test]
    fn keys_become_a_tokenizer() {
        use super::super::Special;
        let tokenizer = Tokenizer::from_metadata(&sample()).unwrap();
        assert_eq!(tokenizer.encode_prompt("aab<|im_end|>", Special::Parse), [4, 0, 2, 3]);
        assert_eq!(tokenizer.encode_prompt("<s>b", Special::Parse), [4, 1], "no second begin");
        assert_eq!(tokenizer.ends(), [3]);
    }

    /// Each wrong key is named.
    #[test]
    fn wrong_keys_are_refused() {
        let with = |change: &dyn Fn(&mut Metadata)| {
            let mut metadata = sample();
            change(&mut metadata);
            Tokenizer::from_metadata(&metadata).unwrap_err().to_string()
        };
        let without = |key: &str| with(&|metadata| _ = metadata.remove(&format!("tokenizer.ggml.{key}")));
        assert_eq!(
            without("model"),
            r#"tokenizer: the metadata have no key "tokenizer.ggml.model" (string expected)"#
        );
        assert_eq!(
            without("tokens"),
            r#"tokenizer: the metadata have no key "tokenizer.ggml.tokens" (array of string expected)"#
        );
        assert_eq!(
            without("merges"),
            r#"tokenizer: the metadata have no key "tokenizer.ggml.merges" (array of string expected)"#
        );
        assert_eq!(
            without("bos_token_id"),
            "texts should get a begin (BOS), but the tokenizer does not say which token that is"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.tokens", 5u32)),
            r#"tokenizer: metadata key "tokenizer.ggml.tokens" must be array of string, is u32"#
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.model", "rwkv")),
            r#"tokenizer model "rwkv" is not supported (supported: gpt2, llama)"#
        );
        assert!(
            with(&|metadata| metadata.set("tokenizer.ggml.pre", "no-such"))
                .starts_with(r#"pre-tokenizer "no-such" is not supported (supported: default, gpt-2, "#)
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.token_type", Array::numbers(&[1i32, 7, 1, 3, 3]))),
            "token 1 has type 7; 1 to 6 are known"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.eos_token_id", 5u32)),
            "the end of a text is token 5, but there are only 5 tokens"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.eot_token_id", u32::MAX)),
            "an end of generation is token 4294967295, but there are only 5 tokens"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.bos_token_id", -1i32)),
            r#"tokenizer: metadata key "tokenizer.ggml.bos_token_id" must fit u32, is -1"#
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.model", "llama")),
            "there are 0 scores for 5 tokens"
        );
    }
}
