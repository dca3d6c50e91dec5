//! The line that says how fast it was, and the profile.

use std::time::Duration;

use fulmen_core::device::format_bytes;
use fulmen_model::{FinishReason, Generated, Session};

use super::floor;
use super::load::Loaded;
use crate::output::columns;

/// Load, prompt, answer, share of the memory floor, memory: one line.
pub(crate) fn line(loaded: &Loaded, session: &Session, generated: &Generated, threads: usize) -> String {
    let mut parts = vec![
        format!("load {}", seconds(loaded.time)),
        format!("prompt {} tokens, {:.1} tok/s", generated.fed_tokens, generated.prefill_rate()),
        format!("answer {} tokens, {:.1} tok/s", generated.tokens.len(), generated.decode_rate()),
    ];
    let rate = generated.decode_rate();
    if rate > 0.0
        && let Some(bandwidth) = floor::bandwidth(&loaded.model, threads, floor::Before::Work)
    {
        let depth = generated.prompt_tokens + generated.tokens.len() / 2;
        let bytes = floor::bytes_per_token(&loaded.model, session, depth) as f64;
        parts.push(format!("{:.0} % of the memory floor", 100.0 * rate * bytes / bandwidth));
    }
    let cache = session.options().cache_bytes(loaded.model.config());
    parts.push(format!("memory {} + {}", format_bytes(loaded.model.weight_bytes()), format_bytes(cache)));
    parts.push(loaded.device.selector().to_string());
    match &generated.reason {
        FinishReason::EndToken(_) | FinishReason::StopString(_) => {}
        FinishReason::MaxTokens => parts.push("stopped at the limit of tokens".to_owned()),
        FinishReason::ContextFull => {
            parts.push(format!("the context of {} is full; --ctx makes it larger", session.context()));
        }
        FinishReason::Cancelled => parts.push("stopped by Ctrl-C".to_owned()),
    }
    parts.join(" · ")
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Time per op, the longest first, and what was in none.
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
    Some(columns(&["op", "runs", "ms", "µs each", "share"], &rows))
}
