//! A conversation with a model.

use fulmen_model::ModelError;
use fulmen_model::template::{ChatOptions, ChatTemplate, Message};

use super::generate::{FinishReason, GenerateOptions, Generated};
use super::model::Model;
use super::session::Session;

/// A conversation: messages, and the session that holds them in its KV cache.
#[derive(Debug)]
pub struct Chat {
    session: Session,
    template: ChatTemplate,
    options: ChatOptions,
    messages: Vec<Message>,
}

impl Chat {
    /// An empty conversation. Fails if the model has no chat template.
    pub fn new(model: &Model) -> Result<Chat, ModelError> {
        let template = model.chat_template()?.ok_or(ModelError::Without { what: "chat template" })?;
        Ok(Chat::with_template(model.session()?, template))
    }

    /// An empty conversation with another template.
    pub fn with_template(session: Session, template: ChatTemplate) -> Chat {
        Chat { session, template, options: ChatOptions::default(), messages: Vec::new() }
    }

    /// Sets how the messages are rendered.
    pub fn set_options(&mut self, options: ChatOptions) {
        self.options = options;
    }

    /// The messages so far.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a message without generating an answer: a system prompt, or part of an earlier conversation.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Replaces all messages: those of an earlier conversation.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// The system prompt.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|first| first.role == "system").map(|first| first.content.as_str())
    }

    /// Replaces the system prompt; `None` removes it. The other messages stay.
    pub fn set_system(&mut self, text: Option<&str>) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if let Some(text) = text {
            self.messages.insert(0, Message::system(text));
        }
    }

    /// Removes all messages but the system prompt.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message.role == "system");
    }

    /// Removes the last turn, which is a user message and what follows it, and returns the user message.
    pub fn undo(&mut self) -> Option<String> {
        let last = self.messages.iter().rposition(|message| message.role == "user")?;
        let turn = self.messages.split_off(last);
        turn.into_iter().next().map(|message| message.content)
    }

    /// Removes the oldest turns until a new user message and an answer of `answer` tokens fit into the
    /// context, and returns how many were removed. The system prompt stays. If the message does not fit at
    /// all, nothing is removed; [`Chat::say`] then says so.
    pub fn make_room(&mut self, text: &str, answer: usize) -> Result<usize, ModelError> {
        let all = self.messages.clone();
        let context = self.session.context();
        self.messages.push(Message::user(text));
        let mut dropped = 0;
        let fits = loop {
            match self.prompt() {
                Ok(tokens) if tokens.len().saturating_add(answer) <= context => break true,
                Ok(_) if self.drop_oldest() => dropped += 1,
                Ok(tokens) => break tokens.len() < context,
                Err(error) => {
                    self.messages = all;
                    return Err(error);
                }
            }
        };
        match fits {
            true => self.messages.truncate(self.messages.len() - 1),
            false => (self.messages, dropped) = (all, 0),
        }
        Ok(dropped)
    }

    /// Removes the first user message and what follows it up to the next one; false if there is only one.
    fn drop_oldest(&mut self) -> bool {
        let mut users = self.messages.iter().enumerate().filter(|(_, message)| message.role == "user");
        let (Some((first, _)), Some((second, _))) = (users.next(), users.next()) else { return false };
        self.messages.drain(first..second);
        true
    }

    /// The session, for its cancel flag, profile and options.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Goes on in another session of the same model, such as one with a longer context, and returns the one
    /// used so far. The messages are run again with the next answer.
    pub fn replace_session(&mut self, session: Session) -> Session {
        std::mem::replace(&mut self.session, session)
    }

    /// The tokens of the conversation so far, up to the start of the model's answer.
    pub fn prompt(&self) -> Result<Vec<u32>, ModelError> {
        self.render(&self.messages)
    }

    /// The tokens of the conversation with one more user message.
    pub fn prompt_with(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let mut messages = self.messages.clone();
        messages.push(Message::user(text));
        self.render(&messages)
    }

    fn render(&self, messages: &[Message]) -> Result<Vec<u32>, ModelError> {
        let tokenizer = self.session.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(self.template.adapted_prompt(tokenizer, messages, &self.options)?.tokens)
    }

    /// Sends a user message and returns the answer; `piece` gets the text as it is generated. Both messages
    /// are added to the conversation; on failure neither is.
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
            // Without an answer, the user message is dropped, too.
            Ok(generated) if generated.reason == FinishReason::Cancelled && generated.tokens.is_empty() => {
                self.messages.truncate(before);
            }
            Ok(generated) => self.messages.push(Message::assistant(&generated.text)),
            Err(_) => self.messages.truncate(before),
        }
        answer
    }
}
