//! Options that restrict an answer to a JSON schema, a grammar or a regular expression.

use std::path::{Path, PathBuf};

use fulmen_constraint::{Compiler, ConstraintError, Grammar};
use fulmen_core::sampling::Constraint;
use fulmen_engine::Model;

use super::input::{InputError, read_file};
use crate::error::CommandError;

/// What the answer must match.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
pub(crate) struct ConstraintOptions {
    /// Answer with JSON that matches the JSON schema in this file.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,

    /// Answer with text that matches the grammar in this file, in the syntax of Lark; its start rule is
    /// `start`.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,

    /// Answer with text that this regular expression matches as a whole.
    #[arg(long, value_name = "PATTERN")]
    regex: Option<String>,
}

/// Why an answer cannot be restricted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConstraintOptionError {
    #[error(transparent)]
    Read(#[from] InputError),
    #[error("{path}: {error}")]
    File { path: String, error: ConstraintError },
    #[cfg(feature = "server")]
    #[error("{path} is not JSON: {error}")]
    Json { path: String, error: serde_json::Error },
    #[error("--regex: {0}")]
    Regex(ConstraintError),
    #[error(transparent)]
    Model(ConstraintError),
    #[error("the model has no tokenizer")]
    NoTokenizer,
}

impl CommandError for ConstraintOptionError {
    fn is_usage(&self) -> bool {
        matches!(self, ConstraintOptionError::File { .. } | ConstraintOptionError::Regex(_))
    }
}

/// What the answer must match, checked.
#[derive(Debug)]
pub(crate) struct AnswerGrammar(Option<Grammar>);

impl ConstraintOptions {
    /// The field `response_format` of a request to a server, which checks it.
    #[cfg(feature = "server")]
    pub(crate) fn response_format(&self) -> Result<Option<serde_json::Value>, ConstraintOptionError> {
        use serde_json::json;
        Ok(match self {
            ConstraintOptions { schema: Some(path), .. } => {
                let schema: serde_json::Value = serde_json::from_str(&read_file(path)?).map_err(|error| {
                    ConstraintOptionError::Json { path: path.display().to_string(), error }
                })?;
                Some(json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } }))
            }
            ConstraintOptions { grammar: Some(path), .. } => {
                Some(json!({ "type": "grammar", "grammar": read_file(path)? }))
            }
            ConstraintOptions { regex: Some(pattern), .. } => {
                Some(json!({ "type": "regex", "pattern": pattern }))
            }
            _ => None,
        })
    }

    /// Reads and checks the grammar; this needs no model.
    pub(crate) fn read(&self) -> Result<AnswerGrammar, ConstraintOptionError> {
        let of_file = |path: &Path, make: fn(&str) -> Result<Grammar, ConstraintError>| {
            let named = |error| ConstraintOptionError::File { path: path.display().to_string(), error };
            make(&read_file(path)?).map_err(named).map(Some)
        };
        Ok(AnswerGrammar(match self {
            ConstraintOptions { schema: Some(path), .. } => of_file(path, Grammar::json_schema)?,
            ConstraintOptions { grammar: Some(path), .. } => of_file(path, Grammar::lark)?,
            ConstraintOptions { regex: Some(pattern), .. } => {
                Some(Grammar::regex(pattern).map_err(ConstraintOptionError::Regex)?)
            }
            _ => None,
        }))
    }
}

impl AnswerGrammar {
    /// Whether the answer is restricted.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The constraint for an answer of this model.
    pub(crate) fn compile(
        &self,
        model: &Model,
    ) -> Result<Option<Box<dyn Constraint>>, ConstraintOptionError> {
        let Some(grammar) = &self.0 else { return Ok(None) };
        let tokenizer = model.tokenizer().ok_or(ConstraintOptionError::NoTokenizer)?;
        let compiler = Compiler::new(tokenizer, model.config().vocabulary);
        let made = compiler.and_then(|compiler| compiler.compile(grammar));
        Ok(Some(Box::new(made.map_err(ConstraintOptionError::Model)?)))
    }
}
