//! Finding whole tokens in a text before it is cut: control tokens where they are asked for, user-defined ones always.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

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
    all: Found,
    user_defined: Found,
}

#[derive(Debug)]
struct Found {
    search: Option<AhoCorasick>,
    tokens: Vec<(u32, Strip)>,
}

impl Found {
    fn new(vocab: &Vocab, strips: &HashMap<u32, Strip>, wanted: impl Fn(TokenType) -> bool) -> Found {
        let strip = |id| strips.get(&id).copied().unwrap_or_default();
        let ids = vocab.types().filter(|&(id, kind)| wanted(kind) && !vocab.text(id).is_empty());
        let tokens: Vec<(u32, Strip)> = ids.map(|(id, _)| (id, strip(id))).collect();
        let texts = tokens.iter().map(|&(id, _)| vocab.text(id));
        let search = (!tokens.is_empty()).then(|| {
            AhoCorasick::builder()
                .match_kind(MatchKind::LeftmostLongest)
                .kind(Some(AhoCorasickKind::ContiguousNFA))
                .build(texts)
        });
        // Building fails if there are more patterns or states than 31 bits count.
        Found { search: search.and_then(Result::ok), tokens }
    }
}

impl Finder {
    pub(super) fn new(vocab: &Vocab, strips: &[(u32, Strip)]) -> Result<Finder, TokenizerError> {
        let strips = strips.iter().copied().collect();
        let all = |kind| matches!(kind, TokenType::Control | TokenType::Unknown | TokenType::UserDefined);
        let finder = Finder {
            all: Found::new(vocab, &strips, all),
            user_defined: Found::new(vocab, &strips, |kind| kind == TokenType::UserDefined),
        };
        let unbuilt = |found: &Found| found.search.is_none() && !found.tokens.is_empty();
        if unbuilt(&finder.all) || unbuilt(&finder.user_defined) {
            return Err(TokenizerError::TooMany { count: finder.all.tokens.len() });
        }
        Ok(finder)
    }

    /// Gives the parts of a text in order.
    pub(super) fn parts<'a>(&self, text: &'a str, special: Special, mut give: impl FnMut(Part<'a>)) {
        let found = match special {
            Special::AsText => &self.user_defined,
            Special::Parse => &self.all,
        };
        let mut at = 0;
        if let Some(search) = &found.search {
            for hit in search.find_iter(text) {
                let (id, strip) = found.tokens[hit.pattern().as_usize()];
                // A token before may have taken whitespace that this one begins with.
                if hit.start() < at {
                    continue;
                }
                let before = &text[at..hit.start()];
                let before = if strip.left { before.trim_end() } else { before };
                if !before.is_empty() {
                    give(Part::Text(before));
                }
                give(Part::Token(id));
                let rest = &text[hit.end()..];
                at = if strip.right { text.len() - rest.trim_start().len() } else { hit.end() };
            }
        }
        if at < text.len() {
            give(Part::Text(&text[at..]));
        }
    }
}

#[cfg(test)]
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
        finder.parts(text, special, |part| parts.push(part));
        parts
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
