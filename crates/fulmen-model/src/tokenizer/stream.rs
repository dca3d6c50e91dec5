//! Text from tokens as they come: a character is given when all its bytes are there.

use super::{Tokenizer, TokenizerError};

/// Makes text from tokens one by one. What it gives, put together, is what [`Tokenizer::decode`] gives for all of
/// them; no part ever ends inside a character.
///
/// ```
/// # use fulmen_model::tokenizer::{StreamDecoder, Tokenizer, TokenizerParts};
/// # let tokens = ["Ã", "©", "Ġ"].map(String::from).to_vec();
/// # let parts = TokenizerParts { model: "gpt2".into(), tokens, ..TokenizerParts::default() };
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
    /// The begin of a character whose other bytes have not come.
    held: Vec<u8>,
    /// Something was given already, or the text goes on from another: SentencePiece's first space stays.
    going_on: bool,
    show_special: bool,
}

impl StreamDecoder {
    /// For a whole text.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// For a text that goes on from what came before it, such as an answer: it may begin with a space.
    pub fn going_on() -> StreamDecoder {
        StreamDecoder { going_on: true, ..StreamDecoder::default() }
    }

    /// Control tokens are shown as their text instead of being left out.
    pub fn show_special(mut self) -> StreamDecoder {
        self.show_special = true;
        self
    }

    /// Takes a token and gives the text that is complete with it.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TokenizerError> {
        let mut out = String::new();
        self.push_to(tokenizer, id, &mut out)?;
        Ok(out)
    }

    /// Takes a token and appends the text that is complete with it.
    pub(super) fn push_to(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        out: &mut String,
    ) -> Result<(), TokenizerError> {
        let mut bytes = tokenizer.shown(id, self.show_special)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if !self.going_on {
            self.going_on = true;
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

    /// The end of the text: a character that stayed incomplete is given as U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}
