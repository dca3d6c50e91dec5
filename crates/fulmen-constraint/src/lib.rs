//! Constrained decoding: what a model generates matches a JSON schema, a regular expression or a grammar.
//!
//! - A [`Grammar`] is checked when it is made; that needs no model.
//! - A [`Compiler`] knows the vocabulary of a model. It turns grammars into [`GrammarConstraint`]s.
//! - A [`GrammarConstraint`] follows one sequence: `mask` gives the tokens that may come next, `accept` goes
//!   on after one of them (the trait [`Constraint`](fulmen_core::sampling::Constraint)).
//! - **Tokens, not characters.** Any tokenization of a matching text is allowed, also tokens that end within
//!   a character. Control tokens are never matched by text. The tokens that end generation are allowed
//!   exactly where the text may end, and nothing else is when it must.
//! - **Bounded.** The size of a grammar, the work to compile it and the work for one mask have limits
//!   ([`Limits`]), and what exceeds them is an error.
//!
//! ```
//! use fulmen_constraint::{Compiler, Grammar};
//! use fulmen_core::sampling::Constraint;
//! use fulmen_model::gguf::GgufFile;
//! use fulmen_model::tokenizer::{Special, Tokenizer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = GgufFile::open("../fulmen-cli/assets/story.gguf")?;
//! let tokenizer = Tokenizer::from_metadata(file.metadata())?;
//! let compiler = Compiler::new(&tokenizer, tokenizer.vocab_size() as u32)?;
//! let mut constraint = compiler.compile(&Grammar::regex("yes|no")?)?;
//! let mask = constraint.mask()?;
//! let [y, x] = ["y", "x"].map(|text| tokenizer.encode(text, Special::AsText)[0]);
//! assert!(mask.allows(y) && !mask.allows(x));
//! # Ok(())
//! # }
//! ```

mod compiler;
mod constraint;
mod error;
mod grammar;
mod locate;

pub use compiler::{Compiler, Limits};
pub use constraint::GrammarConstraint;
pub use error::ConstraintError;
pub use grammar::Grammar;
