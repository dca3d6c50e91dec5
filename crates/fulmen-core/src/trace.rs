//! Profiles of kernels, and their files for `chrome://tracing` and Perfetto.

use std::io;

/// The time of one dispatch on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchTime {
    /// The dispatch's label.
    pub label: String,
    /// Start, in microseconds after the start of the first dispatch.
    pub start_us: f64,
    /// Duration in microseconds.
    pub duration_us: f64,
}

/// The times of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Each dispatch, in order.
    pub dispatches: Vec<DispatchTime>,
    /// The device cannot write timestamps inside a pass, so each dispatch ran in a pass of its own.
    /// That adds several microseconds per dispatch that a normal run does not have.
    pub split_passes: bool,
}

impl Profile {
    /// From the start of the first dispatch to the end of the last, in microseconds.
    pub fn total_us(&self) -> f64 {
        self.dispatches.last().map_or(0.0, |last| last.start_us + last.duration_us)
    }
}

/// Writes profiles as a Chrome trace, one row per profile, in microseconds. Names are the dispatches' labels.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_chrome_trace<'a>(
    mut out: impl io::Write,
    profiles: impl IntoIterator<Item = (&'a str, &'a Profile)>,
) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "\n";
    for (row, (name, profile)) in profiles.into_iter().enumerate() {
        let split = if profile.split_passes { " (one pass per dispatch)" } else { "" };
        let name = quoted(&format!("{name}{split}"));
        write!(
            out,
            "{separator}{{\"ph\":\"M\",\"pid\":0,\"tid\":{row},\"name\":\"thread_name\",\
             \"args\":{{\"name\":{name}}}}}"
        )?;
        separator = ",\n";
        for dispatch in &profile.dispatches {
            let (label, start, duration) = (quoted(&dispatch.label), dispatch.start_us, dispatch.duration_us);
            write!(
                out,
                "{separator}{{\"ph\":\"X\",\"pid\":0,\"tid\":{row},\"name\":{label},\
                 \"ts\":{start:.3},\"dur\":{duration:.3}}}"
            )?;
        }
    }
    writeln!(out, "\n]}}")
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if u32::from(c) < 0x20 => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_json_with_a_row_for_each_profile() {
        let dispatches =
            vec![DispatchTime { label: "add \"a\"\n".to_owned(), start_us: 1.5, duration_us: 2.25 }];
        let profile = Profile { dispatches, split_passes: true };
        let mut out = Vec::new();
        write_chrome_trace(&mut out, [("first", &profile), ("second", &profile)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\"thread_name\"").count(), 2);
        assert_eq!(text.matches(r#""name":"add \"a\"\u000a","ts":1.500,"dur":2.250"#).count(), 2, "{text}");
        assert!(text.contains("first (one pass per dispatch)") && text.ends_with("\n]}\n"), "{text}");
    }
}
