//! Stop strings in text that arrives in pieces.

/// Finds stop strings. Text that may be the start of one is held back.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopFinder {
    stops: Vec<String>,
    held: String,
}

impl StopFinder {
    /// A finder of strings that are not empty.
    pub(crate) fn new(stops: Vec<String>) -> StopFinder {
        StopFinder { stops, held: String::new() }
    }

    /// Adds a piece. Returns the text that is settled, and the stop string that follows it.
    pub(crate) fn push(&mut self, piece: &str) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (piece.to_owned(), None);
        }
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        // The leftmost match; the longest of several at the same position.
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (*at, std::cmp::Reverse(stop.len()))) {
            let stop = stop.clone();
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let keep = self.stops.iter().map(|stop| partial_suffix(&self.held, stop)).max().unwrap_or(0);
        let held = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, held), None)
    }

    /// The text that was held back, at the end of the input.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are the start of `marker`, but not all of it.
pub(crate) fn partial_suffix(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    (1..=longest).rev().find(|&len| text.as_bytes().ends_with(&marker.as_bytes()[..len])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut finder = StopFinder::new(stops.iter().map(|stop| stop.to_string()).collect());
        let mut all = String::new();
        for piece in pieces {
            let (text, stop) = finder.push(piece);
            all += &text;
            if stop.is_some() {
                return (all, stop);
            }
        }
        (all + &finder.finish(), None)
    }

    #[test]
    fn stops_are_found_across_pieces() {
        let stop = |stop: &str| Some(stop.to_owned());
        assert_eq!(run(&["END"], &["abc", "E", "N", "D", "x"]), ("abc".into(), stop("END")));
        assert_eq!(run(&["END"], &["abcE", "Nx"]), ("abcENx".into(), None));
        assert_eq!(run(&["END"], &["EEN", "D"]), ("E".into(), stop("END")));
        assert_eq!(run(&["x", "xy"], &["axy"]), ("a".into(), stop("xy")));
        assert_eq!(run(&["🌍🌍"], &["🌍", "x🌍", "🌍"]), ("🌍x".into(), stop("🌍🌍")));
        assert_eq!(run(&["→é"], &["a→", "è", "→"]), ("a→è→".into(), None));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn nothing_is_held_longer_than_needed() {
        let mut finder = StopFinder::new(vec!["</s>".to_owned()]);
        assert_eq!(finder.push("a < b").0, "a < b");
        assert_eq!(finder.push("x </").0, "x ");
        assert_eq!(finder.push("p>").0, "</p>");
    }
}
