//! Reads calls in Python's syntax as they arrive: `weather(city="Oslo", days=[1, 2])`.
//!
//! Strings are passed on as they are written, other values when they are complete: until then, `True` may
//! become `Truer`, and a list has no end.

use super::call_reader::{Unread, json_string};
use super::gemma::string_part;
use super::pythonic;

/// What comes next between the brackets of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// An argument or the closing bracket; behind a value, a comma or that bracket.
    Argument { behind_value: bool },
    /// A value that has not begun.
    Value,
    /// The rest of a string with these quotes.
    Text { quote: char },
    /// The rest of another value, of which so many bytes were looked at.
    Other { end: ValueEnd },
}

/// What was understood of a text.
pub(super) enum Step {
    /// JSON of the arguments, how many bytes were read for it, and what comes next.
    Read { json: String, bytes: usize, next: Place },
    /// The closing bracket, with so many bytes.
    End { bytes: usize },
    /// The same, of which more is needed.
    Part { json: String, bytes: usize, next: Place },
}

/// `NAME(`: the name, and where the arguments begin.
pub(super) fn name(text: &str) -> Result<(&str, usize), Unread> {
    let start = text.trim_start();
    // A list of calls may be between brackets.
    let start = start.strip_prefix('[').unwrap_or(start);
    let (name, rest) = word(start)?;
    match rest.starts_with('(') {
        true => Ok((name, text.len() - rest.len() + 1)),
        false => Err(Unread::Other),
    }
}

/// A name, and what follows it: there must be something that ends it.
fn word(text: &str) -> Result<(&str, &str), Unread> {
    let end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
    match text.find(end) {
        None => Err(Unread::More),
        Some(0) => Err(Unread::Other),
        Some(at) => Ok(text.split_at(at)),
    }
}

impl Place {
    /// Reads on. `first` says that there is no argument yet.
    pub(super) fn step(&mut self, text: &str, first: bool) -> Result<Step, Unread> {
        match self {
            Place::Argument { behind_value } => argument(text, *behind_value, first),
            Place::Value => value(text),
            Place::Text { quote } => string(text, *quote),
            Place::Other { end } => match end.find(text)? {
                None => Err(Unread::More),
                Some(at) => {
                    let value = pythonic::value(&text[..at]).ok_or(Unread::Other)?;
                    let next = Place::Argument { behind_value: true };
                    Ok(Step::Read { json: value.to_string(), bytes: at, next })
                }
            },
        }
    }
}

/// The name of an argument with `=`, a comma, or the closing bracket.
fn argument(text: &str, behind_value: bool, first: bool) -> Result<Step, Unread> {
    let rest = text.trim_start();
    let bytes = |rest: &str| text.len() - rest.len();
    let next = rest.chars().next().ok_or(Unread::More)?;
    if next == ')' {
        return Ok(Step::End { bytes: bytes(&rest[1..]) });
    }
    if behind_value {
        let next = Place::Argument { behind_value: false };
        return match rest.strip_prefix(',') {
            Some(rest) => Ok(Step::Read { json: String::new(), bytes: bytes(rest), next }),
            None => Err(Unread::Other),
        };
    }
    let (key, rest) = word(rest)?;
    let rest = rest.trim_start();
    match rest.chars().next() {
        None => Err(Unread::More),
        Some('=') => {
            let comma = if first { "" } else { "," };
            let json = format!("{comma}{}:", json_string(key));
            Ok(Step::Read { json, bytes: bytes(&rest[1..]), next: Place::Value })
        }
        Some(_) => Err(Unread::Other),
    }
}

/// The beginning of a value.
fn value(text: &str) -> Result<Step, Unread> {
    let rest = text.trim_start();
    let space = text.len() - rest.len();
    let (json, bytes, next) = match rest.chars().next().ok_or(Unread::More)? {
        quote @ ('"' | '\'') => ("\"".to_owned(), space + 1, Place::Text { quote }),
        _ => (String::new(), space, Place::Other { end: ValueEnd::default() }),
    };
    Ok(Step::Read { json, bytes, next })
}

/// The rest of a string, or as much of it as is sure.
fn string(text: &str, quote: char) -> Result<Step, Unread> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let at = rest.find([quote, '\\']).unwrap_or(rest.len());
        value.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(behind) = rest.strip_prefix(quote) {
            let next = Place::Argument { behind_value: true };
            let bytes = text.len() - behind.len();
            return Ok(Step::Read { json: format!("{}\"", string_part(&value)), bytes, next });
        }
        match pythonic::escape(rest) {
            Some(Some((escaped, length))) => {
                value.push_str(&escaped);
                rest = &rest[length..];
            }
            Some(None) if value.is_empty() => return Err(Unread::Other),
            // What is before an escape that is none has been passed on, however the text was cut.
            Some(None) => {
                let (json, bytes) = (string_part(&value), text.len() - rest.len());
                return Ok(Step::Read { json, bytes, next: Place::Text { quote } });
            }
            // Nothing more, or an escape that is not complete.
            None => {
                let (json, bytes) = (string_part(&value), text.len() - rest.len());
                return Ok(Step::Part { json, bytes, next: Place::Text { quote } });
            }
        }
    }
}

/// Looks for the end of a value: a comma or the closing bracket of the call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueEnd {
    looked_at: usize,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
}

impl ValueEnd {
    /// Where the value ends; `None` if its end has not come.
    fn find(&mut self, text: &str) -> Result<Option<usize>, Unread> {
        for (at, c) in text[self.looked_at..].char_indices() {
            match (self.quote, c) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), '\\') => self.escaped = true,
                (Some(quote), _) if quote == c => self.quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => self.quote = Some(c),
                (None, '(' | '[' | '{') => self.depth += 1,
                (None, ',' | ')') if self.depth == 0 => return Ok(Some(self.looked_at + at)),
                (None, ')' | ']' | '}') => self.depth = self.depth.checked_sub(1).ok_or(Unread::Other)?,
                (None, _) => {}
            }
        }
        self.looked_at = text.len();
        Ok(None)
    }
}
