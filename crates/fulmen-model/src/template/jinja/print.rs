//! Converts values to text: as `{{ … }}` prints them, as Python's `repr`, and as JSON.

use super::error::Result;
use super::meter::Meter;
use super::text::Text;
use super::value::Value;
use super::wrong;

impl Value {
    /// What `{{ value }}` prints.
    pub(super) fn show(&self, out: &mut Text, meter: &mut Meter) -> Result<()> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Str(text) => {
                meter.pay(text.len())?;
                out.push(text);
                Ok(())
            }
            other => other.repr(out, meter),
        }
    }

    /// The value as text.
    pub(super) fn to_text(&self, meter: &mut Meter) -> Result<Text> {
        let mut text = Text::default();
        self.show(&mut text, meter)?;
        Ok(text)
    }

    /// Python's `repr`: strings in quotes.
    fn repr(&self, out: &mut Text, meter: &mut Meter) -> Result<()> {
        meter.pay(8)?;
        match self {
            Value::Undefined(_) => out.push_own("Undefined"),
            Value::None => out.push_own("None"),
            Value::Bool(flag) => out.push_own(if *flag { "True" } else { "False" }),
            Value::Int(number) => out.push_own(&number.to_string()),
            Value::Float(number) => out.push_own(&float(*number)),
            Value::Str(text) => {
                meter.pay(text.len().saturating_mul(2))?;
                let quote =
                    if text.as_str().contains('\'') && !text.as_str().contains('"') { "\"" } else { "'" };
                out.push_own(quote);
                out.push(&text.map(|part| quoted(part, quote)));
                out.push_own(quote);
            }
            Value::List(list) => {
                out.push_own("[");
                for (at, item) in list.items.iter().enumerate() {
                    out.push_own(if at > 0 { ", " } else { "" });
                    item.repr(out, meter)?;
                }
                out.push_own("]");
            }
            Value::Map(map) => {
                out.push_own("{");
                for (at, (key, value)) in map.entries.iter().enumerate() {
                    out.push_own(if at > 0 { ", " } else { "" });
                    key.repr(out, meter)?;
                    out.push_own(": ");
                    value.repr(out, meter)?;
                }
                out.push_own("}");
            }
            other => return wrong(format!("a {} cannot be printed", other.kind())),
        }
        Ok(())
    }

    /// JSON as written by Python's `json.dumps` with `ensure_ascii=False`.
    pub(super) fn json(
        &self,
        style: &JsonStyle,
        level: usize,
        out: &mut Text,
        meter: &mut Meter,
    ) -> Result<()> {
        meter.pay(8)?;
        match self {
            Value::None => out.push_own("null"),
            Value::Bool(flag) => out.push_own(if *flag { "true" } else { "false" }),
            Value::Int(number) => out.push_own(&number.to_string()),
            Value::Float(number) => out.push_own(&match number {
                number if number.is_nan() => "NaN".to_owned(),
                number if number.is_infinite() => {
                    if *number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
                }
                number => float(*number),
            }),
            Value::Str(text) => json_string(text, style, out, meter)?,
            Value::List(list) => {
                out.push_own("[");
                for (at, item) in list.items.iter().enumerate() {
                    style.before_item(at, level, out, meter)?;
                    item.json(style, level + 1, out, meter)?;
                }
                style.end(list.items.is_empty(), level, out, meter)?;
                out.push_own("]");
            }
            Value::Map(map) => {
                out.push_own("{");
                let mut entries: Vec<&(Value, Value)> = map.entries.iter().collect();
                if style.sort_keys {
                    meter.pay(entries.len().saturating_mul(16))?;
                    entries.sort_by(|a, b| key_text(&a.0).cmp(key_text(&b.0)));
                }
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    style.before_item(at, level, out, meter)?;
                    match key {
                        Value::Str(text) => json_string(text, style, out, meter)?,
                        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                            out.push_own("\"");
                            key.json(style, level, out, meter)?;
                            out.push_own("\"");
                        }
                        other => return wrong(format!("a {} cannot be a JSON key", other.kind())),
                    }
                    out.push_own(&style.colon);
                    value.json(style, level + 1, out, meter)?;
                }
                style.end(map.entries.is_empty(), level, out, meter)?;
                out.push_own("}");
            }
            other => return wrong(format!("{} cannot be written as JSON", other.describe())),
        }
        Ok(())
    }
}

/// JSON formatting.
pub(super) struct JsonStyle {
    /// Indentation per level; `None` for a single line.
    pub(super) indent: Option<String>,
    pub(super) comma: String,
    pub(super) colon: String,
    pub(super) sort_keys: bool,
    pub(super) ascii: bool,
}

impl JsonStyle {
    pub(super) fn new(indent: Option<String>) -> JsonStyle {
        let comma = if indent.is_some() { "," } else { ", " };
        JsonStyle { indent, comma: comma.into(), colon: ": ".into(), sort_keys: false, ascii: false }
    }

    fn before_item(&self, at: usize, level: usize, out: &mut Text, meter: &mut Meter) -> Result<()> {
        if at > 0 {
            out.push_own(&self.comma);
        }
        self.new_line(level + 1, out, meter)
    }

    fn end(&self, empty: bool, level: usize, out: &mut Text, meter: &mut Meter) -> Result<()> {
        if empty { Ok(()) } else { self.new_line(level, out, meter) }
    }

    fn new_line(&self, level: usize, out: &mut Text, meter: &mut Meter) -> Result<()> {
        if let Some(indent) = &self.indent {
            meter.pay(1 + indent.len().saturating_mul(level))?;
            out.push_own("\n");
            out.push_own(&indent.repeat(level));
        }
        Ok(())
    }
}

fn key_text(key: &Value) -> &str {
    key.as_text().map_or("", |text| text.as_str())
}

fn json_string(text: &Text, style: &JsonStyle, out: &mut Text, meter: &mut Meter) -> Result<()> {
    meter.pay(text.len().saturating_mul(2))?;
    out.push_own("\"");
    out.push(&text.map(|part| json_escaped(part, style.ascii)));
    out.push_own("\"");
    Ok(())
}

fn json_escaped(text: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}

/// Part of a string as `repr` writes it between these quotes.
fn quoted(text: &str, quote: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if quote.contains(c) => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// A number as Python's `repr` writes it: always with a decimal point or an exponent.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        // Rust writes 1e-7 where Python writes 1e-07.
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_writes_them() {
        for (number, expected) in [
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-0.0, "-0.0"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(number), expected);
        }
    }
}
