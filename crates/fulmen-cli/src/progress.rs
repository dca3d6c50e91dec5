//! Progress bars on stderr. They are shown on a terminal and nowhere else.

use std::time::Duration;

use fulmen_bench::Progress;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};

use crate::output::counted;

/// A bar with this template; `indicatif` has the keys.
pub(crate) fn bar_with(template: &str, len: u64) -> ProgressBar {
    let bar = ProgressBar::new(len);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// A bar that counts `len` steps and names the current one.
pub(crate) fn step_bar(len: usize) -> ProgressBar {
    bar_with("{bar:30} {pos}/{len} {wide_msg}", len as u64)
}

/// Runs a benchmark with a bar that shows its progress.
pub(crate) fn with_bar<T>(run: impl FnOnce(&mut dyn FnMut(Progress<'_>)) -> T) -> T {
    let bar = step_bar(0);
    let result = run(&mut |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.step.to_owned());
    });
    bar.finish_and_clear();
    result
}

/// A line that says, once it takes longer than a moment, that a prompt is being read. It disappears when this
/// is dropped.
pub(crate) struct Spinner(ProgressBar);

/// Shown while a prompt runs; with the number of its tokens, if that is known.
pub(crate) fn prefill_spinner(tokens: Option<usize>) -> Spinner {
    const MOMENT: Duration = Duration::from_millis(700);
    let bar = ProgressBar::new_spinner();
    let tokens = tokens.map_or(String::new(), |tokens| format!(" of {}", counted(tokens, "token")));
    let text = format!("reading the prompt{tokens}");
    let line = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        if state.elapsed() > MOMENT {
            let _ = write!(out, "{text} … {:.0} s", state.elapsed().as_secs_f64());
        }
    };
    if let Ok(style) = ProgressStyle::with_template("{line}") {
        bar.set_style(style.with_key("line", line));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    Spinner(bar)
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
