//! Methods of values, modeled after Python.

use super::call::Arguments;
use super::error::{Failure, Result};
use super::eval::Interpreter;
use super::text::Text;
use super::value::Value;
use super::{ops, wrong};

impl Interpreter<'_> {
    pub(super) fn method(&mut self, value: &Value, name: &str, args: &Arguments) -> Result<Value> {
        match value {
            Value::Str(text) => self.text_method(text, name, args),
            Value::Map(map) => {
                let meter = &mut self.meter;
                match name {
                    "get" => {
                        args.only("get", &["key", "default"])?;
                        let found = map.get(args.need(0, "key", "get")?, meter)?;
                        Ok(found.or_else(|| args.get(1, "default").cloned()).unwrap_or(Value::None))
                    }
                    "items" | "keys" | "values" => {
                        args.only(name, &[])?;
                        let mut items = Vec::with_capacity(map.entries.len());
                        for (key, value) in &map.entries {
                            items.push(match name {
                                "keys" => key.clone(),
                                "values" => value.clone(),
                                _ => Value::list(vec![key.clone(), value.clone()], meter)?,
                            });
                        }
                        Value::list(items, meter)
                    }
                    _ => match map.get_str(name, meter)? {
                        Some(Value::Macro(number)) => self.call_macro(number, args),
                        _ => Interpreter::unknown("method of mappings", name),
                    },
                }
            }
            Value::List(list) => match name {
                "index" | "count" => {
                    args.only(name, &["item"])?;
                    let wanted = args.need(0, "item", name)?;
                    let mut count = 0;
                    for (at, item) in list.items.iter().enumerate() {
                        if item.equals(wanted, &mut self.meter)? {
                            if name == "index" {
                                return Ok(Value::int(at));
                            }
                            count += 1;
                        }
                    }
                    if name == "count" {
                        Ok(Value::int(count))
                    } else {
                        wrong("index: the item is not in the list")
                    }
                }
                "append" | "pop" | "insert" | "extend" | "remove" => {
                    Err(Failure::Unsupported(format!("changing a list ({name})")))
                }
                _ => Interpreter::unknown("method of lists", name),
            },
            Value::Namespace(namespace) => match namespace.get(name) {
                Some(Value::Macro(number)) => self.call_macro(number, args),
                _ => wrong(format!("{name:?} of a namespace cannot be called")),
            },
            Value::Undefined(_) => wrong(format!("{}, so it has no {name:?}", value.describe())),
            Value::Loop(_) => Interpreter::unknown("method of loops", name),
            other => wrong(format!("{} has no method {name:?}", other.describe())),
        }
    }

    fn text_method(&mut self, text: &Text, name: &str, args: &Arguments) -> Result<Value> {
        // Every method reads the whole text, and most results are not longer.
        self.meter.pay(text.len())?;
        let string = text.as_str();
        let wanted = |at, what| args.need(at, what, name)?.expect_text(name);
        let limit = |at, what| -> Result<usize> {
            match args.get(at, what) {
                None | Some(Value::None) => Ok(usize::MAX),
                Some(value) => Ok(usize::try_from(value.expect_int(name)?).unwrap_or(usize::MAX)),
            }
        };
        Ok(match name {
            "strip" | "lstrip" | "rstrip" => {
                args.only(name, &["chars"])?;
                let chars = match args.get(0, "chars") {
                    None | Some(Value::None) => None,
                    Some(chars) => Some(chars.expect_text(name)?.as_str()),
                };
                Value::text(trimmed(text, chars, name != "rstrip", name != "lstrip"))
            }
            "startswith" | "endswith" => {
                args.only(name, &["affix"])?;
                let fits = |affix: &Value| -> Result<bool> {
                    let affix = affix.expect_text(name)?.as_str();
                    Ok(if name == "startswith" { string.starts_with(affix) } else { string.ends_with(affix) })
                };
                match args.need(0, "affix", name)? {
                    // Any of several affixes may match.
                    Value::List(list) => {
                        self.meter.pay(list.items.len())?;
                        let fitting = list.items.iter().map(fits).collect::<Result<Vec<bool>>>()?;
                        Value::Bool(fitting.contains(&true))
                    }
                    affix => Value::Bool(fits(affix)?),
                }
            }
            "removeprefix" | "removesuffix" => {
                args.only(name, &["affix"])?;
                let affix = wanted(0, "affix")?.as_str();
                let rest = match name {
                    "removeprefix" => string.strip_prefix(affix),
                    _ => string.strip_suffix(affix),
                };
                Value::text(text.part(rest.unwrap_or(string)))
            }
            "upper" | "lower" | "title" | "capitalize" => {
                args.only(name, &[])?;
                Value::text(cased(text, name))
            }
            "replace" => {
                args.only(name, &["old", "new", "count"])?;
                let (old, new) = (wanted(0, "old")?, wanted(1, "new")?);
                self.replace(text, old, new, limit(2, "count")?)?
            }
            "split" | "rsplit" => {
                args.only(name, &["sep", "maxsplit"])?;
                self.split(text, name, args, limit(1, "maxsplit")?)?
            }
            "splitlines" => {
                args.only(name, &[])?;
                self.meter.pay_items(string.matches('\n').count().saturating_mul(4))?;
                let lines = string.lines().map(|line| Value::text(text.part(line)));
                Value::list(lines.collect(), &mut self.meter)?
            }
            "join" => {
                args.only(name, &["items"])?;
                let items = args.need(0, "items", name)?.iterate(&mut self.meter)?;
                for item in &items {
                    item.expect_text("join")?;
                }
                ops::join(&items, text, &mut self.meter)?
            }
            "find" | "rfind" | "index" | "count" => {
                args.only(name, &["sub"])?;
                let part = wanted(0, "sub")?.as_str();
                let found = match name {
                    "count" => return Ok(Value::int(string.matches(part).count())),
                    "rfind" => string.rfind(part),
                    _ => string.find(part),
                };
                match found {
                    Some(at) => Value::int(string[..at].chars().count()),
                    None if name == "index" => return wrong("index: substring not found"),
                    None => Value::Int(-1),
                }
            }
            "isdigit" | "isnumeric" | "isdecimal" => all_chars(string, char::is_numeric),
            "isalpha" => all_chars(string, char::is_alphabetic),
            "isalnum" => all_chars(string, char::is_alphanumeric),
            "isspace" => all_chars(string, char::is_whitespace),
            "isupper" | "islower" => {
                return self.check(&name[2..], &Value::text(text.clone()), args).map(Value::Bool);
            }
            "format" => self.format(text, args)?,
            _ => return Interpreter::unknown("method of strings", name),
        })
    }

    fn split(&mut self, text: &Text, name: &str, args: &Arguments, limit: usize) -> Result<Value> {
        let string = text.as_str();
        let pieces = match args.get(0, "sep") {
            None | Some(Value::None) if limit == usize::MAX => {
                string.split_whitespace().map(|piece| text.part(piece)).collect()
            }
            None | Some(Value::None) => {
                return Err(Failure::Unsupported(format!("{name} at whitespace with a limit")));
            }
            Some(separator) => {
                let separator = separator.expect_text(name)?.as_str();
                if separator.is_empty() {
                    return wrong(format!("{name}: the separator is empty"));
                }
                self.meter.pay_items(string.matches(separator).count().saturating_mul(4))?;
                match name {
                    "split" => text.split(separator, limit),
                    _ => {
                        let pieces = string.rsplitn(limit.saturating_add(1), separator);
                        let mut pieces: Vec<Text> = pieces.map(|piece| text.part(piece)).collect();
                        pieces.reverse();
                        pieces
                    }
                }
            }
        };
        Value::list(pieces.into_iter().map(Value::text).collect(), &mut self.meter)
    }

    pub(super) fn replace(&mut self, text: &Text, old: &Text, new: &Text, limit: usize) -> Result<Value> {
        let found = text.as_str().matches(old.as_str()).count().min(limit);
        self.meter.pay(text.len().saturating_add(found.saturating_mul(new.len())))?;
        Ok(Value::text(text.replace(old.as_str(), new, limit)))
    }

    /// `"{} and {name}".format(…)`, without widths and types.
    fn format(&mut self, text: &Text, args: &Arguments) -> Result<Value> {
        let string = text.as_str();
        let (mut out, mut at, mut next) = (Text::default(), 0, 0);
        while let Some(found) = string[at..].find(['{', '}']) {
            let brace = at + found;
            out.push_slice(text, at..brace);
            let rest = &string[brace..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                out.push_slice(text, brace..brace + 1);
                at = brace + 2;
                continue;
            }
            let Some(end) = rest.find('}').filter(|_| rest.starts_with('{')) else {
                return wrong("format: a brace stands alone");
            };
            let field = &rest[1..end];
            let value = if field.is_empty() {
                next += 1;
                args.positional.get(next - 1)
            } else if field.bytes().all(|byte| byte.is_ascii_digit()) {
                field.parse().ok().and_then(|at: usize| args.positional.get(at))
            } else {
                args.named.iter().find(|row| row.0 == field).map(|row| &row.1)
            };
            let Some(value) = value else { return wrong(format!("format: no value for {{{field}}}")) };
            value.show(&mut out, &mut self.meter)?;
            at = brace + end + 1;
        }
        self.meter.pay(string.len() - at)?;
        out.push_slice(text, at..string.len());
        Ok(Value::text(out))
    }
}

/// Strips whitespace, or these characters, from the ends.
pub(super) fn trimmed(text: &Text, chars: Option<&str>, left: bool, right: bool) -> Text {
    let goes = |c: char| chars.map_or(c.is_whitespace(), |chars| chars.contains(c));
    let mut part = text.as_str();
    if left {
        part = part.trim_start_matches(goes);
    }
    if right {
        part = part.trim_end_matches(goes);
    }
    text.part(part)
}

/// Converts to upper case, lower case, title case or capitalized.
pub(super) fn cased(text: &Text, how: &str) -> Text {
    match how {
        "upper" => text.map(str::to_uppercase),
        "lower" => text.map(str::to_lowercase),
        _ => {
            // A word continues across ranges of different origin.
            let inside = std::cell::Cell::new(false);
            text.map(|part| {
                let mut out = String::with_capacity(part.len());
                for c in part.chars() {
                    if inside.get() {
                        out.extend(c.to_lowercase())
                    } else {
                        out.extend(c.to_uppercase())
                    }
                    inside.set(how == "capitalize" || c.is_alphabetic());
                }
                out
            })
        }
    }
}

fn all_chars(string: &str, fits: impl Fn(char) -> bool) -> Value {
    Value::Bool(!string.is_empty() && string.chars().all(fits))
}
