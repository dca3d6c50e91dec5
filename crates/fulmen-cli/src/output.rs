//! Writing results to stdout.

use std::io::{self, Write};

/// Writes with colors only where stdout is a terminal. A reader that has seen enough is no failure.
pub(crate) fn print(output: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Lines of columns: the first to the left, the others to the right, two spaces between them.
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

/// Text from a file, made safe for a terminal: control characters are written out.
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
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(super::printable("Qwen\x1b[31m ü\n"), "Qwen\\u{1b}[31m ü\\n");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["add".to_owned(), "12".to_owned()], vec!["rms_norm".to_owned(), "3".to_owned()]];
        assert_eq!(super::columns(&["op", "n"], &rows), "op         n\nadd       12\nrms_norm   3\n");
    }
}
