//! Byte-level BPE: a pre-token starts as its bytes; adjacent symbols are merged by rank (the earliest merge
//! of the list first), the leftmost of equal ranks first.

use std::{cmp::Reverse, collections::BinaryHeap};

use hashbrown::{HashMap, HashSet};

use super::{
    TokenizerError, bytes,
    error::{no_memory, reserve},
    vocab::Vocab,
    whole::Whole,
};
use crate::memory;

/// No token: a byte missing from the vocabulary. It merges with nothing and is omitted from the result.
const NONE: u32 = u32::MAX;
/// No merge.
const NEVER: u32 = u32::MAX;
/// Pre-tokens of up to this many bytes are merged by scanning for the best pair each time, which is quadratic
/// but faster than a heap at this size.
const SHORT: usize = 64;

#[derive(Debug)]
pub(super) struct Bpe {
    /// The symbol of each byte: a token, `NONE`, or a symbol without a token.
    bytes: Box<[u32; 256]>,
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
    /// its printable ASCII characters become tokens one by one, and its other bytes are omitted.
    pub(super) fn new(vocab: &Vocab, merges: &[String], ignore_merges: bool) -> Result<Bpe, TokenizerError> {
        let tokens =
            u32::try_from(vocab.len()).map_err(|_| TokenizerError::TooMany { count: vocab.len() })?;
        let byte = |byte: u8| vocab.find(&[byte]).unwrap_or(NONE);
        let mut bpe = Bpe {
            bytes: Box::new(std::array::from_fn(|i| byte(u8::try_from(i).unwrap_or(0)))),
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
            let mut decode = |part: &str| match bytes::decode_to(part, &mut joined) {
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
        } else if let Some(bytes) = self.tokenless.get((id - self.tokens) as usize) {
            // llama.cpp looks up the bytes of the symbol's text, in which other bytes are characters of two.
            let printable = bytes.iter().filter(|byte| byte.is_ascii_graphic());
            let tokens = printable.map(|&byte| self.bytes[usize::from(byte)]);
            out.extend(tokens.filter(|&token| token < self.tokens));
        }
    }

    /// The bytes that have no token: text with them cannot be encoded completely.
    pub(super) fn missing(&self) -> Vec<u8> {
        (0..=u8::MAX).filter(|&byte| self.bytes[usize::from(byte)] >= self.tokens).collect()
    }

    /// Appends the tokens of one pre-token.
    pub(super) fn encode(&self, vocab: &Vocab, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let token = vocab.find(piece);
        if let Some(id) = token.filter(|&id| self.ignore_merges || self.whole.is_sure(id)) {
            out.push(id);
            return;
        }
        let start = out.len();
        if piece.len() <= SHORT {
            self.merge_short(piece, scratch, out);
        } else {
            self.merge_long(piece, scratch, out);
        }
        if let Some(id) = token {
            self.whole.learn(id, &out[start..]);
        }
    }

    #[inline]
    fn rank(&self, left: u32, right: u32) -> u32 {
        self.merges.get(&(left, right)).map_or(NEVER, |merge| merge.0)
    }

    /// Merges by scanning all pairs each time.
    fn merge_short(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        let symbols = &mut scratch.symbols;
        symbols.clear();
        let symbol = |&byte: &u8| Symbol { id: self.bytes[usize::from(byte)], rank: NEVER, prev: 0, next: 0 };
        symbols.extend(piece.iter().map(symbol));
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
    fn merge_long(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        const END: usize = usize::MAX;
        let Scratch { symbols, heap } = scratch;
        symbols.clear();
        heap.clear();
        let last = piece.len() - 1;
        symbols.extend(piece.iter().enumerate().map(|(i, &byte)| Symbol {
            id: self.bytes[usize::from(byte)],
            rank: NEVER,
            prev: i.checked_sub(1).unwrap_or(END),
            next: if i == last { END } else { i + 1 },
        }));
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
        let Bpe { tokenless, tokens, bytes: of_bytes, .. } = &mut *self.bpe;
        let count = self.vocab.len().saturating_add(tokenless.len());
        let id = u32::try_from(count).ok().filter(|&id| id < NONE && id >= *tokens);
        let id = id.ok_or(TokenizerError::TooMany { count })?;
        reserve(tokenless.try_reserve(1), "the symbols of merges", count)?;
        reserve(self.ids.try_reserve(1), "the symbols of merges", count)?;
        let full = |_| no_memory("the symbols of merges", count);
        tokenless.push(memory::copy(bytes).map_err(full)?);
        self.ids.insert(memory::copy(bytes).map_err(full)?, id);
        if let &[byte] = bytes {
            of_bytes[usize::from(byte)] = id;
        }
        Ok(id)
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
        let bpe = Bpe::new(&vocab, &merges, false).unwrap();
        (vocab, bpe)
    }

    fn encode((vocab, bpe): &(Vocab, Bpe), text: &str) -> Vec<String> {
        let mut out = Vec::new();
        bpe.encode(vocab, text.as_bytes(), &mut Scratch::default(), &mut out);
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
        let ignoring = Bpe::new(&bpe.0, &[], true).unwrap();
        assert_eq!(encode(&(bpe.0, ignoring), "abc"), ["abc"]);
    }

    #[test]
    fn bytes_without_a_token_are_left_out() {
        let vocab =
            Vocab::new(["a", "b", "ab"].map(String::from).to_vec(), Vec::new(), Spelling::Bytes).unwrap();
        let bpe = Bpe::new(&vocab, &["a b".into()], false).unwrap();
        assert_eq!(bpe.missing().len(), 254);
        assert_eq!(encode(&(vocab, bpe), "axb!ab"), ["a", "b", "ab"]);
    }

    #[test]
    fn malformed_merges_are_refused() {
        let texts = ["a", "b", "ab", "Ġ", "<|x|>"].map(String::from).to_vec();
        let mut types = vec![TokenType::Normal; 5];
        types[4] = TokenType::Control;
        let vocab = Vocab::new(texts, types, Spelling::Bytes).unwrap();
        let message = |merge: &str| Bpe::new(&vocab, &[merge.into()], false).unwrap_err().to_string();
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
        assert!(Bpe::new(&vocab, &["a b".into(), "a b".into()], false).is_ok());
    }

    #[test]
    fn merges_without_a_token_lead_on_or_fall_apart() {
        let texts = ["a", "b", "c", "bc", "abd", "Ġ", "<|x|>"].map(String::from).to_vec();
        let mut types = vec![TokenType::Normal; 7];
        types[6] = TokenType::Control;
        let vocab = Vocab::new(texts, types, Spelling::Bytes).unwrap();
        // Neither ab, d, cd nor Ġa is a token.
        let merges = ["a b", "b c", "ab d", "c d", "Ġ a", "<|x|> a"].map(String::from);
        let bpe = Bpe::new(&vocab, &merges, false).unwrap();
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
            let bpe = Bpe::new(&vocab, &["< >".into()], ignore).unwrap();
            let mut out = Vec::new();
            bpe.encode(&vocab, b"<>", &mut Scratch::default(), &mut out);
            assert_eq!(out, [0, 1]);
        }
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
            let bpe = Bpe::new(&vocab, &merges, false).unwrap();
            let (mut short, mut long, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
            bpe.merge_short(text.as_bytes(), &mut scratch, &mut short);
            bpe.merge_long(text.as_bytes(), &mut scratch, &mut long);
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
