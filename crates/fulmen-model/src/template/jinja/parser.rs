//! Parses the blocks of a template.

use super::ast::{Body, Expr, Filter, Macro, Node, NodeKind, Target};
use super::error::{Failure, Result};
use super::lexer::{Lexer, Token};

/// Maximum nesting depth of blocks and expressions in the source.
const MAX_DEPTH: usize = 100;

pub(super) struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    depth: usize,
    macros: Vec<Macro>,
    /// Number of enclosing `for` loops, which `break` needs.
    loops: usize,
}

/// Parses a template into blocks and macros. A failure includes the line.
pub(super) fn parse(source: &str) -> std::result::Result<(Body, Vec<Macro>), (Failure, u32)> {
    let mut parser = Parser { tokens: Lexer::run(source)?, at: 0, depth: 0, macros: Vec::new(), loops: 0 };
    let (body, _) = parser.body(&[]).map_err(|failure| (failure, parser.line()))?;
    Ok((body, parser.macros))
}

pub(super) fn syntax<T>(what: impl Into<String>) -> Result<T> {
    Err(Failure::Syntax(what.into()))
}

impl Parser {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.1)
    }

    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|token| &token.0)
    }

    pub(super) fn peek_after(&self) -> Option<&Token> {
        self.tokens.get(self.at + 1).map(|token| &token.0)
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).map(|token| token.0.clone());
        self.at += 1;
        token
    }

    /// Consumes an operator if it comes next.
    pub(super) fn eat(&mut self, op: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Op(next)) if *next == op);
        self.at += usize::from(found);
        found
    }

    /// Consumes a name if it comes next.
    pub(super) fn eat_name(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(next)) if next == name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, op: &str) -> Result<()> {
        if self.eat(op) { Ok(()) } else { syntax(format!("expected {op}, found {}", self.found())) }
    }

    pub(super) fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => syntax(format!("expected a name, found {}", self.found())),
        }
    }

    /// The next token, for messages.
    pub(super) fn found(&self) -> String {
        match self.peek() {
            None => "the end".to_owned(),
            Some(Token::Text(_)) => "text".to_owned(),
            Some(Token::OutputBegin) => "{{".to_owned(),
            Some(Token::OutputEnd) => "}}".to_owned(),
            Some(Token::BlockBegin) => "{%".to_owned(),
            Some(Token::BlockEnd) => "%}".to_owned(),
            Some(Token::Name(name)) => name.clone(),
            Some(Token::Str(text)) => format!("{text:?}"),
            Some(Token::Int(number)) => number.to_string(),
            Some(Token::Float(number)) => number.to_string(),
            Some(Token::Op(op)) => (*op).to_owned(),
        }
    }

    pub(super) fn nested<T>(&mut self, read: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(Failure::Depth { limit: MAX_DEPTH });
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn block_end(&mut self) -> Result<()> {
        match self.peek() {
            Some(Token::BlockEnd) => {
                self.at += 1;
                Ok(())
            }
            _ => syntax(format!("expected %}}, found {}", self.found())),
        }
    }

    /// Blocks up to a tag with one of these names, which is consumed and returned. Without names, up to the
    /// end of the template.
    fn body(&mut self, ends: &[&str]) -> Result<(Body, String)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let mut add = |kind| body.push(Node { line, kind });
            match self.next() {
                None if ends.is_empty() => return Ok((body, String::new())),
                None => return syntax(format!("{} is missing", ends.join(" or "))),
                Some(Token::Text(text)) => add(NodeKind::Text(text)),
                Some(Token::OutputBegin) => {
                    let value = self.expression()?;
                    if !matches!(self.next(), Some(Token::OutputEnd)) {
                        self.at -= 1;
                        return syntax(format!("expected }}}}, found {}", self.found()));
                    }
                    add(NodeKind::Output(value));
                }
                Some(Token::BlockBegin) => {
                    let tag = self.name()?;
                    if ends.contains(&tag.as_str()) {
                        return Ok((body, tag));
                    }
                    // Tags that only mark a section of the text are transparent.
                    if tag == "generation" {
                        self.block_end()?;
                        let (inner, _) = self.nested(|parser| parser.body(&["endgeneration"]))?;
                        self.block_end()?;
                        body.extend(inner);
                        continue;
                    }
                    let kind = self.nested(|parser| parser.block(&tag))?;
                    add(kind);
                }
                Some(_) => {
                    self.at -= 1;
                    return syntax(format!("{} does not belong here", self.found()));
                }
            }
        }
    }

    fn block(&mut self, tag: &str) -> Result<NodeKind> {
        match tag {
            "if" => self.if_block(),
            "for" => self.for_block(),
            "set" => self.set_block(),
            "macro" => self.macro_block(),
            "filter" => {
                let filters = self.filters_of_block()?;
                self.block_end()?;
                let (body, _) = self.body(&["endfilter"])?;
                self.block_end()?;
                Ok(NodeKind::Capture { target: None, filters, body })
            }
            "with" => {
                let mut names = Vec::new();
                while !matches!(self.peek(), Some(Token::BlockEnd)) {
                    let name = self.name()?;
                    self.expect("=")?;
                    names.push((name, self.expression()?));
                    if !self.eat(",") {
                        break;
                    }
                }
                self.block_end()?;
                let (body, _) = self.body(&["endwith"])?;
                self.block_end()?;
                Ok(NodeKind::With { names, body })
            }
            "break" | "continue" if self.loops > 0 => {
                self.block_end()?;
                Ok(if tag == "break" { NodeKind::Break } else { NodeKind::Continue })
            }
            "break" | "continue" => syntax(format!("{tag} outside a loop")),
            tag if tag.starts_with("end") || matches!(tag, "else" | "elif") => {
                syntax(format!("{tag} does not belong here"))
            }
            _ => Err(Failure::Unsupported(format!("the tag {tag:?}"))),
        }
    }

    fn if_block(&mut self) -> Result<NodeKind> {
        let (mut arms, mut otherwise) = (Vec::new(), Vec::new());
        let mut condition = self.expression()?;
        loop {
            self.block_end()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((condition, body));
            match end.as_str() {
                "elif" => condition = self.expression()?,
                "else" => {
                    self.block_end()?;
                    (otherwise, _) = self.body(&["endif"])?;
                    break;
                }
                _ => break,
            }
        }
        self.block_end()?;
        Ok(NodeKind::If { arms, otherwise })
    }

    fn for_block(&mut self) -> Result<NodeKind> {
        let targets = self.names()?;
        if !self.eat_name("in") {
            return syntax(format!("expected in, found {}", self.found()));
        }
        let items = self.without_condition()?;
        let only_if = if self.eat_name("if") { Some(self.expression()?) } else { None };
        if self.eat_name("recursive") {
            return Err(Failure::Unsupported("a recursive loop".to_owned()));
        }
        self.block_end()?;
        self.loops += 1;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let mut otherwise = Vec::new();
        if end == "else" {
            self.block_end()?;
            (otherwise, _) = self.body(&["endfor"])?;
        }
        self.block_end()?;
        Ok(NodeKind::For { targets, items, only_if, body, otherwise })
    }

    /// `a` or `a, b` or `(a, b)`
    fn names(&mut self) -> Result<Vec<String>> {
        let brackets = self.eat("(");
        let mut names = vec![self.name()?];
        while self.eat(",") {
            if !matches!(self.peek(), Some(Token::Name(name)) if name != "in") {
                break;
            }
            names.push(self.name()?);
        }
        if brackets {
            self.expect(")")?;
        }
        Ok(names)
    }

    fn set_block(&mut self) -> Result<NodeKind> {
        let target = if matches!(self.peek_after(), Some(Token::Op("."))) {
            let name = self.name()?;
            self.expect(".")?;
            Target::Attribute(name, self.name()?)
        } else {
            Target::Names(self.names()?)
        };
        if self.eat("=") {
            let value = self.tuple()?;
            self.block_end()?;
            return Ok(NodeKind::Set { target, value });
        }
        let filters = if self.eat("|") { self.filters_of_block()? } else { Vec::new() };
        self.block_end()?;
        let (body, _) = self.body(&["endset"])?;
        self.block_end()?;
        Ok(NodeKind::Capture { target: Some(target), filters, body })
    }

    fn filters_of_block(&mut self) -> Result<Vec<Filter>> {
        let mut filters = vec![self.filter()?];
        while self.eat("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn macro_block(&mut self) -> Result<NodeKind> {
        let name = self.name()?;
        self.expect("(")?;
        let mut params: Vec<(String, Option<Expr>)> = Vec::new();
        while !self.eat(")") {
            let param = self.name()?;
            let default = if self.eat("=") { Some(self.expression()?) } else { None };
            if default.is_none() && params.last().is_some_and(|last| last.1.is_some()) {
                return syntax(format!("the parameter {param} needs a default like those before it"));
            }
            params.push((param, default));
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        self.block_end()?;
        // The macro's body is not inside an enclosing loop.
        let loops = std::mem::take(&mut self.loops);
        let (body, _) = self.body(&["endmacro"])?;
        self.loops = loops;
        self.block_end()?;
        self.macros.push(Macro { name, params, body });
        Ok(NodeKind::Macro(self.macros.len() - 1))
    }
}
