//! Values of arguments in formats that have no types: the schema of the tool says what a text means.

use serde_json::Value;

use super::tools::ToolSpec;

/// Schemas within schemas that are followed at most.
const MAX_DEPTH: usize = 16;

/// The value of an argument that a model wrote as text.
///
/// Text stays text where the schema allows a string only. Otherwise it is read as JSON, or as one of Python's
/// constants, if the schema allows what it then is. What cannot be read remains text.
pub(super) fn converted(tools: &[ToolSpec], name: &str, key: &str, text: &str) -> Value {
    let spec = tools.iter().find(|tool| tool.name() == name).map(ToolSpec::parameters);
    let types = spec.and_then(|root| {
        let schema = root.get("properties")?.get(key)?;
        types(root, schema, MAX_DEPTH)
    });
    let value = match text.trim() {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        trimmed => serde_json::from_str(trimmed).unwrap_or_else(|_| Value::String(text.to_owned())),
    };
    let allowed = match &types {
        // A text in quotes is as likely meant with them.
        None => !value.is_string(),
        Some(types) => types.iter().any(|kind| is_of(&value, kind)) && !value.is_string(),
    };
    if allowed { value } else { Value::String(text.to_owned()) }
}

/// Whether the schema of a tool says that an argument is a string and nothing else.
pub(super) fn is_text_argument(tools: &[ToolSpec], name: &str, key: &str) -> bool {
    let root = tools.iter().find(|tool| tool.name() == name).map(ToolSpec::parameters);
    let schema = root.and_then(|root| Some((root, root.get("properties")?.get(key)?)));
    schema.is_some_and(|(root, schema)| is_text(root, schema))
}

/// Whether a schema allows strings and nothing else.
pub(super) fn is_text(root: &Value, schema: &Value) -> bool {
    types(root, schema, MAX_DEPTH).is_some_and(|types| types.iter().all(|kind| kind == "string"))
}

/// Whether a schema allows numbers, booleans and `null` only.
pub(super) fn is_scalar(root: &Value, schema: &Value) -> bool {
    let scalar = |kind: &String| matches!(kind.as_str(), "number" | "integer" | "boolean" | "null");
    types(root, schema, MAX_DEPTH).is_some_and(|types| types.iter().all(scalar))
}

/// The types that a schema allows; `None` if it does not say.
fn types(root: &Value, schema: &Value, depth: usize) -> Option<Vec<String>> {
    if depth == 0 {
        return None;
    }
    if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
        return types(root, root.pointer(pointer.strip_prefix('#')?)?, depth - 1);
    }
    match schema.get("type") {
        Some(Value::String(kind)) => return Some(vec![kind.clone()]),
        Some(Value::Array(kinds)) => {
            return Some(kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        }
        _ => {}
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Some(values.iter().map(|value| kind(value).to_owned()).collect());
    }
    if let Some(value) = schema.get("const") {
        return Some(vec![kind(value).to_owned()]);
    }
    let branches = schema.get("anyOf").or_else(|| schema.get("oneOf"))?.as_array()?;
    let mut all = Vec::new();
    for branch in branches {
        all.extend(types(root, branch, depth - 1)?);
    }
    Some(all)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of(value: &Value, name: &str) -> bool {
    let whole = |value: &Value| value.as_f64().is_some_and(|number| number.fract() == 0.0);
    kind(value) == name || (name == "integer" && whole(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_what_the_schema_says() {
        let parameters = json!({
            "type": "object",
            "$defs": { "unit": { "enum": ["c", "f"] } },
            "properties": {
                "text": { "type": "string" }, "count": { "type": "integer" }, "ratio": { "type": "number" },
                "flag": { "type": "boolean" }, "list": { "type": "array" }, "map": { "type": "object" },
                "unit": { "$ref": "#/$defs/unit" }, "maybe": { "type": ["string", "null"] },
                "either": { "anyOf": [{ "type": "integer" }, { "type": "string" }] }, "any": {},
            },
        });
        let tools = [ToolSpec::new("t".to_owned(), None, Some(parameters)).unwrap()];
        let rows = [
            ("text", "5", json!("5")),
            ("text", "{\"a\": 1}", json!("{\"a\": 1}")),
            ("text", " a\n b ", json!(" a\n b ")),
            ("text", "null", json!("null")),
            ("count", "5", json!(5)),
            ("count", " 5\n", json!(5)),
            ("count", "5.5", json!("5.5")),
            ("count", "five", json!("five")),
            ("ratio", "-2.5e1", json!(-25.0)),
            ("flag", "true", json!(true)),
            ("flag", "False", json!(false)),
            ("flag", "0", json!("0")),
            ("list", "[1, \"a\"]", json!([1, "a"])),
            ("list", "[1,", json!("[1,")),
            ("map", "{\"a\": {\"b\": null}}", json!({ "a": { "b": null } })),
            ("unit", "c", json!("c")),
            ("maybe", "null", json!(null)),
            ("maybe", "5", json!("5")),
            ("either", "5", json!(5)),
            ("either", "x", json!("x")),
            ("any", "5", json!(5)),
            ("any", "\"x\"", json!("\"x\"")),
            ("unknown", "[1]", json!([1])),
            ("unknown", "word", json!("word")),
        ];
        for (key, text, value) in rows {
            assert_eq!(converted(&tools, "t", key, text), value, "{key}: {text}");
        }
        assert_eq!(converted(&tools, "other", "text", "5"), json!(5));
    }

    #[test]
    fn schemas_that_refer_to_themselves_end() {
        let parameters = json!({ "properties": { "a": { "$ref": "#/properties/a" } } });
        let tools = [ToolSpec::new("t".to_owned(), None, Some(parameters)).unwrap()];
        assert_eq!(converted(&tools, "t", "a", "x"), json!("x"));
    }
}
