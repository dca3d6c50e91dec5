//! Expressions of the preprocessor: values, their parser and their evaluation.

use std::borrow::Cow;
use std::fmt::Write;

/// A value of an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Value {
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// Text, put in as it is.
    Text(Cow<'static, str>),
    /// A list, which is indexed.
    List(Vec<Value>),
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(value.into())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Int(i64::try_from(value).expect("constants of kernels are small"))
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&'static str> for Value {
    fn from(value: &'static str) -> Self {
        Self::Text(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value.into())
    }
}

impl<T: Into<Self>> From<Vec<T>> for Value {
    fn from(values: Vec<T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl Value {
    pub(super) fn integer(&self) -> Result<i64, String> {
        match self {
            Self::Int(value) => Ok(*value),
            other => Err(format!("expected an integer, got {other:?}")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, String> {
        match self {
            Self::Bool(value) => Ok(*value),
            other => Err(format!("expected a boolean, got {other:?}")),
        }
    }

    /// Appends the text of the value.
    pub(super) fn write(&self, out: &mut String) -> Result<(), String> {
        match self {
            // Written to a string, which cannot fail.
            Self::Int(value) => write!(out, "{value}").map_err(|error| error.to_string()),
            Self::Bool(value) => write!(out, "{value}").map_err(|error| error.to_string()),
            Self::Text(text) => {
                out.push_str(text);
                Ok(())
            }
            Self::List(_) => Err("a list has no text: index it".to_owned()),
        }
    }
}

/// A parsed expression.
#[derive(Debug)]
pub(super) enum Expr {
    Literal(Value),
    Name(String),
    Index(Box<[Expr; 2]>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(&'static str, Box<[Expr; 2]>),
    Choose(Box<[Expr; 3]>),
    Call(Function, Vec<Expr>),
}

/// A function that expressions may call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Function {
    Min,
    Max,
    Len,
}

impl Expr {
    pub(super) fn text(text: String) -> Self {
        Self::Literal(text.into())
    }

    /// The texts of both.
    pub(super) fn joined(self, other: Self) -> Self {
        Self::Binary("+", Box::new([self, other]))
    }
}

/// The names that are visible, innermost last.
pub(super) struct Scope<'a> {
    names: Vec<(&'a str, Cow<'a, Value>)>,
}

impl<'a> Scope<'a> {
    pub(super) fn new(values: &'a [(&str, Value)]) -> Self {
        let mut names = Vec::with_capacity(values.len() + 16);
        names.extend(values.iter().map(|(name, value)| (*name, Cow::Borrowed(value))));
        Self { names }
    }

    pub(super) fn push(&mut self, name: &'a str, value: Value) {
        self.names.push((name, Cow::Owned(value)));
    }

    pub(super) fn mark(&self) -> usize {
        self.names.len()
    }

    pub(super) fn restore(&mut self, mark: usize) {
        self.names.truncate(mark);
    }

    /// The value of an expression.
    pub(super) fn eval(&self, expr: &Expr) -> Result<Value, String> {
        Ok(self.borrowed(expr)?.into_owned())
    }

    /// As [`eval`](Self::eval), without a copy of what has a name.
    pub(super) fn borrowed<'s>(&'s self, expr: &'s Expr) -> Result<Cow<'s, Value>, String> {
        let value = match expr {
            Expr::Literal(value) => return Ok(Cow::Borrowed(value)),
            Expr::Name(name) => {
                let found = self.names.iter().rev().find(|(known, _)| known == name);
                let (_, value) = found.ok_or_else(|| format!("no value for {name:?}"))?;
                return Ok(Cow::Borrowed(value));
            }
            Expr::Index(of) => {
                let at =
                    usize::try_from(self.borrowed(&of[1])?.integer()?).map_err(|error| error.to_string())?;
                return index(self.borrowed(&of[0])?, at);
            }
            Expr::Not(of) => Value::Bool(!self.borrowed(of)?.boolean()?),
            Expr::Negate(of) => Value::Int(-self.borrowed(of)?.integer()?),
            Expr::Choose(of) => {
                let taken = self.borrowed(&of[0])?.boolean()?;
                return self.borrowed(&of[if taken { 1 } else { 2 }]);
            }
            Expr::Binary("&&", of) => {
                Value::Bool(self.borrowed(&of[0])?.boolean()? && self.borrowed(&of[1])?.boolean()?)
            }
            Expr::Binary("||", of) => {
                Value::Bool(self.borrowed(&of[0])?.boolean()? || self.borrowed(&of[1])?.boolean()?)
            }
            Expr::Binary(op, of) => binary(op, &*self.borrowed(&of[0])?, &*self.borrowed(&of[1])?)?,
            Expr::Call(function, arguments) => self.call(*function, arguments)?,
        };
        Ok(Cow::Owned(value))
    }

    fn call(&self, function: Function, arguments: &[Expr]) -> Result<Value, String> {
        let at = |i: usize| self.borrowed(&arguments[i]);
        Ok(Value::Int(match function {
            Function::Min => at(0)?.integer()?.min(at(1)?.integer()?),
            Function::Max => at(0)?.integer()?.max(at(1)?.integer()?),
            Function::Len => match &*at(0)? {
                Value::List(list) => list.len() as i64,
                other => return Err(format!("len() takes a list, not {other:?}")),
            },
        }))
    }
}

fn index(of: Cow<'_, Value>, at: usize) -> Result<Cow<'_, Value>, String> {
    let outside = |length: usize| format!("index {at} is outside of {length} elements");
    match of {
        Cow::Borrowed(Value::List(list)) => {
            list.get(at).map(Cow::Borrowed).ok_or_else(|| outside(list.len()))
        }
        Cow::Owned(Value::List(mut list)) if at < list.len() => Ok(Cow::Owned(list.swap_remove(at))),
        other => match &*other {
            Value::List(list) => Err(outside(list.len())),
            Value::Text(text) => {
                let found = text.chars().nth(at).ok_or_else(|| outside(text.chars().count()))?;
                Ok(Cow::Owned(Value::from(found.to_string())))
            }
            value => Err(format!("{value:?} cannot be indexed")),
        },
    }
}

fn binary(op: &str, left: &Value, right: &Value) -> Result<Value, String> {
    if let "==" | "!=" = op {
        if std::mem::discriminant(left) != std::mem::discriminant(right) {
            return Err(format!("{left:?} and {right:?} cannot be compared"));
        }
        return Ok(Value::Bool((left == right) == (op == "==")));
    }
    if op == "+" && matches!((left, right), (Value::Text(_), _) | (_, Value::Text(_))) {
        let mut joined = String::new();
        left.write(&mut joined)?;
        right.write(&mut joined)?;
        return Ok(Value::from(joined));
    }
    let (a, b) = (left.integer()?, right.integer()?);
    let number = match op {
        "<" => return Ok(Value::Bool(a < b)),
        "<=" => return Ok(Value::Bool(a <= b)),
        ">" => return Ok(Value::Bool(a > b)),
        ">=" => return Ok(Value::Bool(a >= b)),
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "/" => a.checked_div(b),
        "%" => a.checked_rem(b),
        "<<" => u32::try_from(b).ok().and_then(|b| a.checked_shl(b)),
        ">>" => u32::try_from(b).ok().and_then(|b| a.checked_shr(b)),
        _ => None,
    };
    number.map(Value::Int).ok_or_else(|| format!("{a} {op} {b} has no value"))
}

/// The operators by precedence, loosest first.
const LEVELS: [&[&str]; 6] =
    [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">"], &["<<", ">>"], &["+", "-"], &["*", "/", "%"]];

/// The tokens that are not names, numbers or strings; longer ones first.
const SIGNS: [&str; 24] = [
    "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "<", ">", "+", "-", "*", "/", "%", "!", "(", ")", "[",
    "]", ",", "?", ":", ".",
];

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Int(i64),
    Text(String),
    Name(String),
    Sign(&'static str),
}

/// A parser over the tokens of one directive or `{{…}}`.
pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = if is_word(first) {
                let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
                tokens.push(match first.is_ascii_digit() {
                    true => Token::Int(word.parse().map_err(|error| format!("{word}: {error}"))?),
                    false => Token::Name(word.to_owned()),
                });
                word.len()
            } else if first == '"' {
                let end = rest[1..].find('"').ok_or("a string without its end")?;
                tokens.push(Token::Text(rest[1..=end].to_owned()));
                end + 2
            } else {
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let sign = sign.ok_or_else(|| format!("unexpected {first:?}"))?;
                tokens.push(Token::Sign(sign));
                sign.len()
            };
            rest = rest[length..].trim_start();
        }
        Ok(Self { tokens, at: 0 })
    }

    /// The whole text as one expression.
    pub(super) fn expression(text: &str) -> Result<Expr, String> {
        Self::new(text)?.whole()
    }

    /// What is left, as one expression.
    pub(super) fn whole(&mut self) -> Result<Expr, String> {
        let expr = self.choice()?;
        self.end()?;
        Ok(expr)
    }

    pub(super) fn end(&self) -> Result<(), String> {
        match self.tokens.get(self.at) {
            None => Ok(()),
            Some(token) => Err(format!("unexpected {token:?}")),
        }
    }

    pub(super) fn name(&mut self) -> Result<String, String> {
        match self.tokens.get(self.at) {
            Some(Token::Name(name)) => {
                self.at += 1;
                Ok(name.clone())
            }
            other => Err(format!("expected a name, got {other:?}")),
        }
    }

    /// `(a, b)`, names only.
    pub(super) fn names(&mut self) -> Result<Vec<String>, String> {
        self.list(Self::name)
    }

    /// `(expr, expr)`.
    pub(super) fn arguments(&mut self) -> Result<Vec<Expr>, String> {
        self.list(Self::choice)
    }

    fn list<T>(&mut self, one: fn(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let mut all = Vec::new();
        self.expect("(")?;
        if self.take(")") {
            return Ok(all);
        }
        loop {
            all.push(one(self)?);
            if !self.take(",") {
                self.expect(")")?;
                return Ok(all);
            }
        }
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Sign(known)) if *known == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) { Ok(()) } else { Err(format!("expected {sign:?}")) }
    }

    fn choice(&mut self) -> Result<Expr, String> {
        let condition = self.level(0)?;
        if !self.take("?") {
            return Ok(condition);
        }
        let yes = self.choice()?;
        self.expect(":")?;
        Ok(Expr::Choose(Box::new([condition, yes, self.choice()?])))
    }

    fn level(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.level(level + 1)?;
        while let Some(&op) = operators.iter().find(|op| self.take(op)) {
            left = Expr::Binary(op, Box::new([left, self.level(level + 1)?]));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, String> {
        if self.take("!") {
            return Ok(Expr::Not(Box::new(self.unary()?)));
        }
        if self.take("-") {
            return Ok(Expr::Negate(Box::new(self.unary()?)));
        }
        let mut expr = self.primary()?;
        while self.take("[") {
            expr = Expr::Index(Box::new([expr, self.choice()?]));
            self.expect("]")?;
        }
        Ok(expr)
    }

    fn primary(&mut self) -> Result<Expr, String> {
        if self.take("(") {
            let expr = self.choice()?;
            self.expect(")")?;
            return Ok(expr);
        }
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        match token {
            Some(Token::Int(value)) => Ok(Expr::Literal(Value::Int(value))),
            Some(Token::Text(text)) => Ok(Expr::text(text)),
            Some(Token::Name(name)) => match &*name {
                "true" | "false" => Ok(Expr::Literal(Value::Bool(name == "true"))),
                "min" => self.call(Function::Min, 2),
                "max" => self.call(Function::Max, 2),
                "len" => self.call(Function::Len, 1),
                _ => Ok(Expr::Name(name)),
            },
            other => Err(format!("expected a value, got {other:?}")),
        }
    }

    fn call(&mut self, function: Function, count: usize) -> Result<Expr, String> {
        let arguments = self.arguments()?;
        if arguments.len() != count {
            return Err(format!("{function:?} takes {count} arguments"));
        }
        Ok(Expr::Call(function, arguments))
    }
}
