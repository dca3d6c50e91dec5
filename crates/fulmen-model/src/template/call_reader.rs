//! Reads the text of calls as it arrives, so that arguments can be passed on before they are complete.
//!
//! - Formats whose arguments are JSON are passed on as they are written, without white space; those of
//!   Gemma 4 as JSON.
//! - Formats with tags around every argument are passed on as JSON: strings as they are written, other
//!   values when they are complete. So are those in Python's syntax.
//! - What cannot be read this way (the arguments before the name) is left to whoever reads the whole text.

use serde_json::{Map, Value};

use super::arguments::{converted, is_text_argument};
use super::gemma::{GemmaText, string_part};
use super::json_text::{JsonText, Read};
use super::python_pieces::{self, Step};
use super::tool_format::{ARG_KEY, ARG_VALUE, ARGS, CALL_ID, MISTRAL, ToolFormat, is_name};
use super::tools::{ToolCall, ToolSpec};
use super::{CallPiece, ParsedText, answer::partial_suffix};

/// How far a text is understood that has not come as a whole.
pub(super) enum Unread {
    /// More of it is needed.
    More,
    /// It cannot be read in pieces.
    Other,
}

/// The arguments of a call in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Object {
    Json(JsonText),
    Gemma(GemmaText),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Before or in the name.
    Head,
    /// In arguments that are an object.
    Object(Object),
    /// Behind them, in the object of the call.
    Rest(JsonText),
    /// Behind a call.
    Behind,
    /// Before an argument between tags.
    BeforeArgument,
    /// In the value of this argument, of which the beginning has been passed on or not.
    Argument { key: String, text_begun: bool },
    /// Between the brackets of a call in Python's syntax.
    Python(python_pieces::Place),
    /// What follows cannot be read in pieces.
    Stopped,
}

/// Reads the calls between one pair of tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallReader {
    format: ToolFormat,
    place: Place,
    /// Text that is not understood without what follows.
    held: String,
    /// Bytes of the text that were read.
    read: usize,
    /// The name of the call whose arguments are being read.
    name: String,
    /// Its arguments so far.
    arguments: String,
    /// The number of the next call of the answer.
    next: usize,
    /// Calls that have begun here, and that are complete.
    begun: usize,
    complete: usize,
}

impl CallReader {
    /// A reader; `next` is the number of its first call.
    pub(super) fn new(format: ToolFormat, next: usize) -> CallReader {
        CallReader {
            format,
            place: Place::Head,
            held: String::new(),
            read: 0,
            name: String::new(),
            arguments: String::new(),
            next,
            begun: 0,
            complete: 0,
        }
    }

    /// A reader of the arguments of a call whose name is known.
    pub(super) fn of_arguments(name: &str, next: usize) -> CallReader {
        CallReader { name: name.to_owned(), ..CallReader::new(ToolFormat::Harmony, next) }
    }

    /// Reads what is new of the text.
    pub(super) fn read(&mut self, text: &str, tools: &[ToolSpec], parsed: &mut ParsedText) {
        self.held.push_str(&text[self.read..]);
        self.read = text.len();
        while self.step(tools, parsed) {}
    }

    /// Ends the text. `all` are the calls in it, if it is valid as a whole. `false` if no call has begun:
    /// then it may be none.
    pub(super) fn finish(&mut self, all: Option<Vec<ToolCall>>, parsed: &mut ParsedText) -> bool {
        if self.place == Place::BeforeArgument
            && self.format == ToolFormat::Glm
            && self.held.trim().is_empty()
            && all.is_some()
        {
            self.give("}", parsed);
            self.complete(parsed);
        }
        if self.begun > self.complete {
            return true;
        }
        for call in all.into_iter().flatten().skip(self.complete) {
            self.begun += 1;
            self.name.clone_from(&call.name);
            let piece = self.piece(call.arguments_json(), true, true);
            parsed.call_pieces.push(piece);
            parsed.calls.push(call);
            self.next += 1;
            self.complete += 1;
        }
        self.begun > 0
    }

    /// The number of the next call.
    pub(super) fn next(&self) -> usize {
        self.next + (self.begun - self.complete)
    }

    fn step(&mut self, tools: &[ToolSpec], parsed: &mut ParsedText) -> bool {
        let step = match &mut self.place {
            Place::Stopped => return false,
            Place::Head => self.head(parsed),
            Place::Object(_) => self.object(parsed),
            Place::Rest(json) => match json.push(&self.held, &mut String::new()) {
                Read::More => {
                    self.held.clear();
                    Err(Unread::More)
                }
                Read::End(at) => {
                    self.held.drain(..at);
                    self.place = Place::Behind;
                    Ok(())
                }
                Read::Invalid => Err(Unread::Other),
            },
            Place::Behind => self.behind(),
            Place::BeforeArgument if self.format == ToolFormat::Glm => self.glm_key(),
            Place::BeforeArgument => self.qwen_key(parsed),
            Place::Argument { .. } => self.argument(tools, parsed),
            Place::Python(_) => self.python(parsed),
        };
        match step {
            Ok(()) => true,
            Err(Unread::More) => false,
            Err(Unread::Other) => {
                self.place = Place::Stopped;
                false
            }
        }
    }

    /// The name of a call, and where its arguments begin.
    fn head(&mut self, parsed: &mut ParsedText) -> Result<(), Unread> {
        let text = self.held.trim_start();
        let first = text.chars().next().ok_or(Unread::More)?;
        let (name, at) = match self.format {
            ToolFormat::Harmony => (self.name.clone(), self.held.len() - text.len()),
            ToolFormat::QwenXml => qwen_name(&self.held)?,
            ToolFormat::Glm => glm_name(&self.held)?,
            ToolFormat::Gemma4 => gemma_name(&self.held)?,
            ToolFormat::Olmo3 => {
                let (name, at) = python_pieces::name(&self.held)?;
                (checked_name(name)?, at)
            }
            ToolFormat::Mistral | ToolFormat::MistralList if first != '[' && first != '{' => {
                mistral_name(&self.held)?
            }
            _ => json_name(&self.held)?,
        };
        let tagged = matches!(self.format, ToolFormat::QwenXml | ToolFormat::Glm | ToolFormat::Olmo3);
        if !tagged && !self.held[at..].starts_with('{') {
            return Err(Unread::Other);
        }
        self.held.drain(..at);
        self.name = name;
        self.arguments.clear();
        self.begun += 1;
        let begins = self.piece(String::new(), true, false);
        parsed.call_pieces.push(begins);
        if tagged {
            self.give("{", parsed);
            self.place = match self.format {
                ToolFormat::Olmo3 => Place::Python(python_pieces::Place::Argument { behind_value: false }),
                _ => Place::BeforeArgument,
            };
        } else {
            self.place = Place::Object(match self.format {
                ToolFormat::Gemma4 => Object::Gemma(GemmaText::default()),
                _ => Object::Json(JsonText::object()),
            });
        }
        Ok(())
    }

    fn object(&mut self, parsed: &mut ParsedText) -> Result<(), Unread> {
        let Place::Object(object) = &mut self.place else { return Err(Unread::Other) };
        let held = std::mem::take(&mut self.held);
        let mut text = String::new();
        let read = match object {
            Object::Json(json) => json.push(&held, &mut text),
            Object::Gemma(gemma) => gemma.push(&held, &mut text),
        };
        self.give(&text, parsed);
        match read {
            Read::More => Err(Unread::More),
            Read::Invalid => Err(Unread::Other),
            Read::End(at) => {
                self.complete(parsed);
                held[at..].clone_into(&mut self.held);
                self.place = match self.format {
                    ToolFormat::Mistral | ToolFormat::Harmony | ToolFormat::Gemma4 => Place::Behind,
                    _ => Place::Rest(JsonText::behind_value()),
                };
                Ok(())
            }
        }
    }

    /// What is between two calls.
    fn behind(&mut self) -> Result<(), Unread> {
        let text = self.held.trim_start_matches(|c: char| c.is_whitespace() || c == ',' || c == ';');
        let next = match self.format {
            ToolFormat::Harmony | ToolFormat::Gemma4 => return Err(Unread::Other),
            ToolFormat::Mistral if text.starts_with(MISTRAL) => &text[MISTRAL.len()..],
            ToolFormat::Mistral if MISTRAL.starts_with(text) => return Err(Unread::More),
            _ if text.is_empty() => return Err(Unread::More),
            ToolFormat::Olmo3 if text.starts_with(']') => return Err(Unread::Other),
            ToolFormat::Olmo3 => text,
            _ if text.starts_with('{') => text,
            _ => return Err(Unread::Other),
        };
        self.held = next.to_owned();
        self.place = Place::Head;
        Ok(())
    }

    /// What is between the brackets of a call in Python's syntax.
    fn python(&mut self, parsed: &mut ParsedText) -> Result<(), Unread> {
        let Place::Python(place) = &mut self.place else { return Err(Unread::Other) };
        let (json, bytes, next, read) = match place.step(&self.held, self.arguments.len() == 1)? {
            Step::Read { json, bytes, next } => (json, bytes, Place::Python(next), Ok(())),
            Step::Part { json, bytes, next } => (json, bytes, Place::Python(next), Err(Unread::More)),
            Step::End { bytes } => ("}".to_owned(), bytes, Place::Behind, Ok(())),
        };
        self.held.drain(..bytes);
        self.give(&json, parsed);
        if next == Place::Behind {
            self.complete(parsed);
        }
        self.place = next;
        read
    }

    fn qwen_key(&mut self, parsed: &mut ParsedText) -> Result<(), Unread> {
        const END: &str = "</function>";
        const OPEN: &str = "<parameter=";
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(OPEN) {
            let (key, rest) = rest.split_once('>').ok_or(Unread::More)?;
            self.place = Place::Argument { key: key.trim().to_owned(), text_begun: false };
            self.held = rest.to_owned();
            return Ok(());
        }
        if text.starts_with(END) {
            self.give("}", parsed);
            self.complete(parsed);
            return Err(Unread::Other);
        }
        Err(if OPEN.starts_with(text) || END.starts_with(text) { Unread::More } else { Unread::Other })
    }

    fn glm_key(&mut self) -> Result<(), Unread> {
        let rest = behind(&self.held, ARG_KEY.0)?;
        let (key, rest) = rest.split_once(ARG_KEY.1).ok_or(Unread::More)?;
        let rest = behind(rest, ARG_VALUE.0)?;
        self.place = Place::Argument { key: key.trim().to_owned(), text_begun: false };
        self.held = rest.to_owned();
        Ok(())
    }

    /// The value of an argument between tags. Strings are passed on as they come.
    fn argument(&mut self, tools: &[ToolSpec], parsed: &mut ParsedText) -> Result<(), Unread> {
        let Place::Argument { key, text_begun } = self.place.clone() else { return Err(Unread::Other) };
        let glm = self.format == ToolFormat::Glm;
        let close = if glm { ARG_VALUE.1 } else { "</parameter>" };
        // The line breaks around the value of an argument belong to Qwen's tags.
        let end = self.held.find(close);
        let text = match end {
            Some(at) => self.held[..at].strip_suffix('\n').filter(|_| !glm).unwrap_or(&self.held[..at]),
            None if !is_text_argument(tools, &self.name, &key) => return Err(Unread::More),
            None => {
                let text = &self.held[..self.held.len() - partial_suffix(&self.held, close)];
                text.strip_suffix('\n').filter(|_| !glm).unwrap_or(text)
            }
        };
        if text.is_empty() && end.is_none() {
            return Err(Unread::More);
        }
        let settled = text.len();
        // A line break that is all there is was stripped as the one before the closing tag.
        let value = text.strip_prefix('\n').filter(|_| !glm && !text_begun).unwrap_or(text).to_owned();
        if !text_begun {
            let comma = if self.arguments.len() > 1 { "," } else { "" };
            self.give(&format!("{comma}{}:", json_string(&key)), parsed);
        }
        match end {
            Some(at) => {
                let rest = self.held[at + close.len()..].to_owned();
                let json = match text_begun {
                    true => format!("{}\"", string_part(&value)),
                    false => converted(tools, &self.name, &key, &value).to_string(),
                };
                self.give(&json, parsed);
                self.held = rest;
                self.place = Place::BeforeArgument;
                Ok(())
            }
            None => {
                let quote = if text_begun { "" } else { "\"" };
                self.give(&format!("{quote}{}", string_part(&value)), parsed);
                self.held.drain(..settled);
                self.place = Place::Argument { key, text_begun: true };
                Err(Unread::More)
            }
        }
    }

    fn piece(&self, arguments: String, first: bool, last: bool) -> CallPiece {
        CallPiece { call: self.next, name: first.then(|| self.name.clone()), arguments, last }
    }

    /// Passes on a part of the arguments.
    fn give(&mut self, text: &str, parsed: &mut ParsedText) {
        if text.is_empty() {
            return;
        }
        self.arguments.push_str(text);
        match parsed.call_pieces.last_mut().filter(|piece| piece.call == self.next) {
            Some(piece) => piece.arguments.push_str(text),
            None => parsed.call_pieces.push(self.piece(text.to_owned(), false, false)),
        }
    }

    /// Ends the call: its arguments are complete.
    fn complete(&mut self, parsed: &mut ParsedText) {
        match parsed.call_pieces.last_mut().filter(|piece| piece.call == self.next) {
            Some(piece) => piece.last = true,
            None => parsed.call_pieces.push(self.piece(String::new(), false, true)),
        }
        let arguments: Map<String, Value> = serde_json::from_str(&self.arguments).unwrap_or_default();
        parsed.calls.push(ToolCall { name: self.name.clone(), arguments });
        self.next += 1;
        self.complete += 1;
    }
}

/// A text as JSON.
pub(super) fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// What follows a part behind white space.
fn behind<'a>(text: &'a str, part: &str) -> Result<&'a str, Unread> {
    let text = text.trim_start();
    match text.strip_prefix(part) {
        Some(rest) => Ok(rest),
        None if part.starts_with(text) => Err(Unread::More),
        None => Err(Unread::Other),
    }
}

/// `{"name": NAME, "arguments": ` up to the arguments, in a list or not.
fn json_name(text: &str) -> Result<(String, usize), Unread> {
    let mut rest = behind(text, "[").unwrap_or(text);
    for part in ["{", "\"name\"", ":", "\""] {
        rest = behind(rest, part)?;
    }
    let (name, mut rest) = rest.split_once('"').ok_or(Unread::More)?;
    if name.contains('\\') {
        return Err(Unread::Other);
    }
    rest = behind(rest, ",")?;
    rest = match (behind(rest, "\"arguments\""), behind(rest, "\"parameters\"")) {
        (Ok(rest), _) | (_, Ok(rest)) => rest,
        (Err(Unread::More), _) | (_, Err(Unread::More)) => return Err(Unread::More),
        _ => return Err(Unread::Other),
    };
    rest = behind(rest, ":")?.trim_start();
    if rest.is_empty() {
        return Err(Unread::More);
    }
    Ok((name.to_owned(), text.len() - rest.len()))
}

/// `NAME[ARGS]`, with an id or without.
fn mistral_name(text: &str) -> Result<(String, usize), Unread> {
    let (name, mut rest) = text.split_at(text.find(['[', '{']).ok_or(Unread::More)?);
    let name = checked_name(name)?;
    if let Some(id) = rest.strip_prefix(CALL_ID) {
        rest = &id[id.find(['[', '{']).ok_or(Unread::More)?..];
    } else if CALL_ID.starts_with(rest) {
        return Err(Unread::More);
    }
    rest = match behind(rest, ARGS) {
        Err(Unread::Other) => rest,
        read => read?,
    };
    rest = rest.trim_start();
    if rest.is_empty() {
        return Err(Unread::More);
    }
    Ok((name, text.len() - rest.len()))
}

fn qwen_name(text: &str) -> Result<(String, usize), Unread> {
    let (name, rest) = behind(text, "<function=")?.split_once('>').ok_or(Unread::More)?;
    Ok((checked_name(name)?, text.len() - rest.len()))
}

fn glm_name(text: &str) -> Result<(String, usize), Unread> {
    let at = text.find(ARG_KEY.0).ok_or(Unread::More)?;
    Ok((checked_name(&text[..at])?, at))
}

fn gemma_name(text: &str) -> Result<(String, usize), Unread> {
    let rest = behind(text, "call:")?;
    let at = rest.find('{').ok_or(Unread::More)?;
    Ok((checked_name(&rest[..at])?, text.len() - rest.len() + at))
}

fn checked_name(text: &str) -> Result<String, Unread> {
    Some(text.trim()).filter(|name| is_name(name)).map(str::to_owned).ok_or(Unread::Other)
}
