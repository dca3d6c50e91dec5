//! How far a benchmark has come.

/// One step of a benchmark starts, or the last one is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Steps that are done.
    pub done: usize,
    /// Steps in all.
    pub total: usize,
    /// The step that starts; empty at the end.
    pub step: &'a str,
}

/// Counts the steps of a benchmark for its callback.
pub(crate) struct Steps<'a> {
    done: usize,
    total: usize,
    callback: &'a mut dyn FnMut(Progress<'_>),
}

impl<'a> Steps<'a> {
    pub(crate) fn new(total: usize, callback: &'a mut dyn FnMut(Progress<'_>)) -> Steps<'a> {
        Steps { done: 0, total, callback }
    }

    /// A step starts.
    pub(crate) fn start(&mut self, step: &str) {
        (self.callback)(Progress { done: self.done, total: self.total, step });
    }

    /// `count` steps are done.
    pub(crate) fn finish(&mut self, count: usize) {
        self.done += count;
        if self.done >= self.total {
            (self.callback)(Progress { done: self.done, total: self.total, step: "" });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_up_to_the_last() {
        let mut seen = Vec::new();
        let mut note = |progress: Progress<'_>| seen.push((progress.done, progress.step.to_owned()));
        let mut steps = Steps::new(3, &mut note);
        steps.start("a");
        steps.finish(2);
        steps.start("b");
        steps.finish(1);
        let expected = [(0, "a"), (2, "b"), (3, "")].map(|(done, step)| (done, step.to_owned()));
        assert_eq!(seen, expected);
    }
}
