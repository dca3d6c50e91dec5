//! OpenAI's API. Wire types are apart from handlers: `chat_types`, `responses_types`.

pub(crate) mod chat;
pub(crate) mod chat_stream;
pub(crate) mod chat_types;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod responses_input;
pub(crate) mod responses_stream;
pub(crate) mod responses_tools;
pub(crate) mod responses_types;
pub(crate) mod wire;
