//! A story told in turns: the user's lines, and the model's continuation of each.

use fulmen_engine::generation::FinishReason;
use fulmen_engine::{GenerateOptions, Generated, Session};
use fulmen_model::ModelError;
use fulmen_model::tokenizer::Special;

/// Where the turn of the model ends.
const PARAGRAPH: &str = "\n\n";

/// The story so far, and the session that has it in its KV cache.
pub(super) struct Story {
    session: Session,
    text: String,
    /// The text before each turn, as its length, and the line that was added.
    turns: Vec<(usize, String)>,
}

impl Story {
    /// An empty story.
    pub(super) fn new(session: Session) -> Story {
        Story { session, text: String::new(), turns: Vec::new() }
    }

    /// Starts a new story, or goes on with one.
    pub(super) fn set_text(&mut self, text: &str) {
        self.text = text.to_owned();
        self.turns.clear();
    }

    /// The story so far.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The tokens of the story so far.
    pub(super) fn tokens(&self) -> Result<usize, ModelError> {
        Ok(self.prompt(&self.text)?.len())
    }

    /// Takes the last turn back and returns the user's line.
    pub(super) fn undo(&mut self) -> Option<String> {
        let (len, line) = self.turns.pop()?;
        self.text.truncate(len);
        Some(line)
    }

    /// Forgets the oldest paragraphs until a line and `answer` tokens fit, and returns how many.
    pub(super) fn make_room(&mut self, line: &str, answer: usize) -> Result<usize, ModelError> {
        let context = self.session.context();
        let (mut start, mut dropped) = (0, 0);
        loop {
            let rest = &self.text[start..];
            if self.prompt(&joined(rest, line))?.len().saturating_add(answer) <= context {
                break;
            }
            match rest.find(PARAGRAPH) {
                Some(end) => (start, dropped) = (start + end + PARAGRAPH.len(), dropped + 1),
                None => break,
            }
        }
        if dropped > 0 {
            self.text.drain(..start);
            // Turns are counted from the start of the text.
            self.turns.clear();
        }
        Ok(dropped)
    }

    fn prompt(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let tokenizer = self.session.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(tokenizer.encode_prompt(text, Special::AsText))
    }

    /// Adds a line to the story and continues it to the end of a paragraph. After the end of a story, the
    /// next line starts another one.
    pub(super) fn say(
        &mut self,
        line: &str,
        options: &GenerateOptions,
        mut piece: impl FnMut(&str),
    ) -> Result<Generated, ModelError> {
        let mut text = joined(&self.text, line);
        let tokens = self.prompt(&text)?;
        let mut options = options.clone();
        options.stop.push(PARAGRAPH.to_owned());
        let generation = self.session.generate_from(&tokens, &options)?;
        piece(line);
        let generated = generation.finish(piece)?;
        text += &generated.text;
        self.turns.push((self.text.len(), line.to_owned()));
        match &generated.reason {
            FinishReason::EndToken(_) => {
                text.clear();
                self.turns.clear();
            }
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
