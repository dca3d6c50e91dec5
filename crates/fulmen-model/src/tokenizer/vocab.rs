//! The vocabulary: the type and bytes of each token, and the token of given bytes.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{TokenType, TokenizerError, bytes, error::reserve};

/// How the text of a token encodes its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One character per byte: `Ġthe`.
    Bytes,
    /// `▁` for a space: `▁the`.
    Sentence,
}

/// SentencePiece's space character.
pub(super) const SPACE: char = '▁';

/// Tokens that end a turn or a text in any vocabulary. Some files give them the wrong type; they are always
/// treated as control tokens, so they cannot be produced from text.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
];
/// Tokens that end a text only if the file marks them as control tokens: otherwise they may be HTML or prose.
/// `<|tool_response>` ends the turn of Gemma 4 behind its calls.
const CONTROL_ENDS: [&str; 5] = ["</s>", "<EOT>", "<eos>", "<turn|>", "<|tool_response>"];

/// The ends of an answer in the harmony format of gpt-oss, if a vocabulary has both; there `<|end|>` ends one
/// of several messages.
const HARMONY_ENDS: [&str; 2] = ["<|return|>", "<|call|>"];
const HARMONY_MESSAGE_END: &str = "<|end|>";

#[derive(Debug)]
pub(super) struct Vocab {
    texts: Vec<String>,
    types: Vec<TokenType>,
    /// The concatenated bytes of all tokens.
    shown: Vec<u8>,
    /// The end of each token's bytes in `shown`.
    shown_ends: Vec<usize>,
    /// Tokens that text may become, by their bytes.
    by_bytes: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The length of the longest key of `by_bytes`.
    longest: usize,
}

impl Vocab {
    pub(super) fn new(
        texts: Vec<String>,
        mut types: Vec<TokenType>,
        spelling: Spelling,
    ) -> Result<Vocab, TokenizerError> {
        let count = texts.len();
        if count == 0 {
            return Err(TokenizerError::Empty);
        }
        // The last id is reserved: it means "no token".
        if u32::try_from(count).is_err() {
            return Err(TokenizerError::TooMany { count });
        }
        if types.is_empty() {
            reserve(types.try_reserve_exact(count), "the token types", count)?;
            types.resize(count, TokenType::Normal);
        }
        if types.len() != count {
            return Err(TokenizerError::Count { what: "token types", count: types.len(), tokens: count });
        }
        let mut vocab = Vocab {
            shown: Vec::new(),
            shown_ends: Vec::new(),
            by_bytes: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            longest: 0,
            texts,
            types,
        };
        // Enough for everything that is added: no token is longer than its text.
        let bytes = vocab.texts.iter().map(String::len).fold(0, usize::saturating_add);
        reserve(vocab.shown.try_reserve(bytes), "the bytes of the tokens", bytes)?;
        reserve(vocab.shown_ends.try_reserve(count), "the tokens", count)?;
        // An empty table never moves its items, so the hash of one is not asked for.
        reserve(vocab.by_bytes.try_reserve(count, |_| 0), "the tokens", count)?;
        vocab.check_duplicates()?;
        for id in 0..count {
            vocab.add(id, spelling)?;
        }
        Ok(vocab)
    }

    fn check_duplicates(&self) -> Result<(), TokenizerError> {
        let mut seen: HashTable<u32> = HashTable::new();
        reserve(seen.try_reserve(self.texts.len(), |_| 0), "the tokens", self.texts.len())?;
        // Empty tokens are unused entries; there may be many.
        for (id, text) in (0u32..).zip(&self.texts).filter(|(_, text)| !text.is_empty()) {
            let hash = self.hasher.hash_one(text.as_bytes());
            if let Some(&first) = seen.find(hash, |&other| self.text(other) == text) {
                return Err(TokenizerError::Duplicate { first, second: id, text: text.clone() });
            }
            seen.insert_unique(hash, id, |&other| self.hasher.hash_one(self.text(other).as_bytes()));
        }
        Ok(())
    }

    /// Decodes the bytes of one token and adds it to the lookup table.
    fn add(&mut self, index: usize, spelling: Spelling) -> Result<(), TokenizerError> {
        let id = u32::try_from(index).expect("the number of tokens was checked");
        let text = &self.texts[index];
        let kind = &mut self.types[index];
        if ENDS.contains(&text.as_str()) {
            *kind = TokenType::Control;
        }
        let start = self.shown.len();
        let mut findable = false;
        match kind {
            TokenType::Normal | TokenType::Unused => match spelling {
                // Text outside the byte alphabet is printed as is; no text encodes to it.
                Spelling::Bytes => {
                    findable = bytes::decode_to(text, &mut self.shown);
                    if !findable {
                        self.shown.extend_from_slice(text.as_bytes());
                    }
                }
                Spelling::Sentence => {
                    for (number, part) in text.split(SPACE).enumerate() {
                        self.shown.extend_from_slice(if number > 0 { b" " } else { b"" });
                        self.shown.extend_from_slice(part.as_bytes());
                    }
                    findable = true;
                }
            },
            TokenType::Byte => match byte_of(text) {
                Some(byte) => self.shown.push(byte),
                None => return Err(TokenizerError::ByteToken { id, text: text.clone() }),
            },
            TokenType::Control | TokenType::Unknown | TokenType::UserDefined => {
                self.shown.extend_from_slice(text.as_bytes());
            }
        }
        self.shown_ends.push(self.shown.len());
        if findable && self.shown.len() > start {
            self.longest = self.longest.max(self.shown.len() - start);
            let hash = self.hasher.hash_one(self.shown(id));
            // Two SentencePiece tokens may have the same bytes, one with `▁` and one with a space; the first
            // one wins.
            if self.by_bytes.find(hash, |&other| self.shown(other) == self.shown(id)).is_none() {
                let Vocab { by_bytes, hasher, shown, shown_ends, .. } = self;
                by_bytes.insert_unique(hash, id, |&other| hasher.hash_one(slice(shown, shown_ends, other)));
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// All ids with their types.
    pub(super) fn types(&self) -> impl Iterator<Item = (u32, TokenType)> {
        (0u32..).zip(self.types.iter().copied())
    }

    /// Whether the id is in the vocabulary.
    pub(super) fn check(&self, id: u32) -> Result<usize, TokenizerError> {
        let known = usize::try_from(id).ok().filter(|&index| index < self.texts.len());
        known.ok_or(TokenizerError::NoSuchToken { id, tokens: self.texts.len() })
    }

    /// The text of a token, as stored in the file. The id must be in the vocabulary.
    pub(super) fn text(&self, id: u32) -> &str {
        &self.texts[id as usize]
    }

    /// The type of a token. The id must be in the vocabulary.
    pub(super) fn kind(&self, id: u32) -> TokenType {
        self.types[id as usize]
    }

    /// The bytes of a token. The id must be in the vocabulary.
    pub(super) fn shown(&self, id: u32) -> &[u8] {
        slice(&self.shown, &self.shown_ends, id)
    }

    /// The token with exactly these bytes, among those that text may become.
    #[inline]
    pub(super) fn find(&self, bytes: &[u8]) -> Option<u32> {
        if bytes.len() > self.longest {
            return None;
        }
        self.by_bytes.find(self.hasher.hash_one(bytes), |&id| self.shown(id) == bytes).copied()
    }

    /// The bytes of the tokens that text never becomes.
    pub(super) fn specials(&self) -> impl Iterator<Item = &[u8]> {
        let special = |kind| !matches!(kind, TokenType::Normal | TokenType::Unused);
        self.types().filter(move |&(_, kind)| special(kind)).map(|(id, _)| self.shown(id))
    }

    /// The bytes of the tokens that text may become.
    pub(super) fn findable(&self) -> impl Iterator<Item = &[u8]> {
        self.by_bytes.iter().map(|&id| self.shown(id))
    }

    /// The end-of-generation tokens recognized by their text, and tokens that end a message but no answer,
    /// whatever the file says.
    pub(super) fn ends(&self) -> (Vec<u32>, Vec<u32>) {
        let control = |text: &str| {
            let known = self.types().filter(|&(_, kind)| kind == TokenType::Control);
            known.map(|(id, _)| id).filter(|&id| self.text(id) == text).collect::<Vec<u32>>()
        };
        let ends = |text: &str| ENDS.contains(&text) || CONTROL_ENDS.contains(&text);
        let known = self.types().filter(|&(id, kind)| kind == TokenType::Control && ends(self.text(id)));
        let mut found: Vec<u32> = known.map(|(id, _)| id).collect();
        let harmony = HARMONY_ENDS.map(control);
        if harmony.iter().any(Vec::is_empty) {
            return (found, Vec::new());
        }
        found.extend(harmony.into_iter().flatten());
        (found, control(HARMONY_MESSAGE_END))
    }
}

fn slice<'a>(shown: &'a [u8], ends: &[usize], id: u32) -> &'a [u8] {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] };
    &shown[start..ends[id]]
}

/// The byte of `<0xNN>`.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let well_formed = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if well_formed { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(texts: &[&str], types: &[TokenType], spelling: Spelling) -> Result<Vocab, TokenizerError> {
        Vocab::new(texts.iter().map(|text| text.to_string()).collect(), types.to_vec(), spelling)
    }

    #[test]
    fn tokens_show_what_they_stand_for() {
        use TokenType::*;
        let texts = ["Ġthe", "漢", "<|x|>", "  ", "a"];
        let vocab = make(&texts, &[Normal, Normal, Control, UserDefined, Normal], Spelling::Bytes).unwrap();
        let shown: Vec<&[u8]> = (0..5).map(|id| vocab.shown(id)).collect();
        assert_eq!(shown, [b" the", "漢".as_bytes(), b"<|x|>", b"  ", b"a"]);
        assert_eq!(vocab.find(b" the"), Some(0));
        assert_eq!(vocab.find("漢".as_bytes()), None, "its bytes are spelled with other characters");
        assert_eq!((vocab.find(b"<|x|>"), vocab.find(b"  ")), (None, None), "not made from text");
        let vocab =
            make(&["▁a▁b", "<0x0A>", "<0x0A>x"], &[Normal, Byte, Normal], Spelling::Sentence).unwrap();
        assert_eq!((vocab.shown(0), vocab.shown(1)), (&b" a b"[..], &b"\n"[..]));
        assert_eq!((vocab.find(b" a b"), vocab.find(b"\n")), (Some(0), None));
    }

    #[test]
    fn malformed_vocabularies_are_refused() {
        let message = |result: Result<Vocab, TokenizerError>| result.unwrap_err().to_string();
        assert_eq!(message(make(&[], &[], Spelling::Bytes)), "the vocabulary is empty");
        assert_eq!(
            message(make(&["a", "b"], &[TokenType::Normal], Spelling::Bytes)),
            "the number of token types must be 2, the number of tokens, is 1"
        );
        assert_eq!(message(make(&["a", "b", "a"], &[], Spelling::Bytes)), r#"tokens 0 and 2 are both "a""#);
        for text in ["<0x0>", "<0x+A>", "<0xAAA>", "0x0A", "", "<0xé>"] {
            let error = make(&[text], &[TokenType::Byte], Spelling::Sentence).unwrap_err();
            assert_eq!(error, TokenizerError::ByteToken { id: 0, text: text.into() });
        }
        assert!(make(&["", "", "a"], &[], Spelling::Bytes).is_ok(), "unused entries");
    }

    #[test]
    fn well_known_ends_are_control_tokens() {
        use TokenType::*;
        let texts = ["<|im_end|>", "</s>", "</s>x", "<|eot_id|>", "<EOT>"];
        let vocab = make(&texts, &[Normal, Normal, Normal, UserDefined, Control], Spelling::Bytes).unwrap();
        assert_eq!(vocab.ends(), (vec![0, 3, 4], vec![]));
        assert_eq!(vocab.kind(0), Control);
        assert_eq!(vocab.find(b"<|im_end|>"), None);
    }

    #[test]
    fn a_message_of_several_does_not_end_an_answer() {
        use TokenType::*;
        let texts = ["<|end|>", "<|return|>", "<|call|>"];
        let vocab = make(&texts, &[Control; 3], Spelling::Bytes).unwrap();
        assert_eq!(vocab.ends(), (vec![0, 1, 2], vec![0]));
        let vocab = make(&texts[..2], &[Control; 2], Spelling::Bytes).unwrap();
        assert_eq!(vocab.ends(), (vec![0], vec![]));
    }
}
