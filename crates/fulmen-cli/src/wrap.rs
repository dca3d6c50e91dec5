//! Wraps text at words on a terminal, also while it is generated.

use std::io::{self, IsTerminal};

use unicode_width::UnicodeWidthChar;

use crate::output::{TextWriter, escaped};

/// A line is not made shorter than this, however narrow the terminal is.
const MIN_COLUMNS: usize = 20;

/// Prints text, on a terminal with line breaks between words. The last word is held back until it is known to
/// be complete. Code blocks are left alone: a line break would change them.
pub(crate) struct Wrapped {
    out: TextWriter,
    /// Columns of the terminal; `None` where nothing is wrapped.
    columns: Option<usize>,
    wrap: Wrap,
}

impl Wrapped {
    /// A printer to stdout.
    pub(crate) fn stdout() -> Wrapped {
        let terminal = io::stdout().is_terminal();
        let columns = if terminal { terminal_columns() } else { None };
        Wrapped { out: TextWriter::stdout(), columns, wrap: Wrap::default() }
    }

    /// Prints a piece of text, except for a word that may not be complete.
    pub(crate) fn push(&mut self, piece: &str) -> io::Result<()> {
        match self.columns {
            Some(columns) => {
                let ready = self.wrap.push(&escaped(piece), columns);
                if ready.is_empty() { Ok(()) } else { self.out.text(&ready) }
            }
            None => self.out.text(piece),
        }
    }

    /// Prints what was held back, and then `end`.
    pub(crate) fn finish(&mut self, end: &str) -> io::Result<()> {
        let rest = self.columns.map_or(String::new(), |columns| self.wrap.finish(columns));
        self.out.text(&(rest + end))
    }
}

/// The columns of the terminal, if there is one.
fn terminal_columns() -> Option<usize> {
    terminal_size::terminal_size().map(|(columns, _)| usize::from(columns.0).max(MIN_COLUMNS))
}

/// A whole text with line breaks for a terminal; as it is without one.
pub(crate) fn wrapped(text: &str) -> String {
    match terminal_columns() {
        Some(columns) => {
            let mut wrap = Wrap::default();
            let start = wrap.push(text, columns);
            start + &wrap.finish(columns)
        }
        None => text.to_owned(),
    }
}

/// The state of wrapping.
#[derive(Default)]
struct Wrap {
    /// The column of the cursor.
    column: usize,
    /// Spaces before the word.
    spaces: String,
    word: String,
    /// The width of `word`.
    width: usize,
    /// The current line up to its third character: three backticks start and end a code block.
    start: String,
    code: bool,
}

impl Wrap {
    fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::new();
        for c in text.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut out, columns);
                    if self.start == "```" {
                        self.code = !self.code;
                    }
                    self.spaces.clear();
                    self.start.clear();
                    self.column = 0;
                    out.push('\n');
                    continue;
                }
                ' ' | '\t' => {
                    self.end_word(&mut out, columns);
                    self.spaces.push(c);
                }
                c => {
                    self.word.push(c);
                    self.width += c.width().unwrap_or(0);
                    // Scripts without spaces break between any two wide characters.
                    if self.width >= columns || c.width() == Some(2) {
                        self.end_word(&mut out, columns);
                    }
                }
            }
            if self.start.len() < 3 {
                self.start.push(c);
            }
            if self.code || self.start.starts_with('`') {
                self.end_word(&mut out, columns);
            }
        }
        out
    }

    /// Prints the word, on the next line if it does not fit.
    fn end_word(&mut self, out: &mut String, columns: usize) {
        if self.word.is_empty() {
            return;
        }
        let spaces: usize = self.spaces.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum();
        let breaks = !self.code && self.column > 0 && self.column + spaces + self.width > columns;
        if breaks {
            out.push('\n');
            self.column = 0;
        } else {
            *out += &self.spaces;
            self.column += spaces;
        }
        *out += &self.word;
        self.column += self.width;
        self.spaces.clear();
        self.word.clear();
        self.width = 0;
    }

    fn finish(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.end_word(&mut out, columns);
        *self = Wrap::default();
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text in pieces of so many characters.
    fn in_pieces(text: &str, columns: usize, piece: usize) -> String {
        let mut wrap = Wrap::default();
        let chars: Vec<char> = text.chars().collect();
        let pieces = chars.chunks(piece).map(|piece| wrap.push(&piece.iter().collect::<String>(), columns));
        let out: String = pieces.collect();
        out + &wrap.finish(columns)
    }

    #[test]
    fn lines_break_between_words_however_the_pieces_are_cut() {
        for (text, expected) in [
            ("", ""),
            ("one two three four", "one two\nthree four"),
            ("a\n\n  b", "a\n\n  b"),
            ("0123456789", "0123456789"),
            ("ab 0123456789012 c", "ab\n0123456789\n012 c"),
            ("eleven chars", "eleven\nchars"),
            ("日本語日本語", "日本語日本\n語"),
            (
                "x\n```\nlong line of code here\n```\nand words after it",
                "x\n```\nlong line of code here\n```\nand words\nafter it",
            ),
        ] {
            for piece in 1..=7 {
                assert_eq!(in_pieces(text, 10, piece), expected, "{piece}");
            }
        }
    }

    #[test]
    fn only_spaces_are_replaced_and_no_line_is_too_long() {
        let words = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"];
        let mut seed = 12345_u32;
        let mut text = String::new();
        for _ in 0..500 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text += words[(seed >> 20) as usize % words.len()];
            text.push(if seed >> 28 == 0 { '\n' } else { ' ' });
        }
        for columns in [20, 33, 80] {
            let out = in_pieces(&text, columns, 5);
            assert!(out.lines().all(|line| line.len() <= columns));
            assert_eq!(
                out.split_whitespace().collect::<Vec<_>>(),
                text.split_whitespace().collect::<Vec<_>>()
            );
        }
    }
}
