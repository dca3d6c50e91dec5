//! Profiles as files for `chrome://tracing` and Perfetto.

use std::io;

use crate::encode::Profile;

/// Writes profiles as a Chrome trace, one row for each, in microseconds. Names are the steps' labels.
///
/// # Errors
/// What `out` reports.
pub fn write_chrome_trace<'a>(
    mut out: impl io::Write,
    profiles: impl IntoIterator<Item = (&'a str, &'a Profile)>,
) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "\n";
    for (row, (name, profile)) in profiles.into_iter().enumerate() {
        let split = if profile.split_passes { " (a pass for each step)" } else { "" };
        let name = quoted(&format!("{name}{split}"));
        write!(
            out,
            "{separator}{{\"ph\":\"M\",\"pid\":0,\"tid\":{row},\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}}}"
        )?;
        separator = ",\n";
        for step in &profile.steps {
            let (label, start, duration) = (quoted(&step.label), step.start_us, step.duration_us);
            write!(
                out,
                "{separator}{{\"ph\":\"X\",\"pid\":0,\"tid\":{row},\"name\":{label},\"ts\":{start:.3},\"dur\":{duration:.3}}}"
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
    use crate::encode::StepTime;

    #[test]
    fn a_trace_is_json_with_a_row_for_each_profile() {
        let steps = vec![StepTime { label: "add \"a\"\n".to_owned(), start_us: 1.5, duration_us: 2.25 }];
        let profile = Profile { steps, split_passes: true };
        let mut out = Vec::new();
        write_chrome_trace(&mut out, [("first", &profile), ("second", &profile)]).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\"thread_name\"").count(), 2);
        assert_eq!(text.matches(r#""name":"add \"a\"\u000a","ts":1.500,"dur":2.250"#).count(), 2, "{text}");
        assert!(text.contains("first (a pass for each step)") && text.ends_with("\n]}\n"), "{text}");
    }
}
