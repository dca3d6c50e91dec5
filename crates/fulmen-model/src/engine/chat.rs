//! A conversation with a model.

use super::generate::{FinishReason, GenerateOptions, Generated};
use super::model::Model;
use super::session::Session;
use crate::error::ModelError;
use crate::template::{ChatOptions, ChatTemplate, Message};

/// A conversation: messages, and the session that has them in its cache.
#[derive(Debug)]
pub struct Chat {
    session: Session,
    template: ChatTemplate,
    options: ChatOptions,
    messages: Vec<Message>,
}

impl Chat {
    /// An empty conversation. Refused for models that were not made for conversations.
    pub fn new(model: &Model) -> Result<Chat, ModelError> {
        let template = model.chat_template()?.ok_or(ModelError::Without { what: "chat template" })?;
        Ok(Chat::with_template(model.session()?, template))
    }

    /// An empty conversation by another template.
    pub fn with_template(session: Session, template: ChatTemplate) -> Chat {
        Chat { session, template, options: ChatOptions::default(), messages: Vec::new() }
    }

    /// How the messages are rendered from now on.
    pub fn set_options(&mut self, options: ChatOptions) {
        self.options = options;
    }

    /// What was said so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message that is not answered: what the model should be, or a part of an old conversation.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Forgets everything that was said, but not what the model should be.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// The session, for its flag, its profile and its size.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The tokens of the conversation so far, up to the begin of an answer.
    pub fn prompt(&self) -> Result<Vec<u32>, ModelError> {
        let tokenizer = self.session.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(self.template.prompt(tokenizer, &self.messages, &self.options)?.tokens)
    }

    /// Says something and gives the answer, each piece as it comes. Both belong to the conversation from then on; if it
    /// fails, neither does.
    pub fn say(
        &mut self,
        text: &str,
        options: &GenerateOptions,
        piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        let before = self.messages.len();
        self.messages.push(Message::user(text));
        let answer =
            self.prompt().and_then(|tokens| self.session.generate_from(&tokens, options)?.finish(piece));
        match &answer {
            // Nothing was answered: as if it had not been said.
            Ok(generated) if generated.reason == FinishReason::Cancelled && generated.tokens.is_empty() => {
                self.messages.truncate(before);
            }
            Ok(generated) => self.messages.push(Message::assistant(&generated.text)),
            Err(_) => self.messages.truncate(before),
        }
        answer
    }
}
