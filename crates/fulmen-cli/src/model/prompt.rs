//! From a prompt to the tokens that a model reads.

use std::path::{Path, PathBuf};
use std::{fs, io};

use fulmen_engine::Model;
use fulmen_model::ModelError;
use fulmen_model::template::{ChatOptions, ChatTemplate, Message, TemplateError};
use fulmen_model::tokenizer::Special;

use crate::error::CommandError;

/// How a prompt is turned into tokens.
#[derive(Debug, clap::Args)]
pub(crate) struct PromptOptions {
    /// Use no chat template: the model continues the text of the prompt.
    #[arg(long, conflicts_with_all = ["template", "system", "think"])]
    pub(crate) raw: bool,

    #[command(flatten)]
    pub(crate) chat: ChatArgs,
}

/// How messages are rendered for a model.
#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    /// System prompt, such as "Answer briefly."
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) template: TemplateOptions,
}

/// The chat template, and what it is told.
#[derive(Debug, clap::Args)]
pub(crate) struct TemplateOptions {
    /// Chat template to use instead of the model's own: chatml, llama3, llama2, or a file with a Jinja
    /// template.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) template: Option<String>,

    /// Whether a reasoning model thinks before it answers.
    #[arg(long, alias = "thinking", value_name = "BOOL")]
    pub(crate) think: Option<bool>,
}

/// Why a prompt could not be rendered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PromptError {
    #[error("there is no chat template {name:?}, and no such file; known templates are {known}")]
    NoSuchTemplate { name: String, known: String },
    #[error("cannot read the chat template {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: {error}", path.display())]
    Parse { path: PathBuf, error: TemplateError },
    #[error("--system needs a chat template, and the model has none; --template selects one")]
    SystemWithoutTemplate,
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl CommandError for PromptError {
    fn is_usage(&self) -> bool {
        match self {
            PromptError::NoSuchTemplate { .. } => true,
            PromptError::Template(error) => error.is_usage(),
            PromptError::Model(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl TemplateOptions {
    /// The template of the option; `None` without the option.
    pub(crate) fn load(&self) -> Result<Option<ChatTemplate>, PromptError> {
        let Some(name) = &self.template else { return Ok(None) };
        let path = Path::new(name);
        let known = match ChatTemplate::named(name) {
            Ok(template) => return Ok(Some(template)),
            Err(TemplateError::UnknownFamily { known, .. }) => known,
            Err(error) => return Err(error.into()),
        };
        if !path.exists() {
            return Err(PromptError::NoSuchTemplate { name: name.clone(), known });
        }
        let path = path.to_owned();
        let source = match fs::read_to_string(&path) {
            Ok(source) => source,
            Err(error) => return Err(PromptError::Read { path, error }),
        };
        ChatTemplate::new(&source).map(Some).map_err(|error| PromptError::Parse { path, error })
    }
}

impl ChatArgs {
    /// The template of the options, or the model's own.
    pub(crate) fn template(&self, model: &Model) -> Result<Option<ChatTemplate>, PromptError> {
        match self.template.load()? {
            Some(template) => Ok(Some(template)),
            None => Ok(model.chat_template()?),
        }
    }

    /// How messages are rendered.
    pub(crate) fn options(&self) -> ChatOptions {
        ChatOptions { thinking: self.template.think, ..ChatOptions::default() }
    }
}

impl PromptOptions {
    /// The tokens of a prompt.
    pub(crate) fn tokens(&self, model: &Model, prompt: &str) -> Result<Vec<u32>, PromptError> {
        let tokenizer = model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let template = if self.raw { None } else { self.chat.template(model)? };
        match (template, &self.chat.system) {
            (Some(template), system) => {
                let system = system.as_ref().map(Message::system);
                let messages: Vec<Message> = system.into_iter().chain([Message::user(prompt)]).collect();
                Ok(template.adapted_prompt(tokenizer, &messages, &self.chat.options())?.tokens)
            }
            (None, Some(_)) => Err(PromptError::SystemWithoutTemplate),
            (None, None) => Ok(tokenizer.encode_prompt(prompt, Special::AsText)),
        }
    }
}
