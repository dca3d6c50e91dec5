//! A model as text.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};
use fulmen_core::DType;
use fulmen_core::device::{DeviceInfo, format_bytes};
use fulmen_engine::SequenceCache;
use fulmen_model::summary::Memory;

use super::{Report, room};
use crate::output::{columns, counted, printable, thousands};

const TITLE: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const WARN: Style = AnsiColor::Yellow.on_default();

pub(super) fn render(report: &Report) -> String {
    let mut out = format!("{TITLE}{}{TITLE:#}\n", printable(&report.args.file.display().to_string()));
    push_facts(&mut out, report);
    if !report.summary.types.is_empty() {
        out += "\n";
        push_types(&mut out, report);
    }
    out += "\n";
    match &report.memory {
        Some(memory) => {
            push_memory(&mut out, report, memory);
            push_experts(&mut out, report);
            push_ranks(&mut out, report);
        }
        None if report.summary.types.is_empty() => out += "the file has no weights\n",
        None => out += "memory: unknown, because the file does not describe the model completely\n",
    }
    if report.args.keys {
        out += "\n";
        for (key, value) in report.source.metadata().iter() {
            let kind = value.type_words();
            let _ =
                writeln!(out, "{}  {DIM}{kind}{DIM:#}  {}", printable(key), shortened(&value.to_string()));
        }
    }
    if report.args.tensors {
        out += "\n";
        let rows: Vec<Vec<String>> = report.source.tensors().iter().map(tensor_row).collect();
        out += &columns(&["tensor", "shape", "type", "size"], &rows);
    }
    out
}

fn tensor_row(tensor: &fulmen_model::source::TensorInfo) -> Vec<String> {
    let dims: Vec<String> = tensor.dims().iter().map(usize::to_string).collect();
    let bytes = format_bytes(tensor.bytes() as u64);
    vec![printable(tensor.name()), dims.join(" x "), tensor.dtype().to_string(), bytes]
}

fn push_facts(out: &mut String, report: &Report) {
    let summary = &report.summary;
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(out, "  {DIM}{name:<16}{DIM:#}{value}");
        }
    };
    let number = |number: Option<u64>| number.map(thousands);
    let architecture = summary.architecture.as_deref().map_or("unknown".to_owned(), printable);
    fact("architecture", Some(architecture));
    fact("name", summary.name.as_deref().map(printable));
    let parameters = summary.parameters;
    let active = match summary.experts {
        Some(_) => format!(", {} active", scaled(summary.active_parameters)),
        None => String::new(),
    };
    fact("parameters", Some(format!("{} ({}{active})", scaled(parameters), thousands(parameters))));
    let files = report.source.files();
    let size = format_bytes(files.iter().map(|(_, bytes)| bytes).sum());
    let in_files = if files.len() > 1 { format!(" in {} files", files.len()) } else { String::new() };
    let (tensors, keys) = (report.source.tensors().len(), report.source.metadata().len());
    let format = report.source.format();
    let (tensors, keys) = (counted(tensors, "tensor"), counted(keys, "key"));
    fact("file", Some(format!("{size}{in_files}, {format}, {tensors}, {keys}")));
    let recurrent = summary.recurrent.map(|states| format!(", {} with a recurrent state", states.layers));
    let layers = number(summary.layers).map(|layers| layers + &recurrent.unwrap_or_default());
    fact("layers", layers);
    fact("embedding", number(summary.embedding));
    fact("heads", summary.heads.map(|heads| describe_heads(report, heads)));
    fact("feed-forward", number(summary.feed_forward).filter(|_| summary.experts.is_none()));
    let experts = summary.experts.zip(summary.experts_used);
    let width = summary.expert_feed_forward.map_or(String::new(), |width| format!(", feed-forward {width}"));
    fact("experts", experts.map(|(experts, used)| format!("{used} of {experts}{width}")));
    fact("context", summary.context.map(tokens));
    fact("vocabulary", summary.vocabulary.map(tokens));
    let pre = summary.pre_tokenizer.as_deref().map_or(String::new(), |pre| format!(" ({})", printable(pre)));
    let tokenizer = summary.tokenizer.as_deref().map(|kind| format!("{}{pre}", printable(kind)));
    let in_file = report.source.tokenizer_json().map(|_| "tokenizer.json".to_owned());
    fact("tokenizer", Some(tokenizer.or(in_file).unwrap_or("none".to_owned())));
    match &report.tokenizer {
        Ok(Some(tokenizer)) if tokenizer.merges_without_token() > 0 => {
            let count = tokenizer.merges_without_token();
            let produce = if count == 1 { "produces" } else { "produce" };
            let merges = counted(count, "merge");
            let what = format!("{merges} {produce} a token that is not in the vocabulary");
            fact("", Some(format!("{WARN}{what}; as in llama.cpp, text may be dropped there{WARN:#}")));
        }
        Ok(_) => {}
        Err(error) => {
            fact("", Some(format!("{WARN}cannot be used: {}{WARN:#}", printable(&error.to_string()))))
        }
    }
    fact("chat template", Some(if summary.chat_template { "yes" } else { "no" }.to_owned()));
}

fn describe_heads(report: &Report, heads: u64) -> String {
    let summary = &report.summary;
    let kv = summary.kv_heads().map_or(String::new(), |kv| format!(", {kv} KV heads"));
    let size = summary.key_size.map_or(String::new(), |size| format!(", head size {size}"));
    format!("{heads}{kv}{size}")
}

fn push_types(out: &mut String, report: &Report) {
    let summary = &report.summary;
    let mut types: Vec<_> = summary.types.iter().collect();
    types.sort_by_key(|(_, share)| std::cmp::Reverse(share.bytes));
    let row = |(dtype, share): (&DType, &fulmen_model::summary::TypeTotals)| {
        let percent = 100.0 * share.bytes as f64 / summary.bytes.max(1) as f64;
        vec![
            dtype.to_string(),
            share.tensors.to_string(),
            thousands(share.parameters),
            format_bytes(share.bytes),
            format!("{percent:.1} %"),
        ]
    };
    let rows: Vec<Vec<String>> = types.into_iter().map(row).collect();
    *out += &columns(&["type", "tensors", "parameters", "size", "share"], &rows);
}

fn push_memory(out: &mut String, report: &Report, memory: &Memory) {
    let q8_0 = |bytes: Option<u64>| bytes.map_or("–".to_owned(), format_bytes);
    let same = |bytes| [format_bytes(bytes), format_bytes(bytes)];
    let line = |name: &str, [a, b]: [String; 2]| vec![name.to_owned(), a, b];
    let title = format!("memory at {}", tokens(memory.context));
    let mut rows = vec![
        line("weights", same(memory.weights)),
        line("KV cache", [format_bytes(memory.kv_f16), q8_0(memory.kv_q8_0)]),
        line("activations", same(memory.activations)),
        line("total", [format_bytes(memory.with_f16()), q8_0(memory.with_q8_0())]),
    ];
    if memory.states > 0 {
        rows.insert(2, line("recurrent states", same(memory.states)));
    }
    if let Some(served) = &report.served {
        let bytes = served.q8_0.map(|cache| cache.bytes);
        rows.insert(2, line("KV cache in an engine", [format_bytes(served.f16.bytes), q8_0(bytes)]));
    }
    *out += &columns(&[&title, "F16 KV cache", "Q8_0 KV cache"], &rows);
    if let Some((SequenceCache { pages, .. }, (kept, window))) =
        report.served.as_ref().and_then(|served| Some((served.f16, served.f16.window?)))
    {
        let window = tokens(window.into());
        let _ = writeln!(
            out,
            "in an engine (fulmen serve), layers with the window of {window} keep {kept} of {pages} KV pages"
        );
    }
    *out += "\n";
    let rows: Vec<Vec<String>> =
        report.devices.iter().map(|device| device_row(report, memory, device)).collect();
    *out += &columns(&["device", "memory", "free", "longest context", "fits"], &rows);
    if let Some(trained) = report.summary.context
        && report.context > trained
    {
        let _ = writeln!(
            out,
            "{WARN}a context of {} is longer than the {} that the model was trained for{WARN:#}",
            thousands(report.context),
            thousands(trained)
        );
    }
}

/// What each side needs if the experts are on the CPU.
fn push_experts(out: &mut String, report: &Report) {
    let Some(super::experts::ExpertNeeds { layers, experts, rest }) = report.experts else { return };
    let each = format_bytes(experts / u64::from(layers.max(1)));
    let row = vec![counted(layers as usize, "layer"), format_bytes(experts), each, format_bytes(rest)];
    *out += "\n";
    *out +=
        &columns(&["--cpu-experts all", "experts on the CPU", "of a layer", "weights on the GPU"], &[row]);
}

/// What each rank of tensor parallelism needs.
fn push_ranks(out: &mut String, report: &Report) {
    if report.ranks.is_empty() {
        return;
    }
    let row = |needs: &super::ranks::RankNeeds| {
        vec![needs.ranks.to_string(), format_bytes(needs.weights), format_bytes(needs.kv_f16)]
    };
    let rows: Vec<Vec<String>> = report.ranks.iter().map(row).collect();
    *out += "\n";
    *out += &columns(&["--tensor-parallel", "weights of each rank", "KV cache f16"], &rows);
}

fn device_row(report: &Report, memory: &Memory, device: &DeviceInfo) -> Vec<String> {
    let bytes = |bytes: Option<u64>| bytes.map_or("–".to_owned(), format_bytes);
    let longest = room(device).and_then(|room| report.summary.longest_context(DType::F16, room));
    let fits = match room(device) {
        _ if device.runs_graphs.is_err() => "cannot run models",
        None => "unknown",
        Some(room) if memory.with_f16() <= room => "yes",
        Some(room) if memory.with_q8_0().is_some_and(|needed| needed <= room) => "with --kv q8_0",
        Some(_) => "no",
    };
    vec![
        device.selector().to_string(),
        bytes(device.memory_bytes),
        bytes(device.free_bytes),
        longest.map_or("–".to_owned(), thousands),
        fits.to_owned(),
    ]
}

fn tokens(count: u64) -> String {
    format!("{} token{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// A count in thousands, millions or billions.
fn scaled(count: u64) -> String {
    let number = count as f64;
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1} K", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", number / 1e6),
        _ => format!("{:.2} B", number / 1e9),
    }
}

/// Cuts long values: a template may have thousands of characters.
fn shortened(text: &str) -> String {
    const MOST: usize = 100;
    let text = printable(text);
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_scaled() {
        for (count, text) in
            [(0, "0"), (999, "999"), (1_000, "1.0 K"), (134_515_008, "134.5 M"), (4_022_468_096, "4.02 B")]
        {
            assert_eq!(scaled(count), text);
        }
    }

    #[test]
    fn long_values_are_shortened_between_characters() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"ü".repeat(150));
        assert_eq!(long, format!("{}… (150 characters)", "ü".repeat(100)));
    }
}
