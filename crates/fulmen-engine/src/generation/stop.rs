//! Stop strings: text is held back while it may be the start of one.

use fulmen_model::ModelError;

/// Finds stop strings in text that arrives in pieces.
#[derive(Clone, Debug, Default)]
pub struct StopFinder {
    stops: Vec<String>,
    /// Text that may be the start of a stop string.
    held: String,
}

/// The result of adding a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Text that cannot be part of a stop string.
    pub text: String,
    /// The stop string found after it.
    pub stop: Option<String>,
}

impl StopFinder {
    /// Rejects empty stop strings, which would match everywhere.
    pub fn new(stops: &[String]) -> Result<StopFinder, ModelError> {
        match stops.iter().any(String::is_empty) {
            false => Ok(StopFinder { stops: stops.to_vec(), held: String::new() }),
            true => Err(ModelError::Option {
                what: "a stop string",
                expected: "nonempty".to_owned(),
                found: "empty".to_owned(),
            }),
        }
    }

    /// Adds a piece and returns the text that is settled. Nothing may be added after a stop string.
    pub fn push(&mut self, piece: &str) -> Scanned {
        if self.stops.is_empty() {
            return Scanned { text: piece.to_owned(), stop: None };
        }
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop.as_str())?, stop)));
        // The leftmost match; the longest of several at the same position.
        if let Some((at, stop)) = found.min_by_key(|(at, stop)| (*at, std::cmp::Reverse(stop.len()))) {
            let stop = Some(stop.clone());
            self.held.truncate(at);
            return Scanned { text: std::mem::take(&mut self.held), stop };
        }
        let open = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let keep = self.held.char_indices().map(|(at, _)| at).find(|&at| open(at)).unwrap_or(self.held.len());
        let held = self.held.split_off(keep);
        Scanned { text: std::mem::replace(&mut self.held, held), stop: None }
    }

    /// Returns the text held back, at the end of the input.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(stops: &[&str]) -> StopFinder {
        StopFinder::new(&stops.iter().map(|stop| stop.to_string()).collect::<Vec<_>>()).unwrap()
    }

    /// All text and the stop string of some pieces.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut finder = finder(stops);
        let mut all = String::new();
        for piece in pieces {
            let Scanned { text, stop } = finder.push(piece);
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
        assert_eq!(run(&["\n\n"], &["a\n", "b\n", "\nc"]), ("a\nb".into(), stop("\n\n")));
        assert_eq!(run(&["aab"], &["aa", "aab"]), ("aa".into(), stop("aab")));
        // The leftmost match wins; the longer of two at the same position.
        assert_eq!(run(&["xy", "y"], &["a", "x", "y"]), ("a".into(), stop("xy")));
        assert_eq!(run(&["x", "xy"], &["axy"]), ("a".into(), stop("xy")));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
    }

    #[test]
    fn multibyte_characters_are_never_split() {
        assert_eq!(run(&["→é"], &["a→", "è", "→", "é!"]), ("a→è".into(), Some("→é".into())));
        assert_eq!(run(&["🌍🌍"], &["🌍", "x🌍", "🌍"]), ("🌍x".into(), Some("🌍🌍".into())));
    }

    #[test]
    fn nothing_is_held_longer_than_needed() {
        let mut finder = finder(&["</s>"]);
        assert_eq!(finder.push("a < b").text, "a < b");
        assert_eq!(finder.push("x </").text, "x ");
        assert_eq!(finder.push("p>").text, "</p>");
        assert_eq!(finder.push("<").text, "");
        assert_eq!(finder.finish(), "<");
    }

    #[test]
    fn an_empty_stop_string_is_rejected() {
        assert!(StopFinder::new(&[String::new()]).is_err());
    }
}
