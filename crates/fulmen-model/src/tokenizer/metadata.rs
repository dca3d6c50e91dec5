//! Converts between tokenizer specifications and GGUF metadata.

use std::collections::BTreeMap;

use super::error::{no_memory, reserve};
use super::{SpacePrefix, Strip, TokenType, Tokenizer, TokenizerError, TokenizerSpec};
use crate::gguf::{Array, Metadata, MetadataError, Strings, Value};
use crate::memory;

/// Keys of end-of-generation tokens besides EOS.
pub(super) fn ends(metadata: &Metadata) -> Result<Vec<u32>, MetadataError> {
    let mut ends = Vec::new();
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        ends.extend(metadata.opt_u32(key)?);
    }
    ends.extend(ids(metadata, "tokenizer.ggml.eos_token_ids")?);
    Ok(ends)
}

/// The ids of an optional array.
fn ids(metadata: &Metadata, key: &str) -> Result<Vec<u32>, MetadataError> {
    let wrong =
        |found: i64| MetadataError::Range { key: key.to_owned(), expected: "u32", found: found.into() };
    let numbers = metadata.opt_integers(key)?.unwrap_or_default();
    numbers.into_iter().map(|id| u32::try_from(id).map_err(|_| wrong(id))).collect()
}

/// Copies of the texts of a list of `what`.
fn texts(what: &'static str, items: Strings<'_>) -> Result<Vec<String>, TokenizerError> {
    let mut list = Vec::new();
    reserve(list.try_reserve_exact(items.len()), what, items.len())?;
    for text in items {
        list.push(memory::text(text).map_err(|_| no_memory(what, 1))?);
    }
    Ok(list)
}

/// A list of `what`.
fn list<T>(what: &'static str, items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>, TokenizerError> {
    let count = items.len();
    memory::collect(items).map_err(|_| no_memory(what, count))
}

impl Tokenizer {
    /// The tokenizer described by the metadata of a GGUF file (`tokenizer.ggml.*`).
    pub fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(TokenizerSpec::from_metadata(metadata)?)
    }
}

impl TokenizerSpec {
    /// The specification from the metadata of a GGUF file (`tokenizer.ggml.*`). Only value types are checked
    /// here.
    pub fn from_metadata(metadata: &Metadata) -> Result<TokenizerSpec, TokenizerError> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let id = |name: &str| metadata.opt_u32(&key(name));
        let flag = |name: &str| metadata.opt_bool(&key(name));
        let model = metadata.string(&key("model"))?;
        let owned = |text: &str| text.to_owned();
        let space_prefix = match (flag("add_space_prefix")?, flag("space_prefix_first")?) {
            (Some(true), Some(true)) => Some(SpacePrefix::First),
            (Some(true), _) => Some(SpacePrefix::Always),
            (Some(false), _) => Some(SpacePrefix::Never),
            (None, _) => None,
        };
        let mut strips: BTreeMap<u32, Strip> = BTreeMap::new();
        for name in STRIPS {
            for id in ids(metadata, &key(name))? {
                let strip = strips.entry(id).or_default();
                if name.starts_with('l') { strip.left = true } else { strip.right = true }
            }
        }
        let types = metadata.opt_integers(&key("token_type"))?.unwrap_or_default();
        let kinds = types
            .into_iter()
            .enumerate()
            .map(|(id, found)| TokenType::from_number(found).ok_or(TokenizerError::TokenType { id, found }));
        let mut types = Vec::new();
        reserve(types.try_reserve_exact(kinds.len()), "the token types", kinds.len())?;
        for kind in kinds {
            types.push(kind?);
        }
        let merges = match model {
            // BPE without merges would only produce bytes or characters, so merges are required.
            "gpt2" | "gemma4" => texts("the merges", metadata.strings(&key("merges"))?)?,
            _ => Vec::new(),
        };
        Ok(TokenizerSpec {
            model: model.to_owned(),
            pre: metadata.opt_string(&key("pre"))?.map(owned),
            tokens: texts("the tokens", metadata.strings(&key("tokens"))?)?,
            scores: match metadata.opt_numbers::<f32>(&key("scores"))? {
                Some(scores) => list("the scores", scores)?,
                None => Vec::new(),
            },
            types,
            merges,
            ignore_merges: flag("ignore_merges")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            unknown: id("unknown_token_id")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            space_prefix,
            nfc: flag("nfc")?.unwrap_or(false),
            ends: ends(metadata)?,
            strips: strips.into_iter().collect(),
        })
    }
}

impl TokenizerSpec {
    /// Adds the keys that describe the tokenizer (`tokenizer.ggml.*`), as read by
    /// [`TokenizerSpec::from_metadata`]. If the model has more embedding rows than tokens, the rest become
    /// unused tokens.
    pub fn describe(&self, rows: usize, metadata: &mut Metadata) {
        let mut set = |name: &str, value: Value| metadata.set(format!("tokenizer.ggml.{name}"), value);
        let padding = (self.tokens.len()..rows).map(|id| format!("[PAD{id}]"));
        let tokens: Vec<String> = self.tokens.iter().cloned().chain(padding).collect();
        let mut types: Vec<i32> = self.types.iter().map(|kind| kind.number()).collect();
        types.resize(self.tokens.len(), TokenType::Normal.number());
        types.resize(tokens.len(), TokenType::Unused.number());
        set("model", self.model.as_str().into());
        if let Some(pre) = &self.pre {
            set("pre", pre.as_str().into());
        }
        if !self.scores.is_empty() {
            let mut scores = self.scores.clone();
            scores.resize(tokens.len(), f32::NEG_INFINITY);
            set("scores", Array::numbers(&scores).into());
        }
        set("tokens", Array::strings(tokens).into());
        set("token_type", Array::numbers(&types).into());
        if matches!(self.model.as_str(), "gpt2" | "gemma4") {
            set("merges", Array::strings(&self.merges).into());
        }
        for (name, id) in [("bos", self.bos), ("eos", self.eos), ("unknown", self.unknown)] {
            if let Some(id) = id {
                set(&format!("{name}_token_id"), id.into());
            }
        }
        if !self.ends.is_empty() {
            set("eos_token_ids", Array::numbers(&self.ends).into());
        }
        let prefix = self.space_prefix.map(|prefix| prefix != SpacePrefix::Never);
        let first = (self.space_prefix == Some(SpacePrefix::First)).then_some(true);
        for (name, flag) in [
            ("add_bos_token", self.add_bos),
            ("add_eos_token", self.add_eos),
            ("add_space_prefix", prefix),
            // The keys below are specific to this library.
            ("space_prefix_first", first),
            ("ignore_merges", self.ignore_merges),
            ("nfc", self.nfc.then_some(true)),
        ] {
            if let Some(flag) = flag {
                set(name, flag.into());
            }
        }
        for (name, left) in STRIPS.into_iter().zip([true, false]) {
            let wanted = |strip: &Strip| if left { strip.left } else { strip.right };
            let ids: Vec<u32> =
                self.strips.iter().filter(|(_, strip)| wanted(strip)).map(|row| row.0).collect();
            if !ids.is_empty() {
                set(name, Array::numbers(&ids).into());
            }
        }
    }
}

/// Keys of tokens that absorb whitespace before and after them.
const STRIPS: [&str; 2] = ["lstrip_token_ids", "rstrip_token_ids"];

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn parts_come_back() {
        use TokenType::*;
        let spec = TokenizerSpec {
            model: "gpt2".into(),
            pre: Some("qwen2".into()),
            tokens: ["a", "b", "ab", "<x>"].map(String::from).to_vec(),
            types: vec![Normal, Normal, Normal, Control],
            merges: vec!["a b".into()],
            ignore_merges: Some(true),
            bos: Some(3),
            eos: Some(3),
            unknown: Some(0),
            add_bos: Some(true),
            add_eos: Some(false),
            nfc: true,
            ends: vec![3, 1],
            strips: vec![(0, Strip { left: true, right: true }), (3, Strip { left: false, right: true })],
            ..TokenizerSpec::default()
        };
        let mut metadata = Metadata::new();
        spec.describe(4, &mut metadata);
        assert_eq!(TokenizerSpec::from_metadata(&metadata).unwrap(), spec);
        let sentence = TokenizerSpec {
            model: "llama".into(),
            scores: vec![0.0, -1.0, -2.0, 0.0],
            merges: Vec::new(),
            pre: None,
            space_prefix: Some(SpacePrefix::First),
            ..spec
        };
        let mut metadata = Metadata::new();
        sentence.describe(6, &mut metadata);
        let padded = TokenizerSpec::from_metadata(&metadata).unwrap();
        assert_eq!(padded.tokens[4..], ["[PAD4]", "[PAD5]"]);
        assert_eq!((padded.types.len(), padded.types[5], padded.scores.len()), (6, Unused, 6));
        assert_eq!(padded.space_prefix, sentence.space_prefix);
        assert!(Tokenizer::new(padded).is_ok());
    }

    /// Each error names the offending key.
    #[test]
    fn wrong_keys_are_refused() {
        let with = |change: &dyn Fn(&mut Metadata)| {
            let mut metadata = sample();
            change(&mut metadata);
            Tokenizer::from_metadata(&metadata).unwrap_err().to_string()
        };
        let without = |key: &str| with(&|metadata| _ = metadata.remove(&format!("tokenizer.ggml.{key}")));
        assert_eq!(without("model"), r#"metadata key "tokenizer.ggml.model" is missing (expected string)"#);
        assert_eq!(
            without("tokens"),
            r#"metadata key "tokenizer.ggml.tokens" is missing (expected array of string)"#
        );
        assert_eq!(
            without("merges"),
            r#"metadata key "tokenizer.ggml.merges" is missing (expected array of string)"#
        );
        assert_eq!(
            without("bos_token_id"),
            "the tokenizer adds a BOS token to prompts, but does not specify its id"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.tokens", 5u32)),
            r#"metadata key "tokenizer.ggml.tokens" must be array of string, is u32"#
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.model", "rwkv")),
            r#"tokenizer model "rwkv" is not supported (supported: gpt2, llama, gemma4)"#
        );
        assert!(
            with(&|metadata| metadata.set("tokenizer.ggml.pre", "no-such"))
                .starts_with(r#"pre-tokenizer "no-such" is not supported (supported: default, gpt-2, "#)
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.token_type", Array::numbers(&[1i32, 7, 1, 3, 3]))),
            "token 1 has the unknown type 7; expected 1 to 6"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.eos_token_id", 5u32)),
            "the EOS token is token 5, but the vocabulary has only 5 tokens"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.eot_token_id", u32::MAX)),
            "an end-of-generation token is token 4294967295, but the vocabulary has only 5 tokens"
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.bos_token_id", -1i32)),
            r#"metadata key "tokenizer.ggml.bos_token_id" must fit into u32, is -1"#
        );
        assert_eq!(
            with(&|metadata| metadata.set("tokenizer.ggml.model", "llama")),
            "the number of scores must be 5, the number of tokens, is 0"
        );
    }
}
