//! Decodes a stream of tokens: a character is emitted once all of its bytes have arrived.

use super::{Tokenizer, TokenizerError};

/// Decodes tokens one by one. The concatenated output equals [`Tokenizer::decode`] of all tokens; no output
/// ends inside a character.
///
/// ```
/// # use fulmen_model::tokenizer::{StreamDecoder, Tokenizer, TokenizerSpec};
/// # let tokens = ["Ã", "©", "Ġ"].map(String::from).to_vec();
/// # let parts = TokenizerSpec { model: "gpt2".into(), tokens, ..TokenizerSpec::default() };
/// # let tokenizer = Tokenizer::new(parts)?;
/// let mut decoder = StreamDecoder::new();
/// assert_eq!(decoder.push(&tokenizer, 0)?, "");
/// assert_eq!(decoder.push(&tokenizer, 1)?, "é");
/// assert_eq!(decoder.push(&tokenizer, 0)?, "");
/// assert_eq!(decoder.finish(), "\u{fffd}");
/// # Ok::<(), fulmen_model::tokenizer::TokenizerError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StreamDecoder {
    /// The first bytes of an incomplete character.
    held: Vec<u8>,
    /// Whether this is not the start of a text, so that SentencePiece's leading space is kept.
    continuing: bool,
    show_special: bool,
    /// Control tokens whose text is emitted.
    shown: Vec<u32>,
}

impl StreamDecoder {
    /// A decoder for a whole text.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// A decoder for text that continues other text, such as an answer, and may start with a space.
    pub fn continuing() -> StreamDecoder {
        StreamDecoder { continuing: true, ..StreamDecoder::default() }
    }

    /// Emits the text of control tokens instead of omitting them.
    pub fn show_special(mut self) -> StreamDecoder {
        self.show_special = true;
        self
    }

    /// Emits the text of these control tokens, such as the tags of calls of tools.
    pub fn showing(mut self, ids: Vec<u32>) -> StreamDecoder {
        self.shown = ids;
        self
    }

    /// Adds a token and returns the text that it completes.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
        let mut out = String::new();
        self.push_to(tokenizer, id, &mut out)?;
        Ok(out)
    }

    /// Adds a token and appends the text that it completes.
    pub(super) fn push_to(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        out: &mut String,
    ) -> Result<(), TokenizerError> {
        let mut bytes = tokenizer.shown(id, self.show_special || self.shown.contains(&id))?;
        if bytes.is_empty() {
            return Ok(());
        }
        if !self.continuing {
            self.continuing = true;
            if tokenizer.adds_space_prefix() && !tokenizer.is_special(id) {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.held.extend_from_slice(bytes);
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    out.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, bad) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    rest = bad;
                    let Some(length) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                }
            }
        }
        let left = rest.len();
        self.held.drain(..self.held.len() - left);
        Ok(())
    }

    /// Ends the text; an incomplete character is emitted as U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}
