//! Storing a model in smaller types.

mod recipe;

pub use recipe::{Choice, Recipe, UnknownRecipe};
