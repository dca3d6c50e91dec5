//! The specification of a tokenizer, independent of the file format.

/// The type of a token, with its number in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Ordinary text.
    Normal,
    /// The token for text that cannot be encoded.
    Unknown,
    /// A special token such as BOS or the end of a turn. Not parsed from text unless requested, not printed.
    Control,
    /// Text that is matched before pre-tokenization.
    UserDefined,
    /// A reserved entry of the vocabulary.
    Unused,
    /// A single byte, for characters without a token: `<0x0A>`.
    Byte,
}

impl TokenType {
    /// The type with this number.
    pub fn from_number(number: i64) -> Option<TokenType> {
        Some(match number {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }

    /// Its number.
    pub fn number(self) -> i32 {
        match self {
            TokenType::Normal => 1,
            TokenType::Unknown => 2,
            TokenType::Control => 3,
            TokenType::UserDefined => 4,
            TokenType::Unused => 5,
            TokenType::Byte => 6,
        }
    }
}

/// The surrounding whitespace that a special token absorbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    /// Before the token.
    pub left: bool,
    /// After the token.
    pub right: bool,
}

/// Where SentencePiece adds a space before text, so that the first word is encoded like the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpacePrefix {
    /// Never.
    Never,
    /// At the start of the text.
    First,
    /// At the start of the text and after each special token.
    Always,
}

/// The specification of a tokenizer, as read from a file. [`Tokenizer::new`](super::Tokenizer::new) validates
/// it.
///
/// ```
/// use fulmen_model::tokenizer::{Special, Tokenizer, TokenizerSpec};
/// let spec = TokenizerSpec {
///     model: "gpt2".into(),
///     pre: Some("gpt-2".into()),
///     tokens: ["a", "b", "c", "ab", "Ġ", "Ġc"].map(String::from).to_vec(),
///     merges: ["a b", "Ġ c"].map(String::from).to_vec(),
///     ..TokenizerSpec::default()
/// };
/// let tokenizer = Tokenizer::new(spec)?;
/// assert_eq!(tokenizer.encode("abba c", Special::AsText), [3, 1, 0, 5]);
/// # Ok::<(), fulmen_model::tokenizer::TokenizerError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerSpec {
    /// The tokenizer type: `gpt2` is byte-level BPE, `llama` is SentencePiece BPE, `gemma4` is BPE over
    /// characters.
    pub model: String,
    /// The name of the pre-tokenizer of byte-level BPE; `None` means `default`.
    pub pre: Option<String>,
    /// The tokens, by id.
    pub tokens: Vec<String>,
    /// The scores for SentencePiece. Empty, or one per token.
    pub scores: Vec<f32>,
    /// The token types. Empty, or one per token.
    pub types: Vec<TokenType>,
    /// The merges of BPE by descending priority, each two tokens separated by a space.
    pub merges: Vec<String>,
    /// Whether a pre-token that is in the vocabulary becomes that token regardless of the merges. Defaults to
    /// the pre-tokenizer's setting.
    pub ignore_merges: Option<bool>,
    /// The BOS token.
    pub bos: Option<u32>,
    /// The EOS token.
    pub eos: Option<u32>,
    /// The unknown token.
    pub unknown: Option<u32>,
    /// Whether BOS is added to prompts. Defaults to the setting of the tokenizer type.
    pub add_bos: Option<bool>,
    /// Whether EOS is added to prompts. Defaults to false.
    pub add_eos: Option<bool>,
    /// Where SentencePiece adds a space before text. Defaults to [`SpacePrefix::Always`].
    pub space_prefix: Option<SpacePrefix>,
    /// Whether text is normalized to Unicode NFC first.
    pub nfc: bool,
    /// End-of-generation tokens in addition to `eos` and those recognized by their text.
    pub ends: Vec<u32>,
    /// Tokens that absorb surrounding whitespace.
    pub strips: Vec<(u32, Strip)>,
}
