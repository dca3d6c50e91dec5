//! A timeline of the process up to its first result: opening a device, loading weights and kernels, the first
//! prefill. Off until [`start`] is called; a span then costs two clock reads and a lock.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Instant;

/// More spans than anybody reads: a program that runs for days does not collect them forever.
const MAX_SPANS: usize = 1024;

static ON: AtomicBool = AtomicBool::new(false);
static TIMELINE: Mutex<Option<Timeline>> = Mutex::new(None);

struct Timeline {
    origin: Instant,
    spans: Vec<Span>,
}

/// A named part of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// What happened.
    pub name: Cow<'static, str>,
    /// The bytes that were moved, if that is what happened.
    pub bytes: u64,
    /// When it began, after [`start`].
    pub begin: Duration,
    /// How long it took.
    pub time: Duration,
}

/// Starts the timeline. Calling it again changes nothing.
pub fn start() {
    let mut timeline = TIMELINE.lock().unwrap_or_else(PoisonError::into_inner);
    timeline.get_or_insert_with(|| Timeline { origin: Instant::now(), spans: Vec::new() });
    ON.store(true, Ordering::Release);
}

/// Whether spans are recorded.
pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

/// Runs `work` and records how long it took.
pub fn span<T>(name: impl Into<Cow<'static, str>>, work: impl FnOnce() -> T) -> T {
    span_of_bytes(name, 0, work)
}

/// Runs `work`, which moves so many bytes, and records how long it took.
pub fn span_of_bytes<T>(name: impl Into<Cow<'static, str>>, bytes: u64, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    record(name, bytes, began);
    result
}

/// Records a span that began then and ends now.
pub fn record(name: impl Into<Cow<'static, str>>, bytes: u64, began: Instant) {
    if !is_on() {
        return;
    }
    let time = began.elapsed();
    let mut timeline = TIMELINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(timeline) = timeline.as_mut().filter(|timeline| timeline.spans.len() < MAX_SPANS) {
        let begin = began.duration_since(timeline.origin);
        timeline.spans.push(Span { name: name.into(), bytes, begin, time });
    }
}

/// The spans so far, in the order in which they began. Spans may nest and, from several threads, overlap.
pub fn spans() -> Vec<Span> {
    let timeline = TIMELINE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut spans = timeline.as_ref().map_or(Vec::new(), |timeline| timeline.spans.clone());
    // Of spans that begin together, the outer one is the longer.
    spans.sort_by_key(|span| (span.begin, std::cmp::Reverse(span.time)));
    spans
}

/// Spans as a table: begin and duration in milliseconds, and GB/s where bytes were moved.
pub fn table(spans: &[Span]) -> String {
    let mut text = String::from("   begin ms     time ms\n");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    for Span { name, bytes, begin, time } in spans {
        let _ = write!(text, "{:11.1} {:11.1}  {name}", ms(*begin), ms(*time));
        if *bytes > 0 && !time.is_zero() {
            let (gb, seconds) = (*bytes as f64 / 1e9, time.as_secs_f64());
            let _ = write!(text, " ({gb:.2} GB, {:.1} GB/s)", gb / seconds);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because the timeline belongs to the process.
    #[test]
    fn spans_are_recorded_once_started() {
        assert_eq!(span("before", || 1), 1);
        assert!(!is_on() && spans().is_empty());
        start();
        let inner = span("outer", || span(format!("inner {}", 1), || 2));
        assert_eq!(inner, 2);
        span_of_bytes("copy", 1 << 30, || std::thread::sleep(Duration::from_millis(2)));
        start();
        let spans = spans();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["outer", "inner 1", "copy"]);
        assert!(spans[0].time >= spans[1].time && spans[2].time >= Duration::from_millis(2));
        let text = table(&spans);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("copy (1.07 GB, "), "{text}");
    }
}
