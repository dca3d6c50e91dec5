//! Parses expressions, with Jinja's operator precedence.

use super::ast::{Args, Binary, Comparison, Expr, Filter};
use super::error::Result;
use super::lexer::Token;
use super::parser::{Parser, syntax};

/// Keywords that end an operand.
const KEYWORDS: [&str; 8] = ["if", "else", "and", "or", "not", "in", "is", "recursive"];

impl Parser {
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(Parser::condition)
    }

    /// An expression, or several separated by commas, which form a list.
    pub(super) fn tuple(&mut self) -> Result<Expr> {
        let first = self.expression()?;
        if !self.eat(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while !matches!(self.peek(), Some(Token::BlockEnd | Token::OutputEnd | Token::Op(")")) | None) {
            items.push(self.expression()?);
            if !self.eat(",") {
                break;
            }
        }
        Ok(Expr::List(items))
    }

    /// `a if b else c`
    fn condition(&mut self) -> Result<Expr> {
        let mut value = self.without_condition()?;
        while self.eat_name("if") {
            let condition = self.without_condition()?;
            let otherwise = if self.eat_name("else") { Some(Box::new(self.expression()?)) } else { None };
            value = Expr::If(Box::new(condition), Box::new(value), otherwise);
        }
        Ok(value)
    }

    pub(super) fn without_condition(&mut self) -> Result<Expr> {
        let mut left = self.and()?;
        while self.eat_name("or") {
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr> {
        let mut left = self.not()?;
        while self.eat_name("and") {
            left = Expr::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr> {
        match self.eat_name("not") {
            true => Ok(Expr::Not(Box::new(self.nested(Parser::not)?))),
            false => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Result<Expr> {
        let left = self.sum()?;
        let mut others = Vec::new();
        loop {
            let found = match self.peek() {
                Some(Token::Op("==")) => Comparison::Equal,
                Some(Token::Op("!=")) => Comparison::NotEqual,
                Some(Token::Op("<")) => Comparison::Less,
                Some(Token::Op("<=")) => Comparison::LessOrEqual,
                Some(Token::Op(">")) => Comparison::Greater,
                Some(Token::Op(">=")) => Comparison::GreaterOrEqual,
                Some(Token::Name(name)) if name == "in" => Comparison::In,
                Some(Token::Name(name)) if name == "not" => {
                    if !matches!(self.peek_after(), Some(Token::Name(name)) if name == "in") {
                        break;
                    }
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            others.push((found, self.sum()?));
        }
        Ok(if others.is_empty() { left } else { Expr::Compare(Box::new(left), others) })
    }

    /// Operands with left-associative operators of one precedence level.
    fn level(&mut self, ops: &[(&str, Binary)], operand: fn(&mut Parser) -> Result<Expr>) -> Result<Expr> {
        let mut left = operand(self)?;
        while let Some(&(op, binary)) =
            ops.iter().find(|row| matches!(self.peek(), Some(Token::Op(op)) if *op == row.0))
        {
            self.expect(op)?;
            left = Expr::Binary(binary, Box::new(left), Box::new(operand(self)?));
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.level(&[("+", Binary::Add), ("-", Binary::Subtract)], Parser::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        self.level(&[("~", Binary::Concat)], Parser::product)
    }

    fn product(&mut self) -> Result<Expr> {
        let ops = [
            ("*", Binary::Multiply),
            ("/", Binary::Divide),
            ("//", Binary::FloorDivide),
            ("%", Binary::Modulo),
        ];
        self.level(&ops, Parser::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.level(&[("**", Binary::Power)], |parser| parser.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let value = if self.eat("-") {
            Expr::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.eat("+") {
            Expr::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let value = self.postfix(value)?;
        if with_filters { self.filters(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Result<Expr> {
        let found = self.found();
        match self.next() {
            Some(Token::Name(name)) => Ok(match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                keyword if KEYWORDS.contains(&keyword) => {
                    return syntax(format!("{keyword} does not belong here"));
                }
                _ => Expr::Name(name),
            }),
            Some(Token::Str(mut text)) => {
                // Adjacent strings are concatenated.
                while let Some(Token::Str(more)) = self.peek() {
                    text += more;
                    self.next();
                }
                Ok(Expr::Str(text))
            }
            Some(Token::Int(number)) => Ok(Expr::Int(number)),
            Some(Token::Float(number)) => Ok(Expr::Float(number)),
            Some(Token::Op("(")) => {
                if self.eat(")") {
                    return Ok(Expr::List(Vec::new()));
                }
                let value = self.tuple()?;
                self.expect(")")?;
                Ok(value)
            }
            Some(Token::Op("[")) => {
                let mut items = Vec::new();
                while !self.eat("]") {
                    items.push(self.expression()?);
                    if !self.eat(",") {
                        self.expect("]")?;
                        break;
                    }
                }
                Ok(Expr::List(items))
            }
            Some(Token::Op("{")) => {
                let mut entries = Vec::new();
                while !self.eat("}") {
                    let key = self.expression()?;
                    self.expect(":")?;
                    entries.push((key, self.expression()?));
                    if !self.eat(",") {
                        self.expect("}")?;
                        break;
                    }
                }
                Ok(Expr::Map(entries))
            }
            _ => syntax(format!("expected a value, found {found}")),
        }
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            if self.eat(".") {
                value = match self.peek() {
                    Some(&Token::Int(index)) => {
                        self.next();
                        Expr::Index(Box::new(value), Box::new(Expr::Int(index)))
                    }
                    _ => Expr::Attribute(Box::new(value), self.name()?),
                };
            } else if self.eat("[") {
                value = self.item(value)?;
            } else if self.eat("(") {
                value = Expr::Call(Box::new(value), self.arguments()?);
            } else {
                return Ok(value);
            }
        }
    }

    /// `[index]` or `[start:stop:step]`, after the opening bracket.
    fn item(&mut self, value: Expr) -> Result<Expr> {
        let mut bounds: Vec<Option<Box<Expr>>> = Vec::new();
        loop {
            let bound = match self.peek() {
                Some(Token::Op(":" | "]")) => None,
                _ => Some(Box::new(self.expression()?)),
            };
            bounds.push(bound);
            if !self.eat(":") {
                break;
            }
        }
        self.expect("]")?;
        match (bounds.len(), bounds.first()) {
            (1, Some(None)) | (4.., _) => syntax("an index expected between [ and ]"),
            (1, _) => match bounds.pop().flatten() {
                Some(index) => Ok(Expr::Index(Box::new(value), index)),
                None => syntax("an index expected between [ and ]"),
            },
            _ => {
                let mut bounds = bounds.into_iter();
                let mut next = || bounds.next().flatten();
                Ok(Expr::Slice(Box::new(value), [next(), next(), next()]))
            }
        }
    }

    /// The arguments of a call, after the opening parenthesis.
    fn arguments(&mut self) -> Result<Args> {
        let mut args = Args::default();
        while !self.eat(")") {
            let named = matches!(self.peek(), Some(Token::Name(_)))
                && matches!(self.peek_after(), Some(Token::Op("=")));
            if named {
                let name = self.name()?;
                self.expect("=")?;
                args.named.push((name, self.expression()?));
            } else if !args.named.is_empty() {
                return syntax("an argument without a name behind one with a name");
            } else {
                args.positional.push(self.expression()?);
            }
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(args)
    }

    /// Filters, tests and calls after a value.
    fn filters(&mut self, mut value: Expr) -> Result<Expr> {
        loop {
            if self.eat("|") {
                let filter = self.filter()?;
                value = Expr::Filter(Box::new(value), filter);
            } else if self.eat_name("is") {
                value = self.test(value)?;
            } else if self.eat("(") {
                value = Expr::Call(Box::new(value), self.arguments()?);
            } else {
                return Ok(value);
            }
        }
    }

    pub(super) fn filter(&mut self) -> Result<Filter> {
        let name = self.name()?;
        let args = if self.eat("(") { self.arguments()? } else { Args::default() };
        Ok(Filter { name, args })
    }

    fn test(&mut self, value: Expr) -> Result<Expr> {
        let not = self.eat_name("not");
        let name = self.name()?;
        let mut args = Args::default();
        let operand = match self.peek() {
            Some(Token::Name(name)) => !KEYWORDS.contains(&name.as_str()),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) => true,
            _ => false,
        };
        if self.eat("(") {
            args = self.arguments()?;
        } else if operand {
            let argument = self.primary()?;
            args.positional.push(self.postfix(argument)?);
        }
        let test = Expr::Test(Box::new(value), name, args);
        Ok(if not { Expr::Not(Box::new(test)) } else { test })
    }
}
