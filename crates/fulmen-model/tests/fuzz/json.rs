//! Mutations of JSON values: random bytes rarely get past the parser.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// One to three values of a document replaced, removed, repeated or moved.
pub(crate) fn mutated(documents: &[Value], random: &mut Rng) -> Value {
    let mut document = random.choice(documents).cloned().unwrap_or_default();
    for _ in 0..random.usize(1..=3) {
        let count = count(&document);
        let source = nth(&document, &mut random.usize(0..count)).cloned().unwrap_or_default();
        let at = random.usize(0..count);
        visit(&mut document, &mut { at }, &mut |value| change(value, &source, random));
    }
    document
}

/// Number of values, this one included.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// The value that is `left` values further on.
fn nth<'a>(value: &'a Value, left: &mut usize) -> Option<&'a Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter().find_map(|item| nth(item, left)),
        Value::Object(fields) => fields.values().find_map(|item| nth(item, left)),
        _ => None,
    }
}

/// Calls `f` with the value that is `left` values further on. Returns whether there was one.
fn visit(value: &mut Value, left: &mut usize, f: &mut dyn FnMut(&mut Value)) -> bool {
    if *left == 0 {
        f(value);
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| visit(item, left, f)),
        Value::Object(fields) => fields.values_mut().any(|item| visit(item, left, f)),
        _ => false,
    }
}

fn change(value: &mut Value, other: &Value, random: &mut Rng) {
    match (random.u8(0..8), &mut *value) {
        (0, Value::Object(fields)) => remove(fields, random),
        (0, Value::Array(items)) if !items.is_empty() => {
            items.remove(random.usize(0..items.len()));
        }
        (1, Value::Array(items)) if !items.is_empty() => {
            let again = items[random.usize(0..items.len())].clone();
            items.insert(random.usize(0..=items.len()), again);
        }
        (1 | 2, Value::Object(fields)) => {
            let names = ["type", "id", "content", "a", "Ġ", "▁", "", "<0x41>", "<|im_end|>", "\u{0}"];
            fields.insert(random.choice(names).unwrap_or("").to_owned(), other.clone());
        }
        (3, Value::Number(number)) => {
            let by = random.i64(-2..=2);
            *value = number.as_i64().map_or(Value::Null, |number| json!(number.wrapping_add(by)));
        }
        (4, Value::String(text)) => {
            let at = text.char_indices().map(|(at, _)| at).nth(random.usize(0..=text.len())).unwrap_or(0);
            match random.u8(0..3) {
                0 => text.truncate(at),
                1 => text
                    .insert_str(at, random.choice([" ", "▁", "Ġ", "é", "\u{301}", "ab", "\n"]).unwrap_or("")),
                _ => *text = text.repeat(random.usize(0..40)),
            }
        }
        (5..=6, _) => *value = other.clone(),
        _ => *value = special(random),
    }
}

fn remove(fields: &mut Map<String, Value>, random: &mut Rng) {
    let names: Vec<String> = fields.keys().cloned().collect();
    if let Some(name) = random.choice(&names) {
        fields.remove(name);
    }
}

fn special(random: &mut Rng) -> Value {
    match random.u8(0..10) {
        0 => json!(0),
        1 => json!(-1),
        2 => json!(u32::MAX),
        3 => json!(u64::MAX),
        4 => json!(1e308),
        5 => json!(""),
        6 => json!("a".repeat(random.usize(0..3000))),
        7 => json!([[], {}, null, true]),
        8 => (0..random.usize(0..100)).fold(json!(1), |inner, _| json!([inner])),
        _ => Value::Null,
    }
}
