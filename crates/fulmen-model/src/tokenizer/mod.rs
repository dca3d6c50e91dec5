//! Tokenizers: text to token ids and back.
//!
//! - **Exact.** Ids are those of the model's own tokenizer, as llama.cpp gives them; `scripts/check-tokenizers`
//!   compares.
//! - **Two kinds**: byte-level BPE with the pre-tokenizer that the file names ([`TokenizerParts::pre`]), and
//!   SentencePiece's BPE with scores and byte tokens.
//! - **Text never becomes a control token** unless it is asked for ([`Special`]): `<|im_end|>` in a user's message is ten
//!   characters.
//! - **Bounded time**: n log n for any text and any vocabulary; no recursion.
//! - Everything a file says is checked in [`Tokenizer::new`]; encoding cannot fail after it.

mod bpe;
mod bytes;
mod classes;
mod error;
mod json;
mod metadata;
mod parts;
mod pattern;
mod special;
mod split;
mod spm;
mod stream;
mod vocab;
mod whole;

pub use error::TokenizerError;
pub use parts::{SpacePrefix, Strip, TokenType, TokenizerParts};
pub use special::Special;
pub use stream::StreamDecoder;

use std::{borrow::Cow, ops::Range};

use unicode_normalization::{UnicodeNormalization, is_nfc};

use bpe::{Bpe, Scratch};
use special::{Finder, Part};
use split::{Pre, Splitter};
use spm::Spm;
use vocab::{SPACE, Spelling, Vocab};

/// A tokenizer of a model.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    finder: Finder,
    kind: Kind,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    nfc: bool,
    /// Sorted.
    ends: Vec<u32>,
}

/// What a text stands behind.
#[derive(Clone, Copy)]
enum Place {
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
    /// Makes a tokenizer of its parts, all of them checked.
    pub fn new(parts: TokenizerParts) -> Result<Tokenizer, TokenizerError> {
        let TokenizerParts { model, pre, tokens, scores, types, merges, ignore_merges, .. } = parts;
        let (bos, eos, unknown) = (parts.bos, parts.eos, parts.unknown);
        let (vocab, kind, add_bos) = match model.as_str() {
            "gpt2" => {
                let name = pre.as_deref().unwrap_or("default");
                let pre = Pre::named(name).ok_or_else(|| TokenizerError::UnknownPre { pre: name.into() })?;
                let vocab = Vocab::new(tokens, types, Spelling::Bytes)?;
                let bpe = Bpe::new(&vocab, &merges, ignore_merges.unwrap_or(pre.ignore_merges))?;
                // A default is no order: without a token there is nothing to add.
                let add_bos = pre.add_bos && bos.is_some();
                (vocab, Kind::Bpe { bpe, splitter: pre.splitter }, add_bos)
            }
            "llama" => {
                let vocab = Vocab::new(tokens, types, Spelling::Sentence)?;
                let spm = Spm::new(&vocab, scores, unknown)?;
                let space_prefix = parts.space_prefix.unwrap_or(SpacePrefix::Always);
                (vocab, Kind::Spm { spm, space_prefix }, bos.is_some())
            }
            _ => return Err(TokenizerError::UnknownModel { model }),
        };
        let special = |what, id: Option<u32>| match id.map(|id| (id, vocab.check(id))) {
            Some((id, Err(_))) => Err(TokenizerError::SpecialToken { what, id, tokens: vocab.len() }),
            _ => Ok(()),
        };
        special("the begin of a text", bos)?;
        special("the end of a text", eos)?;
        special("the unknown token", unknown)?;
        for &id in &parts.ends {
            special("an end of generation", Some(id))?;
        }
        for &(id, _) in &parts.strips {
            special("a token that takes whitespace away", Some(id))?;
        }
        let (add_bos, add_eos) = (parts.add_bos.unwrap_or(add_bos), parts.add_eos.unwrap_or(false));
        if add_bos && bos.is_none() {
            return Err(TokenizerError::NoSpecialToken { what: "a begin (BOS)" });
        }
        if add_eos && eos.is_none() {
            return Err(TokenizerError::NoSpecialToken { what: "an end (EOS)" });
        }
        let mut ends: Vec<u32> = parts.ends.into_iter().chain(eos).chain(vocab.ends()).collect();
        ends.sort_unstable();
        ends.dedup();
        let finder = Finder::new(&vocab, &parts.strips)?;
        Ok(Tokenizer { vocab, finder, kind, bos, eos, add_bos, add_eos, nfc: parts.nfc, ends })
    }

    /// The tokens of a text, and nothing before or behind them.
    ///
    /// A vocabulary may lack some bytes ([`Tokenizer::missing_bytes`]). As in the tokenizers that the models were
    /// trained with, they are left out.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_parts(text, special, &[], &mut out);
        out
    }

    /// The tokens of a text as a model wants to see it: begin and end are put around it where the tokenizer says so.
    /// A begin that is there already is not put there again.
    pub fn encode_prompt(&self, text: &str, special: Special) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_parts(text, special, &[], &mut out);
        self.frame(&mut out);
        out
    }

    /// The tokens of a text, of which `foreign` are the ranges that came from people, in order: marks outside of them
    /// are control tokens, and marks that touch one are text.
    pub(crate) fn encode_with_foreign(&self, text: &str, foreign: &[Range<usize>]) -> Vec<u32> {
        let mut out = Vec::new();
        self.encode_parts(text, Special::Parse, foreign, &mut out);
        out
    }

    /// Puts the begin before tokens where the tokenizer says so and it is not there.
    pub(crate) fn begin(&self, tokens: &mut Vec<u32>) {
        if let Some(bos) = self.bos.filter(|bos| self.add_bos && tokens.first() != Some(bos)) {
            tokens.insert(0, bos);
        }
    }

    /// Puts begin and end around tokens where the tokenizer says so and they are not there.
    fn frame(&self, tokens: &mut Vec<u32>) {
        self.begin(tokens);
        if let Some(eos) = self.eos.filter(|eos| self.add_eos && tokens.last() != Some(eos)) {
            tokens.push(eos);
        }
    }

    /// Appends the tokens of a text. Control tokens that touch a foreign range are text.
    fn encode_parts(&self, text: &str, special: Special, foreign: &[Range<usize>], out: &mut Vec<u32>) {
        // A guess that is right for prose; it saves growing.
        out.reserve(text.len() / 4);
        let mut scratch = Scratch::default();
        let mut place = Place::First;
        self.finder.parts(text, special, foreign, |part| {
            place = match part {
                Part::Token(id) => {
                    out.push(id);
                    Place::AfterToken
                }
                Part::Text(text) => {
                    self.encode_text(text, place, &mut scratch, out);
                    Place::AfterText
                }
            }
        });
    }

    fn encode_text(&self, text: &str, place: Place, scratch: &mut Scratch, out: &mut Vec<u32>) {
        // Text in normal form, which almost all text is, is not copied.
        let text: Cow<'_, str> = match self.nfc && !is_nfc(text) {
            true => text.nfc().collect::<String>().into(),
            false => text.into(),
        };
        match &self.kind {
            Kind::Bpe { bpe, splitter } => {
                splitter.split(&text, |piece| bpe.encode(&self.vocab, piece.as_bytes(), scratch, out));
            }
            Kind::Spm { spm, space_prefix } => {
                let prefix = match (space_prefix, place) {
                    (SpacePrefix::Always, Place::First | Place::AfterToken) => " ",
                    (SpacePrefix::First, Place::First) => " ",
                    _ => "",
                };
                if prefix.is_empty() && !text.contains(SPACE) {
                    spm.encode(&self.vocab, &text, out);
                } else {
                    // SentencePiece cannot tell its own sign for a space from a space.
                    spm.encode(&self.vocab, &format!("{prefix}{}", text.replace(SPACE, " ")), out);
                }
            }
        }
    }

    /// The text of tokens. Control tokens are left out, what is not UTF-8 is shown as U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        self.decode_with(ids, StreamDecoder::new())
    }

    /// The text of tokens, control tokens shown.
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

    /// The bytes of one token; those of control tokens only if asked for.
    pub(crate) fn shown(&self, id: u32, special: bool) -> Result<&[u8], TokenizerError> {
        self.vocab.check(id)?;
        Ok(if special || !self.is_special(id) { self.vocab.shown(id) } else { &[] })
    }

    /// How many tokens there are.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The text of a token, as the file spells it: a space is `Ġ` or `▁`.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.vocab.check(id).ok().map(|_| self.vocab.text(id))
    }

    /// The bytes that a token stands for, which need not be whole characters. Control tokens give their text.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.shown(id, true)
    }

    /// The type of a token.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.vocab.check(id).ok().map(|_| self.vocab.kind(id))
    }

    /// The token that a text begins with.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that a text ends with.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether a prompt gets [`Tokenizer::bos`].
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether a generation ends with this token: the end of a text or of a turn.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// The tokens that end a generation, in order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether a token is a control token or the unknown one: not made from text unless asked for, not shown.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.token_type(id), Some(TokenType::Control | TokenType::Unknown))
    }

    /// The control token with this text.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        let special =
            |&(id, kind): &(u32, TokenType)| kind == TokenType::Control && self.vocab.text(id) == text;
        self.vocab.types().find(special).map(|(id, _)| id)
    }

    /// The bytes that no token stands for. Text that has them is encoded without them. Bytes that UTF-8 never has
    /// (0xC0, 0xC1, 0xF5 and above) may well be missing.
    pub fn missing_bytes(&self) -> Vec<u8> {
        match &self.kind {
            Kind::Bpe { bpe, .. } => bpe.missing(),
            Kind::Spm { spm, .. } => spm.missing(),
        }
    }

    fn adds_space_prefix(&self) -> bool {
        matches!(self.kind, Kind::Spm { space_prefix: SpacePrefix::First | SpacePrefix::Always, .. })
    }
}

#[cfg(test)]
mod tests;
