//! From what a person writes to the tokens that a model sees.

use fulmen_model::template::{ChatOptions, ChatTemplate, Message};
use fulmen_model::tokenizer::Special;
use fulmen_model::{Model, ModelError};

/// How a prompt is understood.
#[derive(Debug, clap::Args)]
pub(crate) struct PromptOptions {
    /// Take the prompt as it is, without a chat template: the model goes on with the text.
    #[arg(long, conflicts_with_all = ["template", "system", "think"])]
    raw: bool,

    #[command(flatten)]
    pub(crate) chat: ChatArgs,
}

/// How messages are put to a model.
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// What the model should be, such as "You are brief."
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// The chat template of a family, instead of the model's own: chatml, llama3 or llama2.
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<String>,

    /// Whether the model thinks before it answers, if it can.
    #[arg(long, value_name = "BOOL")]
    pub(crate) think: Option<bool>,
}

impl ChatArgs {
    /// The template that is asked for, or the model's own.
    pub(crate) fn template(&self, model: &Model) -> Result<Option<ChatTemplate>, ModelError> {
        match &self.template {
            Some(name) => Ok(Some(ChatTemplate::named(name)?)),
            None => model.chat_template(),
        }
    }

    /// How messages are rendered.
    pub(crate) fn options(&self) -> ChatOptions {
        ChatOptions { thinking: self.think, ..ChatOptions::default() }
    }
}

impl PromptOptions {
    /// The tokens of a prompt.
    pub(crate) fn tokens(&self, model: &Model, prompt: &str) -> Result<Vec<u32>, ModelError> {
        let tokenizer = model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let template = if self.raw { None } else { self.chat.template(model)? };
        match (template, &self.chat.system) {
            (Some(template), system) => {
                let system = system.as_ref().map(Message::system);
                let messages: Vec<Message> = system.into_iter().chain([Message::user(prompt)]).collect();
                Ok(template.prompt(tokenizer, &messages, &self.chat.options())?.tokens)
            }
            // There is no place for it.
            (None, Some(_)) => Err(ModelError::Without { what: "chat template, so --system cannot be used" }),
            (None, None) => Ok(tokenizer.encode_prompt(prompt, Special::AsText)),
        }
    }
}
