//! A story told in turns: the user's lines, and the model's continuation of each.

use fulmen_model::tokenizer::Special;
use fulmen_model::{FinishReason, GenerateOptions, Generated, ModelError, Session};

/// Where the turn of the model ends.
const PARAGRAPH: &str = "\n\n";

/// The story so far, and the session that has it in its KV cache.
pub(super) struct Story {
    session: Session,
    text: String,
}

impl Story {
    /// An empty story.
    pub(super) fn new(session: Session) -> Story {
        Story { session, text: String::new() }
    }

    /// Starts a new story.
    pub(super) fn clear(&mut self) {
        self.text.clear();
    }

    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Adds a line to the story and continues it to the end of a paragraph. After the end of a story, the
    /// next line starts another one.
    pub(super) fn say(
        &mut self,
        line: &str,
        options: &GenerateOptions,
        mut piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        let tokenizer = self.session.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        let mut text = joined(&self.text, line);
        let tokens = tokenizer.encode_prompt(&text, Special::AsText);
        let mut options = options.clone();
        options.stop.push(PARAGRAPH.to_owned());
        let generation = self.session.generate_from(&tokens, &options)?;
        piece(line);
        let generated = generation.finish(piece)?;
        text += &generated.text;
        match &generated.reason {
            FinishReason::EndToken(_) => text.clear(),
            FinishReason::StopString(stop) if stop == PARAGRAPH => text += PARAGRAPH,
            _ => {}
        }
        self.text = text;
        Ok(generated)
    }
}

/// A text and the next line, with a space between them if there is none.
fn joined(text: &str, line: &str) -> String {
    let space = !text.is_empty() && !line.is_empty() && !text.ends_with(char::is_whitespace);
    format!("{text}{}{line}", if space { " " } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_by_a_space_where_there_is_none() {
        let cases = [("", "A", "A"), ("A", "", "A"), ("A", "B", "A B"), ("A\n\n", "B", "A\n\nB")];
        for (text, line, expected) in cases {
            assert_eq!(joined(text, line), expected);
        }
    }
}
