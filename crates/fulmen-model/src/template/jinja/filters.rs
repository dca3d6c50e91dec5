//! Jinja filters, used with `|`.

use std::cmp::Ordering;

use super::call::Arguments;
use super::error::{Failure, Result};
use super::eval::Interpreter;
use super::methods::{cased, trimmed};
use super::print::JsonStyle;
use super::text::Text;
use super::value::{Number, Value};
use super::{ops, wrong};

impl Interpreter<'_> {
    pub(super) fn filter(&mut self, name: &str, value: Value, args: Arguments) -> Result<Value> {
        match name {
            "default" | "d" => {
                args.only(name, &["default_value", "boolean"])?;
                let falsy = args.get(1, "boolean").is_some_and(Value::is_true) && !value.is_true();
                let default = || args.get(0, "default_value").cloned().unwrap_or_else(|| Value::own(""));
                Ok(if falsy || matches!(value, Value::Undefined(_)) { default() } else { value })
            }
            "safe" | "string" => {
                args.only(name, &[])?;
                match value {
                    Value::Str(_) => Ok(value),
                    other => Ok(Value::text(other.to_text(&mut self.meter)?)),
                }
            }
            "tojson" => self.json_of(&value, &args),
            "trim" | "upper" | "lower" | "title" | "capitalize" | "replace" | "indent" | "escape" | "e" => {
                let text = value.to_text(&mut self.meter)?;
                self.text_filter(name, &text, &args)
            }
            "length" | "count" => {
                args.only(name, &[])?;
                self.length(&value)
            }
            "items" => {
                args.only(name, &[])?;
                match &value {
                    Value::Undefined(_) => Value::list(Vec::new(), &mut self.meter),
                    Value::Map(_) => self.method(&value, "items", &args),
                    other => wrong(format!("items needs a mapping, got {}", other.describe())),
                }
            }
            "dictsort" => self.dictsort(&value, &args),
            "int" | "float" | "abs" | "round" => self.number_filter(name, &value, &args),
            "join" => {
                args.only(name, &["d", "attribute"])?;
                let mut items = value.iterate(&mut self.meter)?;
                if let Some(attribute) = args.get(1, "attribute") {
                    items = self.each_attribute(items, attribute)?;
                }
                let nothing = Value::own("");
                let between = args.get(0, "d").unwrap_or(&nothing).to_text(&mut self.meter)?;
                ops::join(&items, &between, &mut self.meter)
            }
            _ => self.list_filter(name, value, args),
        }
    }

    /// Filters that iterate over items.
    fn list_filter(&mut self, name: &str, value: Value, args: Arguments) -> Result<Value> {
        match name {
            "list" | "first" | "last" | "reverse" | "unique" => args.only(name, &[])?,
            "min" | "max" | "sum" => args.only(name, &["attribute"])?,
            "sort" => args.only(name, &["reverse", "case_sensitive", "attribute"])?,
            "map" | "select" | "reject" | "selectattr" | "rejectattr" => {}
            _ => return Interpreter::unknown("filter", name),
        }
        // Undefined iterates as an empty list.
        let lazy = matches!(name, "map" | "select" | "reject" | "selectattr" | "rejectattr");
        let mut items = match lazy && !value.is_true() {
            true => Vec::new(),
            false => value.iterate(&mut self.meter)?,
        };
        if let Some(attribute) =
            args.named.iter().find(|row| row.0 == "attribute" && name != "map" && name != "sort")
        {
            items = self.each_attribute(items, &attribute.1)?;
        }
        match name {
            "first" | "last" => {
                let found = if name == "first" { items.first() } else { items.last() };
                return Ok(found.cloned().unwrap_or_else(|| Value::undefined(name)));
            }
            "reverse" => {
                items.reverse();
                // The reverse of a string is a string.
                if let Value::Str(_) = value {
                    return ops::join(&items, &Text::default(), &mut self.meter);
                }
            }
            "unique" => {
                let mut seen: Vec<Value> = Vec::new();
                for item in items {
                    let mut known = false;
                    for other in &seen {
                        known |= other.equals(&item, &mut self.meter)?;
                    }
                    if !known {
                        seen.push(item);
                    }
                }
                items = seen;
            }
            "sort" => {
                let reverse = args.get(0, "reverse").is_some_and(Value::is_true);
                let cased = args.get(1, "case_sensitive").is_some_and(Value::is_true);
                let keys = match args.get(2, "attribute") {
                    Some(attribute) => self.each_attribute(items.clone(), attribute)?,
                    None => items.clone(),
                };
                items = self.sorted(keys, items, cased, reverse)?;
            }
            "min" | "max" => {
                let sorted = self.sorted(items.clone(), items, false, name == "max")?;
                return Ok(sorted.into_iter().next().unwrap_or_else(|| Value::undefined(name)));
            }
            "sum" => {
                let mut sum = Value::Int(0);
                for item in items {
                    sum = ops::binary(super::ast::Binary::Add, &sum, &item, &mut self.meter)?;
                }
                return Ok(sum);
            }
            "map" => items = self.map(items, args)?,
            "select" | "reject" | "selectattr" | "rejectattr" => items = self.select(name, items, args)?,
            _ => {}
        }
        Value::list(items, &mut self.meter)
    }

    fn length(&mut self, value: &Value) -> Result<Value> {
        Ok(Value::int(match value {
            Value::Str(text) => {
                self.meter.pay(text.len())?;
                text.as_str().chars().count()
            }
            Value::List(list) => list.items.len(),
            Value::Map(map) => map.entries.len(),
            Value::Undefined(_) => 0,
            other => return wrong(format!("{} has no length", other.describe())),
        }))
    }

    fn json_of(&mut self, value: &Value, args: &Arguments) -> Result<Value> {
        args.only("tojson", &["indent", "ensure_ascii", "separators", "sort_keys"])?;
        let indent = match args.get(0, "indent") {
            None | Some(Value::None) => None,
            Some(Value::Str(text)) => Some(text.as_str().to_owned()),
            Some(value) => {
                Some(" ".repeat(usize::try_from(value.expect_int("tojson")?).unwrap_or(0).min(64)))
            }
        };
        let mut style = JsonStyle::new(indent);
        style.ascii = args.get(1, "ensure_ascii").is_some_and(Value::is_true);
        style.sort_keys = args.get(3, "sort_keys").is_some_and(Value::is_true);
        if let Some(Value::List(list)) = args.get(2, "separators") {
            let [comma, colon] = list.items.as_slice() else {
                return wrong("tojson: separators are two strings");
            };
            style.comma = comma.expect_text("tojson")?.as_str().to_owned();
            style.colon = colon.expect_text("tojson")?.as_str().to_owned();
        }
        let mut out = Text::default();
        value.json(&style, 0, &mut out, &mut self.meter)?;
        Ok(Value::text(out))
    }

    fn text_filter(&mut self, name: &str, text: &Text, args: &Arguments) -> Result<Value> {
        self.meter.pay(text.len())?;
        Ok(match name {
            "trim" => {
                args.only(name, &["chars"])?;
                let chars = args.get(0, "chars").map(|chars| chars.expect_text(name)).transpose()?;
                Value::text(trimmed(text, chars.map(|chars| chars.as_str()), true, true))
            }
            "replace" => {
                args.only(name, &["old", "new", "count"])?;
                let old = args.need(0, "old", name)?.expect_text(name)?;
                let new = args.need(1, "new", name)?.expect_text(name)?;
                let limit = match args.get(2, "count") {
                    None | Some(Value::None) => usize::MAX,
                    Some(count) => usize::try_from(count.expect_int(name)?).unwrap_or(usize::MAX),
                };
                self.replace(text, old, new, limit)?
            }
            "indent" => self.indent(text, args)?,
            "escape" | "e" => {
                args.only(name, &[])?;
                self.meter.pay(text.len().saturating_mul(5))?;
                let escape = |part: &str| {
                    let part = part.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                    part.replace('\'', "&#39;").replace('"', "&#34;")
                };
                Value::text(text.map(escape))
            }
            how => {
                args.only(name, &[])?;
                Value::text(cased(text, how))
            }
        })
    }

    fn indent(&mut self, text: &Text, args: &Arguments) -> Result<Value> {
        args.only("indent", &["width", "first", "blank"])?;
        let indent = match args.get(0, "width") {
            None => Text::own("    "),
            Some(Value::Str(width)) => Text::clone(width),
            Some(width) => {
                let width = usize::try_from(width.expect_int("indent")?).unwrap_or(0);
                self.meter.pay(width)?;
                Text::own(" ".repeat(width))
            }
        };
        let flag = |at, name| args.get(at, name).is_some_and(Value::is_true);
        let (first, blank) = (flag(1, "first"), flag(2, "blank"));
        self.meter.pay_items(text.as_str().matches('\n').count().saturating_mul(4))?;
        let mut out = Text::default();
        for (at, line) in text.split("\n", usize::MAX).iter().enumerate() {
            self.meter.pay(line.len().saturating_add(indent.len()).saturating_add(1))?;
            if at > 0 {
                out.push_own("\n");
            }
            if (at > 0 || first) && (blank || at == 0 || !line.is_empty()) {
                out.push(&indent);
            }
            out.push(line);
        }
        Ok(Value::text(out))
    }

    fn number_filter(&mut self, name: &str, value: &Value, args: &Arguments) -> Result<Value> {
        match name {
            "abs" => {
                args.only(name, &[])?;
                match value.number() {
                    Some(number) if number.float() < 0.0 => ops::negative(value),
                    Some(_) => Ok(value.clone()),
                    None => wrong(format!("abs needs a number, got {}", value.describe())),
                }
            }
            "round" => {
                args.only(name, &["precision"])?;
                let Some(number) = value.number() else {
                    return wrong(format!("round needs a number, got {}", value.describe()));
                };
                let digits = args.get(0, "precision").map_or(Ok(0), |digits| digits.expect_int(name))?;
                let scale = 10f64.powi(i32::try_from(digits.clamp(-300, 300)).unwrap_or(0));
                let scaled = number.float() * scale;
                Ok(Value::Float(if scaled.is_finite() { scaled.round() / scale } else { number.float() }))
            }
            _ => {
                args.only(name, &["default"])?;
                let default = || args.get(0, "default").cloned();
                let text = value.as_text().map(|text| text.as_str().trim());
                let parsed = match (name, value.number()) {
                    ("int", Some(Number::Int(number))) => Some(Value::Int(number)),
                    // Out-of-range numbers saturate.
                    ("int", Some(Number::Float(number))) => Some(Value::Int(number as i64)),
                    ("int", None) => {
                        let whole = text.and_then(|text| text.parse().ok());
                        let float =
                            || text.and_then(|text| text.parse().ok()).map(|number: f64| number as i64);
                        whole.or_else(float).map(Value::Int)
                    }
                    (_, Some(number)) => Some(Value::Float(number.float())),
                    (_, None) => text.and_then(|text| text.parse().ok()).map(Value::Float),
                };
                let zero = if name == "int" { Value::Int(0) } else { Value::Float(0.0) };
                Ok(parsed.or_else(default).unwrap_or(zero))
            }
        }
    }

    fn dictsort(&mut self, value: &Value, args: &Arguments) -> Result<Value> {
        args.only("dictsort", &["case_sensitive", "by", "reverse"])?;
        let Value::Map(map) = value else {
            return wrong(format!("dictsort needs a mapping, got {}", value.describe()));
        };
        let by_value = match args.get(1, "by") {
            None => false,
            Some(by) => by.expect_text("dictsort")?.as_str() == "value",
        };
        let (mut keys, mut items) = (Vec::new(), Vec::new());
        for (key, value) in &map.entries {
            keys.push(if by_value { value.clone() } else { key.clone() });
            items.push(Value::list(vec![key.clone(), value.clone()], &mut self.meter)?);
        }
        let cased = args.get(0, "case_sensitive").is_some_and(Value::is_true);
        let reverse = args.get(2, "reverse").is_some_and(Value::is_true);
        let items = self.sorted(keys, items, cased, reverse)?;
        Value::list(items, &mut self.meter)
    }

    /// Items sorted by key; the sort is stable.
    fn sorted(
        &mut self,
        keys: Vec<Value>,
        items: Vec<Value>,
        cased: bool,
        reverse: bool,
    ) -> Result<Vec<Value>> {
        let mut pairs = Vec::with_capacity(items.len());
        for (key, item) in keys.into_iter().zip(items) {
            let key = match key.as_text() {
                Some(text) if !cased => {
                    self.meter.pay(text.len())?;
                    Value::text(text.map(str::to_lowercase))
                }
                _ => key,
            };
            pairs.push((key, item));
        }
        // The comparison cannot return an error, so the first one is kept.
        let mut failure: Option<Failure> = None;
        let meter = &mut self.meter;
        pairs.sort_by(|a, b| {
            if failure.is_some() {
                return Ordering::Equal;
            }
            let order = meter.pay(1).and_then(|()| ops::order(&a.0, &b.0, meter));
            match order {
                Ok(order) => {
                    let order = order.unwrap_or(Ordering::Equal);
                    if reverse { order.reverse() } else { order }
                }
                Err(error) => {
                    failure = Some(error);
                    Ordering::Equal
                }
            }
        });
        match failure {
            Some(failure) => Err(failure),
            None => Ok(pairs.into_iter().map(|pair| pair.1).collect()),
        }
    }

    /// An attribute of each item; `a.b` is a nested attribute.
    fn each_attribute(&mut self, items: Vec<Value>, attribute: &Value) -> Result<Vec<Value>> {
        items.into_iter().map(|item| self.attribute_of(item, attribute, None)).collect()
    }

    fn attribute_of(&mut self, mut item: Value, attribute: &Value, default: Option<&Value>) -> Result<Value> {
        if let Value::Int(_) = attribute {
            return ops::item(&item, attribute, &mut self.meter);
        }
        for name in attribute.expect_text("attribute")?.as_str().split('.') {
            self.meter.pay(1)?;
            item = match name.parse() {
                Ok(index) => ops::item(&item, &Value::Int(index), &mut self.meter)?,
                Err(_) => ops::attribute(&item, name, &mut self.meter)?,
            };
            if let (Value::Undefined(_), Some(default)) = (&item, default) {
                item = default.clone();
            }
        }
        Ok(item)
    }

    /// `map(attribute="name")` or `map("filter", …)`
    fn map(&mut self, items: Vec<Value>, mut args: Arguments) -> Result<Vec<Value>> {
        if let Some(at) = args.named.iter().position(|row| row.0 == "attribute") {
            let attribute = args.named.remove(at).1;
            args.only("map", &["attribute", "default"])?;
            let default = args.named.iter().find(|row| row.0 == "default").map(|row| row.1.clone());
            let each = |item| self.attribute_of(item, &attribute, default.as_ref());
            return items.into_iter().map(each).collect();
        }
        if args.positional.is_empty() {
            return wrong("map needs a filter or an attribute");
        }
        let name = args.positional.remove(0);
        let name = name.expect_text("map")?.as_str().to_owned();
        if name == "map" {
            return Err(Failure::Unsupported("map inside map".to_owned()));
        }
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            self.meter.pay(1)?;
            let args = Arguments { positional: args.positional.clone(), named: args.named.clone() };
            out.push(self.filter(&name, item, args)?);
        }
        Ok(out)
    }

    /// Items that pass (or fail) a test, applied to the item or to one of its attributes.
    fn select(&mut self, name: &str, items: Vec<Value>, mut args: Arguments) -> Result<Vec<Value>> {
        let attribute = match name {
            "selectattr" | "rejectattr" if args.positional.is_empty() => {
                return wrong(format!("{name} needs an attribute"));
            }
            "selectattr" | "rejectattr" => Some(args.positional.remove(0)),
            _ => None,
        };
        let test = if args.positional.is_empty() { None } else { Some(args.positional.remove(0)) };
        let wanted = name.starts_with("select");
        let mut out = Vec::new();
        for item in items {
            self.meter.pay(1)?;
            let value = match &attribute {
                Some(attribute) => self.attribute_of(item.clone(), attribute, None)?,
                None => item.clone(),
            };
            let taken = match &test {
                Some(test) => self.check(test.expect_text(name)?.as_str(), &value, &args)?,
                None => value.is_true(),
            };
            if taken == wanted {
                out.push(item);
            }
        }
        Ok(out)
    }
}
