//! Constraints on the answers of a model.

use std::sync::OnceLock;

use fulmen_constraint::{Compiler, ConstraintError};
use fulmen_engine::Constraint;
use fulmen_engine::Model;

use crate::served::{ConstraintFactory, Grammar};

/// Compiles grammars for the vocabulary of a model.
pub(crate) struct ModelConstraints {
    model: Model,
    /// Made at the first use, which takes some time for a large vocabulary.
    compiler: OnceLock<Result<Compiler, String>>,
}

impl ModelConstraints {
    pub(crate) fn new(model: &Model) -> ModelConstraints {
        ModelConstraints { model: model.clone(), compiler: OnceLock::new() }
    }

    fn compiler(&self) -> Result<&Compiler, String> {
        let make = || {
            let tokenizer = self.model.tokenizer().ok_or_else(|| "the model has no tokenizer".to_owned())?;
            Compiler::new(tokenizer, self.model.config().vocabulary).map_err(|error| error.to_string())
        };
        self.compiler.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}

impl ConstraintFactory for ModelConstraints {
    fn constraint(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, String> {
        let compiler = self.compiler()?;
        let compile = || -> Result<_, ConstraintError> { compiler.compile(&checked(grammar)?) };
        Ok(Box::new(compile().map_err(|error| error.to_string())?))
    }
}

fn checked(grammar: &Grammar) -> Result<fulmen_constraint::Grammar, ConstraintError> {
    use fulmen_constraint::Grammar as Compiled;
    match grammar {
        Grammar::JsonObject => Ok(Compiled::json_object()),
        Grammar::JsonSchema(schema) => Compiled::json_schema_value(schema.clone()),
        Grammar::Regex(pattern) => Compiled::regex(pattern),
        Grammar::Lark(text) => Compiled::lark(text),
    }
}
