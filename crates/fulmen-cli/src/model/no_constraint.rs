//! The options of `constraint.rs` in a build without the feature `constraint`: none.

use std::convert::Infallible;

use fulmen_core::sampling::Constraint;
use fulmen_engine::Model;

use crate::error::CommandError;

/// No options.
#[derive(Debug, clap::Args)]
pub(crate) struct ConstraintOptions {}

/// Never happens.
pub(crate) type ConstraintOptionError = Infallible;

impl CommandError for Infallible {}

/// Nothing that the answer must match.
#[derive(Debug)]
pub(crate) struct AnswerGrammar;

impl ConstraintOptions {
    pub(crate) fn read(&self) -> Result<AnswerGrammar, ConstraintOptionError> {
        Ok(AnswerGrammar)
    }
}

#[cfg(feature = "server")]
impl ConstraintOptions {
    pub(crate) fn response_format(&self) -> Result<Option<serde_json::Value>, ConstraintOptionError> {
        Ok(None)
    }
}

impl AnswerGrammar {
    pub(crate) fn is_some(&self) -> bool {
        false
    }

    pub(crate) fn compile(&self, _: &Model) -> Result<Option<Box<dyn Constraint>>, ConstraintOptionError> {
        Ok(None)
    }
}
