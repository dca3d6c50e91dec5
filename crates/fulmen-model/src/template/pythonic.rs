//! Calls in Python's syntax: `weather(city="Oslo", days=[1, 2])`, one per line.

use serde_json::{Map, Number, Value};

use super::tools::ToolCall;

/// Lists and dictionaries within each other at most.
const MAX_DEPTH: usize = 64;

/// The calls in a text; `None` if it is anything else. Constants may be Python's or JSON's.
pub(super) fn calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut reader = Reader { rest: text.trim() };
    let bracketed = reader.take("[");
    let mut calls = Vec::new();
    loop {
        calls.push(reader.call()?);
        reader.space();
        let more = reader.take(",") || reader.take(";");
        reader.space();
        if bracketed && reader.take("]") {
            return reader.rest.trim().is_empty().then_some(calls);
        }
        if reader.rest.is_empty() {
            return (!bracketed && !more).then_some(calls);
        }
    }
}

/// A value; `None` if the text is anything else.
pub(super) fn value(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text };
    let value = reader.value(MAX_DEPTH)?;
    reader.rest.trim().is_empty().then_some(value)
}

/// The text of an escape at the beginning of `rest` and its length; `Some(None)` if there is no such escape,
/// `None` if it is not complete.
pub(super) fn escape(rest: &str) -> Option<Option<(String, usize)>> {
    let mut chars = rest.strip_prefix('\\')?.chars();
    let c = chars.next()?;
    let plain = |text: &str| Some(Some((text.to_owned(), 1 + c.len_utf8())));
    match c {
        'n' => plain("\n"),
        't' => plain("\t"),
        'r' => plain("\r"),
        'b' => plain("\u{8}"),
        'f' => plain("\u{c}"),
        'u' => {
            let digits: String = chars.take(4).collect();
            if digits.chars().count() < 4 {
                return None;
            }
            let read = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
            Some(read.map(|read| (read.to_string(), 2 + digits.len())))
        }
        '\\' | '\'' | '"' | '/' => plain(c.encode_utf8(&mut [0; 4])),
        other => Some(Some((format!("\\{other}"), 1 + other.len_utf8()))),
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self, also: &[char]) -> Option<&'a str> {
        let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || also.contains(&c));
        let (word, rest) = self.rest.split_at(self.rest.find(end).unwrap_or(self.rest.len()));
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    fn call(&mut self) -> Option<ToolCall> {
        let name = self.word(&['-', '.'])?.to_owned();
        let mut arguments = Map::new();
        if !self.take("(") {
            return None;
        }
        self.space();
        while !self.take(")") {
            let key = self.word(&['-', '.'])?.to_owned();
            self.space();
            if !self.take("=") {
                return None;
            }
            arguments.insert(key, self.value(MAX_DEPTH)?);
            self.separated(")")?;
        }
        Some(ToolCall { name, arguments })
    }

    /// A comma, or that the closing bracket follows.
    fn separated(&mut self, close: &str) -> Option<()> {
        self.space();
        let comma = self.take(",");
        self.space();
        (comma || self.rest.starts_with(close)).then_some(())
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let deeper = depth.checked_sub(1)?;
        self.space();
        if self.take("[") {
            return self.list(']', deeper);
        }
        if self.take("(") {
            return self.list(')', deeper);
        }
        if self.take("{") {
            return self.dictionary(deeper);
        }
        match self.rest.chars().next()? {
            quote @ ('"' | '\'') => {
                self.rest = &self.rest[1..];
                self.string(quote).map(Value::String)
            }
            _ => match self.word(&['+', '-', '.'])? {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                number => Some(Value::Number(number.parse::<Number>().ok()?)),
            },
        }
    }

    fn list(&mut self, close: char, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        self.space();
        loop {
            if self.rest.starts_with(close) {
                self.rest = &self.rest[1..];
                return Some(Value::Array(items));
            }
            items.push(self.value(depth)?);
            self.space();
            if !self.take(",") && !self.rest.starts_with(close) {
                return None;
            }
            self.space();
        }
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        let mut map = Map::new();
        self.space();
        while !self.take("}") {
            let key = match self.value(depth)? {
                Value::String(key) => key,
                _ => return None,
            };
            self.space();
            if !self.take(":") {
                return None;
            }
            map.insert(key, self.value(depth)?);
            self.separated("}")?;
        }
        Some(Value::Object(map))
    }

    /// The rest of a string behind its opening quote.
    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        loop {
            let at = self.rest.find([quote, '\\'])?;
            text.push_str(&self.rest[..at]);
            self.rest = &self.rest[at..];
            if let Some(rest) = self.rest.strip_prefix(quote) {
                self.rest = rest;
                return Some(text);
            }
            let (escaped, length) = escape(self.rest)??;
            text.push_str(&escaped);
            self.rest = &self.rest[length..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn python_s_literals_are_values() {
        let text =
            "f(a=\"x \\\"y\\\"\", b='it\\'s', c=-2.5, d=[1, True, null,], e={\"k\": {'l': None}}, g=())";
        let calls = calls(text).unwrap();
        let expected = json!({
            "a": "x \"y\"", "b": "it's", "c": -2.5, "d": [1, true, null],
            "e": { "k": { "l": null } }, "g": [],
        });
        assert_eq!(Value::Object(calls[0].arguments.clone()), expected);
    }

    #[test]
    fn calls_are_one_per_line_or_a_list() {
        let names = |text: &str| -> Option<Vec<String>> {
            Some(calls(text)?.into_iter().map(|call| call.name).collect())
        };
        assert_eq!(names("a()\nb-2.c(x=1)\n").unwrap(), ["a", "b-2.c"]);
        assert_eq!(names("[a(), b(x=1)]").unwrap(), ["a", "b"]);
        for text in
            ["", "a", "a(", "a(1)", "a(x=)", "a(x=1", "a() and", "[a()", "a(x=\"1)", "a(x=[1 2])", "a(x=b)"]
        {
            assert_eq!(names(text), None, "{text}");
        }
        assert_eq!(names(&format!("a(x={})", "[".repeat(1000))), None);
    }
}
