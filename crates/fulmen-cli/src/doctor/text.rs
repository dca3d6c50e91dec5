//! The report as text.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use fulmen_core::device::{DeviceInfo, format_bytes};

use super::{Report, platform};
use crate::devices::text::wrap;
use crate::output::{counted, printable};

const TITLE: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Yellow.on_default();
const DIM: Style = Style::new().dimmed();
/// Where long lines are wrapped, and where the text after a name starts.
const WIDTH: usize = 100;
const INDENT: usize = 12;

pub(super) fn render(report: &Report) -> String {
    let mut out = format!("{TITLE}fulmen {}{TITLE:#} on {}\n\n", crate::version::VERSION, platform());
    push_devices(&mut out, report);
    push_folders(&mut out, report);
    let _ = writeln!(out, "{TITLE}suggestions{TITLE:#}");
    for line in &report.advice {
        for (i, line) in wrap(&printable(line), WIDTH - 4).iter().enumerate() {
            let _ = writeln!(out, "  {} {line}", if i == 0 { "-" } else { " " });
        }
    }
    if report.advice.is_empty() {
        out += "  none\n";
    }
    out
}

fn push_devices(out: &mut String, report: &Report) {
    let _ = writeln!(out, "{TITLE}devices{TITLE:#}");
    for backend in &report.backends {
        for device in &backend.devices {
            push_device(out, report, device);
        }
        if let Some(reason) = &backend.unavailable {
            push(out, ' ', backend.backend.as_str(), &format!("not available: {}", printable(reason)), BAD);
        }
    }
    match &report.selected {
        Ok(device) => {
            let (style, but) = if report.usable() { (GOOD, "") } else { (BAD, ", which does not work") };
            let _ = writeln!(out, "{style}* {} selects {}{but}{style:#}\n", report.asked, device.selector());
        }
        Err(reason) => {
            let _ = writeln!(out, "{BAD}{} selects no device: {}{BAD:#}\n", report.asked, printable(reason));
        }
    }
}

fn push_device(out: &mut String, report: &Report, device: &DeviceInfo) {
    let selected = matches!(&report.selected, Ok(selected) if selected.selector() == device.selector());
    let mark = if selected { '*' } else { ' ' };
    let mut title = format!("{} ({})", printable(&device.name), device.kind.name());
    if let Some(memory) = device.memory_bytes {
        let free = device.free_bytes.map(|free| format!(", {} free", format_bytes(free)));
        title += &format!(", {}{}", format_bytes(memory), free.unwrap_or_default());
    }
    push(out, mark, &device.selector().to_string(), &title, Style::new());
    if !device.driver.is_empty() {
        push(out, ' ', "", &format!("driver {}", printable(&device.driver)), DIM);
    }
    let facts = ["instruction sets", "kernels use", "compute capability", "cooperative matrix"];
    for fact in device.facts.iter().filter(|fact| facts.contains(&fact.name)) {
        push(out, ' ', "", &format!("{}: {}", fact.name, fact.value), DIM);
    }
    let tested = report.test_of(device.selector());
    match (&device.runs_graphs, tested) {
        (Err(reason), _) => push(out, ' ', "", &format!("cannot run models: {}", printable(reason)), BAD),
        (Ok(()), Some(test)) => {
            push(out, ' ', "", &printable(&test.to_string()), if test.passed() { GOOD } else { BAD });
        }
        (Ok(()), None) => push(out, ' ', "", "can run models (not tested)", DIM),
    }
}

fn push_folders(out: &mut String, report: &Report) {
    let _ = writeln!(out, "{TITLE}files{TITLE:#}");
    for folder in &report.folders {
        let text = match &folder.path {
            Err(reason) => printable(reason),
            Ok(path) => {
                let size = match folder.files {
                    0 => "empty".to_owned(),
                    files => format!("{} in {}", format_bytes(folder.bytes), counted(files, "file")),
                };
                let free = folder.free.map_or(String::new(), |free| format!(", {} free", format_bytes(free)));
                format!("{}: {size}{free}", printable(&path.display().to_string()))
            }
        };
        push(out, ' ', folder.name, &text, Style::new());
    }
    out.push('\n');
}

/// A name and text after it, wrapped.
fn push(out: &mut String, mark: char, name: &str, text: &str, style: Style) {
    for (i, line) in wrap(text, WIDTH - INDENT).iter().enumerate() {
        let (mark, name) = if i == 0 { (mark, name) } else { (' ', "") };
        let name = format!("{mark} {name}");
        let _ = writeln!(out, "{name:<INDENT$}{style}{line}{style:#}");
    }
}
