//! A JSON object that arrives in pieces: as much of it as is certain, without white space between its parts.
//!
//! What is written is at any time the beginning of valid JSON, so that a client that reads it as it arrives
//! never sees what is none.

use serde_json::Value;

/// Objects and lists within each other at most, as `serde_json` reads them.
const MAX_DEPTH: usize = 127;

/// What a piece of text was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// Part of the object.
    More,
    /// The object has ended with this many bytes of the piece.
    End(usize),
    /// No JSON.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Object,
    List,
}

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Object,
    Value,
    /// A value or the end of the list.
    FirstValue,
    Key,
    /// A key or the end of the object.
    FirstKey,
    Colon,
    /// A comma, or the end of the object or list.
    Next,
    /// The rest of a string.
    Text {
        key: bool,
    },
    /// The rest of a number or a constant.
    Word,
}

/// Reads one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonText {
    open: Vec<Open>,
    expected: Expected,
    /// An escape sequence, a number or a constant whose end has not come.
    held: String,
}

impl JsonText {
    /// A whole object.
    pub(super) fn object() -> JsonText {
        JsonText { open: Vec::new(), expected: Expected::Object, held: String::new() }
    }

    /// The rest of an object, behind one of its values.
    pub(super) fn behind_value() -> JsonText {
        JsonText { open: vec![Open::Object], expected: Expected::Next, held: String::new() }
    }

    /// Whether a key comes next.
    pub(super) fn expects_key(&self) -> bool {
        matches!(self.expected, Expected::Key | Expected::FirstKey)
    }

    /// Whether the text is within a string.
    pub(super) fn is_in_string(&self) -> bool {
        matches!(self.expected, Expected::Text { .. })
    }

    /// Reads a piece of text, and writes what is certain.
    pub(super) fn push(&mut self, text: &str, out: &mut String) -> Read {
        for (at, c) in text.char_indices() {
            if !self.take(c, out) {
                return Read::Invalid;
            }
            if self.open.is_empty() && self.expected == Expected::Next {
                return Read::End(at + c.len_utf8());
            }
        }
        Read::More
    }

    /// `false` if this character cannot come here.
    fn take(&mut self, c: char, out: &mut String) -> bool {
        let space = matches!(c, ' ' | '\n' | '\t' | '\r');
        match self.expected {
            Expected::Text { key } => return self.text(c, key, out),
            Expected::Word if !space && !matches!(c, ',' | '}' | ']') => {
                self.held.push(c);
                return true;
            }
            Expected::Word => {
                let word = std::mem::take(&mut self.held);
                if serde_json::from_str::<Value>(&word).is_err() {
                    return false;
                }
                out.push_str(&word);
                self.expected = Expected::Next;
            }
            _ => {}
        }
        space || self.mark(c, out)
    }

    /// A character outside of strings, numbers and constants.
    fn mark(&mut self, c: char, out: &mut String) -> bool {
        use Expected::{Colon, FirstKey, FirstValue, Key, Next, Object, Text, Word};
        let within = self.open.last().copied();
        self.expected = match (self.expected, c) {
            (Object | Expected::Value | FirstValue, '{') => {
                self.open.push(Open::Object);
                FirstKey
            }
            (Expected::Value | FirstValue, '[') => {
                self.open.push(Open::List);
                FirstValue
            }
            (Expected::Value | FirstValue, '"') => Text { key: false },
            (Expected::Value | FirstValue, '-' | '0'..='9' | 't' | 'f' | 'n') => {
                self.held.push(c);
                self.expected = Word;
                return true;
            }
            (Key | FirstKey, '"') => Text { key: true },
            (Colon, ':') => Expected::Value,
            (Next, ',') if within == Some(Open::Object) => Key,
            (Next, ',') => Expected::Value,
            (Next | FirstKey, '}') if within == Some(Open::Object) => {
                self.open.pop();
                Next
            }
            (Next | FirstValue, ']') if within == Some(Open::List) => {
                self.open.pop();
                Next
            }
            _ => return false,
        };
        out.push(c);
        self.open.len() <= MAX_DEPTH
    }

    fn text(&mut self, c: char, key: bool, out: &mut String) -> bool {
        if !self.held.is_empty() {
            self.held.push(c);
            match is_whole_escape(&self.held) {
                None => return false,
                Some(false) => {}
                Some(true) => out.push_str(&std::mem::take(&mut self.held)),
            }
            return true;
        }
        match c {
            '\\' => self.held.push(c),
            c if c < ' ' => return false,
            c => {
                if c == '"' {
                    self.expected = if key { Expected::Colon } else { Expected::Next };
                }
                out.push(c);
            }
        }
        true
    }
}

/// Whether a text is a whole escape sequence (of two, for characters outside of the basic plane) or the
/// beginning of one; `None` if it is neither.
fn is_whole_escape(text: &str) -> Option<bool> {
    let unit = |text: &str| -> Option<Option<u32>> {
        let digits = text.strip_prefix("\\u")?;
        let hex = digits.len() <= 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let whole = || u32::from_str_radix(digits, 16).ok();
        hex.then(|| (digits.len() == 4).then(whole).flatten())
    };
    if !text.is_char_boundary(text.len().min(6)) {
        return None;
    }
    let (first, second) = text.split_at(text.len().min(6));
    match first {
        "\\" => return Some(false),
        "\\\"" | "\\\\" | "\\/" | "\\b" | "\\f" | "\\n" | "\\r" | "\\t" => return Some(true),
        _ => {}
    }
    match unit(first)? {
        None => Some(false),
        Some(0xDC00..=0xDFFF) => None,
        Some(0xD800..=0xDBFF) if second.is_empty() || second == "\\" => Some(false),
        Some(0xD800..=0xDBFF) => match unit(second)? {
            None => Some(false),
            Some(0xDC00..=0xDFFF) => Some(true),
            Some(_) => None,
        },
        Some(_) => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of a text, and how it ended. It is the same in pieces of one character.
    fn read(text: &str) -> (String, Read) {
        let mut whole = String::new();
        let ended = JsonText::object().push(text, &mut whole);
        let (mut json, mut out) = (JsonText::object(), String::new());
        let mut step = Read::More;
        for (at, c) in text.char_indices() {
            step = match json.push(c.encode_utf8(&mut [0; 4]), &mut out) {
                Read::End(bytes) => Read::End(at + bytes),
                other => other,
            };
            if step != Read::More {
                break;
            }
        }
        assert_eq!((&out, step), (&whole, ended), "{text}");
        (whole, ended)
    }

    #[test]
    fn objects_are_what_serde_reads() {
        let valid = [
            "{}",
            " { } ",
            r#"{"a": 1, "b": [ ], "c": {"d": [1, -2.5e3, "x", true, false, null]}}"#,
            r#"{"a\n\"": "\u00e9\ud83d\ude00\\ \/ é 😀"}"#,
            "{\"a\"\n:\t[[], {}, [{}]]\r}",
        ];
        for text in valid {
            let (out, ended) = read(text);
            assert_eq!(ended, Read::End(text.trim_end().len()), "{text}");
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(value(&out), value(text), "{text}");
            let serde = serde_json::from_str::<Value>(text).unwrap().to_string();
            assert_eq!(out.contains(' '), serde.contains(' '), "white space only in strings: {out}");
        }
        assert_eq!(read("{} more").1, Read::End(2));
    }

    #[test]
    fn what_is_no_object_is_seen_at_once() {
        let deep = format!("{{\"a\": {}", "[".repeat(200));
        let invalid = [
            "x",
            "[",
            "\"a\"",
            "1",
            "{1",
            "{a",
            "{,",
            "{\"a\",",
            "{\"a\" 1",
            "{\"a\": x",
            "{\"a\": tru}",
            "{\"a\": 1 2",
            "{\"a\": 01}",
            "{\"a\": 1,}",
            "{\"a\": [1,]",
            "{\"a\": [1}",
            "{\"a\": -}",
            "{\"a\": \"\n",
            "{\"a\": \"\\x",
            "{\"a\": \"\\u12g",
            "{\"a\": \"\\udc00",
            "{\"a\": \"\\ud800x",
            "{\"a\": \"\\ud800\\u0041",
            "{\"a\": \"\\ué",
            "{\"a\": 1e999}",
            "{]",
            &deep,
        ];
        for text in invalid {
            assert_eq!(read(text).1, Read::Invalid, "{text}");
            assert!(serde_json::from_str::<Value>(text).is_err() || !text.starts_with('{'), "{text}");
        }
    }

    /// Whatever has come: what is written can be completed to JSON.
    #[test]
    fn every_beginning_is_that_of_valid_json() {
        let text = r#"{"a": [1, {"b": "x\n\u00e9\ud83d\ude00"}], "c": false, "d": -1.5e-3}"#;
        let whole = read(text).0;
        for at in 0..=text.len() {
            let (out, _) = read(&text[..at]);
            assert!(whole.starts_with(&out), "{out}");
            // No escape sequence, number or constant is cut.
            assert!(!out.ends_with('\\') && !out.ends_with("fals") && !out.ends_with("-1."), "{out}");
        }
    }

    #[test]
    fn the_rest_of_an_object_ends_with_it() {
        let mut out = String::new();
        let text = ", \"id\": \"a}\"} and";
        assert_eq!(JsonText::behind_value().push(text, &mut out), Read::End(text.len() - 4));
        assert_eq!(JsonText::behind_value().push("]", &mut out), Read::Invalid);
    }
}
