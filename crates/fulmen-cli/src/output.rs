//! Writing results, and text that may come from anywhere, to stdout and stderr.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::wrap::wrapped;

/// Writes a report to stdout, with colors if it is a terminal. A closed pipe is not an error: the reader has
/// seen enough. Text from models and files must have gone through [`printable`] or [`json`].
pub(crate) fn print(report: &str) -> io::Result<()> {
    unless_closed(TextWriter::stdout().styled(report))
}

/// Writes text from a model or file to stdout: byte for byte, or escaped on a terminal. A closed pipe is not
/// an error.
pub(crate) fn print_text(text: &str) -> io::Result<()> {
    unless_closed(TextWriter::stdout().text(text))
}

/// Writes a file that the user named: whole or not at all, unless something else than a file is there, such
/// as a device, a pipe or a link, which is written into.
pub(crate) fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let whole = match path.symlink_metadata() {
        Ok(metadata) => metadata.is_file(),
        // A folder that is missing is an error, not created.
        Err(_) => path.parent().is_some_and(|folder| folder.as_os_str().is_empty() || folder.is_dir()),
    };
    match whole {
        true => fulmen_core::user_cache::replace(path, text.as_bytes()),
        false => std::fs::write(path, text),
    }
}

/// Writes a line to stderr. Errors are ignored: there is no place left to report them.
pub(crate) fn tell(line: &str) {
    let mut stderr = TextWriter::stderr();
    let _ = stderr.text(line).and_then(|()| stderr.text("\n"));
}

/// The same, dimmed and wrapped at words on a terminal.
pub(crate) fn tell_dimmed(line: &str) {
    let style = anstyle::Style::new().dimmed();
    let mut stderr = TextWriter::stderr();
    let line = if stderr.terminal { wrapped(line) } else { line.to_owned() };
    let _ = stderr
        .styled(&style.render().to_string())
        .and_then(|()| stderr.text(&line))
        .and_then(|()| stderr.styled(&format!("{style:#}\n")));
}

fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Stdout or stderr. On a terminal, control characters are escaped, so that an escape sequence in a model, a
/// template, a file name or a generated text cannot change the terminal; only our own colors pass.
/// Otherwise, text is written byte for byte. Everything is flushed at once.
pub(crate) struct TextWriter {
    stream: Box<dyn Write>,
    terminal: bool,
    colors: bool,
}

impl TextWriter {
    pub(crate) fn stdout() -> TextWriter {
        let stdout = io::stdout();
        let (terminal, colors) = (stdout.is_terminal(), wants_colors(&stdout));
        let stream: Box<dyn Write> = if colors { Box::new(anstream::stdout()) } else { Box::new(stdout) };
        TextWriter { stream, terminal, colors }
    }

    pub(crate) fn stderr() -> TextWriter {
        let stderr = io::stderr();
        let (terminal, colors) = (stderr.is_terminal(), wants_colors(&stderr));
        let stream: Box<dyn Write> = if colors { Box::new(anstream::stderr()) } else { Box::new(stderr) };
        TextWriter { stream, terminal, colors }
    }

    /// Writes text from a model or file.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        let text = if self.terminal { escaped(text) } else { Cow::Borrowed(text) };
        self.write(&text)
    }

    /// Writes our own text. Its styles are removed where there are no colors.
    pub(crate) fn styled(&mut self, text: &str) -> io::Result<()> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\x1b') {
            let style = style_len(&rest[at..]);
            out += &self.plain(&rest[..at]);
            if style == 0 {
                out += &self.plain("\x1b");
            } else if self.colors {
                out += &rest[at..at + style];
            }
            rest = &rest[at + style.max(1)..];
        }
        out += &self.plain(rest);
        self.write(&out)
    }

    fn plain<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.terminal { escaped(text) } else { Cow::Borrowed(text) }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())?;
        self.stream.flush()
    }
}

fn wants_colors(stream: &impl anstream::stream::RawStream) -> bool {
    anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never
}

/// The length of the color sequence (`ESC [ numbers m`) that a text starts with; 0 if it starts with another.
fn style_len(text: &str) -> usize {
    let Some(codes) = text.strip_prefix("\x1b[") else { return 0 };
    let len = codes.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if codes[len..].starts_with('m') { len + 3 } else { 0 }
}

/// A table: the first column left-aligned, the others right-aligned, two spaces between them.
pub(crate) fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String]| {
        let mut line = String::new();
        for (at, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            line += &if at == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        line.trim_end().to_owned() + "\n"
    };
    let header: Vec<String> = header.iter().map(|&cell| cell.to_owned()).collect();
    let mut out = line(&header);
    rows.iter().for_each(|row| out += &line(row));
    out
}

/// A table of texts: all columns left-aligned, two spaces between them.
pub(crate) fn columns_left(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        padded.join("  ").trim_end().to_owned() + "\n"
    };
    let mut out = line(&mut header.iter().copied());
    rows.iter().for_each(|row| out += &line(&mut row.iter().map(String::as_str)));
    out
}

/// Two columns of text, both left-aligned, without a header.
pub(crate) fn columns_of_text(rows: &[[String; 2]]) -> String {
    let width = rows.iter().map(|[first, _]| first.chars().count()).max().unwrap_or(0);
    rows.iter().map(|[first, second]| format!("{first:<width$}  {second}\n")).collect()
}

/// A count and its noun: `1 token`, `2 tokens`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A time with at least two digits: `1.50 µs`, `250 µs`, `12.0 ms`.
pub(crate) fn micros(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.2} µs"),
        ..10_000.0 => format!("{us:.0} µs"),
        _ => format!("{:.1} ms", us / 1e3),
    }
}

/// `80 %` for 0.8.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A result of a benchmark as indented JSON with a newline at its end.
pub(crate) fn json(value: &impl serde::Serialize) -> String {
    // Numbers, strings and lists of them always serialize.
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

/// A count with a comma for every three digits.
pub(crate) fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Text from a file as one line of a report: control characters, also line breaks and tabs, are escaped.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { escape(c) } else { c.to_string() }).collect()
}

/// A text in which all control characters but line breaks and tabs are escaped.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let unsafe_char = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(unsafe_char) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if unsafe_char(c) { escape(c) } else { c.to_string() }).collect())
}

/// A control character as C and Rust write it: `\x1b`, `\n`, `\u{9b}`.
fn escape(c: char) -> String {
    match c {
        '\n' | '\r' | '\t' => c.escape_default().to_string(),
        c if c.is_ascii() => format!("\\x{:02x}", u32::from(c)),
        c => c.escape_unicode().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_file_is_written_whole_and_a_link_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chart.svg");
        for text in ["one", "two"] {
            write_file(&file, text).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        assert!(write_file(&folder.path().join("none/chart.svg"), "x").is_err());
        assert!(write_file(folder.path(), "x").is_err());
        #[cfg(unix)]
        {
            let link = folder.path().join("link.svg");
            std::os::unix::fs::symlink(&file, &link).unwrap();
            write_file(&link, "three").unwrap();
            assert!(link.is_symlink());
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "three");
            std::fs::remove_file(&link).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn counts_have_a_comma_for_every_three_digits() {
        for (count, text) in [(0, "0"), (999, "999"), (65535, "65,535"), (1234567, "1,234,567")] {
            assert_eq!(super::thousands(count), text);
        }
    }

    #[test]
    fn nouns_agree_with_their_count() {
        let words = [0, 1, 2].map(|count| super::counted(count, "token"));
        assert_eq!(words, ["0 tokens", "1 token", "2 tokens"]);
    }

    #[test]
    fn times_have_at_least_two_digits() {
        assert_eq!([1.5, 250.4, 12_000.0].map(super::micros), ["1.50 µs", "250 µs", "12.0 ms"]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(super::printable("Qwen\x1b[31m ü\n"), "Qwen\\x1b[31m ü\\n");
    }

    /// What a stream with these properties gets.
    fn written(terminal: bool, colors: bool, write: impl FnOnce(&mut TextWriter)) -> String {
        #[derive(Clone, Default)]
        struct Shared(Rc<RefCell<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.borrow_mut().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let shared = Shared::default();
        write(&mut TextWriter { stream: Box::new(shared.clone()), terminal, colors });
        let bytes = shared.0.borrow().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_is_escaped_on_a_terminal_and_exact_elsewhere() {
        let text = "a\x1b]0;title\x07 \u{9b}31m\r\n\tü\x7f\0";
        let terminal = "a\\x1b]0;title\\x07 \\u{9b}31m\\r\n\tü\\x7f\\x00";
        for colors in [false, true] {
            assert_eq!(written(true, colors, |out| out.text(text).unwrap()), terminal);
            assert_eq!(written(false, colors, |out| out.text(text).unwrap()), text);
        }
    }

    #[test]
    fn only_colors_pass_in_our_own_text() {
        let text = "\x1b[1;31mred\x1b[0m \x1b[2J \x1b[31 \x1b";
        let shown = |terminal, colors| written(terminal, colors, |out| out.styled(text).unwrap());
        assert_eq!(shown(true, true), "\x1b[1;31mred\x1b[0m \\x1b[2J \\x1b[31 \\x1b");
        assert_eq!(shown(true, false), "red \\x1b[2J \\x1b[31 \\x1b");
        assert_eq!(shown(false, false), "red \x1b[2J \x1b[31 \x1b");
        assert_eq!(shown(false, true), text);
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["add".to_owned(), "12".to_owned()], vec!["rms_norm".to_owned(), "3".to_owned()]];
        assert_eq!(super::columns(&["op", "n"], &rows), "op         n\nadd       12\nrms_norm   3\n");
    }
}
