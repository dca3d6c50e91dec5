//! Splits a template into text and the words inside its tags. Whitespace is handled as chat templates expect:
//! the first newline after a block tag and the indentation before one are removed (`trim_blocks`,
//! `lstrip_blocks`).

use super::error::{Failure, Result};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Text(String),
    /// `{{` and `}}`
    OutputBegin,
    OutputEnd,
    /// `{%` and `%}`
    BlockBegin,
    BlockEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
}

/// Maximum number of words in a tag, which bounds the nesting of an expression.
const MAX_WORDS: usize = 4000;

/// Longer ones first.
const OPS: [&str; 27] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{",
    "}", ",", ":", ".", "|", "!", ";",
];

pub(super) struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    tokens: Vec<(Token, u32)>,
    /// Whether everything before the current position on its line has been removed.
    at_line_start: bool,
}

/// The kinds of tags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    /// `{{ … }}`
    Output,
    /// `{% … %}`
    Block,
    /// `{# … #}`
    Comment,
}

impl Tag {
    /// The tag that a text starts with.
    fn opened_by(text: &str) -> Option<Tag> {
        match text.get(..2)? {
            "{{" => Some(Tag::Output),
            "{%" => Some(Tag::Block),
            "{#" => Some(Tag::Comment),
            _ => None,
        }
    }
}

/// The whitespace control sign next to a tag's bracket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    Minus,
    Plus,
    None,
}

fn syntax<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::Syntax(what.into()))
}

impl<'a> Lexer<'a> {
    /// All tokens with their lines. A failure includes the line.
    pub(super) fn run(source: &'a str) -> std::result::Result<Vec<(Token, u32)>, (Failure, u32)> {
        let mut lexer = Lexer { source, at: 0, line: 1, tokens: Vec::new(), at_line_start: true };
        match lexer.template() {
            Ok(()) => Ok(lexer.tokens),
            Err(failure) => Err((failure, lexer.line)),
        }
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Consumes this many bytes.
    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.rest()[..length];
        self.at += length;
        self.line += u32::try_from(taken.matches('\n').count()).unwrap_or(u32::MAX);
        taken
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn template(&mut self) -> Result<()> {
        while !self.rest().is_empty() {
            let rest = self.rest();
            let tag = rest.match_indices("{").find_map(|(at, _)| Some((at, Tag::opened_by(&rest[at..])?)));
            let Some((start, tag)) = tag else {
                let text = self.take(rest.len());
                self.text(text);
                break;
            };
            let sign = match rest.as_bytes().get(start + 2) {
                Some(b'-') => Sign::Minus,
                Some(b'+') => Sign::Plus,
                _ => Sign::None,
            };
            let text = self.take(start);
            let text = self.before_tag(text, tag != Tag::Output, sign);
            self.text(text);
            self.take(if sign == Sign::None { 2 } else { 3 });
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block if self.is_raw() => self.raw()?,
                Tag::Block => {
                    self.push(Token::BlockBegin);
                    self.words("%}")?;
                    self.push(Token::BlockEnd);
                }
                Tag::Output => {
                    self.push(Token::OutputBegin);
                    self.words("}}")?;
                    self.push(Token::OutputEnd);
                }
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Token::Text(text.to_owned()));
        }
    }

    /// The text before a tag without the whitespace that the tag removes.
    fn before_tag<'t>(&self, text: &'t str, is_block: bool, sign: Sign) -> &'t str {
        match sign {
            Sign::Minus => text.trim_end(),
            Sign::None if is_block => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let blank = text[line..].chars().all(|c| c.is_whitespace());
                if blank && (line > 0 || self.at_line_start) { &text[..line] } else { text }
            }
            _ => text,
        }
    }

    /// Consumes the whitespace that the end of a tag removes after it.
    fn after_tag(&mut self, is_block: bool, sign: Sign) {
        let rest = self.rest();
        let length = match sign {
            Sign::Minus => rest.len() - rest.trim_start().len(),
            Sign::None if is_block && rest.starts_with('\n') => 1,
            _ => 0,
        };
        let taken = self.take(length);
        self.at_line_start = taken.ends_with('\n');
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else { return syntax("a comment {# is not closed by #}") };
        let sign = match self.take(end + 2).as_bytes()[..end].last() {
            Some(b'-') => Sign::Minus,
            Some(b'+') => Sign::Plus,
            _ => Sign::None,
        };
        self.after_tag(true, sign);
        Ok(())
    }

    /// Whether the tag is `{% raw %}`.
    fn is_raw(&self) -> bool {
        let inside = self.rest().trim_start();
        let after = inside.strip_prefix("raw").map(str::trim_start);
        after.is_some_and(|after| after.starts_with("%}") || after.starts_with("-%}"))
    }

    fn raw(&mut self) -> Result<()> {
        let end = self.rest().find("%}").map_or(0, |at| at + 2);
        let sign = if self.take(end).ends_with("-%}") { Sign::Minus } else { Sign::None };
        self.after_tag(false, sign);
        // The end is the next tag that contains only `endraw`.
        let rest = self.rest();
        for (start, _) in rest.match_indices("{%") {
            let inside = &rest[start + 2..];
            let before = match inside.as_bytes().first() {
                Some(b'-') => Sign::Minus,
                Some(b'+') => Sign::Plus,
                _ => Sign::None,
            };
            let inside = if before == Sign::None { inside } else { &inside[1..] };
            let Some(behind) = inside.trim_start().strip_prefix("endraw").map(str::trim_start) else {
                continue;
            };
            let (after, length) = match behind {
                behind if behind.starts_with("%}") => (Sign::None, 2),
                behind if behind.starts_with("-%}") => (Sign::Minus, 3),
                behind if behind.starts_with("+%}") => (Sign::Plus, 3),
                _ => continue,
            };
            let end = rest.len() - behind.len() + length;
            let text = self.before_tag(&rest[..start], true, before);
            self.text(text);
            self.take(end);
            self.after_tag(true, after);
            return Ok(());
        }
        syntax("{% raw %} has no {% endraw %}")
    }

    /// Lexes the words of a tag up to its end.
    fn words(&mut self, end: &str) -> Result<()> {
        // Open brackets: `}}` inside a mapping is not the end.
        let mut open = Vec::new();
        let first = self.tokens.len();
        loop {
            if self.tokens.len() - first > MAX_WORDS {
                return syntax(format!("a tag has more than {MAX_WORDS} words"));
            }
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { return syntax(format!("a tag is not closed by {end}")) };
            if c.is_whitespace() {
                self.take(c.len_utf8());
                continue;
            }
            if open.is_empty() {
                for (sign, length) in [(Sign::None, 0), (Sign::Minus, 1), (Sign::Plus, 1)] {
                    let text = match sign {
                        Sign::Minus => rest.strip_prefix('-'),
                        Sign::Plus => rest.strip_prefix('+'),
                        Sign::None => Some(rest),
                    };
                    if text.is_some_and(|text| text.starts_with(end)) {
                        self.take(length + end.len());
                        self.after_tag(end == "%}", sign);
                        return Ok(());
                    }
                }
            }
            match c {
                '\'' | '"' => self.string(c)?,
                '0'..='9' => self.number()?,
                c if c.is_alphabetic() || c == '_' => {
                    let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                    let name = self.take(length).to_owned();
                    self.push(Token::Name(name));
                }
                _ => {
                    let Some(op) = OPS.iter().find(|op| rest.starts_with(**op)) else {
                        return syntax(format!("{c:?} does not belong here"));
                    };
                    match *op {
                        "(" | "[" | "{" => open.push(*op),
                        ")" | "]" | "}" => {
                            let begin = open.pop();
                            if !matches!((begin, *op), (Some("("), ")") | (Some("["), "]") | (Some("{"), "}"))
                            {
                                return syntax(format!("unmatched {op}"));
                            }
                        }
                        _ => {}
                    }
                    self.take(op.len());
                    self.push(Token::Op(op));
                }
            }
        }
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let mut length = digits(rest);
        let mut float = false;
        if rest[length..].starts_with('.') && rest[length + 1..].starts_with(|c: char| c.is_ascii_digit()) {
            float = true;
            length += 1 + digits(&rest[length + 1..]);
        }
        let exponent = rest[length..].strip_prefix(['e', 'E']);
        if let Some(exponent) = exponent {
            let sign = usize::from(exponent.starts_with(['+', '-']));
            let count = digits(&exponent[sign..]);
            if count > 0 {
                float = true;
                length += 1 + sign + count;
            }
        }
        let text = self.take(length).replace('_', "");
        let number = match float {
            true => text.parse().ok().map(Token::Float),
            false => text.parse().ok().map(Token::Int),
        };
        match number {
            Some(number) => self.push(number),
            None => return syntax(format!("the number {text} is out of range")),
        }
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let rest = self.rest();
        let mut escaped = false;
        let end = rest.char_indices().skip(1).find(|&(_, c)| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some((end, _)) = end else { return syntax("unterminated string") };
        let string = unescape(&self.take(end + 1)[1..end])?;
        self.push(Token::Str(string));
        Ok(())
    }
}

/// Replaces the escape sequences of a string, as Python does.
fn unescape(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(c) = rest.chars().next() else { return syntax("a string ends with a backslash") };
        rest = &rest[c.len_utf8()..];
        match c {
            '\n' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'v' => out.push('\x0b'),
            '\\' | '\'' | '"' => out.push(c),
            'x' | 'u' | 'U' => {
                let length = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits =
                    rest.get(..length).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
                let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let Some(c) = code.and_then(char::from_u32) else {
                    return syntax(format!("\\{c} needs {length} hexadecimal digits of a valid character"));
                };
                out.push(c);
                rest = &rest[length..];
            }
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let digits = format!("{c}{}", &rest[..more]);
                out.extend(u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32));
                rest = &rest[more..];
            }
            // Unknown escapes are kept.
            _ => {
                out.push('\\');
                out.push(c);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text tokens, with `·` for each tag.
    fn texts(source: &str) -> String {
        let mut out = String::new();
        for (token, _) in Lexer::run(source).unwrap() {
            match token {
                Token::Text(text) => out += &text,
                Token::BlockEnd | Token::OutputEnd => out += "·",
                _ => {}
            }
        }
        out
    }

    #[test]
    fn whitespace_around_tags() {
        // (template, text), as Jinja2 renders it with trim_blocks and lstrip_blocks.
        for (source, expected) in [
            ("a {% x %} b", "a · b"),
            ("a\n  {% x %}\n  b", "a\n·  b"),
            ("  {% x %}\n\nb", "·\nb"),
            ("a  {% x %}", "a  ·"),
            ("a\n  {{ x }}\n  b", "a\n  ·\n  b"),
            ("a \n {%- x -%} \n b", "a·b"),
            ("a \n {{- x -}} \n b", "a·b"),
            ("a\n  {%+ x +%}\n  b", "a\n  ·\n  b"),
            ("a\n  {# c #}\n  b", "a\n  b"),
            ("a {#- c -#} b", "ab"),
            ("{% x %}\n  {% y %}\n  {% z %}", "···"),
            ("{{ x }}  {% y %}", "·  ·"),
            ("{% x %}  {% y %}", "·  ·"),
            ("{% raw %} {{ x }} {% endraw %} b", " {{ x }}  b"),
            ("{%- raw -%} {{ x }} {%- endraw -%} b", "{{ x }}b"),
            ("{ {x} }", "{ {x} }"),
        ] {
            assert_eq!(texts(source), expected, "{source:?}");
        }
    }

    #[test]
    fn words_of_tags() {
        let words = |source: &str| {
            let tokens = Lexer::run(source).unwrap().into_iter().map(|token| token.0);
            tokens.filter(|token| !matches!(token, Token::OutputBegin | Token::OutputEnd)).collect::<Vec<_>>()
        };
        let name = |name: &str| Token::Name(name.into());
        let string = |text: &str| Token::Str(text.into());
        assert_eq!(words("{{ a.b }}"), [name("a"), Token::Op("."), name("b")]);
        assert_eq!(
            words("{{ 12 1.5 1e3 1_000 }}"),
            [Token::Int(12), Token::Float(1.5), Token::Float(1000.0), Token::Int(1000)]
        );
        assert_eq!(words(r#"{{ 'a\n\'"' "\u00e9\x41\d" }}"#), [string("a\n'\""), string("éA\\d")]);
        assert_eq!(words("{{ {'a': {}} }}").len(), 6);
        assert_eq!(words("{{ '}}' }}"), [string("}}")]);
        assert_eq!(words("{{ x-}}"), [name("x")]);
        assert_eq!(
            words("{{ a//b**c }}"),
            [name("a"), Token::Op("//"), name("b"), Token::Op("**"), name("c")]
        );
    }

    #[test]
    fn unterminated_constructs_are_rejected() {
        let fail = |source: &str| match Lexer::run(source) {
            Err((failure, line)) => format!("{line}: {failure}"),
            Ok(tokens) => panic!("{tokens:?}"),
        };
        assert_eq!(fail("a\n{{ x"), "2: a tag is not closed by }}");
        assert_eq!(fail("{% x }}"), "1: unmatched }");
        assert_eq!(fail("{{ 'x }}"), "1: unterminated string");
        assert_eq!(fail("{# x"), "1: a comment {# is not closed by #}");
        assert_eq!(fail("{% raw %} x"), "1: {% raw %} has no {% endraw %}");
        assert_eq!(fail("{{ ( ] }}"), "1: unmatched ]");
        assert_eq!(fail("{{ § }}"), "1: '§' does not belong here");
        assert_eq!(fail("{{ 99999999999999999999 }}"), "1: the number 99999999999999999999 is out of range");
        assert_eq!(fail(r"{{ '\ud800' }}"), r"1: \u needs 4 hexadecimal digits of a valid character");
        assert_eq!(fail("{{ '\\"), "1: unterminated string");
        assert_eq!(fail(&format!("{{{{ 1{} }}}}", "+1".repeat(2000))), "1: a tag has more than 4000 words");
    }
}
