//! From what a person writes to the tokens that a model sees.

use fulmen_model::tokenizer::Special;
use fulmen_model::{Model, ModelError};

/// How a prompt is understood.
#[derive(Debug, clap::Args)]
pub(crate) struct PromptOptions {
    /// Take the prompt as it is, without the model's chat template.
    #[arg(long)]
    raw: bool,
}

impl PromptOptions {
    /// The tokens of a prompt.
    pub(crate) fn tokens(&self, model: &Model, prompt: &str) -> Result<Vec<u32>, ModelError> {
        let tokenizer = model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(tokenizer.encode_prompt(prompt, Special::AsText))
    }
}
