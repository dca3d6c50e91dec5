//! Saved conversations: JSON files, described in docs/chat.md.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fulmen_model::template::Message;
use serde::{Deserialize, Serialize};

use super::state::{self, write_private};

/// What the field `format` of such a file says.
const FORMAT: &str = "fulmen-conversation";
const VERSION: u32 = 1;
/// More text than any context holds.
const MAX_BYTES: u64 = 64 << 20;

/// A conversation in a file. Field names are an interface: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Saved {
    format: String,
    version: u32,
    /// The model as it was named, or its path; `None` for the built-in one.
    pub(crate) model: Option<String>,
    /// The server whose model it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    /// The messages of a chat, the oldest first.
    #[serde(default)]
    messages: Vec<Turn>,
    /// The text of a story told in turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) story: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Turn {
    role: String,
    content: String,
}

/// Why a conversation could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavedError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("{} is not a saved conversation: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("{} exists and is not a saved conversation; choose another name", path.display())]
    Exists { path: PathBuf },
    #[error("{} is a symbolic link; choose another name", path.display())]
    Link { path: PathBuf },
    #[error("there is no conversation to continue")]
    NoLast,
}

impl Saved {
    pub(crate) fn chat(model: Option<String>, messages: &[Message]) -> Saved {
        let turn = |m: &Message| Turn { role: m.role.clone(), content: m.content.clone() };
        let messages = messages.iter().map(turn).collect();
        Saved { format: FORMAT.to_owned(), version: VERSION, model, server: None, messages, story: None }
    }

    pub(crate) fn story(model: Option<String>, text: &str) -> Saved {
        Saved { story: Some(text.to_owned()), ..Saved::chat(model, &[]) }
    }

    pub(crate) fn messages(&self) -> Vec<Message> {
        self.messages.iter().map(|turn| Message::new(&turn.role, &turn.content)).collect()
    }

    /// The same with a model of a server.
    #[cfg(feature = "server")]
    pub(crate) fn of_server(self, server: &str) -> Saved {
        Saved { server: Some(server.to_owned()), ..self }
    }

    /// Writes a file; one that exists must be a saved conversation. A symbolic link would be replaced, and
    /// what it leads to would stay as it was.
    pub(crate) fn save(&self, path: &Path) -> Result<(), SavedError> {
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_symlink() => Err(SavedError::Link { path: path.to_owned() }),
            Ok(_) if Saved::load(path).is_err() => Err(SavedError::Exists { path: path.to_owned() }),
            _ => self.write(path),
        }
    }

    /// Writes the file of the last conversation.
    pub(crate) fn save_last(&self) -> Result<(), SavedError> {
        match last_path() {
            Some(path) => self.write(&path),
            None => Ok(()),
        }
    }

    fn write(&self, path: &Path) -> Result<(), SavedError> {
        // Strings and lists of them always serialize.
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        let at = |error| SavedError::Write { path: path.to_owned(), error };
        write_private(path, text.as_bytes()).map_err(at)
    }

    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Saved, SavedError> {
        let failed = |error| SavedError::Read { path: path.to_owned(), error };
        let invalid = |reason: String| SavedError::Invalid { path: path.to_owned(), reason };
        // A pipe might never end.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(invalid("it is not a regular file".to_owned()));
        }
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(invalid(format!("it has more than {} MiB", MAX_BYTES >> 20)));
        }
        let saved: Saved = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        if saved.format != FORMAT {
            return Err(invalid(format!("its format is {:?}, not {FORMAT:?}", saved.format)));
        }
        if saved.version != VERSION {
            return Err(invalid(format!("version {} is not supported, only {VERSION}", saved.version)));
        }
        let roles = ["system", "user", "assistant"];
        if let Some(turn) = saved.messages.iter().find(|turn| !roles.contains(&turn.role.as_str())) {
            return Err(invalid(format!("{:?} is not a role (system, user, assistant)", turn.role)));
        }
        if saved.messages.iter().skip(1).any(|turn| turn.role == "system") {
            return Err(invalid("only the first message may be a system prompt".to_owned()));
        }
        Ok(saved)
    }

    /// Reads the file of the last conversation.
    pub(crate) fn load_last() -> Result<Saved, SavedError> {
        match last_path() {
            Some(path) if path.exists() => Saved::load(&path),
            _ => Err(SavedError::NoLast),
        }
    }
}

fn last_path() -> Option<PathBuf> {
    state::folder().map(|folder| folder.join("last-chat.json"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn conversations_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let messages = [Message::system("Be brief."), Message::user("Hi \x1b"), Message::assistant("Hello")];
        let chat = Saved::chat(Some("org/name".to_owned()), &messages);
        chat.save(&path).unwrap();
        assert_eq!(Saved::load(&path).unwrap(), chat);
        assert_eq!(Saved::load(&path).unwrap().messages(), messages);
        // It may be replaced, other files may not.
        Saved::story(None, "Once").save(&path).unwrap();
        assert_eq!(Saved::load(&path).unwrap().story.as_deref(), Some("Once"));
        fs::write(&path, "{\"my\": \"notes\"}").unwrap();
        assert!(chat.save(&path).unwrap_err().to_string().contains("choose another name"));
        assert!(chat.save(folder.path()).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_conversation_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("chat.json"), folder.path().join("link.json"));
        let (old, new) = (Saved::story(None, "Once"), Saved::story(None, "Twice"));
        old.save(&file).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = new.save(&link).unwrap_err().to_string();
        assert!(error.contains("is a symbolic link; choose another name"), "{error}");
        assert!(link.is_symlink());
        assert_eq!((Saved::load(&link).unwrap(), Saved::load(&file).unwrap()), (old.clone(), old));
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let error = |text: &str| {
            fs::write(&path, text).unwrap();
            Saved::load(&path).unwrap_err().to_string()
        };
        let with = |version: u32, messages: &str| {
            let head = r#""format": "fulmen-conversation", "model": null"#;
            format!(r#"{{{head}, "version": {version}, "messages": {messages}}}"#)
        };
        assert!(error("").contains("EOF"));
        assert!(error("[]").contains("is not a saved conversation"));
        assert!(error(&with(2, "[]")).contains("version 2 is not supported"));
        assert!(error(&with(1, r#"[{"role": "tool", "content": ""}]"#)).contains("\"tool\" is not a role"));
        let late = r#"[{"role": "user", "content": ""}, {"role": "system", "content": ""}]"#;
        assert!(error(&with(1, late)).contains("only the first message"));
        assert!(error(&with(1, &"[".repeat(100_000))).contains("is not a saved"));
        assert!(Saved::load(folder.path()).unwrap_err().to_string().contains("not a regular file"));
    }
}
