//! What a tokenizer is made of, wherever it came from.

/// What a token is. The numbers are those of GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// A piece of text.
    Normal,
    /// What stands for text that has no token.
    Unknown,
    /// A mark such as the begin of a text or the end of a turn. Never made from text unless asked, never shown.
    Control,
    /// A piece of text that is found before everything else is cut.
    UserDefined,
    /// A place in the vocabulary that was kept free.
    Unused,
    /// A byte, for text that has no token of its own: `<0x0A>`.
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

/// Whitespace that a special token takes away around itself when it is found in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strip {
    /// Before it.
    pub left: bool,
    /// Behind it.
    pub right: bool,
}

/// Where SentencePiece puts a space before text, so that the first word is spelled as others are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpacePrefix {
    /// Nowhere.
    Never,
    /// Before the whole text.
    First,
    /// Before the text and behind each special token.
    Always,
}

/// The parts of a tokenizer, as files give them. [`Tokenizer::new`](super::Tokenizer::new) checks them.
///
/// ```
/// use fulmen_model::tokenizer::{Special, Tokenizer, TokenizerParts};
/// let parts = TokenizerParts {
///     model: "gpt2".into(),
///     pre: Some("gpt-2".into()),
///     tokens: ["a", "b", "c", "ab", "Ġ", "Ġc"].map(String::from).to_vec(),
///     merges: ["a b", "Ġ c"].map(String::from).to_vec(),
///     ..TokenizerParts::default()
/// };
/// let tokenizer = Tokenizer::new(parts)?;
/// assert_eq!(tokenizer.encode("abba c", Special::AsText), [3, 1, 0, 5]);
/// # Ok::<(), fulmen_model::tokenizer::TokenizerError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenizerParts {
    /// The kind: `gpt2` is byte-level BPE, `llama` is SentencePiece's.
    pub model: String,
    /// The name of the pre-tokenizer of byte-level BPE; `default` if there is none.
    pub pre: Option<String>,
    /// The tokens, in the order of their ids.
    pub tokens: Vec<String>,
    /// Their scores, for SentencePiece. None at all, or one per token.
    pub scores: Vec<f32>,
    /// Their types. None at all, or one per token.
    pub types: Vec<TokenType>,
    /// The merges of byte-level BPE, first one first, each two tokens with a space between.
    pub merges: Vec<String>,
    /// Whether a piece that is a token is that token, whatever the merges say. As the pre-tokenizer says if not given.
    pub ignore_merges: Option<bool>,
    /// The token that a text begins with.
    pub bos: Option<u32>,
    /// The token that a text ends with.
    pub eos: Option<u32>,
    /// The token for what has none.
    pub unknown: Option<u32>,
    /// Whether a prompt gets [`TokenizerParts::bos`]. As the kind says if not given.
    pub add_bos: Option<bool>,
    /// Whether a prompt gets [`TokenizerParts::eos`]. It does not if not given.
    pub add_eos: Option<bool>,
    /// Where SentencePiece puts a space before text. [`SpacePrefix::Always`] if not given.
    pub space_prefix: Option<SpacePrefix>,
    /// Whether texts are put into Unicode's normal form C first.
    pub nfc: bool,
    /// Tokens that end a generation, beside [`TokenizerParts::eos`] and those whose text says so.
    pub ends: Vec<u32>,
    /// Tokens that take whitespace around them away.
    pub strips: Vec<(u32, Strip)>,
}
