//! Counters for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fulmen_engine::Stats;

use crate::generation::TokenUsage;
use crate::registry::Registry;

/// Upper bounds of the buckets of a histogram, in seconds.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

#[derive(Default)]
struct Histogram {
    counts: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = BUCKETS.iter().position(|&bound| seconds <= bound).unwrap_or(BUCKETS.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        header(name, "histogram", help, out);
        let mut total = 0;
        for (count, bound) in self.counts.iter().zip(BUCKETS.map(Some).into_iter().chain([None])) {
            total += count.load(Ordering::Relaxed);
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        let sum = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(out, "{name}_sum {sum}\n{name}_count {total}");
    }
}

/// What the server counts.
#[derive(Default)]
pub(crate) struct Metrics {
    /// By route and status.
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    in_flight: AtomicI64,
    connections: AtomicI64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    cancelled: AtomicU64,
    first_token: Histogram,
    duration: Histogram,
    per_token: Histogram,
}

/// Counts something while it lives.
pub(crate) struct Counted<'a>(&'a AtomicI64);

impl<'a> Counted<'a> {
    fn new(gauge: &'a AtomicI64) -> Counted<'a> {
        gauge.fetch_add(1, Ordering::Relaxed);
        Counted(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Counts a request until its response begins.
    pub(crate) fn in_flight(&self) -> Counted<'_> {
        Counted::new(&self.in_flight)
    }

    pub(crate) fn connection(&self) -> Counted<'_> {
        Counted::new(&self.connections)
    }

    pub(crate) fn answered(&self, route: &str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route.to_owned(), status)).or_default() += 1;
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.first_token.record(time);
    }

    pub(crate) fn finished(&self, usage: &TokenUsage, time: Duration) {
        self.prompt_tokens.fetch_add(usage.prompt as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(usage.cached as u64, Ordering::Relaxed);
        self.generated_tokens.fetch_add(usage.generated as u64, Ordering::Relaxed);
        self.duration.record(time);
        if usage.generated > 0 {
            self.per_token.record(time / usage.generated as u32);
        }
    }

    pub(crate) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    /// The text format of Prometheus.
    pub(crate) fn render(&self, registry: &Registry) -> String {
        let mut out = String::new();
        header("fulmen_http_requests_total", "counter", "HTTP requests by route and status.", &mut out);
        for ((route, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let route = escape(route);
            let _ =
                writeln!(out, "fulmen_http_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        let gauges = [
            ("fulmen_http_requests_in_flight", "Requests without a response yet.", &self.in_flight),
            ("fulmen_http_connections", "Open connections.", &self.connections),
        ];
        for (name, help, value) in gauges {
            header(name, "gauge", help, &mut out);
            let _ = writeln!(out, "{name} {}", value.load(Ordering::Relaxed));
        }
        let counters = [
            ("fulmen_prompt_tokens_total", "Prompt tokens of finished answers.", &self.prompt_tokens),
            ("fulmen_cached_tokens_total", "Prompt tokens from the prefix cache.", &self.cached_tokens),
            ("fulmen_generated_tokens_total", "Tokens of finished answers.", &self.generated_tokens),
            ("fulmen_cancelled_total", "Answers whose clients went away.", &self.cancelled),
        ];
        for (name, help, value) in counters {
            header(name, "counter", help, &mut out);
            let _ = writeln!(out, "{name} {}", value.load(Ordering::Relaxed));
        }
        self.first_token.write("fulmen_first_token_seconds", "Time to the first token.", &mut out);
        self.duration.write("fulmen_answer_seconds", "Time to the last token.", &mut out);
        self.per_token.write("fulmen_token_seconds", "Time of an answer per token.", &mut out);
        engines(registry, &mut out);
        out
    }
}

/// The figures of the engines, by model.
fn engines(registry: &Registry, out: &mut String) {
    type Figure = (&'static str, &'static str, &'static str, fn(&Stats) -> u64);
    let figures: [Figure; 15] = [
        ("fulmen_engine_waiting", "gauge", "Requests in the queue.", |s| s.waiting as u64),
        ("fulmen_engine_running", "gauge", "Sequences in slots.", |s| s.running as u64),
        ("fulmen_engine_pages", "gauge", "KV pages.", |s| {
            s.groups.first().map_or(0, |group| u64::from(group.pages))
        }),
        ("fulmen_engine_free_pages", "gauge", "KV pages that nothing refers to.", |s| {
            s.groups.first().map_or(0, |group| u64::from(group.free))
        }),
        ("fulmen_engine_cached_pages", "gauge", "KV pages in the prefix cache.", |s| s.cached_pages as u64),
        ("fulmen_engine_window_pages", "gauge", "KV pages of layers with a sliding window, if apart.", |s| {
            s.window_group().map_or(0, |group| u64::from(group.pages))
        }),
        (
            "fulmen_engine_free_window_pages",
            "gauge",
            "KV pages of layers with a sliding window that nothing refers to.",
            |s| s.window_group().map_or(0, |group| u64::from(group.free)),
        ),
        (
            "fulmen_engine_cached_window_pages",
            "gauge",
            "KV pages of layers with a sliding window in the prefix cache.",
            |s| s.cached_window_pages as u64,
        ),
        ("fulmen_engine_cached_states", "gauge", "Recurrent states in the prefix cache.", |s| {
            s.cached_states as u64
        }),
        ("fulmen_engine_steps_total", "counter", "Steps of the device.", |s| s.steps),
        ("fulmen_engine_tokens_total", "counter", "Tokens that were delivered.", |s| s.generated_tokens),
        ("fulmen_engine_decode_rows_total", "counter", "Decode rows.", |s| s.decode_rows),
        ("fulmen_engine_prefill_rows_total", "counter", "Prefill rows.", |s| s.prefill_rows),
        ("fulmen_engine_preemptions_total", "counter", "Preemptions.", |s| s.swapped_out + s.dropped),
        ("fulmen_engine_failed_total", "counter", "Requests that ended with an error.", |s| s.failed),
    ];
    let stats: Vec<(String, Stats)> =
        registry.loaded().into_iter().map(|(name, model)| (escape(&name), model.stats())).collect();
    for (name, kind, help, figure) in figures {
        header(name, kind, help, out);
        for (model, stats) in &stats {
            let _ = writeln!(out, "{name}{{model=\"{model}\"}} {}", figure(stats));
        }
    }
}

fn header(name: &str, kind: &str, help: &str, out: &mut String) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let histogram = Histogram::default();
        for millis in [1, 3, 100_000] {
            histogram.record(Duration::from_millis(millis));
        }
        let mut out = String::new();
        histogram.write("x", "Help.", &mut out);
        assert!(out.contains("x_bucket{le=\"0.001\"} 1\n"), "{out}");
        assert!(out.contains("x_bucket{le=\"60\"} 2\n"), "{out}");
        assert!(out.contains("x_bucket{le=\"+Inf\"} 3\n") && out.contains("x_sum 100.004"), "{out}");
    }
}
