//! What the generated text must match.

use fulmen_core::sampling::Constraint;
use fulmen_model::template::JSON_WHITESPACE;
use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use crate::compiler;
use crate::error::ConstraintError;
use crate::locate;

/// The longest text of a grammar, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The deepest nesting of brackets in a regular expression or a grammar.
const MAX_DEPTH: usize = 100;

/// What the generated text must match. Making one checks it.
///
/// ```
/// use fulmen_constraint::Grammar;
///
/// let schema = Grammar::json_schema(r#"{"type": "object", "properties": {"age": {"type": "integer"}}}"#)?;
/// let regex = Grammar::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")?;
/// let lark = Grammar::lark(r#"start: "a" | "b" start"#)?;
/// let error = Grammar::json_schema(r#"{"type": "objekt"}"#).unwrap_err();
/// assert!(error.to_string().contains("objekt"));
/// # Ok::<(), fulmen_constraint::ConstraintError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Grammar {
    kind: &'static str,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    JsonSchema(Value),
    Regex(String),
    Lark(String),
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Grammar {
        let schema = serde_json::json!({ "type": "object" });
        Grammar { kind: "JSON schema", form: Form::JsonSchema(schema) }
    }

    /// JSON that a schema describes: the common part of drafts 4 to 2020-12. Keys come in the order of the
    /// schema. `$ref` refers to the schema itself only. What is not supported is an error, never ignored.
    ///
    /// # Errors
    /// [`ConstraintError::Json`] with line and column, [`ConstraintError::Schema`] with the place as a JSON
    /// pointer, or a limit.
    pub fn json_schema(text: &str) -> Result<Grammar, ConstraintError> {
        let kind = "JSON schema";
        check_length(kind, text)?;
        let schema = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            // Its message ends with the place.
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            ConstraintError::Json { message, line, column }
        })?;
        Grammar { kind, form: Form::JsonSchema(schema) }.checked()
    }

    /// As [`json_schema`](Grammar::json_schema), for a schema that is parsed already. Its size is not limited
    /// but by the limits of compilation.
    ///
    /// # Errors
    /// [`ConstraintError::Schema`].
    pub fn json_schema_value(schema: Value) -> Result<Grammar, ConstraintError> {
        Grammar { kind: "JSON schema", form: Form::JsonSchema(schema) }.checked()
    }

    /// Text that a regular expression matches as a whole, in the syntax of Rust's crate `regex`, without
    /// word boundaries, look-around and back-references.
    ///
    /// # Errors
    /// [`ConstraintError::Invalid`], or a limit.
    pub fn regex(pattern: &str) -> Result<Grammar, ConstraintError> {
        let kind = "regular expression";
        check_length(kind, pattern)?;
        check_depth(kind, pattern)?;
        if let Err(error) = regex_syntax::parse(pattern) {
            return Err(ConstraintError::Invalid { kind, message: regex_error(&error) });
        }
        Grammar { kind, form: Form::Regex(pattern.to_owned()) }.checked()
    }

    /// Text of a context-free grammar in the Lark syntax of llguidance, whose start rule is `start`. A
    /// grammar that names tokens by their number (`<[5]>`) is checked when it is compiled: only the model's
    /// vocabulary has them.
    ///
    /// # Errors
    /// [`ConstraintError::Invalid`] with the line, or a limit.
    pub fn lark(text: &str) -> Result<Grammar, ConstraintError> {
        let kind = "grammar";
        check_length(kind, text)?;
        check_depth(kind, text)?;
        let grammar = Grammar { kind, form: Form::Lark(text.to_owned()) };
        let numbered = |at: usize| text.as_bytes().get(at + 2).is_some_and(u8::is_ascii_digit);
        match text.match_indices("<[").any(|(at, _)| numbered(at)) {
            true => Ok(grammar),
            false => grammar.checked(),
        }
    }

    pub(crate) fn unchecked_schema(schema: Value) -> Grammar {
        Grammar { kind: "JSON schema", form: Form::JsonSchema(schema) }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Compiles it for a vocabulary of bytes and asks for the first mask. Limits of time and memory are the
    /// same for every vocabulary.
    fn checked(self) -> Result<Grammar, ConstraintError> {
        let first = compiler::of_bytes()?.compile(&self)?.mask();
        match first {
            Ok(mask) if !mask.is_empty() => Ok(self),
            Ok(_) => Err(self.refused("no text matches it")),
            Err(message) => Err(self.refused(message.trim_start_matches("constrained decoding: "))),
        }
    }

    pub(crate) fn top_level(&self) -> TopLevelGrammar {
        match &self.form {
            Form::JsonSchema(schema) => TopLevelGrammar::from_json_schema(with_whitespace(schema)),
            Form::Regex(pattern) => TopLevelGrammar::from_regex(pattern),
            Form::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        }
    }

    /// The error of a grammar that could not be compiled.
    pub(crate) fn refused(&self, message: &str) -> ConstraintError {
        match &self.form {
            Form::JsonSchema(schema) => locate::schema_error(schema, message),
            Form::Regex(_) | Form::Lark(_) => {
                ConstraintError::Invalid { kind: self.kind, message: with_place(&one_line(message)) }
            }
        }
    }
}

/// The schema with the whitespace that may stand between the parts of JSON.
fn with_whitespace(schema: &Value) -> Value {
    const KEY: &str = "x-guidance";
    let mut schema = match schema {
        Value::Bool(true) => Value::Object(Default::default()),
        other => other.clone(),
    };
    if let Value::Object(keys) = &mut schema
        && !keys.contains_key(KEY)
    {
        keys.insert(KEY.to_owned(), serde_json::json!({ "whitespace_pattern": JSON_WHITESPACE }));
    }
    schema
}

/// The error of a regular expression, with its place.
fn regex_error(error: &regex_syntax::Error) -> String {
    let (what, span) = match error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span()),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span()),
        other => return one_line(&other.to_string()),
    };
    format!("{what} at line {}, column {}", span.start.line, span.start.column)
}

/// The message of a parser that begins with `line(column): `, with the place in words.
fn with_place(message: &str) -> String {
    let parse = || {
        let (place, what) = message.strip_prefix("at ").unwrap_or(message).split_once(": ")?;
        let (line, column) = place.strip_suffix(')')?.split_once('(')?;
        let (line, column): (u32, u32) = (line.parse().ok()?, column.parse().ok()?);
        Some(format!("{what} at line {line}, column {column}"))
    };
    parse().unwrap_or_else(|| message.to_owned())
}

/// A message on one line: of a message with a drawing, the line that says what is wrong.
pub(crate) fn one_line(message: &str) -> String {
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines.clone().find_map(|line| line.strip_prefix("error: ")) {
        Some(error) => error.to_owned(),
        None => lines.next().unwrap_or_default().to_owned(),
    }
}

fn check_length(kind: &'static str, text: &str) -> Result<(), ConstraintError> {
    match text.len() {
        0..=MAX_BYTES => Ok(()),
        bytes => Err(ConstraintError::TooLong { kind, bytes, limit: MAX_BYTES }),
    }
}

/// Refuses what a parser would need much stack for. Brackets in strings and classes count, too.
fn check_depth(kind: &'static str, text: &str) -> Result<(), ConstraintError> {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    match deepest {
        0..=MAX_DEPTH => Ok(()),
        depth => Err(ConstraintError::TooDeep { kind, depth, limit: MAX_DEPTH }),
    }
}
