//! The list of devices as text.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use fulmen_core::device::{BackendReport, DeviceInfo, DeviceSelector, FactValue, format_bytes};

use crate::output::{printable, thousands};

const SELECTED: Style = AnsiColor::Green.on_default().bold();
const LISTED: Style = Style::new().bold();
const MISSING: Style = AnsiColor::Yellow.on_default();
const DIM: Style = Style::new().dimmed();

/// The columns where the names of facts and their values start.
const INDENT: usize = 10;
const VALUES: usize = INDENT + 28;
/// Where long lines are wrapped.
const WIDTH: usize = 100;

/// The whole list. Styles are ANSI escapes in the text; printing removes them if stdout is not a terminal.
pub(super) fn render(
    reports: &[BackendReport],
    asked: DeviceSelector,
    selected: Option<&DeviceInfo>,
) -> String {
    let mut out = String::new();
    for report in reports {
        for device in &report.devices {
            let is_selected = selected.is_some_and(|selected| selected.selector() == device.selector());
            push_device(&mut out, device, is_selected);
            out.push('\n');
        }
        if let Some(reason) = &report.unavailable {
            push_heading(&mut out, ' ', report.backend.as_str(), "not available", MISSING);
            push_wrapped(&mut out, reason, INDENT);
            out.push('\n');
        }
    }
    match selected {
        Some(device) => {
            let _ = writeln!(out, "{SELECTED}*{SELECTED:#} {asked} selects {}", device.selector());
        }
        None => {
            let _ = writeln!(out, "{asked} selects no device");
        }
    }
    out
}

fn push_device(out: &mut String, device: &DeviceInfo, selected: bool) {
    let (mark, style) = if selected { ('*', SELECTED) } else { (' ', LISTED) };
    push_heading(out, mark, &device.selector().to_string(), &printable(&device.name), style);
    push_fact(out, "kind", device.kind.name());
    if !device.driver.is_empty() {
        push_fact(out, "driver", &printable(&device.driver));
    }
    if let Some(memory) = device.memory_bytes {
        let free = device.free_bytes.map(|free| format!(", {} free", format_bytes(free)));
        push_fact(out, "memory", &format!("{}{}", format_bytes(memory), free.unwrap_or_default()));
    }
    for fact in &device.facts {
        push_fact(out, fact.name, &with_separators(&fact.value));
    }
    match &device.runs_graphs {
        Ok(()) => push_fact(out, "runs models", "yes"),
        Err(reason) => push_fact(out, "runs models", &format!("no: {reason}")),
    }
}

fn push_heading(out: &mut String, mark: char, id: &str, title: &str, style: Style) {
    let _ = writeln!(out, "{style}{mark}{style:#} {style}{id:<7}{style:#} {style}{title}{style:#}");
}

fn push_fact(out: &mut String, name: &str, value: &str) {
    let width = VALUES - INDENT;
    let _ = write!(out, "{:INDENT$}{DIM}{name:<width$}{DIM:#}", "");
    let value = wrap(value, WIDTH - VALUES).join(&format!("\n{:VALUES$}", ""));
    let _ = writeln!(out, "{value}");
}

fn push_wrapped(out: &mut String, text: &str, indent: usize) {
    for line in wrap(text, WIDTH - indent) {
        let _ = writeln!(out, "{:indent$}{line}", "");
    }
}

/// Wraps text into lines of at most `width` characters; a longer word gets a line of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push(String::new());
            used = 0;
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
        }
        used += length;
    }
    lines
}

/// A value as text; counts get a comma for every three digits.
fn with_separators(value: &FactValue) -> String {
    match value {
        FactValue::Count(count) => thousands(*count),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_lose_none() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("unbreakable a", 4), ["unbreakable", "a"]);
        assert_eq!(wrap("", 4), [""]);
    }
}
