//! From the text of a file to a tree of text, values and directives.

use super::expr::{Expr, Parser};

/// A piece and the number of its line.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) of: Piece,
}

/// One node of a parsed file.
pub(super) type Node = Line;

/// Text or a directive.
#[derive(Debug)]
pub(super) enum Piece {
    /// Text as it is.
    Text(String),
    /// `{{expr}}`.
    Value(Expr),
    /// `#define`.
    Define(String, Expr),
    /// `#if` to `#endif`; `#else` has no condition.
    If(Vec<(Option<Expr>, Vec<Node>)>),
    /// `#for` to `#endfor`.
    For { name: String, from: Expr, to: Expr, body: Vec<Node> },
    /// `#include`.
    Include(Expr),
    /// `#macro` to `#endmacro`.
    Macro(Macro),
    /// `#expand`.
    Expand(String, Vec<Expr>),
}

/// Text with parameters.
#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) parameters: Vec<String>,
    pub(super) body: Vec<Node>,
}

/// A line and what is wrong there.
type ParseError = (usize, String);

/// The documentation of a file and its nodes.
pub(super) fn parse(text: &str) -> Result<(String, Vec<Node>), ParseError> {
    let mut about = String::new();
    let mut lines = Lines { rest: text, number: 0, about: &mut about };
    let body = lines.block(&[])?.0;
    Ok((about, body))
}

struct Lines<'t> {
    rest: &'t str,
    number: usize,
    about: &'t mut String,
}

impl<'t> Lines<'t> {
    fn next(&mut self) -> Option<&'t str> {
        if self.rest.is_empty() {
            return None;
        }
        let end = self.rest.find('\n').map_or(self.rest.len(), |at| at + 1);
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.number += 1;
        Some(line)
    }

    /// The nodes up to a directive among `ends`, and that directive's word and the rest of its line. Without
    /// `ends` the nodes up to the end of the file.
    fn block(&mut self, ends: &[&str]) -> Result<(Vec<Node>, &'t str, &'t str), ParseError> {
        let begin = self.number;
        let mut nodes: Vec<Node> = Vec::new();
        while let Some(line) = self.next() {
            let number = self.number;
            let fail = |message: String| (number, message);
            let trimmed = line.trim();
            if let Some(doc) = trimmed.strip_prefix("//!") {
                if self.number == self.about.lines().count() + 1 {
                    self.about.push_str(doc.strip_prefix(' ').unwrap_or(doc));
                    self.about.push('\n');
                }
                continue;
            }
            let Some(directive) = trimmed.strip_prefix('#') else {
                text_line(line, number, &mut nodes).map_err(fail)?;
                continue;
            };
            let (word, rest) = directive.split_once([' ', '\t']).unwrap_or((directive, ""));
            let rest = rest.trim();
            if ends.contains(&word) {
                return Ok((nodes, word, rest));
            }
            let of = match word {
                "include" => Piece::Include(include(rest).map_err(fail)?),
                "define" => {
                    let mut parser = Parser::new(rest).map_err(fail)?;
                    let name = parser.name().map_err(fail)?;
                    Piece::Define(name, parser.whole().map_err(fail)?)
                }
                "if" => self.branches(rest)?,
                "for" => self.unrolled(rest)?,
                "macro" => {
                    let (name, parameters) = macro_head(rest).map_err(fail)?;
                    let body = self.block(&["endmacro"])?.0;
                    Piece::Macro(Macro { name, parameters, body })
                }
                "expand" => {
                    let mut parser = Parser::new(rest).map_err(fail)?;
                    let name = parser.name().map_err(fail)?;
                    let arguments = parser.arguments().map_err(fail)?;
                    parser.end().map_err(fail)?;
                    Piece::Expand(name, arguments)
                }
                _ => return Err(fail(format!("unexpected directive #{word}"))),
            };
            nodes.push(Line { number, of });
        }
        match ends {
            [] => Ok((nodes, "", "")),
            _ => Err((begin, format!("there is no #{} for this", ends.join(" or #")))),
        }
    }

    fn branches(&mut self, condition: &str) -> Result<Piece, ParseError> {
        let number = self.number;
        let parsed =
            |text: &str, number: usize| Parser::expression(text).map_err(|message| (number, message));
        let mut condition = Some(parsed(condition, number)?);
        let mut branches = Vec::new();
        loop {
            let ends: &[&str] = if condition.is_some() { &["elif", "else", "endif"] } else { &["endif"] };
            let (body, word, rest) = self.block(ends)?;
            branches.push((condition, body));
            condition = match word {
                "elif" => Some(parsed(rest, self.number)?),
                "else" => None,
                _ => return Ok(Piece::If(branches)),
            };
        }
    }

    fn unrolled(&mut self, head: &str) -> Result<Piece, ParseError> {
        let number = self.number;
        let fail = |message: String| (number, message);
        let usage = || (number, "expected #for NAME in EXPR..EXPR".to_owned());
        let (name, range) = head.split_once(" in ").ok_or_else(usage)?;
        let (from, to) = range.split_once("..").ok_or_else(usage)?;
        let (from, to) = (Parser::expression(from).map_err(fail)?, Parser::expression(to).map_err(fail)?);
        let body = self.block(&["endfor"])?.0;
        Ok(Piece::For { name: name.trim().to_owned(), from, to, body })
    }
}

/// The name of an included file, as an expression that joins its parts.
fn include(rest: &str) -> Result<Expr, String> {
    let name = rest.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    let name = name.ok_or("expected #include \"name.wgsl\"")?;
    let mut nodes = Vec::new();
    text_line(name, 0, &mut nodes)?;
    let mut parts = nodes.into_iter().map(|node| match node.of {
        Piece::Value(expr) => expr,
        Piece::Text(text) => Expr::text(text),
        _ => unreachable!("a line of text has text and values only"),
    });
    let first = Expr::text(String::new());
    Ok(parts.by_ref().fold(first, Expr::joined))
}

fn macro_head(rest: &str) -> Result<(String, Vec<String>), String> {
    let mut parser = Parser::new(rest)?;
    let name = parser.name()?;
    let parameters = parser.names()?;
    parser.end()?;
    Ok((name, parameters))
}

/// Adds a line of text with its values; text joins the text before it.
fn text_line(line: &str, number: usize, nodes: &mut Vec<Node>) -> Result<(), String> {
    let mut rest = line;
    while let Some(start) = rest.find("{{") {
        let length = rest[start..].find("}}").ok_or("a {{ without a }}")?;
        let expr = Parser::expression(&rest[start + 2..start + length])?;
        text(&rest[..start], number, nodes);
        nodes.push(Line { number, of: Piece::Value(expr) });
        rest = &rest[start + length + 2..];
    }
    text(rest, number, nodes);
    Ok(())
}

fn text(part: &str, number: usize, nodes: &mut Vec<Node>) {
    if part.is_empty() {
        return;
    }
    if let Some(Line { of: Piece::Text(before), .. }) = nodes.last_mut() {
        before.push_str(part);
    } else {
        nodes.push(Line { number, of: Piece::Text(part.to_owned()) });
    }
}
