//! BPE: a pre-token starts as its bytes or, in Gemma 4, as its characters; adjacent symbols are merged by
//! rank (the earliest merge of the list first), the leftmost of equal ranks first.

use std::{cmp::Reverse, collections::BinaryHeap};

use hashbrown::{HashMap, HashSet};

use super::{
    TokenType, TokenizerError, bytes,
    error::{no_memory, reserve},
    vocab::{SPACE, Vocab},
    whole::Whole,
};
use crate::memory;

/// No token: a byte missing from the vocabulary. It merges with nothing and is omitted from the result.
const NONE: u32 = u32::MAX;
/// The first symbol of the characters that have no token and that no merge takes: the character's number is
/// added. They merge with nothing, and their bytes become tokens.
const CHARS: u32 = NONE - 0x11_0000;
/// No merge.
const NEVER: u32 = u32::MAX;
/// Pre-tokens of up to this many bytes are merged by scanning for the best pair each time, which is quadratic
/// but faster than a heap at this size.
const SHORT: usize = 64;

/// What a pre-token starts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Its bytes. Tokens spell them with one character each.
    Bytes,
    /// Its characters. Those without a token become byte tokens, `<0xNN>`, and a pre-token of line breaks
    /// that is in the vocabulary becomes that token regardless of the merges.
    Chars,
}

#[derive(Debug)]
pub(super) struct Bpe {
    alphabet: Alphabet,
    /// The symbol of each byte: a token, `NONE`, or a symbol without a token.
    bytes: Box<[u32; 256]>,
    /// The symbols of the characters that merges take and that have no token.
    chars: HashMap<char, u32>,
    /// Rank and result of each mergeable pair of symbols.
    merges: HashMap<(u32, u32), (u32, u32)>,
    ignore_merges: bool,
    whole: Whole,
    /// The bytes of the symbols that merges produce or take but that are no tokens. Their ids follow those of
    /// the tokens.
    tokenless: Vec<Vec<u8>>,
    /// Number of tokens.
    tokens: u32,
    /// Number of merges whose result is no token.
    dead_ends: usize,
}

/// Buffers reused across pre-tokens.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, usize)>>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    /// The rank of the merge with the next symbol.
    rank: u32,
    prev: usize,
    next: usize,
}

impl Bpe {
    /// A merge may take or produce a symbol that is not in the vocabulary, as in vocabularies that were cut
    /// down. As in llama.cpp, such a merge is applied like any other; where the symbol is left in the end,
    /// its bytes become tokens one by one; with byte-level BPE only those of printable ASCII characters.
    pub(super) fn new(
        vocab: &Vocab,
        merges: &[String],
        alphabet: Alphabet,
        ignore_merges: bool,
    ) -> Result<Bpe, TokenizerError> {
        let tokens =
            u32::try_from(vocab.len()).map_err(|_| TokenizerError::TooMany { count: vocab.len() })?;
        let mut bpe = Bpe {
            alphabet,
            bytes: byte_symbols(vocab, alphabet),
            chars: HashMap::new(),
            merges: HashMap::new(),
            ignore_merges,
            whole: Whole::new(vocab.len())?,
            tokenless: Vec::new(),
            tokens,
            dead_ends: 0,
        };
        reserve(bpe.merges.try_reserve(merges.len()), "the merges", merges.len())?;
        let specials: HashSet<&[u8]> = vocab.specials().collect();
        let mut symbols = Symbols { vocab, bpe: &mut bpe, ids: HashMap::new() };
        let mut joined = Vec::new();
        for (index, text) in merges.iter().enumerate() {
            let malformed = || TokenizerError::Merge { index, text: text.clone() };
            joined.clear();
            // The separator comes after the first character, which may itself be a space.
            let (left, right) = split_merge(text).ok_or_else(malformed)?;
            let rank = u32::try_from(index).ok().filter(|&rank| rank != NEVER);
            let rank = rank.ok_or(TokenizerError::TooMany { count: merges.len() })?;
            reserve(joined.try_reserve(text.len()), "the merges", merges.len())?;
            let mut decode = |part: &str| match decode_to(part, alphabet, &mut joined) {
                true => Ok(joined.len()),
                false => {
                    Err(TokenizerError::MergeToken { index, text: text.clone(), missing: part.to_owned() })
                }
            };
            let (middle, _) = (decode(left)?, decode(right)?);
            // A merge must not produce a token that text may not become.
            if vocab.find(&joined).is_none() && specials.contains(joined.as_slice()) {
                continue;
            }
            let pair = (symbols.id(&joined[..middle])?, symbols.id(&joined[middle..])?);
            let result = symbols.id(&joined)?;
            symbols.bpe.dead_ends += usize::from(result >= tokens);
            // A repeated pair has a lower priority and never applies.
            symbols.bpe.merges.entry(pair).or_insert((rank, result));
        }
        Ok(bpe)
    }

    /// Number of merges whose result is not in the vocabulary.
    pub(super) fn dead_ends(&self) -> usize {
        self.dead_ends
    }

    /// Appends the tokens of a symbol.
    fn push(&self, id: u32, out: &mut Vec<u32>) {
        if id < self.tokens {
            out.push(id);
        } else if let Some(c) = id.checked_sub(CHARS).and_then(char::from_u32) {
            let mut bytes = [0; 4];
            let tokens = c.encode_utf8(&mut bytes).bytes().map(|byte| self.bytes[usize::from(byte)]);
            out.extend(tokens.filter(|&token| token < self.tokens));
        } else if let Some(bytes) = self.tokenless.get((id - self.tokens) as usize) {
            // llama.cpp looks up the bytes of the symbol's text. With byte-level BPE, those that are not
            // printable are characters of two bytes there, which have no tokens.
            let found = |byte: &&u8| self.alphabet == Alphabet::Chars || byte.is_ascii_graphic();
            let tokens = bytes.iter().filter(found).map(|&byte| self.bytes[usize::from(byte)]);
            out.extend(tokens.filter(|&token| token < self.tokens));
        }
    }

    /// The bytes that have no token: text with them cannot be encoded completely.
    pub(super) fn missing(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|&byte| self.bytes[usize::from(byte)] >= self.tokens).collect()
    }

    /// Appends the tokens of one pre-token.
    pub(super) fn encode(&self, vocab: &Vocab, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let token = vocab.find(piece.as_bytes());
        let ignore_merges = self.ignore_merges
            || (self.alphabet == Alphabet::Chars && piece.bytes().all(|byte| byte == b'\n'));
        if let Some(id) = token.filter(|&id| ignore_merges || self.whole.is_sure(id)) {
            out.push(id);
            return;
        }
        let start = out.len();
        self.start(vocab, piece, &mut scratch.symbols);
        if scratch.symbols.len() <= SHORT {
            self.merge_short(scratch, out);
        } else {
            self.merge_long(scratch, out);
        }
        if let Some(id) = token {
            self.whole.learn(id, &out[start..]);
        }
    }

    /// The symbols that a pre-token starts as.
    fn start(&self, vocab: &Vocab, piece: &str, symbols: &mut Vec<Symbol>) {
        let symbol = |id: u32| Symbol { id, rank: NEVER, prev: 0, next: 0 };
        symbols.clear();
        match self.alphabet {
            Alphabet::Bytes => {
                symbols.extend(piece.bytes().map(|byte| symbol(self.bytes[usize::from(byte)])))
            }
            Alphabet::Chars => symbols.extend(piece.chars().map(|c| {
                let token = vocab.find(c.encode_utf8(&mut [0; 4]).as_bytes());
                symbol(token.or_else(|| self.chars.get(&c).copied()).unwrap_or(CHARS + u32::from(c)))
            })),
        }
    }

    #[inline]
    fn rank(&self, left: u32, right: u32) -> u32 {
        self.merges.get(&(left, right)).map_or(NEVER, |merge| merge.0)
    }

    /// Merges by scanning all pairs each time.
    fn merge_short(&self, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let symbols = &mut scratch.symbols;
        for i in 1..symbols.len() {
            symbols[i - 1].rank = self.rank(symbols[i - 1].id, symbols[i].id);
        }
        loop {
            let best = symbols.iter().enumerate().min_by_key(|(_, symbol)| symbol.rank);
            let Some((at, &Symbol { id, rank, .. })) = best.filter(|(_, symbol)| symbol.rank != NEVER) else {
                break;
            };
            debug_assert!(rank != NEVER);
            symbols[at].id = self.merges[&(id, symbols[at + 1].id)].1;
            symbols.remove(at + 1);
            symbols[at].rank = symbols.get(at + 1).map_or(NEVER, |next| self.rank(symbols[at].id, next.id));
            if at > 0 {
                symbols[at - 1].rank = self.rank(symbols[at - 1].id, symbols[at].id);
            }
        }
        symbols.iter().for_each(|symbol| self.push(symbol.id, out));
    }

    /// Merges with a heap: O(n log n).
    fn merge_long(&self, scratch: &mut Scratch, out: &mut Vec<u32>) {
        const END: usize = usize::MAX;
        let Scratch { symbols, heap } = scratch;
        heap.clear();
        let last = symbols.len().saturating_sub(1);
        for (i, symbol) in symbols.iter_mut().enumerate() {
            symbol.prev = i.checked_sub(1).unwrap_or(END);
            symbol.next = if i == last { END } else { i + 1 };
        }
        // Each symbol stores its rank with the next one, so stale heap entries are recognized by a different
        // rank.
        let look = |symbols: &mut [Symbol], heap: &mut BinaryHeap<_>, at: usize| {
            let next = symbols[at].next;
            let rank = if next == END { NEVER } else { self.rank(symbols[at].id, symbols[next].id) };
            symbols[at].rank = rank;
            if rank != NEVER {
                heap.push(Reverse((rank, at)));
            }
        };
        for at in 0..symbols.len() {
            look(symbols, heap, at);
        }
        while let Some(Reverse((rank, at))) = heap.pop() {
            let Symbol { id, rank: now, prev, next } = symbols[at];
            if now != rank {
                continue;
            }
            symbols[at].id = self.merges[&(id, symbols[next].id)].1;
            let after = symbols[next].next;
            symbols[next].rank = NEVER;
            symbols[at].next = after;
            if after != END {
                symbols[after].prev = at;
            }
            look(symbols, heap, at);
            if prev != END {
                look(symbols, heap, prev);
            }
        }
        let mut at = 0;
        while at != END {
            self.push(symbols[at].id, out);
            at = symbols[at].next;
        }
    }
}

/// The ids of symbols while the merges are read.
struct Symbols<'a> {
    vocab: &'a Vocab,
    bpe: &'a mut Bpe,
    /// Of those without a token.
    ids: HashMap<Vec<u8>, u32>,
}

impl Symbols<'_> {
    /// The token with these bytes, or an id beyond all tokens.
    fn id(&mut self, bytes: &[u8]) -> Result<u32, TokenizerError> {
        if let Some(id) = self.vocab.find(bytes).or_else(|| self.ids.get(bytes).copied()) {
            return Ok(id);
        }
        let Bpe { alphabet, tokenless, tokens, bytes: of_bytes, chars, .. } = &mut *self.bpe;
        let count = self.vocab.len().saturating_add(tokenless.len());
        let id = u32::try_from(count).ok().filter(|&id| id < CHARS && id >= *tokens);
        let id = id.ok_or(TokenizerError::TooMany { count })?;
        reserve(tokenless.try_reserve(1), "the symbols of merges", count)?;
        reserve(self.ids.try_reserve(1), "the symbols of merges", count)?;
        let full = |_| no_memory("the symbols of merges", count);
        tokenless.push(memory::copy(bytes).map_err(full)?);
        self.ids.insert(memory::copy(bytes).map_err(full)?, id);
        match (alphabet, bytes) {
            (Alphabet::Bytes, &[byte]) => of_bytes[usize::from(byte)] = id,
            (Alphabet::Bytes, _) => {}
            (Alphabet::Chars, bytes) => {
                let mut text = std::str::from_utf8(bytes).unwrap_or_default().chars();
                if let (Some(c), None) = (text.next(), text.next()) {
                    reserve(chars.try_reserve(1), "the symbols of merges", count)?;
                    chars.insert(c, id);
                }
            }
        }
        Ok(id)
    }
}

/// The token of each byte, or `NONE`.
fn byte_symbols(vocab: &Vocab, alphabet: Alphabet) -> Box<[u32; 256]> {
    match alphabet {
        Alphabet::Bytes => {
            let byte = |byte: u8| vocab.find(&[byte]).unwrap_or(NONE);
            Box::new(std::array::from_fn(|i| byte(u8::try_from(i).unwrap_or(0))))
        }
        Alphabet::Chars => {
            let mut bytes = Box::new([NONE; 256]);
            for (id, _) in vocab.types().filter(|&(_, kind)| kind == TokenType::Byte) {
                if let &[byte] = vocab.shown(id) {
                    bytes[usize::from(byte)] = bytes[usize::from(byte)].min(id);
                }
            }
            bytes
        }
    }
}

/// Appends the bytes that part of a merge stands for; false if it stands for none.
fn decode_to(part: &str, alphabet: Alphabet, out: &mut Vec<u8>) -> bool {
    match alphabet {
        Alphabet::Bytes => bytes::decode_to(part, out),
        Alphabet::Chars => {
            for c in part.chars() {
                let c = if c == SPACE { ' ' } else { c };
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            true
        }
    }
}

/// The two tokens of a merge.
fn split_merge(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?.len_utf8();
    let space = first + text[first..].find(' ')?;
    let (left, right) = (&text[..space], &text[space + 1..]);
    (!right.is_empty()).then_some((left, right))
}

#[cfg(test)]
mod tests {
    use super::super::{TokenType, vocab::Spelling};
    use super::*;

    /// A vocabulary of all bytes and the results of these merges.
    fn make(merges: &[&str]) -> (Vocab, Bpe) {
        let mut tokens: Vec<String> = (0..=255u8).map(|byte| bytes::encode(&[byte])).collect();
        for merge in merges {
            let token = merge.replace(' ', "");
            if !tokens.contains(&token) {
                tokens.push(token);
            }
        }
        let vocab = Vocab::new(tokens, Vec::new(), Spelling::Bytes).unwrap();
        let merges: Vec<String> = merges.iter().map(|merge| merge.to_string()).collect();
        let bpe = Bpe::new(&vocab, &merges, Alphabet::Bytes, false).unwrap();
        (vocab, bpe)
    }

    fn encode((vocab, bpe): &(Vocab, Bpe), text: &str) -> Vec<String> {
        let mut out = Vec::new();
        bpe.encode(vocab, text, &mut Scratch::default(), &mut out);
        out.into_iter().map(|id| vocab.text(id).to_owned()).collect()
    }

    #[test]
    fn earlier_merges_come_first() {
        let bpe = make(&["b c", "a b", "a bc"]);
        assert_eq!(encode(&bpe, "abc"), ["abc"]);
        assert_eq!(encode(&bpe, "ab"), ["ab"]);
        assert_eq!(encode(&bpe, "abab"), ["ab", "ab"]);
        let bpe = make(&["a a"]);
        assert_eq!(encode(&bpe, "aaaaa"), ["aa", "aa", "a"], "equal ones from the left");
    }

    #[test]
    fn a_token_that_no_merges_lead_to_is_not_taken() {
        // abc would need the merges ab+c or a+bc; b+c comes first and a+bc does not exist.
        let bpe = make(&["b c", "a b", "ab c"]);
        for _ in 0..2 {
            assert_eq!(encode(&bpe, "abc"), ["a", "bc"], "the second time as the first");
        }
        let ignoring = Bpe::new(&bpe.0, &[], Alphabet::Bytes, true).unwrap();
        assert_eq!(encode(&(bpe.0, ignoring), "abc"), ["abc"]);
    }

    #[test]
    fn bytes_without_a_token_are_left_out() {
        let vocab =
            Vocab::new(["a", "b", "ab"].map(String::from).to_vec(), Vec::new(), Spelling::Bytes).unwrap();
        let bpe = Bpe::new(&vocab, &["a b".into()], Alphabet::Bytes, false).unwrap();
        assert_eq!(bpe.missing().len(), 254);
        assert_eq!(encode(&(vocab, bpe), "axb!ab"), ["a", "b", "ab"]);
    }

    #[test]
    fn malformed_merges_are_refused() {
        let texts = ["a", "b", "ab", "Ġ", "<|x|>"].map(String::from).to_vec();
        let mut types = vec![TokenType::Normal; 5];
        types[4] = TokenType::Control;
        let vocab = Vocab::new(texts, types, Spelling::Bytes).unwrap();
        let message =
            |merge: &str| Bpe::new(&vocab, &[merge.into()], Alphabet::Bytes, false).unwrap_err().to_string();
        for merge in ["", "a", "ab", "a ", " a", "é"] {
            assert_eq!(
                message(merge),
                format!("merge 0 must be two tokens separated by a space, is {merge:?}")
            );
        }
        let needs = |merge: &str, missing: &str| {
            format!("merge 0 ({merge:?}) needs the token {missing:?}, which is not in the vocabulary")
        };
        assert_eq!(message("a b b"), needs("a b b", "b b"), "a space is spelled otherwise");
        assert_eq!(message("  b"), needs("  b", " "));
        assert!(Bpe::new(&vocab, &["a b".into(), "a b".into()], Alphabet::Bytes, false).is_ok());
    }

    #[test]
    fn merges_without_a_token_lead_on_or_fall_apart() {
        let texts = ["a", "b", "c", "bc", "abd", "Ġ", "<|x|>"].map(String::from).to_vec();
        let mut types = vec![TokenType::Normal; 7];
        types[6] = TokenType::Control;
        let vocab = Vocab::new(texts, types, Spelling::Bytes).unwrap();
        // Neither ab, d, cd nor Ġa is a token.
        let merges = ["a b", "b c", "ab d", "c d", "Ġ a", "<|x|> a"].map(String::from);
        let bpe = Bpe::new(&vocab, &merges, Alphabet::Bytes, false).unwrap();
        assert_eq!(bpe.dead_ends(), 4);
        assert_eq!(bpe.missing().len(), 252, "a byte of a merge is missing all the same");
        let bpe = (vocab, bpe);
        assert_eq!(encode(&bpe, "abd"), ["abd"], "through ab");
        assert_eq!(encode(&bpe, "abc"), ["a", "b", "c"], "ab comes first and falls apart");
        assert_eq!(encode(&bpe, "bcd"), ["bc"], "d has no token");
        assert_eq!(encode(&bpe, "cd a"), ["c", "a"], "a space that falls apart is lost");
        assert_eq!(encode(&bpe, "<|x|>a"), ["a"], "text is no control token");
        let long = "abd".repeat(100) + "abc";
        let expected = [vec!["abd"; 100], vec!["a", "b", "c"]].concat();
        assert_eq!(encode(&bpe, &long), expected);
    }

    #[test]
    fn merges_to_control_tokens_are_left_out() {
        let texts = ["<", ">", "<>"].map(String::from).to_vec();
        let types = vec![TokenType::Normal, TokenType::Normal, TokenType::Control];
        let vocab = Vocab::new(texts, types, Spelling::Bytes).unwrap();
        for ignore in [false, true] {
            let bpe = Bpe::new(&vocab, &["< >".into()], Alphabet::Bytes, ignore).unwrap();
            let mut out = Vec::new();
            bpe.encode(&vocab, "<>", &mut Scratch::default(), &mut out);
            assert_eq!(out, [0, 1]);
        }
    }

    #[test]
    fn characters_without_a_token_become_byte_tokens() {
        use TokenType::{Byte, Normal};
        let texts =
            ["▁", "a", "▁a", "é", "<0xC3>", "<0xA9>", "<0xE6>", "<0xBC>", "<0xA2>", "\n", "\n\n", "aü"];
        let types = [Normal, Normal, Normal, Normal, Byte, Byte, Byte, Byte, Byte, Normal, Normal, Normal];
        let vocab = Vocab::new(texts.map(String::from).to_vec(), types.to_vec(), Spelling::Sentence).unwrap();
        // ü has no token, but a merge takes it.
        let bpe = Bpe::new(&vocab, &["▁ a".into(), "a ü".into()], Alphabet::Chars, false).unwrap();
        assert_eq!(bpe.dead_ends(), 0);
        let bpe = (vocab, bpe);
        assert_eq!(encode(&bpe, " aé漢"), ["▁a", "é", "<0xE6>", "<0xBC>", "<0xA2>"]);
        assert_eq!(encode(&bpe, "aü"), ["aü"]);
        assert_eq!(encode(&bpe, "ü"), ["<0xC3>", "<0xBC>"]);
        assert_eq!(encode(&bpe, "\n\n"), ["\n\n"], "no merges lead to it");
    }

    proptest::proptest! {
        /// Both ways of merging produce the same tokens.
        #[test]
        fn short_and_long_are_the_same(
            pairs in proptest::collection::vec(("[abc]{1,3}", "[abc]{1,3}"), 0..12),
            text in "[abcd]{1,80}",
        ) {
            // Some operands and results are no tokens.
            let mut tokens: Vec<String> = (0..=255u8).map(|byte| bytes::encode(&[byte])).collect();
            let mut merges = Vec::new();
            for (at, (left, right)) in pairs.into_iter().enumerate() {
                for token in [left.clone(), right.clone(), format!("{left}{right}")] {
                    if !tokens.contains(&token) && at % 3 != 1 {
                        tokens.push(token);
                    }
                }
                merges.push(format!("{left} {right}"));
            }
            let vocab = Vocab::new(tokens, Vec::new(), Spelling::Bytes).unwrap();
            let bpe = Bpe::new(&vocab, &merges, Alphabet::Bytes, false).unwrap();
            let (mut short, mut long, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
            bpe.start(&vocab, &text, &mut scratch.symbols);
            bpe.merge_short(&mut scratch, &mut short);
            bpe.start(&vocab, &text, &mut scratch.symbols);
            bpe.merge_long(&mut scratch, &mut long);
            proptest::prop_assert_eq!(&short, &long);
            proptest::prop_assert_eq!(short, plain(&vocab, &merges, &text));
        }
    }

    /// Textbook BPE: apply the first merge of the list that matches, at its leftmost position, until none
    /// matches.
    fn plain(vocab: &Vocab, merges: &[String], text: &str) -> Vec<u32> {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        'again: loop {
            for merge in merges {
                let (left, right) = merge.split_once(' ').unwrap();
                for i in 1..parts.len() {
                    if parts[i - 1] == left && parts[i] == right {
                        let right = parts.remove(i);
                        parts[i - 1].push_str(&right);
                        continue 'again;
                    }
                }
            }
            let tokens = parts.iter().flat_map(|part| match vocab.find(part.as_bytes()) {
                Some(id) => vec![id],
                None => part.bytes().map(|byte| vocab.find(&[byte]).unwrap()).collect(),
            });
            return tokens.collect();
        }
    }
}
