//! Tokenizers: text to token ids and back.
//!
//! - **Exact.** Token ids match llama.cpp; `scripts/check-tokenizers` compares them.
//! - **Three kinds**: byte-level BPE with the pre-tokenizer named in the file ([`TokenizerSpec::pre`]),
//!   SentencePiece BPE with scores and byte tokens, and BPE over characters with merges and byte tokens
//!   (Gemma 4).
//! - **Text never becomes a control token** unless requested ([`Special`]): `<|im_end|>` in a user's message
//!   is just ten characters.
//! - **Bounded time**: O(n log n) for any text and any vocabulary; no recursion.
//! - Everything in the file is validated in [`Tokenizer::new`]; encoding never fails.

mod bpe;
mod bytes;
mod classes;
mod error;
mod json;
mod metadata;
mod pattern;
mod spec;
mod special;
mod split;
mod spm;
mod stream;
mod vocab;
mod whole;

pub use error::TokenizerError;
pub use spec::{SpacePrefix, Strip, TokenType, TokenizerSpec};
pub use special::Special;
pub use stream::StreamDecoder;

use std::{borrow::Cow, ops::Range};

use unicode_normalization::{UnicodeNormalization, is_nfc};

use bpe::{Alphabet, Bpe, Scratch};
use special::{Segment, SpecialFinder};
use split::{Pre, Splitter};
use spm::Spm;
use vocab::{SPACE, Spelling, Vocab};

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    finder: SpecialFinder,
    kind: Kind,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    nfc: bool,
    /// Sorted.
    ends: Vec<u32>,
}

/// What precedes a segment of text.
#[derive(Clone, Copy)]
enum Position {
    First,
    AfterToken,
    AfterText,
}

#[derive(Debug)]
enum Kind {
    Bpe { bpe: Bpe, splitter: Splitter },
    Spm { spm: Spm, space_prefix: SpacePrefix },
}

impl Tokenizer {
    /// Builds a tokenizer from its specification and validates all of it.
    pub fn new(spec: TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        let TokenizerSpec { model, pre, tokens, scores, types, merges, ignore_merges, .. } = spec;
        let (bos, eos, unknown) = (spec.bos, spec.eos, spec.unknown);
        let (vocab, kind, add_bos) = match model.as_str() {
            "gpt2" => {
                let name = pre.as_deref().unwrap_or("default");
                let pre = Pre::named(name).ok_or_else(|| TokenizerError::UnknownPre { pre: name.into() })?;
                let vocab = Vocab::new(tokens, types, Spelling::Bytes)?;
                let ignore_merges = ignore_merges.unwrap_or(pre.ignore_merges);
                let bpe = Bpe::new(&vocab, &merges, Alphabet::Bytes, ignore_merges)?;
                // This is only a default: without a BOS token there is nothing to add.
                let add_bos = pre.add_bos && bos.is_some();
                (vocab, Kind::Bpe { bpe, splitter: pre.splitter }, add_bos)
            }
            "gemma4" => {
                let vocab = Vocab::new(tokens, types, Spelling::Sentence)?;
                let bpe = Bpe::new(&vocab, &merges, Alphabet::Chars, ignore_merges.unwrap_or(false))?;
                (vocab, Kind::Bpe { bpe, splitter: Splitter::Lines }, bos.is_some())
            }
            "llama" => {
                let vocab = Vocab::new(tokens, types, Spelling::Sentence)?;
                let spm = Spm::new(&vocab, scores, unknown)?;
                let space_prefix = spec.space_prefix.unwrap_or(SpacePrefix::Always);
                (vocab, Kind::Spm { spm, space_prefix }, bos.is_some())
            }
            _ => return Err(TokenizerError::UnknownModel { model }),
        };
        let special = |what, id: Option<u32>| match id.map(|id| (id, vocab.check(id))) {
            Some((id, Err(_))) => Err(TokenizerError::SpecialToken { what, id, tokens: vocab.len() }),
            _ => Ok(()),
        };
        special("the BOS token", bos)?;
        special("the EOS token", eos)?;
        special("the unknown token", unknown)?;
        for &id in &spec.ends {
            special("an end-of-generation token", Some(id))?;
        }
        for &(id, _) in &spec.strips {
            special("a token that absorbs whitespace", Some(id))?;
        }
        let (add_bos, add_eos) = (spec.add_bos.unwrap_or(add_bos), spec.add_eos.unwrap_or(false));
        if add_bos && bos.is_none() {
            return Err(TokenizerError::NoSpecialToken { what: "a BOS token" });
        }
        if add_eos && eos.is_none() {
            return Err(TokenizerError::NoSpecialToken { what: "an EOS token" });
        }
        let (by_text, no_ends) = vocab.ends();
        let mut ends: Vec<u32> = spec.ends.into_iter().chain(eos).chain(by_text).collect();
        ends.retain(|id| !no_ends.contains(id));
        ends.sort_unstable();
        ends.dedup();
        let finder = SpecialFinder::new(&vocab, &spec.strips)?;
        Ok(Tokenizer { vocab, finder, kind, bos, eos, add_bos, add_eos, nfc: spec.nfc, ends })
    }

    /// The tokens of a text, without BOS or EOS.
    ///
    /// A vocabulary may lack some bytes ([`Tokenizer::missing_bytes`]). They are omitted, as in the
    /// tokenizers that the models were trained with.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_segments(text, special, &[], &mut out);
        out
    }

    /// The tokens of a prompt: with BOS and EOS if the tokenizer adds them. BOS is not added if it is already
    /// there.
    pub fn encode_prompt(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_segments(text, special, &[], &mut out);
        self.frame(&mut out);
        out
    }

    /// The tokens of a text with special tokens parsed, except where they overlap a range of `foreign`: the
    /// ranges of user-supplied text, in order.
    pub(crate) fn encode_with_foreign(&self, text: &str, foreign: &[Range<usize>]) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_segments(text, Special::Parse, foreign, &mut out);
        out
    }

    /// Adds BOS if the tokenizer adds it and it is not already there.
    pub(crate) fn begin(&self, tokens: &mut Vec<u32>) {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
    }

    /// Adds BOS and EOS if the tokenizer adds them and they are not already there.
    fn frame(&self, tokens: &mut Vec<u32>) {
        self.begin(tokens);
        if let Some(eos) = self.eos.filter(|eos| self.add_eos && tokens.last() != Some(eos)) {
            tokens.push(eos);
        }
    }

    /// Appends the tokens of a text. Special tokens that overlap a foreign range are text.
    fn encode_segments(&self, text: &str, special: Special, foreign: &[Range<usize>], out: &mut Vec<u32>) {
        // Typical for prose; avoids reallocation.
        out.reserve(text.len() / 4);
        let mut scratch = Scratch::default();
        let mut position = Position::First;
        self.finder.segments(text, special, foreign, |segment| {
            position = match segment {
                Segment::Token(id) => {
                    out.push(id);
                    Position::AfterToken
                }
                Segment::Text(text) => {
                    self.encode_text(text, position, &mut scratch, out);
                    Position::AfterText
                }
            }
        });
    }

    fn encode_text(&self, text: &str, position: Position, scratch: &mut Scratch, out: &mut Vec<u32>) {
        // Almost all text is already in NFC and is not copied.
        let text: Cow<'_, str> = match self.nfc && !is_nfc(text) {
            true => text.nfc().collect::<String>().into(),
            false => text.into(),
        };
        match &self.kind {
            Kind::Bpe { bpe, splitter } => {
                // Gemma 4 does not distinguish `▁` from a space.
                let text = match splitter {
                    Splitter::Lines if text.contains(SPACE) => text.replace(SPACE, " ").into(),
                    _ => text,
                };
                splitter.split(&text, |piece| bpe.encode(&self.vocab, piece, scratch, out));
            }
            Kind::Spm { spm, space_prefix } => {
                let prefix = match (space_prefix, position) {
                    (SpacePrefix::Always, Position::First | Position::AfterToken) => " ",
                    (SpacePrefix::First, Position::First) => " ",
                    _ => "",
                };
                if prefix.is_empty() && !text.contains(SPACE) {
                    spm.encode(&self.vocab, &text, out);
                } else {
                    // SentencePiece does not distinguish `▁` from a space.
                    spm.encode(&self.vocab, &format!("{prefix}{}", text.replace(SPACE, " ")), out);
                }
            }
        }
    }

    /// The text of tokens. Control tokens are omitted; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, StreamDecoder::new())
    }

    /// The text of tokens, including control tokens.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, StreamDecoder::new().show_special())
    }

    fn decode_with(&self, ids: &[u32], mut decoder: StreamDecoder) -> Result<String, TokenizerError> {
        let mut out = String::with_capacity(ids.len().saturating_mul(4));
        for &id in ids {
            decoder.push_to(self, id, &mut out)?;
        }
        out.push_str(&decoder.finish());
        Ok(out)
    }

    /// The bytes of one token; empty for control tokens unless requested.
    pub(crate) fn shown(&self, id: u32, special: bool) -> Result<&[u8], TokenizerError> {
        self.vocab.check(id)?;
        Ok(if special || !self.is_special(id) { self.vocab.shown(id) } else { &[] })
    }

    /// Vocabulary size.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The text of a token as stored in the file: a space is `Ġ` or `▁`.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.vocab.check(id).ok().map(|_| self.vocab.text(id))
    }

    /// The bytes that a token represents, not necessarily whole characters. For a control token, its text.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.shown(id, true)
    }

    /// The type of a token.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.vocab.check(id).ok().map(|_| self.vocab.kind(id))
    }

    /// The BOS token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The EOS token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether BOS is added to prompts.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether this token ends generation: the end of a text or of a turn.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The end-of-generation tokens, sorted.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether a token is a control token or the unknown token, which are neither parsed nor printed by
    /// default.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.token_type(id), Some(TokenType::Control | TokenType::Unknown))
    }

    /// The control token with this text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        let special =
            |&(id, kind): &(u32, TokenType)| kind == TokenType::Control && self.vocab.text(id) == text;
        self.vocab.types().find(special).map(|(id, _)| id)
    }

    /// The bytes that no token represents. They are omitted when text is encoded. Bytes that never occur in
    /// UTF-8 (0xC0, 0xC1, 0xF5 and above) are often missing.
    pub fn missing_bytes(&self) -> Vec<u8> {
        match &self.kind {
            Kind::Bpe { bpe, .. } => bpe.missing(),
            Kind::Spm { spm, .. } => spm.missing(),
        }
    }

    /// The number of merges of BPE whose result is not in the vocabulary. Text that such a merge
    /// applies to becomes single bytes, unless another merge leads on to a token.
    pub fn merges_without_token(&self) -> usize {
        match &self.kind {
            Kind::Bpe { bpe, .. } => bpe.dead_ends(),
            Kind::Spm { .. } => 0,
        }
    }

    fn adds_space_prefix(&self) -> bool {
        matches!(self.kind, Kind::Spm { space_prefix: SpacePrefix::First | SpacePrefix::Always, .. })
    }
}

#[cfg(test)]
mod tests;
