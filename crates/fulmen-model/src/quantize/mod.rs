//! Quantizing models.
//!
//! A [`Recipe`] says which type each tensor gets, a [`QuantizePlan`] applies it to a particular model, and
//! [`quantize`] writes the new file.

mod plan;
mod recipe;
mod run;

pub use plan::QuantizePlan;
pub use recipe::{Choice, Recipe, UnknownRecipe};
pub use run::{QuantizeError, quantize, quantize_to};
