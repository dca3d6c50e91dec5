//! Writing results to stdout.

use std::io::{self, Write};

/// Writes to stdout, with colors if it is a terminal. A closed pipe is not an error: the reader has seen
/// enough.
pub(crate) fn print(output: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
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

/// Text from a file, made safe for a terminal: control characters are escaped.
pub(crate) fn printable(text: &str) -> String {
    let safe = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
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
        assert_eq!(super::printable("Qwen\x1b[31m ü\n"), "Qwen\\u{1b}[31m ü\\n");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["add".to_owned(), "12".to_owned()], vec!["rms_norm".to_owned(), "3".to_owned()]];
        assert_eq!(super::columns(&["op", "n"], &rows), "op         n\nadd       12\nrms_norm   3\n");
    }
}
