//! From texts and conversations to the tokens of a prompt.

use std::sync::Arc;

use fulmen_engine::RequestError;
use fulmen_model::template::{AnswerParser, ChatOptions, ChatTemplate, Message, ToolChoice, ToolSpec};
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
    /// Divides the answer into thoughts, text and calls of tools.
    pub(crate) parser: AnswerParser,
    /// Whether the answer ends after its first call of a tool.
    pub(crate) one_call: bool,
}

impl Prompt {
    /// A prompt of tokens, whose answer is plain text.
    pub(crate) fn tokens(tokens: Vec<u32>) -> Prompt {
        Prompt { tokens, ..Prompt::default() }
    }

    /// As this prompt, for an answer whose calls are passed on as they are written.
    pub(crate) fn with_call_pieces(self) -> Prompt {
        Prompt { parser: self.parser.with_call_pieces(), ..self }
    }

    /// Positions of a context that are left for the answer; at least one.
    pub(crate) fn room(&self, context: u32) -> Result<u32, ApiError> {
        let prompt = self.tokens.len();
        if prompt == 0 {
            return Err(RequestError::EmptyPrompt.into());
        }
        match u32::try_from(prompt).ok().and_then(|prompt| context.checked_sub(prompt)) {
            None | Some(0) => Err(RequestError::PromptTooLong { prompt, context }.into()),
            Some(room) => Ok(room),
        }
    }
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
    /// Whether the answer has a format; set by [`constraint`](ChatInput::constraint).
    pub(crate) has_format: bool,
}

/// The field of a request that asks for a grammar, and the grammar.
type AskedGrammar = (&'static str, Grammar);

impl ChatInput {
    /// The grammar of the answer and the field that asks for it: that of a required call or of calls to
    /// strict tools, or `format`, or of either calls or `format` where tools may be called.
    pub(crate) fn constraint(
        &mut self,
        model: &dyn ServedModel,
        format: Option<AskedGrammar>,
    ) -> Result<Option<AskedGrammar>, ApiError> {
        let required = self.required_call(model)?;
        let Some((param, format)) = format else {
            let grammar = if required.is_some() { required } else { self.strict_calls(model)? };
            return Ok(grammar.map(|grammar| ("tools", grammar)));
        };
        self.has_format = true;
        if required.is_some() {
            return Err(together(param, "a required tool_choice"));
        }
        let grammar = if self.may_call() { self.calls_or(model, param, format)? } else { format };
        Ok(Some((param, grammar)))
    }

    /// The grammar of an answer that calls tools or has a format.
    fn calls_or(
        &self,
        model: &dyn ServedModel,
        param: &'static str,
        format: Grammar,
    ) -> Result<Grammar, ApiError> {
        let schema = match format {
            Grammar::JsonObject => json!({ "type": "object" }),
            Grammar::JsonSchema(schema) => schema,
            Grammar::Lark(_) | Grammar::Regex(_) => {
                return Err(together(param, "tools that may be called: only JSON can be chosen instead"));
            }
        };
        let format = model.chat_template().ok_or_else(no_tools)?.tool_format().unwrap_or_default();
        let grammar =
            format.calls_or_json_grammar(&self.tools, &schema, self.several_calls, model.tokenizer());
        let what = "tools that this model may call (a tool_choice of none allows it)";
        grammar.map(Grammar::Lark).ok_or_else(|| together(param, what))
    }

    /// Whether the model decides whether it calls tools.
    fn may_call(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice == ToolChoice::Auto
    }

    /// The grammar of an answer in which strict tools may be called.
    fn strict_calls(&self, model: &dyn ServedModel) -> Result<Option<Grammar>, ApiError> {
        if !self.may_call() || !self.tools.iter().any(ToolSpec::is_strict) {
            return Ok(None);
        }
        let refused = |what: &str| ApiError::unsupported("tools", &format!("strict tools: {what}"));
        if model.constraints().is_none() {
            return Err(refused("this model has no constrained decoding"));
        }
        let format = model.chat_template().ok_or_else(no_tools)?.tool_format().unwrap_or_default();
        let grammar = format.answer_grammar(&self.tools, model.tokenizer());
        let grammar = grammar
            .ok_or_else(|| refused("the names of these parameters cannot be written by this model"))?;
        Ok(Some(Grammar::Lark(grammar)))
    }

    /// The grammar that a required call needs.
    fn required_call(&self, model: &dyn ServedModel) -> Result<Option<Grammar>, ApiError> {
        let Some(tools) = self.tool_choice.required(&self.tools) else { return Ok(None) };
        let named = match &self.tool_choice {
            ToolChoice::Named(name) => Some(name.as_str()),
            _ => None,
        };
        if tools.is_empty() {
            let name = named.unwrap_or("a tool");
            return Err(ApiError::field("tool_choice", format!("tool_choice: {name:?} is not in tools")));
        }
        let format = model.chat_template().ok_or_else(no_tools)?.tool_format().unwrap_or_default();
        if model.constraints().is_none() {
            return Err(ApiError::unsupported(
                "tool_choice",
                "required calls need constrained decoding, which this model does not have; use \"auto\"",
            ));
        }
        let several = self.several_calls && named.is_none();
        let grammar = format.calls_grammar(&tools, several, model.tokenizer()).ok_or_else(|| {
            let message =
                "required calls: this model cannot write the names of these parameters; use \"auto\"";
            ApiError::unsupported("tool_choice", message)
        })?;
        Ok(Some(Grammar::Lark(grammar)))
    }

    /// The tokens of the conversation. A constrained answer has no thoughts: the grammar begins at once. The
    /// grammar of an answer in which tools may be called has them, and that of a required call where messages
    /// have channels.
    pub(crate) async fn prompt(mut self, lease: &Lease, constrained: bool) -> Result<Prompt, ApiError> {
        let channels = lease.chat_template().is_some_and(ChatTemplate::has_channels);
        let required = self.tool_choice.required(&self.tools).is_some();
        let free = self.may_call() || (channels && required);
        let constrained = constrained && (self.has_format || !free);
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
        beside(size, Arc::clone(lease.model()), move |model| self.render(model, constrained)).await?
    }

    fn render(self, model: &dyn ServedModel, constrained: bool) -> Result<Prompt, ApiError> {
        let Some(template) = model.chat_template() else { return self.render_plain(model) };
        let tools = if self.tool_choice == ToolChoice::None { &[] } else { self.tools.as_slice() };
        let options =
            ChatOptions { thinking: self.thinking, variables: self.variables, ..ChatOptions::default() };
        let tokenizer = model.tokenizer();
        let (prompt, parser) =
            template.prompt_with_tools(tokenizer, self.messages, tools, options, constrained)?;
        Ok(Prompt { tokens: prompt.tokens, parser, one_call: !self.several_calls })
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

/// What excludes a format.
fn together(param: &'static str, what: &str) -> ApiError {
    let message = format!("{param} together with {what}: the answer would have to be both");
    ApiError::field(param, message)
}

fn no_tools() -> ApiError {
    ApiError::unsupported("tools", "this model has no chat template")
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
