//! The case-sensitive patterns, with U = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]` and L =
//! `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`:
//!
//! `[^\r\n\p{L}\p{N}]?U*L+|[^\r\n\p{L}\p{N}]?U+L*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
//!
//! is that of Mistral's Tekken. GPT-4o's also includes a contraction (`(?i:'s|'t|'re|'ve|'m|'ll|'d)?`) at the
//! end of a word and groups up to three digits.

use super::words::{numbers, punctuation, whitespace};
use super::{Class, Text};

/// A member of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tokenizer) struct Cased {
    digits: usize,
    contractions: bool,
}

pub(super) const TEKKEN: Cased = Cased { digits: 1, contractions: false };
pub(super) const GPT4O: Cased = Cased { digits: 3, contractions: true };

impl Cased {
    /// The end of the pre-token that starts at `at`.
    pub(super) fn piece(self, text: Text<'_>, at: usize) -> usize {
        let (c, class, next) = text.look(at);
        let before = !matches!(c, '\r' | '\n') && !class.is_letter() && !class.is_number();
        // A regular expression tries the word with the optional leading character first, then without it.
        let starts = [before.then_some(next), Some(at)];
        let rules = [lower_word, upper_word];
        let word =
            rules.iter().find_map(|rule| starts.into_iter().flatten().find_map(|start| rule(text, start)));
        if let Some(end) = word {
            let contraction = if self.contractions { text.contraction(end, true) } else { None };
            return contraction.unwrap_or(end);
        }
        if class.is_number() {
            return numbers(text, at, self.digits);
        }
        punctuation(text, at, Class::is_other, b"\r\n/").unwrap_or_else(|| whitespace(text, at))
    }
}

/// The end of `U*L+`.
fn lower_word(text: Text<'_>, start: usize) -> Option<usize> {
    let head = text.run(start, Class::is_head);
    let end = text.run(head, Class::is_tail);
    if end > head {
        return Some(end);
    }
    // U* consumed what L+ needs: backtrack to the last character that is in both.
    let last = text.0[start..head].char_indices().rev().find(|&(_, c)| Class::of(c).is_tail());
    last.map(|(offset, c)| start + offset + c.len_utf8())
}

/// The end of `U+L*`.
fn upper_word(text: Text<'_>, start: usize) -> Option<usize> {
    let head = text.run(start, Class::is_head);
    (head > start).then(|| text.run(head, Class::is_tail))
}

#[cfg(test)]
mod tests {
    use super::super::{Splitter, tests::pieces};
    use super::*;

    #[test]
    fn rules_of_tekken() {
        let cases: [(&str, &[&str]); 12] = [
            ("HelloWorld fooBar", &["Hello", "World", " foo", "Bar"]),
            ("HTTPServer HTML", &["HTTPServer", " HTML"]),
            ("it's", &["it", "'s"]),
            ("2024", &["2", "0", "2", "4"]),
            ("a/b //\n/c", &["a", "/b", " //\n/", "c"]),
            ("漢字ABC", &["漢字", "ABC"]),
            ("ABC漢字", &["ABC漢字"]),
            ("A漢BC", &["A漢", "BC"]),
            ("\u{301}ABC", &["\u{301}", "ABC"]),
            ("\u{301}abc", &["\u{301}abc"]),
            ("!\u{301}", &["!\u{301}"]),
            ("x  \n  Y", &["x", "  \n", " ", " Y"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(Splitter::Cased(TEKKEN), text), expected, "{text:?}");
        }
    }

    #[test]
    fn gpt4o_takes_contractions_along() {
        let expected = ["It's", " WE'LL", " '", "tis", " ", "123", "45"];
        assert_eq!(pieces(Splitter::Cased(GPT4O), "It's WE'LL 'tis 12345"), expected);
        assert_eq!(pieces(Splitter::Cased(GPT4O), "12's"), ["12", "'s"]);
    }
}
