//! The line of statistics after an answer, and the profile.

use fulmen_bench::memory_bandwidth::{self, DeviceState, bytes_per_token};
use fulmen_bench::model::LoadedModel;
use fulmen_core::device::format_bytes;
use fulmen_engine::generation::FinishReason;
use fulmen_engine::{Generated, Session};

use super::split::device_of;
use crate::output::{columns, counted, percent};

/// Load time, prefill and decode speed, memory and device, in one line.
pub(crate) fn line(loaded: &LoadedModel, session: &Session, generated: &Generated) -> String {
    let rate = generated.decode_rate();
    let mut parts = vec![
        format!("load {:.2} s", loaded.load_time.as_secs_f64()),
        with_rate("prompt", generated.fed_tokens, generated.prefill_rate()),
        with_rate("answer", generated.tokens.len(), rate),
    ];
    // Whoever pressed Ctrl-C does not wait for a measurement.
    if rate > 0.0
        && generated.reason != FinishReason::Cancelled
        && let Some(bandwidth) = memory_bandwidth::measure(loaded, DeviceState::Busy)
    {
        let depth = generated.prompt_tokens + generated.tokens.len() / 2;
        let bytes = bytes_per_token(&loaded.model, session, depth) as f64;
        let share = rate * bytes / bandwidth;
        parts.push(match share {
            ..=1.0 => format!("{} of the memory-bandwidth bound", percent(share)),
            _ => "above the memory-bandwidth bound: the weights are in a cache".to_owned(),
        });
    }
    let cache = session.options().cache_bytes(loaded.model.config());
    let weights = format_bytes(loaded.model.weight_bytes());
    let on_cpu = match loaded.model.host_weight_bytes() {
        0 => String::new(),
        bytes => format!(" ({} of experts on the CPU)", format_bytes(bytes)),
    };
    parts.push(format!("weights {weights}{on_cpu}, KV cache {}", format_bytes(cache)));
    parts.push(device_of(&loaded.model, &loaded.device));
    match &generated.reason {
        FinishReason::EndToken(_) | FinishReason::Complete | FinishReason::StopString(_) => {}
        FinishReason::MaxTokens => parts.push("stopped at --max-tokens".to_owned()),
        FinishReason::ContextFull => {
            let context = counted(session.context(), "token");
            parts.push(format!("the context of {context} is full; --context makes it larger"));
        }
        FinishReason::Cancelled => parts.push("stopped by Ctrl-C".to_owned()),
    }
    parts.join(" · ")
}

/// `answer 12 tokens, 3.5 tok/s`; without the rate if there is none.
fn with_rate(what: &str, tokens: usize, rate: f64) -> String {
    let rate = if rate > 0.0 { format!(", {rate:.1} tok/s") } else { String::new() };
    format!("{what} {}{rate}", counted(tokens, "token"))
}

/// Time per op, the longest first, and the time outside of ops.
pub(crate) fn profile(session: &Session) -> Option<String> {
    let profile = session.profile()?;
    let total = profile.total().as_secs_f64().max(1e-9);
    let rows: Vec<Vec<String>> = profile
        .rows()
        .into_iter()
        .map(|row| {
            let time = row.time.as_secs_f64();
            let each =
                if row.count == 0 { String::new() } else { format!("{:.1}", 1e6 * time / row.count as f64) };
            let count = if row.count == 0 { String::new() } else { row.count.to_string() };
            vec![
                row.name,
                count,
                format!("{:.1}", 1e3 * time),
                each,
                format!("{:.1} %", 100.0 * time / total),
            ]
        })
        .collect();
    Some(columns(&["op", "calls", "ms", "µs per call", "share"], &rows))
}
