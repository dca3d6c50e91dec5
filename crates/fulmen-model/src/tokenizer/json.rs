//! Reads the `tokenizer.json` of a Hugging Face folder.
//!
//! The format can describe almost anything; what models of the supported families use is supported, and
//! everything else is rejected by name.

use std::{collections::HashMap, fs::File, io::Read, path::Path};

use serde::Deserialize;

use super::error::{no_memory, reserve};
use super::pattern::pre_name;
use super::{SpacePrefix, Strip, TokenType, Tokenizer, TokenizerError, TokenizerSpec, metadata};
use crate::{
    gguf::Metadata,
    memory::{self, List, Table},
    source::{ModelSource, TensorInfo},
};

/// Size limit of the file. Llama 3's has 17 MB.
const MAX_FILE: u64 = 256 << 20;
/// A vocabulary may have holes: at most this many plus the number of tokens.
const MAX_HOLES: usize = 1024;

#[derive(Deserialize)]
struct Description {
    #[serde(default)]
    added_tokens: List<AddedToken>,
    normalizer: Option<Stage>,
    pre_tokenizer: Option<Stage>,
    post_processor: Option<Stage>,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Table<String, u32>,
    #[serde(default)]
    merges: List<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair(String, String),
}

/// A normalizer, pre-tokenizer or post-processor, with the fields of all kinds that are known.
#[derive(Deserialize)]
pub(super) struct Stage {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default, alias = "pretokenizers", alias = "normalizers", alias = "processors")]
    pub(super) stages: Vec<Stage>,
    pub(super) pattern: Option<Pattern>,
    pub(super) behavior: Option<String>,
    #[serde(default)]
    pub(super) invert: bool,
    pub(super) use_regex: Option<bool>,
    pub(super) add_prefix_space: Option<bool>,
    pub(super) individual_digits: Option<bool>,
    content: Option<String>,
    prepend: Option<String>,
    replacement: Option<String>,
    prepend_scheme: Option<String>,
    #[serde(default)]
    single: Vec<Template>,
}

#[derive(Deserialize)]
pub(super) enum Pattern {
    Regex(String),
    String(String),
}

#[derive(Deserialize)]
enum Template {
    SpecialToken { id: String },
    Sequence {},
}

impl Stage {
    /// The stages of a sequence, or the stage itself.
    pub(super) fn all(&self) -> Vec<&Stage> {
        if self.kind == "Sequence" { self.stages.iter().flat_map(Stage::all).collect() } else { vec![self] }
    }
}

fn unsupported(what: impl Into<String>) -> TokenizerError {
    TokenizerError::Unsupported { what: what.into() }
}

impl Tokenizer {
    /// The tokenizer of a model, from its metadata or its `tokenizer.json`; `None` if it has neither.
    pub fn from_source(source: &dyn ModelSource) -> Result<Option<Tokenizer>, TokenizerError> {
        let metadata = source.metadata();
        if metadata.get("tokenizer.ggml.model").is_some() {
            return Tokenizer::from_metadata(metadata).map(Some);
        }
        let Some(mut spec) = TokenizerSpec::beside(source)? else { return Ok(None) };
        // A model may have more embedding rows than its tokenizer has tokens.
        let rows = source.tensor("token_embd.weight").map_or(0, TensorInfo::rows);
        if spec.tokens.len() < rows {
            let more = rows - spec.tokens.len();
            reserve(spec.tokens.try_reserve(more), "the tokens", rows)?;
            reserve(spec.types.try_reserve(more), "the token types", rows)?;
            reserve(spec.scores.try_reserve(more), "the scores", rows)?;
            spec.tokens.resize(rows, String::new());
            spec.types.resize(rows, TokenType::Unused);
            if !spec.scores.is_empty() {
                spec.scores.resize(rows, f32::NEG_INFINITY);
            }
        }
        Tokenizer::new(spec).map(Some)
    }

    /// The tokenizer of a `tokenizer.json` alone, without the special tokens defined in the files next to it.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Tokenizer, TokenizerError> {
        Tokenizer::new(TokenizerSpec::from_json(&read(path.as_ref())?)?)
    }
}

fn read(path: &Path) -> Result<String, TokenizerError> {
    let failed =
        |error: std::io::Error| TokenizerError::Json { what: format!("{}: {error}", path.display()) };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let size = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    if u64::try_from(size).is_ok_and(|size| size > MAX_FILE) {
        return Err(TokenizerError::Json { what: format!("is larger than {MAX_FILE} bytes") });
    }
    Ok(text)
}

impl TokenizerSpec {
    /// The specification from the `tokenizer.json` next to a model, if there is one.
    pub fn beside(source: &dyn ModelSource) -> Result<Option<TokenizerSpec>, TokenizerError> {
        let Some(path) = source.tokenizer_json() else { return Ok(None) };
        let mut spec = TokenizerSpec::from_json(&read(&path)?)?;
        spec.overlay(source.metadata())?;
        let (tokens, rows) = (spec.tokens.len(), source.tensor("token_embd.weight").map(TensorInfo::rows));
        match rows.filter(|&rows| rows < tokens) {
            Some(rows) => Err(TokenizerError::Rows { tokens, rows }),
            None => Ok(Some(spec)),
        }
    }

    /// The specification from the text of a `tokenizer.json`.
    pub fn from_json(text: &str) -> Result<TokenizerSpec, TokenizerError> {
        let file: Description =
            serde_json::from_str(text).map_err(|error| TokenizerError::Json { what: error.to_string() })?;
        let model = &file.model;
        if let Some(kind) = model.kind.as_deref().filter(|&kind| kind != "BPE") {
            return Err(unsupported(format!("a model of type {kind:?}")));
        }
        for (what, text) in [
            ("continuing_subword_prefix", &model.continuing_subword_prefix),
            ("end_of_word_suffix", &model.end_of_word_suffix),
        ] {
            if text.as_ref().is_some_and(|text| !text.is_empty()) {
                return Err(unsupported(format!("a model with {what}")));
            }
        }
        let (tokens, types) = vocabulary(&file)?;
        let normalizers = file.normalizer.iter().flat_map(Stage::all).collect::<Vec<_>>();
        let pre_tokenizers = file.pre_tokenizer.iter().flat_map(Stage::all).collect::<Vec<_>>();
        let mut spec = TokenizerSpec { types, ..TokenizerSpec::default() };
        let merges = || {
            let merges = memory::collect(model.merges.0.iter().map(Merge::joined));
            merges.map_err(|_| no_memory("the merges", model.merges.0.len()))
        };
        if model.byte_fallback && is_char_bpe(&normalizers, &pre_tokenizers) {
            spec.model = "gemma4".to_owned();
            spec.ignore_merges = Some(model.ignore_merges);
            spec.merges = merges()?;
        } else if let Some(prefix) = sentence_spaces(&normalizers, &pre_tokenizers)? {
            spec.model = "llama".to_owned();
            spec.space_prefix = Some(prefix);
            spec.scores = scores(&tokens, &model.merges.0)?;
        } else {
            spec.model = "gpt2".to_owned();
            spec.pre = Some(pre_name(&pre_tokenizers)?.to_owned());
            spec.nfc = nfc(&normalizers)?;
            spec.ignore_merges = Some(model.ignore_merges);
            spec.merges = merges()?;
        }
        let id = |text: &str| model.vocab.0.get(text).copied().or_else(|| file.added(text));
        spec.unknown = model.unk_token.as_deref().and_then(id);
        let template = file.post_processor.iter().flat_map(Stage::all);
        let template = template.map(|stage| stage.single.as_slice()).find(|single| !single.is_empty());
        let special = |item: Option<&Template>| match item {
            Some(Template::SpecialToken { id: text }) => id(text),
            _ => None,
        };
        spec.bos = special(template.and_then(|single| single.first()));
        spec.eos = special(template.and_then(|single| single.last()));
        (spec.add_bos, spec.add_eos) = (Some(spec.bos.is_some()), Some(spec.eos.is_some()));
        spec.strips = file.strips()?;
        spec.tokens = tokens;
        Ok(spec)
    }

    /// Adopts the special tokens from metadata with GGUF keys, which a Hugging Face folder reads from
    /// `config.json` and `tokenizer_config.json`.
    pub(super) fn overlay(&mut self, from: &Metadata) -> Result<(), TokenizerError> {
        let id = |name: &str| from.opt_u32(&format!("tokenizer.ggml.{name}_token_id"));
        let flag = |name: &str| from.opt_bool(&format!("tokenizer.ggml.add_{name}_token"));
        // Whether BOS and EOS are added is up to tokenizer.json; their ids may be in either file.
        self.bos = self.bos.or(id("bos")?);
        self.eos = id("eos")?.or(self.eos);
        if self.add_bos != Some(true) {
            self.add_bos = flag("bos")?.map(|add| add && self.bos.is_some());
        }
        if self.add_eos != Some(true) {
            self.add_eos = flag("eos")?.map(|add| add && self.eos.is_some());
        }
        // By default nothing is added.
        self.add_bos.get_or_insert(false);
        self.ends.extend(metadata::ends(from)?);
        Ok(())
    }
}

impl Merge {
    fn joined(&self) -> String {
        match self {
            Merge::Joined(text) => text.clone(),
            Merge::Pair(left, right) => format!("{left} {right}"),
        }
    }

    /// The token it produces.
    fn token(&self) -> String {
        match self {
            Merge::Joined(text) => text.replacen(' ', "", 1),
            Merge::Pair(left, right) => format!("{left}{right}"),
        }
    }
}

impl Description {
    fn added(&self, text: &str) -> Option<u32> {
        self.added_tokens.0.iter().find(|token| token.content == text).map(|token| token.id)
    }

    fn strips(&self) -> Result<Vec<(u32, Strip)>, TokenizerError> {
        let mut strips = Vec::new();
        for token in &self.added_tokens.0 {
            if token.single_word {
                return Err(unsupported(format!("the added token {:?} with single_word", token.content)));
            }
            if token.lstrip || token.rstrip {
                strips.push((token.id, Strip { left: token.lstrip, right: token.rstrip }));
            }
        }
        Ok(strips)
    }
}

/// The tokens by id, and their types. Holes become empty tokens.
fn vocabulary(file: &Description) -> Result<(Vec<String>, Vec<TokenType>), TokenizerError> {
    let added = file.added_tokens.0.iter().map(|token| (&token.content, token.id));
    let all = || file.model.vocab.0.iter().map(|(text, &id)| (text, id)).chain(added.clone());
    let size = all().map(|(_, id)| id).max().map_or(0, |last| u64::from(last) + 1);
    let count = file.model.vocab.0.len() + file.added_tokens.0.len();
    let size =
        usize::try_from(size).ok().filter(|&size| size <= count.saturating_mul(2).saturating_add(MAX_HOLES));
    let size = size
        .ok_or_else(|| TokenizerError::Json { what: format!("has {count} tokens, but much larger ids") })?;
    let full = |_| no_memory("the tokens", size);
    let mut tokens = memory::filled(String::new(), size).map_err(full)?;
    let mut types = memory::filled(TokenType::Unused, size).map_err(full)?;
    for (text, id) in all() {
        // `size` is above every id.
        let id = place_of(id);
        let place = &mut tokens[id];
        if !place.is_empty() && place != text {
            let what = format!("token {id} is both {place:?} and {text:?}");
            return Err(TokenizerError::Json { what });
        }
        place.clone_from(text);
        types[id] = TokenType::Normal;
    }
    if file.model.byte_fallback {
        for (text, kind) in tokens.iter().zip(&mut types) {
            if text.len() == 6 && text.starts_with("<0x") && text.ends_with('>') {
                *kind = TokenType::Byte;
            }
        }
    }
    for token in &file.added_tokens.0 {
        types[place_of(token.id)] = if token.special { TokenType::Control } else { TokenType::UserDefined };
    }
    if let Some(&id) = file.model.unk_token.as_ref().and_then(|text| file.model.vocab.0.get(text)) {
        types[place_of(id)] = TokenType::Unknown;
    }
    Ok((tokens, types))
}

/// An id as a list index.
fn place_of(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

/// Whether the stage writes spaces as `▁`.
fn replaces(stage: &Stage) -> bool {
    let is_space = matches!(&stage.pattern, Some(Pattern::String(text)) if text == " ");
    stage.kind == "Replace" && is_space && stage.content.as_deref() == Some("▁")
}

/// Whether merges run over the characters of whole texts, as in Gemma's: spaces are written as `▁`, and then
/// text is split at spaces, of which there are none.
fn is_char_bpe(normalizers: &[&Stage], pre_tokenizers: &[&Stage]) -> bool {
    match (normalizers, pre_tokenizers) {
        ([replace], [split]) => {
            let at_space = matches!(&split.pattern, Some(Pattern::String(text)) if text == " ");
            replaces(replace) && split.kind == "Split" && at_space && !split.invert
        }
        _ => false,
    }
}

/// Whether spaces are written as `▁`, as in SentencePiece, and where one is added before text.
fn sentence_spaces(
    normalizers: &[&Stage],
    pre_tokenizers: &[&Stage],
) -> Result<Option<SpacePrefix>, TokenizerError> {
    let is_space = |text: &Option<String>| text.as_deref() == Some("▁");
    if let [only] = pre_tokenizers
        && only.kind == "Metaspace"
    {
        if !is_space(&only.replacement) || !normalizers.is_empty() {
            return Err(unsupported("Metaspace with another replacement or with a normalizer"));
        }
        return match only.prepend_scheme.as_deref() {
            Some("never") => Ok(Some(SpacePrefix::Never)),
            Some("first") => Ok(Some(SpacePrefix::First)),
            Some("always") => Ok(Some(SpacePrefix::Always)),
            None if only.add_prefix_space == Some(false) => Ok(Some(SpacePrefix::Never)),
            None => Ok(Some(SpacePrefix::Always)),
            Some(other) => Err(unsupported(format!("Metaspace with the scheme {other:?}"))),
        };
    }
    match normalizers {
        [replace] if pre_tokenizers.is_empty() && replaces(replace) => Ok(Some(SpacePrefix::Never)),
        [prepend, replace] if pre_tokenizers.is_empty() && replaces(replace) => {
            match prepend.kind == "Prepend" && is_space(&prepend.prepend) {
                true => Ok(Some(SpacePrefix::Always)),
                false => Err(unsupported(format!("the normalizer {:?}", prepend.kind))),
            }
        }
        _ => Ok(None),
    }
}

/// Whether text is normalized to NFC before pre-tokenization.
fn nfc(normalizers: &[&Stage]) -> Result<bool, TokenizerError> {
    match normalizers {
        [] => Ok(false),
        [only] if only.kind == "NFC" => Ok(true),
        [first, ..] => Err(unsupported(format!("the normalizer {:?}", first.kind))),
    }
}

/// Scores that make SentencePiece merge in the order of the merge list: a token scores as high as the first
/// merge that produces it, and the lowest if no merge does.
fn scores(tokens: &[String], merges: &[Merge]) -> Result<Vec<f32>, TokenizerError> {
    let mut ranks: HashMap<String, f32> = HashMap::new();
    reserve(ranks.try_reserve(merges.len()), "the merges", merges.len())?;
    for (rank, merge) in merges.iter().enumerate() {
        ranks.entry(merge.token()).or_insert(-(rank as f32));
    }
    let scores = tokens.iter().map(|token| ranks.get(token).copied().unwrap_or(f32::NEG_INFINITY));
    memory::collect(scores).map_err(|_| no_memory("the scores", tokens.len()))
}

#[cfg(test)]
mod tests;
