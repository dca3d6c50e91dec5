//! Chat templates: render a conversation as the text that a model was trained to continue.
//!
//! - A model comes with its template as a small program (Jinja). The file is untrusted, so the template runs
//!   in a sandboxed interpreter that counts every step and byte and returns a typed error if a template loops
//!   or its output explodes.
//! - **User text stays text.** The interpreter tracks the origin of each character, and only the template's
//!   own markers become control tokens: `<|im_end|>` in a message does not end the turn.
//! - Models without a template get that of their family, if it is recognized.
//!
//! ```
//! use fulmen_model::template::{ChatOptions, ChatTemplate, Message};
//! let template = ChatTemplate::named("chatml")?;
//! let messages = [Message::system("Be brief."), Message::user("Hello!")];
//! let text = template.render(&messages, &ChatOptions::default())?;
//! assert!(text.ends_with("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"));
//! # Ok::<(), fulmen_model::template::TemplateError>(())
//! ```

mod answer;
mod arguments;
mod call_reader;
mod error;
mod family;
mod gemma;
mod harmony;
mod jinja;
mod json_text;
mod python_pieces;
mod pythonic;
mod tool_format;
mod tool_grammar;
mod tools;
mod turns;

use std::time::SystemTime;

use serde_json::json;

pub use answer::{AnswerParser, ParsedText};
pub use error::TemplateError;
pub use jinja::Failure;
use jinja::{Field, Template, Text, Variable};
pub use tool_format::ToolFormat;
pub use tool_grammar::JSON_WHITESPACE;
pub use tools::{CallPiece, ToolCall, ToolChoice, ToolError, ToolSpec};

use crate::gguf::Metadata;
use crate::tokenizer::{Special, Tokenizer};

/// Size limit of a template. The largest real ones have about 30 KB.
const MAX_SOURCE: usize = 1 << 20;
/// Budget of rendering in steps and bytes, in addition to the size of the messages.
const WORK: u64 = 32 << 20;
/// Budget of copies per byte of a message.
const COPIES: u64 = 64;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The role: `system`, `user`, `assistant`.
    pub role: String,
    /// The text. It never becomes a control token.
    pub content: String,
    /// Other fields that templates look at, such as `tool_calls`, `tool_call_id` and `reasoning_content`.
    /// Their text never becomes a control token, either.
    pub fields: Vec<(String, serde_json::Value)>,
}

impl Message {
    /// A message with any role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), fields: Vec::new() }
    }

    /// A system prompt.
    pub fn system(content: impl Into<String>) -> Message {
        Message::new("system", content)
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Message {
        Message::new("user", content)
    }

    /// An answer of the model.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::new("assistant", content)
    }
}

/// How a conversation is rendered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Whether the text ends with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether the model thinks before it answers (`enable_thinking`), if the template supports it. Defaults
    /// to the template's own default.
    pub thinking: Option<bool>,
    /// The time for templates that include the date. Defaults to the current time.
    pub now: Option<SystemTime>,
    /// Additional variables, such as `tools`. Their text never becomes a control token, like that of
    /// messages.
    pub variables: Vec<(String, serde_json::Value)>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        ChatOptions { add_generation_prompt: true, thinking: None, now: None, variables: Vec::new() }
    }
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The text, for display.
    pub text: String,
    /// The tokens.
    pub tokens: Vec<u32>,
}

/// A chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    template: Template,
    tools: Option<ToolFormat>,
    /// Whether it writes earlier calls.
    writes_calls: bool,
    /// Whether it looks for tools in the system message, as that of Phi-4-mini.
    tools_in_system: bool,
    /// Whether it knows tools under this name, as that of SmolLM3.
    xml_tools: bool,
    reasons: bool,
    channels: bool,
}

impl ChatTemplate {
    /// Parses a template.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::Size { bytes: source.len(), limit: MAX_SOURCE });
        }
        let template =
            Template::new(source).map_err(|(failure, line)| TemplateError::Read { line, failure })?;
        let channels = tool_format::is_harmony(source);
        Ok(ChatTemplate {
            source: source.to_owned(),
            template,
            tools: ToolFormat::of_template(source),
            writes_calls: source.contains("tool_calls"),
            tools_in_system: source.contains("message['tools']"),
            xml_tools: source.contains("xml_tools"),
            reasons: channels || answer::THOUGHTS.iter().any(|thoughts| thoughts.are_in(source)),
            channels,
        })
    }

    /// The template of a family: `chatml`, `llama3`, `llama2`.
    pub fn named(name: &str) -> Result<ChatTemplate, TemplateError> {
        let unknown = || TemplateError::UnknownFamily { name: name.to_owned(), known: family::names() };
        ChatTemplate::new(family::named(name).ok_or_else(unknown)?)
    }

    /// The template of a model: its own (`tokenizer.chat_template`), or that of the family whose special
    /// tokens its vocabulary has. `None` if there is neither: such a model was not trained for conversations.
    pub fn of_model(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<Option<ChatTemplate>, TemplateError> {
        if let Some(source) = metadata.opt_string("tokenizer.chat_template")? {
            return ChatTemplate::new(source).map(Some);
        }
        family::of(tokenizer).map(ChatTemplate::named).transpose()
    }

    /// The program as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// How models with this template write calls of tools; `None` if the template has no tools, or writes
    /// them in an unknown way.
    pub fn tool_format(&self) -> Option<ToolFormat> {
        self.tools
    }

    /// Whether the template knows thoughts before an answer: `<think>`, or a channel of their own.
    pub fn has_reasoning(&self) -> bool {
        self.reasons
    }

    /// Whether answers are messages with channels, in the harmony format of gpt-oss.
    pub fn has_channels(&self) -> bool {
        self.channels
    }

    /// The text of a conversation, for display: markers in messages and markers of the template look the
    /// same. `bos_token` and `eos_token` are empty, because they belong to a tokenizer.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, TemplateError> {
        let text = self.render_text(messages, options, "", "")?;
        Ok(text.as_str().to_owned())
    }

    /// The tokens and the text of a conversation.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<ChatPrompt, TemplateError> {
        let name = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).unwrap_or("");
        let text = self.render_text(messages, options, name(tokenizer.bos()), name(tokenizer.eos()))?;
        let mut tokens = tokenizer.encode_with_foreign(text.as_str(), text.foreign_ranges());
        // Some templates start with BOS, others leave it to the tokenizer.
        tokenizer.begin(&mut tokens);
        Ok(ChatPrompt { text: text.as_str().to_owned(), tokens })
    }

    /// As [`prompt`](ChatTemplate::prompt), but where the template refuses a conversation, or leaves out a
    /// system message, it is given in another form: system messages become one, or a part of the user's
    /// messages, as do neighbours of one role.
    pub fn adapted_prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<ChatPrompt, TemplateError> {
        let prompt = |messages: &[Message]| self.prompt(tokenizer, messages, options);
        turns::rendered(messages, prompt, |prompt| &prompt.text)
    }

    /// The tokens and the text of a conversation with tools that may be called, and what divides the answer
    /// into thoughts, text and calls. A template that knows no tools tells the model of them in the system
    /// prompt. A `constrained` answer must match a grammar from its first token on: it has no thoughts. The
    /// conversation is given in a form that the template takes, as by
    /// [`adapted_prompt`](ChatTemplate::adapted_prompt).
    pub fn prompt_with_tools(
        &self,
        tokenizer: &Tokenizer,
        mut messages: Vec<Message>,
        tools: &[ToolSpec],
        mut options: ChatOptions,
        constrained: bool,
    ) -> Result<(ChatPrompt, AnswerParser), TemplateError> {
        match self.tools {
            _ if tools.is_empty() => {}
            None => tools::describe(&mut messages, tools),
            Some(format) => self.tell_of_tools(format, &mut messages, tools, &mut options),
        }
        if self.channels {
            name_thoughts(&mut messages);
        }
        let mut prompt = self.adapted_prompt(tokenizer, &messages, &options)?;
        if self.channels {
            if constrained {
                prompt.text.push_str(harmony::FINAL);
                prompt.tokens.extend(tokenizer.encode(harmony::FINAL, Special::Parse));
            }
            return Ok((prompt, AnswerParser::harmony(!tools.is_empty(), constrained)));
        }
        let reasons = self.reasons && !constrained;
        let thoughts = self.thoughts();
        let thinking = reasons && prompt.text.trim_end().ends_with(thoughts.open);
        let format = (!tools.is_empty()).then(|| self.tools.unwrap_or_default());
        let parser = AnswerParser::new(reasons, thinking, format).with_thoughts(thoughts);
        Ok((prompt, parser.with_tools(tools)))
    }

    /// The tags of thoughts.
    fn thoughts(&self) -> answer::Thoughts {
        let known = answer::THOUGHTS.into_iter().find(|thoughts| thoughts.are_in(&self.source));
        known.unwrap_or_default()
    }

    /// Gives the tools to the template, where it looks for them.
    fn tell_of_tools(
        &self,
        format: ToolFormat,
        messages: &mut Vec<Message>,
        tools: &[ToolSpec],
        options: &mut ChatOptions,
    ) {
        let described = |tool: &ToolSpec| {
            let mut tool = tool.json();
            if self.channels && tool["function"]["description"].is_null() {
                // Templates with channels take it for granted.
                tool["function"]["description"] = json!("");
            }
            tool
        };
        let list: serde_json::Value = tools.iter().map(described).collect();
        if matches!(format, ToolFormat::Mistral | ToolFormat::MistralList) {
            tools::shorten_ids(messages);
        }
        if !self.writes_calls {
            let (open, close) = format.tags();
            tools::write_calls(messages, open, close);
        }
        if self.tools_in_system {
            let functions: Vec<&serde_json::Value> = list.as_array().into_iter().flatten().collect();
            let functions: Vec<_> = functions.iter().map(|tool| &tool["function"]).collect();
            let text = json!(functions).to_string();
            if messages.first().is_none_or(|first| first.role != "system") {
                messages.insert(0, Message::system("You are a helpful assistant with some tools."));
            }
            messages[0].fields.push(("tools".to_owned(), json!(text)));
        }
        if self.xml_tools {
            options.variables.push(("xml_tools".to_owned(), list.clone()));
        }
        options.variables.push(("tools".to_owned(), list));
    }

    fn render_text(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        bos: &str,
        eos: &str,
    ) -> Result<Text, TemplateError> {
        let json_len = |json: &serde_json::Value| json.to_string().len();
        let size: usize = messages
            .iter()
            .map(|message| {
                let fields = message.fields.iter().map(|(name, json)| name.len() + json_len(json) + 64);
                message.role.len() + message.content.len() + 64 + fields.sum::<usize>()
            })
            .chain(options.variables.iter().map(|(_, json)| json_len(json)))
            .sum();
        let work = u64::try_from(size).unwrap_or(u64::MAX).saturating_mul(COPIES).saturating_add(WORK);
        // A role may become part of a marker (`<|user|>`), so it is trusted if it cannot contain one itself.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let records = messages.iter().map(|Message { role, content, fields }| {
            let foreign_role = !role.chars().all(plain);
            let texts = [("role", Field::Text(role, foreign_role)), ("content", Field::Text(content, true))];
            let others = fields.iter().map(|(name, json)| (name.as_str(), Field::Foreign(json)));
            texts.into_iter().chain(others).collect()
        });
        let mut variables = vec![
            ("messages", Variable::Records(records.collect())),
            ("add_generation_prompt", Variable::Own(json!(options.add_generation_prompt))),
            ("bos_token", Variable::Own(json!(bos))),
            ("eos_token", Variable::Own(json!(eos))),
            ("tools", Variable::Own(json!(null))),
            ("documents", Variable::Own(json!(null))),
        ];
        if let Some(thinking) = options.thinking {
            variables.push(("enable_thinking", Variable::Own(json!(thinking))));
        }
        variables
            .extend(options.variables.iter().map(|(name, value)| (name.as_str(), Variable::Foreign(value))));
        let now = options.now.unwrap_or_else(fulmen_core::clock::system_time);
        self.template
            .render(&variables, now, work)
            .map_err(|(failure, line)| TemplateError::Render { line, failure })
    }
}

/// Gives the thoughts before earlier calls the name that templates with channels know. They refuse a message
/// with both text and thoughts.
fn name_thoughts(messages: &mut [Message]) {
    for message in messages.iter_mut().filter(|message| message.content.is_empty()) {
        for (name, _) in &mut message.fields {
            if name == "reasoning_content" {
                "thinking".clone_into(name);
            }
        }
    }
}

#[cfg(test)]
mod call_piece_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
