//! Operators.

use std::cmp::Ordering;
use std::sync::Arc;

use super::ast::{Binary, Comparison};
use super::error::{Failure, Result};
use super::meter::Meter;
use super::text::Text;
use super::value::{Number, Value};
use super::wrong;

pub(super) fn binary(op: Binary, left: &Value, right: &Value, meter: &mut Meter) -> Result<Value> {
    if op == Binary::Concat {
        let mut text = Text::default();
        left.show(&mut text, meter)?;
        right.show(&mut text, meter)?;
        return Ok(Value::text(text));
    }
    match (op, left, right) {
        (Binary::Add, Value::Str(a), Value::Str(b)) => {
            meter.pay(a.len().saturating_add(b.len()))?;
            let mut text = Text::clone(a);
            text.push(b);
            Ok(Value::text(text))
        }
        (Binary::Add, Value::List(a), Value::List(b)) => {
            meter.pay_items(a.items.len().saturating_add(b.items.len()))?;
            Value::list(a.items.iter().chain(&b.items).cloned().collect(), meter)
        }
        (Binary::Multiply, Value::Str(text), Value::Int(times))
        | (Binary::Multiply, Value::Int(times), Value::Str(text)) => {
            let times = usize::try_from(*times).unwrap_or(0);
            meter.pay(text.len().saturating_mul(times))?;
            let mut out = Text::default();
            // Repeating an empty string costs nothing.
            for _ in 0..if text.is_empty() { 0 } else { times } {
                out.push(text);
            }
            Ok(Value::text(out))
        }
        (Binary::Modulo, Value::Str(_), _) => Err(Failure::Unsupported("formatting with %".to_owned())),
        _ => match (left.number(), right.number()) {
            (Some(a), Some(b)) => arithmetic(op, a, b),
            _ => {
                wrong(format!("unsupported operands: {} {} {}", left.describe(), sign(op), right.describe()))
            }
        },
    }
}

fn sign(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Subtract => "-",
        Binary::Multiply => "*",
        Binary::Divide => "/",
        Binary::FloorDivide => "//",
        Binary::Modulo => "%",
        Binary::Power => "**",
        Binary::Concat => "~",
    }
}

fn arithmetic(op: Binary, a: Number, b: Number) -> Result<Value> {
    let by_zero = || Failure::Value("division by zero".to_owned());
    if let (Number::Int(a), Number::Int(b)) = (a, b) {
        let result = match op {
            Binary::Add => a.checked_add(b),
            Binary::Subtract => a.checked_sub(b),
            Binary::Multiply => a.checked_mul(b),
            Binary::FloorDivide if b == 0 => return Err(by_zero()),
            // Python rounds down, not toward zero.
            Binary::FloorDivide => a.checked_div(b).map(|q| q - i64::from(a % b != 0 && (a < 0) != (b < 0))),
            Binary::Modulo if b == 0 => return Err(by_zero()),
            Binary::Modulo => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            Binary::Power if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            _ => return floats(op, a as f64, b as f64, by_zero),
        };
        return result.map(Value::Int).ok_or(Failure::Value("a number does not fit 64 bits".to_owned()));
    }
    floats(op, a.float(), b.float(), by_zero)
}

fn floats(op: Binary, a: f64, b: f64, by_zero: impl Fn() -> Failure) -> Result<Value> {
    Ok(Value::Float(match op {
        Binary::Add => a + b,
        Binary::Subtract => a - b,
        Binary::Multiply => a * b,
        Binary::Power => a.powf(b),
        _ if b == 0.0 => return Err(by_zero()),
        Binary::Divide => a / b,
        Binary::FloorDivide => (a / b).floor(),
        _ => a - b * (a / b).floor(),
    }))
}

pub(super) fn negative(value: &Value) -> Result<Value> {
    match value.number() {
        Some(Number::Int(number)) => number
            .checked_neg()
            .map(Value::Int)
            .ok_or(Failure::Value("a number does not fit 64 bits".to_owned())),
        Some(Number::Float(number)) => Ok(Value::Float(-number)),
        None => wrong(format!("bad operand for -: {}", value.describe())),
    }
}

pub(super) fn compare(op: Comparison, left: &Value, right: &Value, meter: &mut Meter) -> Result<bool> {
    let order = |meter: &mut Meter| order(left, right, meter);
    Ok(match op {
        Comparison::Equal => left.equals(right, meter)?,
        Comparison::NotEqual => !left.equals(right, meter)?,
        Comparison::Less => order(meter)?.is_some_and(Ordering::is_lt),
        Comparison::LessOrEqual => order(meter)?.is_some_and(Ordering::is_le),
        Comparison::Greater => order(meter)?.is_some_and(Ordering::is_gt),
        Comparison::GreaterOrEqual => order(meter)?.is_some_and(Ordering::is_ge),
        Comparison::In => contains(right, left, meter)?,
        Comparison::NotIn => !contains(right, left, meter)?,
    })
}

/// The order of two values; `None` for NaN.
pub(super) fn order(left: &Value, right: &Value, meter: &mut Meter) -> Result<Option<Ordering>> {
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            meter.pay(a.len().min(b.len()))?;
            Ok(Some(a.as_str().cmp(b.as_str())))
        }
        _ => match (left.number(), right.number()) {
            (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
            _ => wrong(format!("{} and {} cannot be compared", left.describe(), right.describe())),
        },
    }
}

/// `item in of`
pub(super) fn contains(of: &Value, item: &Value, meter: &mut Meter) -> Result<bool> {
    match of {
        Value::Str(text) => {
            let part = item.expect_text("`in` a string")?;
            meter.pay(text.len())?;
            Ok(text.as_str().contains(part.as_str()))
        }
        Value::List(list) => {
            for other in &list.items {
                if other.equals(item, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Value::Map(map) => Ok(map.get(item, meter)?.is_some()),
        Value::Undefined(_) => Ok(false),
        other => wrong(format!("{} does not support `in`", other.describe())),
    }
}

/// `value.name`
pub(super) fn attribute(value: &Value, name: &str, meter: &mut Meter) -> Result<Value> {
    let found = match value {
        Value::Undefined(_) => return wrong(format!("{}, so it has no {name:?}", value.describe())),
        Value::Map(map) => map.get_str(name, meter)?,
        Value::Namespace(namespace) => namespace.get(name),
        Value::Loop(state) => state.attribute(name),
        _ => None,
    };
    Ok(found.unwrap_or_else(|| Value::undefined(name)))
}

/// `value[index]`
pub(super) fn item(value: &Value, index: &Value, meter: &mut Meter) -> Result<Value> {
    let missing = |index: &Value| match index {
        Value::Str(text) => Value::undefined(text.as_str()),
        Value::Int(number) => Value::undefined(&number.to_string()),
        _ => Value::undefined("item"),
    };
    match (value, index) {
        (Value::Undefined(_), _) => wrong(format!("{}, so it has no items", value.describe())),
        (Value::List(list), Value::Int(at)) => {
            let found = resolve(*at, list.items.len()).map(|at| list.items[at].clone());
            Ok(found.unwrap_or_else(|| missing(index)))
        }
        (Value::Str(text), Value::Int(at)) => {
            meter.pay(text.len())?;
            let mut chars = text.as_str().char_indices();
            let found = match usize::try_from(*at) {
                Ok(at) => chars.nth(at),
                Err(_) => at
                    .checked_neg()
                    .and_then(|at| usize::try_from(at - 1).ok())
                    .and_then(|at| chars.nth_back(at)),
            };
            let found = found.map(|(start, c)| Value::text(text.slice(start..start + c.len_utf8())));
            Ok(found.unwrap_or_else(|| missing(index)))
        }
        (Value::Map(map), _) => Ok(map.get(index, meter)?.unwrap_or_else(|| missing(index))),
        (_, Value::Str(name)) => attribute(value, name.as_str(), meter),
        _ => Ok(missing(index)),
    }
}

/// Resolves an index; negative indices count from the end.
fn resolve(index: i64, length: usize) -> Option<usize> {
    let at = match index {
        0.. => usize::try_from(index).ok()?,
        _ => length.checked_sub(usize::try_from(index.checked_neg()?).ok()?)?,
    };
    (at < length).then_some(at)
}

/// `value[start:stop:step]`
pub(super) fn slice(value: &Value, bounds: [Option<i64>; 3], meter: &mut Meter) -> Result<Value> {
    match value {
        Value::List(list) => {
            let range = Range::of(bounds, list.items.len())?;
            Value::list(range.map(|at| list.items[at].clone()).collect(), meter)
        }
        Value::Str(text) => {
            meter.pay(text.len().saturating_mul(2))?;
            let string = text.as_str();
            let range = Range::of(bounds, string.chars().count())?;
            // Character boundaries: the end of one is the start of the next.
            let byte = |at: usize| string.char_indices().nth(at).map_or(string.len(), |(byte, _)| byte);
            if range.step == 1 {
                let (Some(first), Some(last)) = (range.clone().next(), range.last()) else {
                    return Ok(Value::own(""));
                };
                return Ok(Value::text(text.slice(byte(first)..byte(last + 1))));
            }
            meter.pay(text.len().saturating_mul(size_of::<(usize, char)>()))?;
            let chars: Vec<(usize, char)> = string.char_indices().collect();
            let mut out = Text::default();
            for at in range {
                let (start, c) = chars[at];
                out.push_slice(text, start..start + c.len_utf8());
            }
            Ok(Value::text(out))
        }
        other => wrong(format!("{} cannot be sliced", other.describe())),
    }
}

/// The indices selected by a slice, in order.
#[derive(Clone)]
struct Range {
    at: i64,
    stop: i64,
    step: i64,
}

impl Range {
    fn of([start, stop, step]: [Option<i64>; 3], length: usize) -> Result<Range> {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let step = step.unwrap_or(1);
        if step == 0 {
            return wrong("the step of a slice is 0");
        }
        // Negative indices count from the end; then clamp to the range, which is one lower for a backward
        // slice.
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let clamp =
            |bound: i64| if bound < 0 { bound.saturating_add(length) } else { bound }.clamp(low, high);
        let (first, last) = if step > 0 { (0, length) } else { (length - 1, -1) };
        Ok(Range { at: start.map_or(first, clamp), stop: stop.map_or(last, clamp), step })
    }
}

impl Iterator for Range {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if if self.step > 0 { self.at >= self.stop } else { self.at <= self.stop } {
            return None;
        }
        let at = usize::try_from(self.at).ok();
        self.at = self.at.saturating_add(self.step);
        at
    }
}

impl super::value::Namespace {
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(name).cloned()
    }

    /// Sets a name. Namespaces cannot be nested: one inside itself would never be freed.
    pub(super) fn set(&self, name: &str, value: Value) -> Result<()> {
        if matches!(value, Value::Namespace(_) | Value::Loop(_)) {
            return wrong(format!("a {} cannot be put into a namespace", value.kind()));
        }
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(name.to_owned(), value);
        Ok(())
    }
}

impl super::value::Loop {
    fn attribute(&self, name: &str) -> Option<Value> {
        let (index, length) = (self.index, self.items.len());
        Some(match name {
            "index" => Value::int(index + 1),
            "index0" => Value::int(index),
            "revindex" => Value::int(length - index),
            "revindex0" => Value::int(length - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => Value::int(length),
            "previtem" => self.items.get(index.checked_sub(1)?)?.clone(),
            "nextitem" => self.items.get(index + 1)?.clone(),
            _ => return None,
        })
    }
}

/// A list of integers, as returned by `range`.
pub(super) fn range(start: i64, stop: i64, step: i64, meter: &mut Meter) -> Result<Value> {
    if step == 0 {
        return wrong("the step of range is 0");
    }
    // Rounded up: the last number is before `stop`.
    let [start, stop, step] = [start, stop, step].map(i128::from);
    let count = ((stop - start + step - step.signum()) / step).max(0);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // Paid at once: a list that grows item by item holds up to three times what was paid for.
    meter.pay_items(count)?;
    let mut items = Vec::with_capacity(count);
    let mut at = start;
    for _ in 0..count {
        // Between `start` and `stop`, so it fits.
        items.push(Value::Int(i64::try_from(at).unwrap_or(i64::MAX)));
        at += step;
    }
    Value::list(items, meter)
}

/// Concatenates values with a separator.
pub(super) fn join(items: &[Value], between: &Text, meter: &mut Meter) -> Result<Value> {
    let mut out = Text::default();
    for (at, item) in items.iter().enumerate() {
        meter.pay(1)?;
        if at > 0 {
            meter.pay(between.len())?;
            out.push(between);
        }
        item.show(&mut out, meter)?;
    }
    Ok(Value::Str(Arc::new(out)))
}
