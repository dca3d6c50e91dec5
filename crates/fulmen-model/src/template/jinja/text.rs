//! Text that tracks which of its characters came from outside the template.
//!
//! A template puts its own markers (`<|im_end|>`) around user text. Both end up in one string, but only the
//! template's own markers may become control tokens. So every operation on text tracks the origin of each
//! character.

use std::ops::Range;

/// Text with the ranges that came from outside the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text {
    string: String,
    /// Byte ranges, sorted, nonempty and not adjacent.
    foreign: Vec<Range<usize>>,
}

impl Text {
    /// Text of the template.
    pub(super) fn own(string: impl Into<String>) -> Text {
        Text { string: string.into(), foreign: Vec::new() }
    }

    /// Text from outside the template.
    pub(super) fn foreign(string: impl Into<String>) -> Text {
        let string = string.into();
        let all = 0..string.len();
        Text { string, foreign: if all.is_empty() { Vec::new() } else { vec![all] } }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.string
    }

    pub(crate) fn foreign_ranges(&self) -> &[Range<usize>] {
        &self.foreign
    }

    pub(super) fn len(&self) -> usize {
        self.string.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.string.is_empty()
    }

    /// Appends text of the template.
    pub(super) fn push_own(&mut self, string: &str) {
        self.string.push_str(string);
    }

    pub(super) fn push(&mut self, other: &Text) {
        self.push_slice(other, 0..other.len());
    }

    /// Appends a range of another text.
    pub(super) fn push_slice(&mut self, other: &Text, range: Range<usize>) {
        let start = self.string.len();
        self.string.push_str(&other.string[range.clone()]);
        let first = other.foreign.partition_point(|part| part.end <= range.start);
        for part in &other.foreign[first..] {
            if part.start >= range.end {
                break;
            }
            let from = part.start.max(range.start) - range.start + start;
            let to = part.end.min(range.end) - range.start + start;
            self.mark(from..to);
        }
    }

    fn mark(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match self.foreign.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.foreign.push(range),
        }
    }

    /// A byte range of the text; both ends must be character boundaries.
    pub(super) fn slice(&self, range: Range<usize>) -> Text {
        let mut part = Text::default();
        part.push_slice(self, range);
        part
    }

    /// The part of this text that a subslice of its `&str` refers to.
    pub(super) fn part(&self, part: &str) -> Text {
        let start = part.as_ptr().addr().saturating_sub(self.string.as_ptr().addr());
        self.slice(start..start + part.len())
    }

    /// Transforms each range of one origin separately.
    pub(super) fn map(&self, change: impl Fn(&str) -> String) -> Text {
        let mut out = Text::default();
        let mut at = 0;
        for part in &self.foreign {
            out.string.push_str(&change(&self.string[at..part.start]));
            let start = out.string.len();
            out.string.push_str(&change(&self.string[part.clone()]));
            out.mark(start..out.string.len());
            at = part.end;
        }
        out.string.push_str(&change(&self.string[at..]));
        out
    }

    /// Replaces up to `limit` occurrences of `from`.
    pub(super) fn replace(&self, from: &str, to: &Text, limit: usize) -> Text {
        let mut out = Text::default();
        let mut at = 0;
        for (start, found) in self.string.match_indices(from).take(limit) {
            out.push_slice(self, at..start);
            out.push(to);
            at = start + found.len();
        }
        out.push_slice(self, at..self.len());
        out
    }

    /// Splits at `separator`, at most `limit` times.
    pub(super) fn split(&self, separator: &str, limit: usize) -> Vec<Text> {
        let pieces = self.string.splitn(limit.saturating_add(1), separator);
        pieces.map(|piece| self.part(piece)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed() -> Text {
        let mut text = Text::own("<a>");
        text.push(&Text::foreign("x é y"));
        text.push_own("<b>");
        text
    }

    /// The text with brackets around foreign ranges.
    fn shown(text: &Text) -> String {
        let mut out = text.string.clone();
        for part in text.foreign.iter().rev() {
            assert!(part.start < part.end && part.end <= text.len());
            out.insert(part.end, ']');
            out.insert(part.start, '[');
        }
        out
    }

    #[test]
    fn origin_is_kept() {
        let text = mixed();
        assert_eq!(shown(&text), "<a>[x é y]<b>");
        assert_eq!(shown(&text.slice(1..5)), "a>[x ]");
        assert_eq!(shown(&text.slice(0..3)), "<a>");
        assert_eq!(shown(&text.slice(4..4)), "");
        assert_eq!(shown(&text.part(&text.as_str()[3..])), "[x é y]<b>");
        let mut twice = text.clone();
        twice.push(&text);
        assert_eq!(shown(&twice), "<a>[x é y]<b><a>[x é y]<b>");
        let mut joined = Text::foreign("a");
        joined.push(&Text::foreign("b"));
        assert_eq!(shown(&joined), "[ab]");
        assert_eq!(shown(&Text::foreign("")), "");
        assert_eq!(shown(&text.map(str::to_uppercase)), "<A>[X É Y]<B>");
        assert_eq!(shown(&text.map(|part| part.replace(['x', ' ', 'é', 'y'], ""))), "<a><b>");
        assert_eq!(shown(&text.replace(" é ", &Text::own("-"), usize::MAX)), "<a>[x]-[y]<b>");
        assert_eq!(shown(&text.replace(">", &Text::foreign("!"), 1)), "<a[!x é y]<b>");
        let parts: Vec<String> = text.split(" ", 1).iter().map(shown).collect();
        assert_eq!(parts, ["<a>[x]", "[é y]<b>"]);
    }
}
