//! What messages are added to: a chat, or a story.

use fulmen_bench::model::LoadedModel;
use fulmen_engine::{Chat, GenerateOptions, Generated, Model, Session, SessionOptions};
use fulmen_model::ModelError;

use super::saved::Saved;
use super::story::Story;
use super::{Args, ChatError};
use crate::output::{counted, thousands};

pub(super) enum Conversation {
    Chat(Box<Chat>),
    Story(Box<Story>),
}

impl Conversation {
    /// A chat with the template of the options or the model's own; with the built-in model, a story.
    pub(super) fn new(args: &Args, builtin: bool, loaded: &LoadedModel) -> Result<Conversation, ChatError> {
        let session = loaded.model.session()?;
        let Some(template) = args.chat.template(&loaded.model)? else {
            return match (builtin, &args.chat.system) {
                (true, None) => Ok(Conversation::Story(Box::new(Story::new(session)))),
                _ => Err(ChatError::NoTemplate),
            };
        };
        let mut chat = Chat::with_template(session, template);
        chat.set_options(args.chat.options());
        chat.set_system(args.chat.system.as_deref());
        Ok(Conversation::Chat(Box::new(chat)))
    }

    /// An empty line continues a story.
    pub(super) fn is_story(&self) -> bool {
        matches!(self, Conversation::Story(_))
    }

    pub(super) fn clear(&mut self) {
        match self {
            Conversation::Chat(chat) => chat.clear(),
            Conversation::Story(story) => story.set_text(""),
        }
    }

    pub(super) fn session(&mut self) -> &mut Session {
        match self {
            Conversation::Chat(chat) => chat.session(),
            Conversation::Story(story) => story.session(),
        }
    }

    /// Takes the last turn back and returns the user's message.
    pub(super) fn undo(&mut self) -> Option<String> {
        match self {
            Conversation::Chat(chat) => chat.undo(),
            Conversation::Story(story) => story.undo(),
        }
    }

    /// Makes the context longer, up to the model's own, if a message and an answer do not fit, and returns
    /// the new context. Without memory for it, everything stays as it is.
    pub(super) fn grow(
        &mut self,
        model: &Model,
        message: &str,
        max_tokens: usize,
    ) -> Result<Option<usize>, ModelError> {
        let Conversation::Chat(chat) = self else { return Ok(None) };
        let context = chat.session().context();
        let limit = model.config().context as usize;
        let needed = chat.prompt_with(message)?.len().saturating_add((context / 4).min(max_tokens));
        if needed <= context || context >= limit {
            return Ok(None);
        }
        let larger = needed.next_multiple_of(1024).max(2 * context).min(limit);
        let options = *chat.session().options();
        let Ok(context) = u32::try_from(larger) else { return Ok(None) };
        match model.session_with(SessionOptions { context, ..options }) {
            Ok(session) => {
                chat.replace_session(session);
                Ok(Some(larger))
            }
            Err(ModelError::CacheMemory { .. } | ModelError::Memory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets the oldest turns until a message and an answer of a quarter of the context fit, and returns
    /// how many.
    pub(super) fn make_room(&mut self, message: &str, max_tokens: usize) -> Result<usize, ModelError> {
        let answer = (self.session().context() / 4).min(max_tokens);
        match self {
            Conversation::Chat(chat) => chat.make_room(message, answer),
            Conversation::Story(story) => story.make_room(message, answer),
        }
    }

    pub(super) fn say(
        &mut self,
        message: &str,
        options: &GenerateOptions,
        piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        match self {
            Conversation::Chat(chat) => chat.say(message, options, piece),
            Conversation::Story(story) => story.say(message, options, piece),
        }
    }

    /// How full the context is, in a line.
    pub(super) fn context(&mut self) -> Result<String, ModelError> {
        let total = self.session().context();
        let (used, what) = match self {
            Conversation::Chat(chat) if chat.messages().is_empty() => (0, "no messages yet".to_owned()),
            Conversation::Chat(chat) => (chat.prompt()?.len(), counted(chat.messages().len(), "message")),
            Conversation::Story(story) if story.text().is_empty() => (0, "no story yet".to_owned()),
            Conversation::Story(story) => {
                (story.tokens()?, counted(story.text().split_whitespace().count(), "word"))
            }
        };
        let percent = 100 * used / total.max(1);
        Ok(format!(
            "{} of {} tokens used ({percent} %), {what}",
            thousands(used as u64),
            thousands(total as u64)
        ))
    }

    /// The conversation for a file.
    pub(super) fn saved(&self, model: Option<String>) -> Saved {
        match self {
            Conversation::Chat(chat) => Saved::chat(model, chat.messages()),
            Conversation::Story(story) => Saved::story(model, story.text()),
        }
    }

    /// Goes on with a saved conversation. A story cannot become a chat, nor a chat a story.
    pub(super) fn restore(&mut self, saved: &Saved) -> Result<String, ChatError> {
        match (self, &saved.story) {
            (Conversation::Chat(chat), None) => {
                let messages = saved.messages();
                let shown = counted(messages.len(), "message");
                let system = chat.system().map(str::to_owned);
                chat.set_messages(messages);
                // A system prompt that was given for this chat is not replaced by none.
                if chat.system().is_none() {
                    chat.set_system(system.as_deref());
                }
                Ok(shown)
            }
            (Conversation::Story(story), Some(text)) => {
                story.set_text(text);
                Ok(counted(text.split_whitespace().count(), "word"))
            }
            (Conversation::Chat(_), Some(_)) => Err(ChatError::NotAChat),
            (Conversation::Story(_), None) => Err(ChatError::NotAStory),
        }
    }
}
