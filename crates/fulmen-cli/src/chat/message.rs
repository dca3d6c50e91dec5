//! Messages of several lines: a line that ends with a backslash continues in the next one, and `"""` starts
//! and ends a block.

/// What starts and ends a block.
const QUOTES: &str = "\"\"\"";

/// The part after `"""`, if a text, or the argument of a command, starts with it.
fn block(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let argument = match text.strip_prefix('/') {
        Some(command) => command.trim_start_matches(|c: char| !c.is_whitespace()).trim_start(),
        None => text,
    };
    let before = &text[..text.len() - argument.len()];
    argument.strip_prefix(QUOTES).map(|rest| (before, rest))
}

/// Whether no further line belongs to a text.
pub(super) fn is_complete(text: &str) -> bool {
    match block(text) {
        Some((_, rest)) => rest.trim_end().ends_with(QUOTES),
        None => !text.ends_with('\\'),
    }
}

/// The message that lines form, without what joins them.
pub(super) fn joined(text: &str) -> String {
    match block(text) {
        Some((before, rest)) => {
            let rest = rest.trim_end();
            let rest = rest.strip_suffix(QUOTES).unwrap_or(rest);
            let rest = rest.strip_prefix('\n').unwrap_or(rest);
            format!("{before}{}", rest.strip_suffix('\n').unwrap_or(rest))
        }
        None => text.replace("\\\n", "\n").trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined() {
        for (text, message) in [
            ("Hello", "Hello"),
            (" Hello ", "Hello"),
            ("a\\\nb\\\nc", "a\nb\nc"),
            ("\"\"\"\nfn main() {\n    x();\n}\n\"\"\"", "fn main() {\n    x();\n}"),
            ("\"\"\"one line\"\"\"", "one line"),
            ("\"\"\"\"\"\"", ""),
            ("/system \"\"\"\nBe brief.\nBe kind.\"\"\"", "/system Be brief.\nBe kind."),
            ("what does \"\"\" mean?", "what does \"\"\" mean?"),
            ("\"\"\"\n  indented\n\"\"\"  ", "  indented"),
            ("", ""),
        ] {
            assert!(is_complete(text), "{text:?}");
            assert_eq!(joined(text), message, "{text:?}");
        }
    }

    #[test]
    fn an_open_text_waits_for_the_next_line() {
        for text in ["a\\", "\"\"\"", "\"\"\"\nabc\n", "/system \"\"\"Be", "\"\"\"a\\"] {
            assert!(!is_complete(text), "{text:?}");
        }
        // At the end of the input, what is there is taken.
        assert_eq!(joined("\"\"\"\nabc\n"), "abc");
    }
}
