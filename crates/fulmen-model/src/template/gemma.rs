//! Calls of Gemma 4: `call:NAME{KEY:VALUE,…}`. Keys have no quotes, and strings are between `<|"|>`.

use serde_json::{Map, Value};

use super::answer::partial_suffix;
use super::json_text::{JsonText, Read};
use super::tool_format::is_name;
use super::tools::ToolCall;

pub(super) const QUOTE: &str = "<|\"|>";

/// The call in a text; `None` if it is none.
pub(super) fn call(text: &str) -> Option<ToolCall> {
    let rest = text.trim().strip_prefix("call:")?;
    let (name, object) = rest.split_at(rest.find('{')?);
    let name = Some(name.trim()).filter(|name| is_name(name))?.to_owned();
    let mut json = String::new();
    match GemmaText::default().push(object, &mut json) {
        Read::End(at) if object[at..].trim().is_empty() => {}
        _ => return None,
    }
    let arguments: Map<String, Value> = serde_json::from_str(&json).ok()?;
    Some(ToolCall { name, arguments })
}

/// Writes an object, which arrives in pieces, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GemmaText {
    json: JsonText,
    /// Whether the text is between quotes of Gemma's.
    in_text: bool,
    held: String,
}

impl Default for GemmaText {
    fn default() -> GemmaText {
        GemmaText { json: JsonText::object(), in_text: false, held: String::new() }
    }
}

impl GemmaText {
    /// Reads a piece of text, and writes what is certain.
    pub(super) fn push(&mut self, text: &str, out: &mut String) -> Read {
        self.held.push_str(text);
        while let Some((json, bytes)) = self.next() {
            self.held.drain(..bytes);
            match self.json.push(&json, out) {
                Read::More => {}
                Read::End(_) => return Read::End(text.len().saturating_sub(self.held.len())),
                Read::Invalid => return Read::Invalid,
            }
        }
        Read::More
    }

    /// The next part as JSON, and its bytes in the text; `None` if more is needed.
    fn next(&mut self) -> Option<(String, usize)> {
        let held = self.held.as_str();
        if self.in_text {
            if let Some(at) = held.find(QUOTE) {
                self.in_text = false;
                return Some((format!("{}\"", string_part(&held[..at])), at + QUOTE.len()));
            }
            let settled = held.len() - partial_suffix(held, QUOTE);
            return (settled > 0).then(|| (string_part(&held[..settled]), settled));
        }
        let first = held.chars().next()?;
        if self.json.is_in_string() || matches!(first, '{' | '}' | '[' | ']' | ',' | ':' | '"') {
            return Some((first.to_string(), first.len_utf8()));
        }
        if held.starts_with(QUOTE) {
            self.in_text = true;
            return Some(("\"".to_owned(), QUOTE.len()));
        }
        if QUOTE.starts_with(held) {
            return None;
        }
        if first.is_whitespace() {
            return Some((" ".to_owned(), first.len_utf8()));
        }
        // A key, a number or a constant, which ends with what follows it.
        let ends = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | '[' | ']' | ',' | ':' | '"' | '<');
        let bytes = held.find(ends)?.max(1);
        let json = match held.get(..bytes)? {
            word if self.json.expects_key() => Value::from(word).to_string(),
            "None" => "null".to_owned(),
            "True" => "true".to_owned(),
            "False" => "false".to_owned(),
            word => word.to_owned(),
        };
        Some((json, bytes))
    }
}

/// A text within a JSON string.
pub(super) fn string_part(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_written_as_json() {
        let rows = [
            ("{}", json!({})),
            ("{city:<|\"|>New York<|\"|>,days:3}", json!({ "city": "New York", "days": 3 })),
            (
                "{ a : [1, -2.5, <|\"|>x<|\"|>] , b:{c:true,d:null}}",
                json!({ "a": [1, -2.5, "x"], "b": { "c": true, "d": null } }),
            ),
            ("{a:<|\"|>1 \"quoted\" {x}: \n<b>, <|<|\"|>}", json!({ "a": "1 \"quoted\" {x}: \n<b>, <|" })),
            ("{a:<|\"|><|\"|>,b:None,c:True}", json!({ "a": "", "b": null, "c": true })),
            ("{<|\"|>a b<|\"|>:\"x\\\"}\",\"c\":[]}", json!({ "a b": "x\"}", "c": [] })),
            ("{ä_1:1}", json!({ "ä_1": 1 })),
        ];
        for (text, value) in rows {
            let call = call(&format!("call:f-1.x{text}")).expect(text);
            assert_eq!((call.name.as_str(), json!(call.arguments)), ("f-1.x", value), "{text}");
        }
        for text in [
            "",
            "call:",
            "call:f",
            "f{}",
            "call:a b{}",
            "call:f{a}",
            "call:f{a:Oslo}",
            "call:f{a:1",
            "call:f{} x",
            "call:f{a:<|\"|>x}",
            "call:f{a:<b>}",
            "call:f[1]",
            "call:f{a:1,}",
            "call:{}",
        ] {
            assert_eq!(call(text), None, "{text}");
        }
    }
}
