//! Finding whole tokens in a text before it is cut: control tokens where they are asked for, user-defined ones always.

use std::{collections::HashMap, ops::Range};

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use super::{Strip, TokenType, TokenizerError, vocab::Vocab};

/// What marks such as `<|im_end|>` in a text mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// They are text like any other. For everything that people or programs wrote.
    AsText,
    /// They are the control tokens. For templates and tests.
    Parse,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Text, not empty.
    Text(&'a str),
    /// A token that was found.
    Token(u32),
}

/// Finds tokens in texts: the leftmost first, of several the longest.
#[derive(Debug)]
pub(super) struct Finder {
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

/// A token that was found, and where.
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
        // Building fails if there are more patterns or states than 31 bits count.
        Search { automaton: automaton.and_then(Result::ok), tokens }
    }

    fn is_built(&self) -> bool {
        self.automaton.is_some() || self.tokens.is_empty()
    }

    /// What is found inside of a range.
    fn hits(&self, text: &str, range: Range<usize>) -> impl Iterator<Item = Hit> {
        let input = Input::new(text).range(range);
        let found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(input.clone()));
        found.map(|hit| Hit { range: hit.range(), token: self.tokens[hit.pattern().as_usize()] })
    }
}

impl Finder {
    pub(super) fn new(vocab: &Vocab, strips: &[(u32, Strip)]) -> Result<Finder, TokenizerError> {
        let strips = strips.iter().copied().collect();
        let all = |kind| matches!(kind, TokenType::Control | TokenType::Unknown | TokenType::UserDefined);
        let finder = Finder {
            all: Search::new(vocab, &strips, all),
            user_defined: Search::new(vocab, &strips, |kind| kind == TokenType::UserDefined),
        };
        match finder.all.is_built() && finder.user_defined.is_built() {
            true => Ok(finder),
            false => Err(TokenizerError::TooMany { count: finder.all.tokens.len() }),
        }
    }

    /// Gives the parts of a text in order. Control tokens that touch a range of `foreign` are text; the ranges are in
    /// order and apart from each other.
    pub(super) fn parts<'a>(
        &self,
        text: &'a str,
        special: Special,
        foreign: &[Range<usize>],
        mut give: impl FnMut(Part<'a>),
    ) {
        match special {
            Special::AsText => cut(text, self.user_defined.hits(text, 0..text.len()), give),
            Special::Parse if foreign.is_empty() => cut(text, self.all.hits(text, 0..text.len()), give),
            Special::Parse => {
                let starts = std::iter::once(0).chain(foreign.iter().map(|range| range.end));
                let ends = foreign.iter().map(|range| range.start).chain([text.len()]);
                let own = starts.zip(ends).filter(|(start, end)| start < end);
                let hits = own.flat_map(|(start, end)| self.all.hits(text, start..end));
                // What lies between control tokens belongs together, wherever it came from, and is then looked through
                // for what text may become.
                cut(text, hits.filter(|hit| !hit.token.user_defined), |part| match part {
                    Part::Text(text) => cut(text, self.user_defined.hits(text, 0..text.len()), &mut give),
                    Part::Token(id) => give(Part::Token(id)),
                });
            }
        }
    }
}

/// Gives the tokens that were found and the text between them.
fn cut<'a>(text: &'a str, hits: impl Iterator<Item = Hit>, mut give: impl FnMut(Part<'a>)) {
    let mut at = 0;
    for Hit { range, token: Token { id, strip, .. } } in hits {
        // A token before may have taken whitespace that this one begins with.
        if range.start < at {
            continue;
        }
        let before = &text[at..range.start];
        let before = if strip.left { before.trim_end() } else { before };
        if !before.is_empty() {
            give(Part::Text(before));
        }
        give(Part::Token(id));
        let rest = &text[range.end..];
        at = if strip.right { text.len() - rest.trim_start().len() } else { range.end };
    }
    if at < text.len() {
        give(Part::Text(&text[at..]));
    }
}

#[cfg(test)]
// Texts with one range in them are what is tested.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::super::vocab::Spelling;
    use super::*;

    fn finder(strips: &[(u32, Strip)]) -> Finder {
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
        Finder::new(&vocab, strips).unwrap()
    }

    fn parts<'a>(finder: &Finder, text: &'a str, special: Special) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        finder.parts(text, special, &[], |part| parts.push(part));
        parts
    }

    #[test]
    fn marks_in_foreign_text_are_text() {
        use Part::*;
        let finder = finder(&[]);
        let parts = |text, foreign: &[Range<usize>]| {
            let mut parts = Vec::new();
            finder.parts(text, Special::Parse, foreign, |part| parts.push(part));
            parts
        };
        let text = "<|x|>a<|x|>b<|x|>";
        assert_eq!(parts(text, &[5..12]), [Token(1), Text("a<|x|>b"), Token(1)]);
        assert_eq!(parts(text, &[5..11]), [Token(1), Text("a<|x|>b"), Token(1)]);
        assert_eq!(parts(text, &[8..9]), [Token(1), Text("a<|x|>b"), Token(1)], "inside of a mark");
        assert_eq!(parts(text, &[0..1, 16..17]), [Text("<|x|>a"), Token(1), Text("b<|x|>")]);
        assert_eq!(parts(text, &[0..17]), [Text(text)]);
        assert_eq!(parts(text, &[5..6, 11..12]), [Token(1), Text("a"), Token(1), Text("b"), Token(1)]);
        assert_eq!(parts("<|x|>tool", &[0..7]), [Text("<|x|>"), Token(7)], "what text may become is found");
        assert_eq!(parts("<|x|>y", &[5..6]), [Token(1), Text("y")], "the longer mark touches foreign text");
    }

    #[test]
    fn control_tokens_are_text_unless_asked_for() {
        use Part::*;
        let finder = finder(&[]);
        let text = "a<|x|>b<unk>";
        assert_eq!(parts(&finder, text, Special::AsText), [Text(text)]);
        assert_eq!(parts(&finder, text, Special::Parse), [Text("a"), Token(1), Text("b"), Token(5)]);
        assert_eq!(parts(&finder, "a tool", Special::AsText), [Text("a "), Token(7)]);
        assert_eq!(parts(&finder, "", Special::Parse), []);
    }

    #[test]
    fn the_longest_one_is_taken() {
        use Part::*;
        let finder = finder(&[]);
        assert_eq!(parts(&finder, "<|x|>y<|x|>", Special::Parse), [Token(2), Token(1)]);
        assert_eq!(parts(&finder, "     ", Special::Parse), [Token(4), Token(3)]);
        assert_eq!(parts(&finder, "<|x<|x|>", Special::Parse), [Text("<|x"), Token(1)]);
    }

    #[test]
    fn whitespace_around_is_taken_away() {
        use Part::*;
        let finder =
            finder(&[(1, Strip { left: true, right: false }), (7, Strip { left: false, right: true })]);
        assert_eq!(parts(&finder, "a \n<|x|> b", Special::Parse), [Text("a"), Token(1), Text(" b")]);
        assert_eq!(parts(&finder, "tool    b", Special::Parse), [Token(7), Text("b")]);
        assert_eq!(parts(&finder, "tool   ", Special::Parse), [Token(7)]);
        assert_eq!(parts(&finder, " <|x|>", Special::Parse), [Token(1)]);
    }
}
