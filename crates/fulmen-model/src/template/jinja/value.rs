//! Template values, modeled after Python.

use std::{collections::HashMap, sync::Arc, sync::Mutex};

use super::error::{Failure, Result, wrong};
use super::meter::{MAX_NESTING, Meter};
use super::text::Text;

#[derive(Clone, Debug)]
pub(super) enum Value {
    /// An undefined name or attribute.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Arc<Text>),
    List(Arc<List>),
    Map(Arc<Map>),
    /// Variables that can be set from inside a loop.
    Namespace(Namespace),
    /// A macro of the template, by index.
    Macro(usize),
    Function(Function),
    /// `loop` inside a `for`.
    Loop(Loop),
}

#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    nesting: usize,
}

/// A mapping in insertion order.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) entries: Vec<(Value, Value)>,
    nesting: usize,
}

/// Only a variable can hold a namespace, so it never contains itself.
#[derive(Clone, Debug)]
pub(super) struct Namespace(pub(super) Arc<Mutex<HashMap<String, Value>>>);

/// Built-in functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Raise,
    StrftimeNow,
    Namespace,
    Range,
    Dict,
}

#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub(super) items: Arc<Vec<Value>>,
    pub(super) index: usize,
}

impl Value {
    pub(super) fn undefined(name: &str) -> Value {
        Value::Undefined(name.into())
    }

    pub(super) fn own(text: impl Into<String>) -> Value {
        Value::text(Text::own(text))
    }

    pub(super) fn text(text: Text) -> Value {
        Value::Str(Arc::new(text))
    }

    pub(super) fn int(number: usize) -> Value {
        Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// A list; fails if it nests too deeply.
    pub(super) fn list(items: Vec<Value>, meter: &mut Meter) -> Result<Value> {
        meter.pay_items(items.len())?;
        let nesting = nesting(items.iter())?;
        Ok(Value::List(Arc::new(List { items, nesting })))
    }

    /// A mapping; fails if it nests too deeply. The last of equal keys wins.
    pub(super) fn map(entries: Vec<(Value, Value)>, meter: &mut Meter) -> Result<Value> {
        meter.pay_items(entries.len().saturating_mul(2))?;
        let mut unique: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            meter.pay(unique.len() + 1)?;
            match unique.iter_mut().find(|(other, _)| same_key(other, &key)) {
                Some(entry) => entry.1 = value,
                None => unique.push((key, value)),
            }
        }
        let nesting = nesting(unique.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Map(Arc::new(Map { entries: unique, nesting })))
    }

    /// Converts JSON. `foreign` marks its text as user text.
    pub(super) fn from_json(json: &serde_json::Value, foreign: bool, meter: &mut Meter) -> Result<Value> {
        use serde_json::Value as Json;
        let text = |text: &str| Value::text(if foreign { Text::foreign(text) } else { Text::own(text) });
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(flag) => Value::Bool(*flag),
            Json::Number(number) => match number.as_i64() {
                Some(number) => Value::Int(number),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(string) => {
                meter.pay(string.len())?;
                text(string)
            }
            Json::Array(items) => {
                let items = items.iter().map(|item| Value::from_json(item, foreign, meter));
                let items = items.collect::<Result<_>>()?;
                Value::list(items, meter)?
            }
            Json::Object(entries) => {
                let mut list = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    list.push((text(key), Value::from_json(value, foreign, meter)?));
                }
                Value::map(list, meter)?
            }
        })
    }

    /// The type name, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "undefined",
            Value::None => "none",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "string",
            Value::List(_) => "list",
            Value::Map(_) => "mapping",
            Value::Namespace(_) => "namespace",
            Value::Macro(_) => "macro",
            Value::Function(_) => "function",
            Value::Loop(_) => "loop",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(flag) => *flag,
            Value::Int(number) => *number != 0,
            Value::Float(number) => *number != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Namespace(_) | Value::Macro(_) | Value::Function(_) | Value::Loop(_) => true,
        }
    }

    pub(super) fn as_text(&self) -> Option<&Arc<Text>> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The text, or an error that says what needs it.
    pub(super) fn expect_text(&self, who: &str) -> Result<&Arc<Text>> {
        match self {
            Value::Str(text) => Ok(text),
            other => wrong(format!("{who} needs a string, got {}", other.describe())),
        }
    }

    pub(super) fn expect_int(&self, who: &str) -> Result<i64> {
        match self {
            Value::Int(number) => Ok(*number),
            Value::Bool(flag) => Ok(i64::from(*flag)),
            other => wrong(format!("{who} needs an integer, got {}", other.describe())),
        }
    }

    /// The type name, for messages; for an undefined value with its name.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Undefined(name) => format!("{name:?}, which is not defined"),
            other => other.kind().to_owned(),
        }
    }

    /// What a `for` iterates over: items, keys or characters.
    pub(super) fn iterate(&self, meter: &mut Meter) -> Result<Vec<Value>> {
        let items: Vec<Value> = match self {
            Value::List(list) => {
                meter.pay_items(list.items.len())?;
                list.items.clone()
            }
            Value::Map(map) => {
                meter.pay_items(map.entries.len())?;
                map.entries.iter().map(|entry| entry.0.clone()).collect()
            }
            Value::Str(text) => {
                // Each character becomes a string.
                meter.pay_items(text.len().saturating_mul(4))?;
                let string = text.as_str();
                let ends = string.char_indices().map(|(at, c)| at..at + c.len_utf8());
                ends.map(|range| Value::text(text.slice(range))).collect()
            }
            Value::Undefined(_) => Vec::new(),
            other => return wrong(format!("{} cannot be iterated", other.describe())),
        };
        Ok(items)
    }

    /// `a == b`, as in Python.
    pub(super) fn equals(&self, other: &Value, meter: &mut Meter) -> Result<bool> {
        meter.pay(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                meter.pay(a.len().min(b.len()))?;
                a.as_str() == b.as_str()
            }
            (Value::List(a), Value::List(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(key, meter)? {
                        Some(other) if value.equals(&other, meter)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) => Arc::ptr_eq(&a.0, &b.0),
            (Value::Macro(a), Value::Macro(b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (a, b) => match (a.number(), b.number()) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        })
    }

    /// The numeric value; true and false are 1 and 0.
    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Value::Bool(flag) => Some(Number::Int(i64::from(*flag))),
            Value::Int(number) => Some(Number::Int(*number)),
            Value::Float(number) => Some(Number::Float(*number)),
            _ => None,
        }
    }

    fn nesting(&self) -> usize {
        match self {
            Value::List(list) => list.nesting,
            Value::Map(map) => map.nesting,
            _ => 0,
        }
    }
}

/// One more than the deepest item. Values that could contain themselves are rejected: they would never be
/// freed.
fn nesting<'a>(items: impl Iterator<Item = &'a Value>) -> Result<usize> {
    let mut deepest = 0;
    for item in items {
        if matches!(item, Value::Namespace(_) | Value::Loop(_)) {
            return wrong(format!("a {} cannot be put into a list or a mapping", item.kind()));
        }
        deepest = deepest.max(item.nesting());
    }
    if deepest >= MAX_NESTING { Err(Failure::Depth { limit: MAX_NESTING }) } else { Ok(deepest + 1) }
}

fn same_key(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => a.as_str() == b.as_str(),
        (Value::None, Value::None) => true,
        (a, b) => matches!((a.number(), b.number()), (Some(a), Some(b)) if a == b),
    }
}

impl Map {
    pub(super) fn get(&self, key: &Value, meter: &mut Meter) -> Result<Option<Value>> {
        meter.pay(self.entries.len())?;
        Ok(self.entries.iter().find(|entry| same_key(&entry.0, key)).map(|entry| entry.1.clone()))
    }

    pub(super) fn get_str(&self, key: &str, meter: &mut Meter) -> Result<Option<Value>> {
        meter.pay(self.entries.len())?;
        let is_key = |value: &Value| value.as_text().is_some_and(|text| text.as_str() == key);
        Ok(self.entries.iter().find(|entry| is_key(&entry.0)).map(|entry| entry.1.clone()))
    }
}

/// An integer or float. Comparisons mix them, as in Python.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Number::Int(number) => number as f64,
            Number::Float(number) => number,
        }
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.partial_cmp(other).is_some_and(std::cmp::Ordering::is_eq)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Number) -> Option<std::cmp::Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        }
    }
}
