//! Quantizing models.
//!
//! A [`Recipe`] says which type each tensor gets, a [`QuantizePlan`] applies it to a particular model, and
//! [`quantize`] writes the new file. An [`Importance`] matrix says which errors matter.

mod importance;
mod plan;
mod recipe;
mod run;

pub use importance::{Importance, ImportanceError, ImportanceProblem};
pub use plan::QuantizePlan;
pub use recipe::{Choice, Recipe, UnknownRecipe};
pub use run::{QuantizeError, quantize, quantize_to};
