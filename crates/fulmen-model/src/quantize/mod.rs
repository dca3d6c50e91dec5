//! Storing a model in smaller types.
//!
//! A [`Recipe`] says which type each tensor gets, a [`Plan`] what that does to a certain model, and [`quantize`] does it.

mod plan;
mod recipe;
mod run;

pub use plan::Plan;
pub use recipe::{Choice, Recipe, UnknownRecipe};
pub use run::{QuantizeError, quantize};
