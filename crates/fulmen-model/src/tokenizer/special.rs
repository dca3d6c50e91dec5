//! Finds special tokens in text before pre-tokenization: control tokens if requested, user-defined tokens
//! always.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use super::{Strip, TokenType, TokenizerError, vocab::Vocab};

/// How control tokens such as `<|im_end|>` in a text are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// As ordinary text. For everything that users or programs wrote.
    AsText,
    /// As control tokens. For templates and tests.
    Parse,
}

/// A segment of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segment<'a> {
    /// Nonempty text.
    Text(&'a str),
    /// A special token.
    Token(u32),
}

/// Finds special tokens: the leftmost first, the longest of several at the same position.
#[derive(Debug)]
pub(super) struct SpecialFinder {
    all: Search,
    user_defined: Search,
}

#[derive(Debug)]
struct Search {
    automaton: Option<AhoCorasick>,
    tokens: Vec<Token>,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    id: u32,
    strip: Strip,
    user_defined: bool,
}

/// A match and its range.
struct Hit {
    range: Range<usize>,
    token: Token,
}

impl Search {
    fn new(vocab: &Vocab, strips: &HashMap<u32, Strip>, wanted: impl Fn(TokenType) -> bool) -> Search {
        let tokens = vocab.types().filter(|&(id, kind)| wanted(kind) && !vocab.text(id).is_empty());
        let tokens = tokens.map(|(id, kind)| Token {
            id,
            strip: strips.get(&id).copied().unwrap_or_default(),
            user_defined: kind == TokenType::UserDefined,
        });
        let tokens: Vec<Token> = tokens.collect();
        let automaton = (!tokens.is_empty()).then(|| {
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(tokens.iter().map(|token| vocab.text(token.id)))
        });
        // Building fails if there are more than 2^31 patterns or states.
        Search { automaton: automaton.and_then(Result::ok), tokens }
    }

    fn is_built(&self) -> bool {
        self.automaton.is_some() || self.tokens.is_empty()
    }

    /// The matches inside a range.
    fn hits(&self, text: &str, range: Range<usize>) -> impl Iterator<Item = Hit> {
        let input = Input::new(text).range(range);
        let found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(input.clone()));
        found.map(|hit| Hit { range: hit.range(), token: self.tokens[hit.pattern().as_usize()] })
    }
}

impl SpecialFinder {
    pub(super) fn new(vocab: &Vocab, strips: &[(u32, Strip)]) -> Result<SpecialFinder, TokenizerError> {
        let strips = strips.iter().copied().collect();
        let all = |kind| matches!(kind, TokenType::Control | TokenType::Unknown | TokenType::UserDefined);
        let finder = SpecialFinder {
            all: Search::new(vocab, &strips, all),
            user_defined: Search::new(vocab, &strips, |kind| kind == TokenType::UserDefined),
        };
        match finder.all.is_built() && finder.user_defined.is_built() {
            true => Ok(finder),
            false => Err(TokenizerError::TooMany { count: finder.all.tokens.len() }),
        }
    }

    /// Calls `give` with the segments of a text in order. Control tokens that overlap a range of `foreign`
    /// are text; the ranges are in order and disjoint.
    pub(super) fn segments<'a>(
        &self,
        text: &'a str,
        special: Special,
        foreign: &[Range<usize>],
        mut give: impl FnMut(Segment<'a>),
    ) {
        match special {
            Special::AsText => split_at_matches(text, self.user_defined.hits(text, 0..text.len()), give),
            Special::Parse if foreign.is_empty() => {
                split_at_matches(text, self.all.hits(text, 0..text.len()), give)
            }
            Special::Parse => {
                let starts = std::iter::once(0).chain(foreign.iter().map(|range| range.end));
                let ends = foreign.iter().map(|range| range.start).chain([text.len()]);
                let own = starts.zip(ends).filter(|(start, end)| start < end);
                let hits = own.flat_map(|(start, end)| self.all.hits(text, start..end));
                // Text between control tokens is one segment, whatever its origin, and is then searched for
                // user-defined tokens.
                split_at_matches(text, hits.filter(|hit| !hit.token.user_defined), |segment| match segment {
                    Segment::Text(text) => {
                        split_at_matches(text, self.user_defined.hits(text, 0..text.len()), &mut give)
                    }
                    Segment::Token(id) => give(Segment::Token(id)),
                });
            }
        }
    }
}

/// Calls `give` with the matches and the text between them.
fn split_at_matches<'a>(text: &'a str, hits: impl Iterator<Item = Hit>, mut give: impl FnMut(Segment<'a>)) {
    let mut at = 0;
    for Hit { range, token: Token { id, strip, .. } } in hits {
        // The previous token may have absorbed whitespace that this one starts with.
        if range.start < at {
            continue;
        }
        let before = &text[at..range.start];
        let before = if strip.left { before.trim_end() } else { before };
        if !before.is_empty() {
            give(Segment::Text(before));
        }
        give(Segment::Token(id));
        let rest = &text[range.end..];
        at = if strip.right { text.len() - rest.trim_start().len() } else { range.end };
    }
    if at < text.len() {
        give(Segment::Text(&text[at..]));
    }
}

#[cfg(test)]
// A vector with a single range is intended here.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::super::vocab::Spelling;
    use super::*;

    fn finder(strips: &[(u32, Strip)]) -> SpecialFinder {
        use TokenType::*;
        let rows = [
            ("a", Normal),
            ("<|x|>", Control),
            ("<|x|>y", Control),
            ("  ", UserDefined),
            ("   ", UserDefined),
            ("<unk>", Unknown),
            ("", Control),
            ("tool", UserDefined),
        ];
        let texts = rows.iter().map(|row| row.0.to_owned()).collect();
        let vocab = Vocab::new(texts, rows.iter().map(|row| row.1).collect(), Spelling::Bytes).unwrap();
        SpecialFinder::new(&vocab, strips).unwrap()
    }

    fn segments<'a>(finder: &SpecialFinder, text: &'a str, special: Special) -> Vec<Segment<'a>> {
        let mut segments = Vec::new();
        finder.segments(text, special, &[], |segment| segments.push(segment));
        segments
    }

    #[test]
    fn control_tokens_in_foreign_text_are_text() {
        use Segment::*;
        let finder = finder(&[]);
        let segments = |text, foreign: &[Range<usize>]| {
            let mut segments = Vec::new();
            finder.segments(text, Special::Parse, foreign, |segment| segments.push(segment));
            segments
        };
        let text = "<|x|>a<|x|>b<|x|>";
        assert_eq!(segments(text, &[5..12]), [Token(1), Text("a<|x|>b"), Token(1)]);
        assert_eq!(segments(text, &[5..11]), [Token(1), Text("a<|x|>b"), Token(1)]);
        assert_eq!(segments(text, &[8..9]), [Token(1), Text("a<|x|>b"), Token(1)], "inside a control token");
        assert_eq!(segments(text, &[0..1, 16..17]), [Text("<|x|>a"), Token(1), Text("b<|x|>")]);
        assert_eq!(segments(text, &[0..17]), [Text(text)]);
        assert_eq!(segments(text, &[5..6, 11..12]), [Token(1), Text("a"), Token(1), Text("b"), Token(1)]);
        assert_eq!(
            segments("<|x|>tool", &[0..7]),
            [Text("<|x|>"), Token(7)],
            "user-defined tokens are found"
        );
        assert_eq!(
            segments("<|x|>y", &[5..6]),
            [Token(1), Text("y")],
            "the longer token overlaps foreign text"
        );
    }

    #[test]
    fn control_tokens_are_text_unless_requested() {
        use Segment::*;
        let finder = finder(&[]);
        let text = "a<|x|>b<unk>";
        assert_eq!(segments(&finder, text, Special::AsText), [Text(text)]);
        assert_eq!(segments(&finder, text, Special::Parse), [Text("a"), Token(1), Text("b"), Token(5)]);
        assert_eq!(segments(&finder, "a tool", Special::AsText), [Text("a "), Token(7)]);
        assert_eq!(segments(&finder, "", Special::Parse), []);
    }

    #[test]
    fn the_longest_match_wins() {
        use Segment::*;
        let finder = finder(&[]);
        assert_eq!(segments(&finder, "<|x|>y<|x|>", Special::Parse), [Token(2), Token(1)]);
        assert_eq!(segments(&finder, "     ", Special::Parse), [Token(4), Token(3)]);
        assert_eq!(segments(&finder, "<|x<|x|>", Special::Parse), [Text("<|x"), Token(1)]);
    }

    #[test]
    fn surrounding_whitespace_is_absorbed() {
        use Segment::*;
        let finder =
            finder(&[(1, Strip { left: true, right: false }), (7, Strip { left: false, right: true })]);
        assert_eq!(segments(&finder, "a \n<|x|> b", Special::Parse), [Text("a"), Token(1), Text(" b")]);
        assert_eq!(segments(&finder, "tool    b", Special::Parse), [Token(7), Text("b")]);
        assert_eq!(segments(&finder, "tool   ", Special::Parse), [Token(7)]);
        assert_eq!(segments(&finder, " <|x|>", Special::Parse), [Token(1)]);
    }
}
