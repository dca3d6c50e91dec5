//! SentencePiece BPE: a text starts as its characters; adjacent symbols that form a token are merged, the
//! highest score first, the leftmost of equal scores first. Characters without a token become byte tokens.
//!
//! If no token spans two words, which is usual, a text is merged word by word: words do not affect each
//! other, and the heap of one word stays small.

use std::{cmp::Ordering, collections::BinaryHeap};

use super::{TokenType, TokenizerError, vocab::Vocab, whole::Whole};

#[derive(Debug)]
pub(super) struct Spm {
    scores: Vec<f32>,
    /// The token `<0xNN>` of each byte.
    bytes: Box<[Option<u32>; 256]>,
    unknown: Option<u32>,
    /// Whether a space inside a token always follows another space.
    word_by_word: bool,
    whole: Whole,
}

/// Buffers reused across words.
#[derive(Debug, Default)]
struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Pair>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    /// In bytes; 0 once it is merged into the previous symbol.
    length: usize,
    prev: usize,
    next: usize,
}

const END: usize = usize::MAX;

/// A candidate pair for merging.
#[derive(Clone, Copy, Debug)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// The combined length; if it has changed, the pair is stale.
    length: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Pair {}

impl Spm {
    pub(super) fn new(vocab: &Vocab, scores: Vec<f32>, unknown: Option<u32>) -> Result<Spm, TokenizerError> {
        if scores.len() != vocab.len() {
            return Err(TokenizerError::Count { what: "scores", count: scores.len(), tokens: vocab.len() });
        }
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(TokenizerError::Score { id });
        }
        // `-0.0` and `0.0` are equal scores.
        let mut scores = scores;
        scores.iter_mut().for_each(|score| *score += 0.0);
        let mut bytes = Box::new([None; 256]);
        for (id, _) in vocab.types().filter(|&(_, kind)| kind == TokenType::Byte) {
            if let [byte] = vocab.shown(id) {
                bytes[usize::from(*byte)].get_or_insert(id);
            }
        }
        let word_by_word = !vocab.findable().any(|text| next_word(text).is_some());
        // Text never becomes a control token, even if the file declares one as the unknown token.
        let is_control = |&id: &u32| vocab.check(id).is_ok_and(|_| vocab.kind(id) == TokenType::Control);
        let unknown = unknown.filter(|id| !is_control(id));
        Ok(Spm { scores, bytes, unknown, word_by_word, whole: Whole::new(vocab.len())? })
    }

    /// The bytes that cannot be encoded in characters without a token.
    pub(super) fn missing(&self) -> Vec<u8> {
        let missing = |&byte: &u8| self.bytes[usize::from(byte)].or(self.unknown).is_none();
        (0..=u8::MAX).filter(missing).collect()
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, vocab: &Vocab, text: &str, out: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        let mut rest = text;
        while !rest.is_empty() {
            let end = if self.word_by_word { next_word(rest.as_bytes()) } else { None };
            // A word ends before a space, which is a character boundary.
            let (word, others) = rest.split_at(end.unwrap_or(rest.len()));
            self.encode_word(vocab, word, &mut scratch, out);
            rest = others;
        }
    }

    fn encode_word(&self, vocab: &Vocab, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let token = vocab.find(word.as_bytes());
        if let Some(id) = token.filter(|&id| self.whole.is_sure(id)) {
            out.push(id);
            return;
        }
        let start = out.len();
        self.merge(vocab, word, scratch, out);
        if let Some(id) = token {
            self.whole.learn(id, &out[start..]);
        }
    }

    /// Merges the characters of a nonempty text.
    fn merge(&self, vocab: &Vocab, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let Scratch { symbols, heap } = scratch;
        symbols.clear();
        heap.clear();
        for (i, (start, c)) in text.char_indices().enumerate() {
            let (length, prev) = (c.len_utf8(), i.checked_sub(1).unwrap_or(END));
            symbols.push(Symbol { start, length, prev, next: i + 1 });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = END;
        }
        let look = |symbols: &[Symbol], heap: &mut BinaryHeap<Pair>, left: usize, right: usize| {
            if left == END || right == END {
                return;
            }
            let (start, length) = (symbols[left].start, symbols[left].length + symbols[right].length);
            let token = vocab.find(&text.as_bytes()[start..start + length]);
            // The lowest score marks tokens that merging never produces.
            if let Some(score) =
                token.map(|id| self.scores[id as usize]).filter(|&score| score > f32::NEG_INFINITY)
            {
                heap.push(Pair { score, left, right, length });
            }
        };
        for right in 1..symbols.len() {
            look(symbols, heap, right - 1, right);
        }
        while let Some(Pair { left, right, length, .. }) = heap.pop() {
            let (l, r) = (symbols[left], symbols[right]);
            if l.length == 0 || r.length == 0 || l.length + r.length != length {
                continue;
            }
            symbols[left].length = length;
            symbols[left].next = r.next;
            symbols[right].length = 0;
            if r.next != END {
                symbols[r.next].prev = left;
            }
            look(symbols, heap, l.prev, left);
            look(symbols, heap, left, r.next);
        }
        let mut at = 0;
        while at != END {
            let Symbol { start, length, next, .. } = symbols[at];
            self.give(vocab, &text.as_bytes()[start..start + length], out);
            at = next;
        }
    }

    /// Appends one symbol: its token, its byte tokens, or the unknown token.
    fn give(&self, vocab: &Vocab, bytes: &[u8], out: &mut Vec<u32>) {
        if let Some(id) = vocab.find(bytes) {
            out.push(id);
            return;
        }
        let ids = bytes.iter().map(|&byte| self.bytes[usize::from(byte)]);
        match ids.collect::<Option<Vec<u32>>>() {
            Some(ids) => out.extend(ids),
            None => out.extend(self.unknown),
        }
    }
}

/// The start of the next word: the first space after a non-space.
fn next_word(text: &[u8]) -> Option<usize> {
    let boundary = text.windows(2).position(|pair| pair[0] != b' ' && pair[1] == b' ');
    boundary.map(|before| before + 1)
}

#[cfg(test)]
mod tests {
    use super::super::vocab::Spelling;
    use super::*;

    fn make(rows: &[(&str, f32, TokenType)], unknown: Option<u32>) -> (Vocab, Spm) {
        let texts = rows.iter().map(|row| row.0.to_owned()).collect();
        let types = rows.iter().map(|row| row.2).collect();
        let vocab = Vocab::new(texts, types, Spelling::Sentence).unwrap();
        let spm = Spm::new(&vocab, rows.iter().map(|row| row.1).collect(), unknown).unwrap();
        (vocab, spm)
    }

    fn encode((vocab, spm): &(Vocab, Spm), text: &str) -> Vec<String> {
        let mut out = Vec::new();
        spm.encode(vocab, text, &mut out);
        out.into_iter().map(|id| vocab.text(id).to_owned()).collect()
    }

    #[test]
    fn the_highest_score_is_merged_first() {
        use TokenType::*;
        let rows = [
            ("<unk>", 0.0, Unknown),
            ("▁", -9.0, Normal),
            ("a", -8.0, Normal),
            ("b", -7.0, Normal),
            ("ab", -2.0, Normal),
            ("ba", -1.0, Normal),
            ("▁ab", -3.0, Normal),
            ("aba", -4.0, Normal),
        ];
        let spm = make(&rows, Some(0));
        assert_eq!(encode(&spm, " ab"), ["▁ab"]);
        assert_eq!(encode(&spm, "aba"), ["aba"], "a + ba");
        assert_eq!(encode(&spm, "bab"), ["ba", "b"]);
        assert_eq!(encode(&spm, "baba"), ["ba", "ba"]);
        assert_eq!(encode(&spm, "axb"), ["a", "<unk>", "b"]);
        assert_eq!(encode(&spm, ""), [""; 0]);
        assert_eq!(
            encode(&spm, "<unk>"),
            ["<unk>"; 5],
            "one token per character, never the whole text as a token"
        );
    }

    #[test]
    fn characters_without_a_token_become_bytes() {
        use TokenType::*;
        let bytes: Vec<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
        let mut rows: Vec<(&str, f32, TokenType)> =
            bytes.iter().map(|text| (text.as_str(), 0.0, Byte)).collect();
        rows.push(("a", -1.0, Normal));
        let spm = make(&rows, None);
        assert!(spm.1.missing().is_empty());
        assert_eq!(encode(&spm, "aé"), ["a", "<0xC3>", "<0xA9>"]);
        assert_eq!(encode(&spm, "\n"), ["<0x0A>"]);
        let (vocab, spm) = make(&[("a", 0.0, Normal)], None);
        assert_eq!(spm.missing().len(), 256);
        assert_eq!(encode(&(vocab, spm), "xay"), ["a"], "no bytes and no unknown token: left out");
    }

    #[test]
    fn scores_are_checked() {
        let vocab = || Vocab::new(vec!["a".into(), "b".into()], Vec::new(), Spelling::Sentence).unwrap();
        let message = |scores: &[f32]| Spm::new(&vocab(), scores.to_vec(), None).unwrap_err().to_string();
        assert_eq!(message(&[]), "the number of scores must be 2, the number of tokens, is 0");
        assert_eq!(message(&[0.0, f32::NAN]), "the score of token 1 is NaN");
        assert!(Spm::new(&vocab(), vec![f32::NEG_INFINITY, f32::INFINITY], None).is_ok());
    }

    proptest::proptest! {
        /// The heap produces the same tokens as scanning for the best pair each time.
        #[test]
        fn merges_are_those_of_the_definition(
            tokens in proptest::collection::btree_map("[ ]{0,2}[abc]{1,3}( a)?", -4i8..0, 1..20),
            text in "[abc ]{0,40}",
        ) {
            let rows: Vec<(&str, f32, TokenType)> =
                tokens.iter().map(|(text, &s)| (text.as_str(), s.into(), TokenType::Normal)).collect();
            let (vocab, spm) = make(&rows, None);
            let mut parts: Vec<String> = text.chars().map(String::from).collect();
            loop {
                let mut best: Option<(f32, usize)> = None;
                for i in 1..parts.len() {
                    if let Some(&score) = tokens.get(&format!("{}{}", parts[i - 1], parts[i])) {
                        let score = f32::from(score);
                        if best.is_none_or(|(highest, _)| score > highest) {
                            best = Some((score, i));
                        }
                    }
                }
                let Some((_, i)) = best else { break };
                let right = parts.remove(i);
                parts[i - 1].push_str(&right);
            }
            parts.retain(|part| tokens.contains_key(part));
            proptest::prop_assert_eq!(encode(&(vocab, spm), &text), parts);
        }
    }
}
