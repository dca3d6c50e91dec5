//! From texts and conversations to the tokens of a prompt.

use std::sync::Arc;

use fulmen_model::template::{ChatOptions, Message, ToolFormat};
use fulmen_model::tokenizer::Special;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::registry::Lease;
use crate::served::{Grammar, ServedModel};

/// Texts above this size are tokenized on another thread, so that they hold nobody up.
const INLINE_BYTES: usize = 16 << 10;

/// A prompt, and how its answer is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Whether thoughts are looked for.
    pub(crate) reasoning: bool,
    /// Whether the prompt has already opened the thoughts.
    pub(crate) thinking: bool,
    /// How calls of tools are written, if there are tools.
    pub(crate) tools: Option<ToolFormat>,
}

impl Prompt {
    /// A prompt of tokens, whose answer is plain text.
    pub(crate) fn tokens(tokens: Vec<u32>) -> Prompt {
        Prompt { tokens, ..Prompt::default() }
    }
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolSpec {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A JSON schema.
    pub(crate) parameters: Value,
}

impl ToolSpec {
    /// The form that templates know: OpenAI's.
    fn json(&self) -> Value {
        let mut function = json!({ "name": self.name, "parameters": self.parameters });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        json!({ "type": "function", "function": function })
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// As the model decides.
    #[default]
    Auto,
    /// Never.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// A conversation with everything that a template is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatInput {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<ToolSpec>,
    pub(crate) tool_choice: ToolChoice,
    /// Whether several tools may be called in one answer.
    pub(crate) several_calls: bool,
    /// Whether the model thinks; `None` for the template's default.
    pub(crate) thinking: Option<bool>,
    /// Further variables of the template.
    pub(crate) variables: Vec<(String, Value)>,
}

impl ChatInput {
    /// The grammar that a required call needs.
    pub(crate) fn grammar(&self, model: &dyn ServedModel) -> Result<Option<Grammar>, ApiError> {
        let only = match &self.tool_choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => None,
            ToolChoice::Named(name) => Some(name),
        };
        let tools = self.tools.iter().filter(|tool| only.is_none_or(|name| *name == tool.name));
        let tools: Vec<_> = tools.map(|tool| (tool.name.clone(), tool.parameters.clone())).collect();
        if tools.is_empty() {
            let name = only.map_or("a tool", String::as_str);
            return Err(ApiError::field("tool_choice", format!("tool_choice: {name:?} is not in tools")));
        }
        let format = model.chat_template().and_then(|template| template.tool_format());
        let format = format.ok_or_else(no_tools)?;
        if model.constraints().is_none() {
            return Err(ApiError::unsupported(
                "tool_choice",
                "required calls need constrained decoding, which this model does not have; use \"auto\"",
            ));
        }
        Ok(Some(Grammar::ToolCalls { format, tools, several: self.several_calls && only.is_none() }))
    }

    /// The tokens of the conversation. A constrained answer has no thoughts: the grammar begins at once.
    pub(crate) async fn prompt(mut self, lease: &Lease, constrained: bool) -> Result<Prompt, ApiError> {
        if constrained {
            self.thinking = Some(false);
        }
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "messages: expected at least 1 message, got none"));
        }
        if let Some(system) = &lease.spec().system
            && !self.messages.iter().any(|message| message.role == "system" || message.role == "developer")
        {
            self.messages.insert(0, Message::system(system));
        }
        let size = self.messages.iter().map(|message| message.content.len() + 32).sum();
        beside(size, Arc::clone(lease.model()), move |model| {
            let prompt = self.render(model)?;
            Ok(Prompt { reasoning: prompt.reasoning && !constrained, ..prompt })
        })
        .await?
    }

    fn render(mut self, model: &dyn ServedModel) -> Result<Prompt, ApiError> {
        let Some(template) = model.chat_template() else { return self.render_plain(model) };
        let with_tools = !self.tools.is_empty() && self.tool_choice != ToolChoice::None;
        let tools = match (with_tools, template.tool_format()) {
            (true, None) => return Err(no_tools()),
            (true, format) => format,
            (false, _) => None,
        };
        let mut variables = std::mem::take(&mut self.variables);
        if with_tools {
            variables.push(("tools".to_owned(), self.tools.iter().map(ToolSpec::json).collect()));
        }
        let options = ChatOptions { thinking: self.thinking, variables, ..ChatOptions::default() };
        let prompt = template.prompt(model.tokenizer(), &self.messages, &options)?;
        let reasoning = template.has_reasoning();
        let thinking = reasoning && prompt.text.trim_end().ends_with("<think>");
        Ok(Prompt { tokens: prompt.tokens, reasoning, thinking, tools })
    }

    /// A model without a template was not trained for conversations: it continues the text of the messages.
    fn render_plain(self, model: &dyn ServedModel) -> Result<Prompt, ApiError> {
        if !self.tools.is_empty() && self.tool_choice != ToolChoice::None {
            return Err(no_tools());
        }
        let texts: Vec<&str> = self.messages.iter().map(|message| message.content.as_str()).collect();
        Ok(Prompt::tokens(model.tokenizer().encode_prompt(&texts.join("\n"), Special::AsText)))
    }
}

fn no_tools() -> ApiError {
    ApiError::unsupported("tools", "this model's chat template has no tools")
}

/// The tokens of a text.
pub(crate) async fn tokenize(lease: &Lease, text: String, special: Special) -> Result<Vec<u32>, ApiError> {
    let model = Arc::clone(lease.model());
    beside(text.len(), model, move |model| model.tokenizer().encode_prompt(&text, special)).await
}

/// Runs work that takes time proportional to `size`: small work here, larger on a thread that may block.
async fn beside<T: Send + 'static>(
    size: usize,
    model: Arc<dyn ServedModel>,
    work: impl FnOnce(&dyn ServedModel) -> T + Send + 'static,
) -> Result<T, ApiError> {
    if size <= INLINE_BYTES {
        return Ok(work(model.as_ref()));
    }
    let done = tokio::task::spawn_blocking(move || work(model.as_ref())).await;
    done.map_err(|error| ApiError::internal(format!("tokenizing failed: {error}")))
}
