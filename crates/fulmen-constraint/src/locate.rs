//! Where in a JSON schema the error is.
//!
//! The compiler's message says what is wrong, not where. The place is found by compiling parts of the schema
//! on their own: the innermost part that is refused with the same message.

use serde_json::{Map, Value};

use crate::compiler;
use crate::error::ConstraintError;
use crate::grammar::{Grammar, one_line};

/// Parts that are compiled at most.
const MAX_PARTS: usize = 200;

/// Keywords whose value is a schema, or an array of schemas.
const SCHEMAS: [&str; 12] = [
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "contains",
];

/// Keywords whose value has schemas by name.
const MAPS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// The error of a schema that was refused with this message.
pub(crate) fn schema_error(schema: &Value, message: &str) -> ConstraintError {
    let (mut pointer, mut parts) = (String::new(), 0);
    let mut message = one_line(message);
    let mut at = schema.clone();
    'descend: loop {
        for (step, part) in children(&at) {
            parts += 1;
            if parts > MAX_PARTS {
                break 'descend;
            }
            if let Some(refused) = refusal(schema, &part) {
                pointer.push_str(&step);
                message = one_line(&refused);
                at = part;
                continue 'descend;
            }
        }
        break;
    }
    ConstraintError::Schema { pointer, message }
}

/// The schemas within a schema, with the end of their JSON pointer.
fn children(schema: &Value) -> Vec<(String, Value)> {
    let Value::Object(schema) = schema else { return Vec::new() };
    let mut children = Vec::new();
    for (key, value) in schema {
        match value {
            Value::Object(parts) if MAPS.contains(&key.as_str()) => {
                children.extend(parts.iter().map(|(name, part)| {
                    (format!("/{key}/{}", name.replace('~', "~0").replace('/', "~1")), part.clone())
                }));
            }
            Value::Array(parts) if SCHEMAS.contains(&key.as_str()) => {
                let numbered = parts.iter().enumerate();
                children.extend(numbered.map(|(at, part)| (format!("/{key}/{at}"), part.clone())));
            }
            Value::Object(_) if SCHEMAS.contains(&key.as_str()) => {
                children.push((format!("/{key}"), value.clone()));
            }
            _ => {}
        }
    }
    children
}

/// Why a part is refused on its own, with the definitions of the whole schema.
fn refusal(whole: &Value, part: &Value) -> Option<String> {
    let mut alone = part.as_object()?.clone();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = whole.get(name) {
            alone.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    // The definitions themselves may be what is wrong: they are parts of their own.
    let without: Map<String, Value> = part.as_object()?.clone();
    let fails = |schema: Map<String, Value>| {
        let grammar = Grammar::unchecked_schema(Value::Object(schema));
        compiler::of_bytes().ok()?.try_parser(&grammar).err()
    };
    let refused = fails(alone)?;
    let by_reference = part.to_string().contains("\"$ref\"");
    if by_reference { Some(refused) } else { fails(without) }
}
