//! Progress bars on stderr. They are shown on a terminal and nowhere else.

use fulmen_bench::Progress;
use indicatif::{ProgressBar, ProgressStyle};

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
