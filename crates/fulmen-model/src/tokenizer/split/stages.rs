//! Pre-tokenizers with several stages: each stage isolates its matches, and the next stage splits the results
//! further.

use super::{Class, Text, each, gpt2};

/// Calls `give` with each match and with the text between matches. `end` returns the end of a match that
/// starts at a position.
fn isolate<'a>(
    text: &'a str,
    end: impl Fn(Text<'a>, usize) -> Option<usize>,
    give: &mut impl FnMut(&'a str),
) {
    let (mut gap, mut at) = (0, 0);
    while at < text.len() {
        match end(Text(text), at) {
            Some(end) => {
                if gap < at {
                    give(&text[gap..at]);
                }
                give(&text[at..end]);
                (gap, at) = (end, end);
            }
            None => at = Text(text).look(at).2,
        }
    }
    if gap < text.len() {
        give(&text[gap..]);
    }
}

/// `\p{N}`
fn one_number(text: Text<'_>, at: usize) -> Option<usize> {
    let (_, class, next) = text.look(at);
    class.is_number().then_some(next)
}

/// The end of a run of at least one.
fn run(text: Text<'_>, at: usize, fits: impl Fn(Class) -> bool) -> Option<usize> {
    Some(text.run(at, fits)).filter(|&end| end > at)
}

/// `[0-9][0-9][0-9]`
fn three_digits(text: Text<'_>, at: usize) -> Option<usize> {
    let digits = text.0.as_bytes().get(at..at + 3)?;
    digits.iter().all(u8::is_ascii_digit).then_some(at + 3)
}

/// `[\p{P}…]+` with some ASCII symbols.
fn punctuation(text: Text<'_>, mut at: usize, symbols: &[u8]) -> Option<usize> {
    let start = at;
    loop {
        let (_, class, next) = text.look(at);
        let symbol = text.byte(at).is_some_and(|byte| symbols.contains(&byte));
        if next == at || !(class.is_punctuation() || symbol) {
            return (at > start).then_some(at);
        }
        at = next;
    }
}

/// `\p{N}`, then GPT-2's.
pub(super) fn digits_gpt2<'a>(text: &'a str, give: &mut impl FnMut(&'a str)) {
    isolate(text, one_number, &mut |piece| each(piece, gpt2::piece, give));
}

/// ``[\p{P}$+<=>^~|]+``, then GPT-2's, then `\p{N}+`, then `[0-9][0-9][0-9]`.
pub(super) fn default<'a>(text: &'a str, give: &mut impl FnMut(&'a str)) {
    let first = |text: Text<'a>, at| punctuation(text, at, b"$+<=>^~|");
    isolate(text, first, &mut |piece| {
        each(piece, gpt2::piece, &mut |piece| {
            isolate(piece, |text, at| run(text, at, Class::is_number), &mut |piece| {
                isolate(piece, three_digits, give);
            });
        });
    });
}

/// ``[\p{P}$+<=>^~|`]+``, then GPT-2's, then `[0-9][0-9][0-9]`.
pub(super) fn falcon<'a>(text: &'a str, give: &mut impl FnMut(&'a str)) {
    let first = |text: Text<'a>, at| punctuation(text, at, b"$+<=>^~|`");
    isolate(text, first, &mut |piece| {
        each(piece, gpt2::piece, &mut |piece| isolate(piece, three_digits, give));
    });
}

/// `[\r\n]`, then `\s?\p{L}+`, then `\s?\p{P}+`, then `[一-龥ࠀ-一가-퟿]+`, then `\p{N}`.
pub(super) fn deepseek_coder<'a>(text: &'a str, give: &mut impl FnMut(&'a str)) {
    /// `\s?` and a run of at least one.
    fn after_space(text: Text<'_>, at: usize, fits: impl Fn(Class) -> bool) -> Option<usize> {
        let (_, class, next) = text.look(at);
        run(text, if class.is_space() { next } else { at }, fits)
    }
    let newline = |text: Text<'a>, at| matches!(text.byte(at), Some(b'\r' | b'\n')).then_some(at + 1);
    let east_asian = |text: Text<'a>, at: usize| {
        let length = text.0[at..].chars().take_while(|c| matches!(c, '\u{800}'..='龥' | '가'..='\u{d7ff}'));
        Some(at + length.map(char::len_utf8).sum::<usize>()).filter(|&end| end > at)
    };
    isolate(text, newline, &mut |piece| {
        isolate(piece, |text, at| after_space(text, at, Class::is_letter), &mut |piece| {
            isolate(piece, |text, at| after_space(text, at, Class::is_punctuation), &mut |piece| {
                isolate(piece, east_asian, &mut |piece| isolate(piece, one_number, give));
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::super::{Splitter, tests::pieces};

    #[test]
    fn digits_stand_alone_and_end_pieces() {
        let cases: [(&str, &[&str]); 8] = [
            ("in 2024", &["in", " ", "2", "0", "2", "4"]),
            ("a  7", &["a", "  ", "7"]),
            ("7  a", &["7", " ", " a"]),
            ("x=1+2", &["x", "=", "1", "+", "2"]),
            ("½²Ⅷ", &["½", "²", "Ⅷ"]),
            ("it's 3's", &["it", "'s", " ", "3", "'s"]),
            ("a\n\n1", &["a", "\n\n", "1"]),
            ("3 \n", &["3", " \n"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(Splitter::DigitsGpt2, text), expected, "{text:?}");
        }
    }

    #[test]
    fn default_isolates_punctuation_and_groups_digits() {
        let cases: [(&str, &[&str]); 5] = [
            ("a==b, c.", &["a", "==", "b", ",", " c", "."]),
            ("it's", &["it", "'", "s"]),
            ("n 12345`x`", &["n", " ", "123", "45", "`", "x", "`"]),
            ("٣٤٥٦ 12", &["٣٤٥٦", " ", "12"]),
            (" €5", &[" €", "5"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(Splitter::Default, text), expected, "{text:?}");
        }
    }

    #[test]
    fn falcon_groups_digits_behind_their_space() {
        assert_eq!(pieces(Splitter::Falcon, "n 12345 `x`"), ["n", " ", "123", "45", " ", "`", "x", "`"]);
        assert_eq!(pieces(Splitter::Falcon, "n 12 345"), ["n", " 12", " ", "345"]);
    }

    #[test]
    fn deepseek_coder_cuts_scripts_apart() {
        let cases: [(&str, &[&str]); 4] = [
            ("def f(x):\n  return 12", &["def", " f", "(", "x", "):", "\n", " ", " return", " ", "1", "2"]),
            ("\r\n\r\n", &["\r", "\n", "\r", "\n"]),
            ("a == b", &["a", " == ".trim_end(), " b"]),
            ("😀漢字", &["😀", "漢字"]),
        ];
        for (text, expected) in cases {
            assert_eq!(pieces(Splitter::DeepSeekCoder, text), expected, "{text:?}");
        }
    }
}
