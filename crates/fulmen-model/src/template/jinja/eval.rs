//! Evaluates a template.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use super::ast::{Body, Expr, Filter, Macro, Node, NodeKind, Target};
use super::call::Arguments;
use super::error::{Failure, Result};
use super::meter::Meter;
use super::text::Text;
use super::value::{Function, Loop, Value};
use super::{At, ops, wrong};

pub(super) struct Interpreter<'t> {
    pub(super) meter: Meter,
    pub(super) now: SystemTime,
    macros: &'t [Macro],
    /// The first scope holds the global variables.
    scopes: Vec<Scope<'t>>,
    out: Text,
    /// The current line, for messages.
    line: u32,
}

#[derive(Default)]
struct Scope<'t> {
    names: HashMap<&'t str, Value>,
    /// Whether only the global scope is visible below this one, as in the body of a macro.
    barrier: bool,
}

/// How a block was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Interpreter<'t> {
    pub(super) fn new(
        meter: Meter,
        now: SystemTime,
        macros: &'t [Macro],
        variables: Vec<(&'t str, Value)>,
    ) -> Interpreter<'t> {
        let names = variables.into_iter().collect();
        let scopes = vec![Scope { names, barrier: false }];
        Interpreter { meter, now, macros, scopes, out: Text::default(), line: 1 }
    }

    /// Renders a template.
    pub(super) fn run(mut self, body: &'t Body) -> std::result::Result<Text, At> {
        match self.body(body) {
            Ok(_) => Ok(self.out),
            Err(failure) => Err((failure, self.line)),
        }
    }

    fn body(&mut self, body: &'t Body) -> Result<Flow> {
        self.meter.enter()?;
        let mut flow = Flow::Next;
        for node in body {
            flow = self.node(node)?;
            if flow != Flow::Next {
                break;
            }
        }
        self.meter.leave();
        Ok(flow)
    }

    fn node(&mut self, node: &'t Node) -> Result<Flow> {
        self.meter.pay(1)?;
        self.line = node.line;
        match &node.kind {
            NodeKind::Text(text) => {
                self.meter.pay(text.len())?;
                self.out.push_own(text);
            }
            NodeKind::Output(value) => {
                let value = self.eval(value)?;
                value.show(&mut self.out, &mut self.meter)?;
            }
            NodeKind::If { arms, otherwise } => {
                for (condition, body) in arms {
                    if self.eval(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            NodeKind::For { targets, items, only_if, body, otherwise } => {
                return self.for_loop(targets, items, only_if.as_ref(), body, otherwise);
            }
            NodeKind::Set { target, value } => {
                let value = self.eval(value)?;
                self.set(target, value)?;
            }
            NodeKind::Capture { target, filters, body } => {
                let text = self.capture(body)?;
                let value = self.filter_all(Value::text(text), filters)?;
                match target {
                    Some(target) => self.set(target, value)?,
                    None => value.show(&mut self.out, &mut self.meter)?,
                }
            }
            NodeKind::Macro(number) => {
                let macros = self.macros;
                self.define(&macros[*number].name, Value::Macro(*number));
            }
            NodeKind::With { names, body } => {
                let mut scope = Scope::default();
                for (name, value) in names {
                    scope.names.insert(name, self.eval(value)?);
                }
                self.scopes.push(scope);
                let flow = self.body(body)?;
                self.scopes.pop();
                return Ok(flow);
            }
            NodeKind::Break => return Ok(Flow::Break),
            NodeKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn for_loop(
        &mut self,
        targets: &'t [String],
        items: &'t Expr,
        only_if: Option<&'t Expr>,
        body: &'t Body,
        otherwise: &'t Body,
    ) -> Result<Flow> {
        let mut items = self.eval(items)?.iterate(&mut self.meter)?;
        if let Some(condition) = only_if {
            let mut kept = Vec::new();
            for item in items {
                self.scopes.push(Scope::default());
                self.unpack(targets, item.clone())?;
                if self.eval(condition)?.is_true() {
                    kept.push(item);
                }
                self.scopes.pop();
            }
            items = kept;
        }
        if items.is_empty() {
            return self.body(otherwise);
        }
        let items = Arc::new(items);
        for index in 0..items.len() {
            self.meter.pay(1)?;
            self.scopes.push(Scope::default());
            self.define("loop", Value::Loop(Loop { items: Arc::clone(&items), index }));
            self.unpack(targets, items[index].clone())?;
            let flow = self.body(body)?;
            self.scopes.pop();
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    /// Binds names to a value, or to the items of a list.
    fn unpack(&mut self, names: &'t [String], value: Value) -> Result<()> {
        if let [name] = names {
            self.define(name, value);
            return Ok(());
        }
        let items = value.iterate(&mut self.meter)?;
        if items.len() != names.len() {
            return wrong(format!("cannot unpack: {} names for {} values", names.len(), items.len()));
        }
        names.iter().zip(items).for_each(|(name, item)| self.define(name, item));
        Ok(())
    }

    fn define(&mut self, name: &'t str, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.insert(name, value);
        }
    }

    fn set(&mut self, target: &'t Target, value: Value) -> Result<()> {
        match target {
            Target::Names(names) => self.unpack(names, value),
            Target::Attribute(name, attribute) => match self.look_up(name) {
                Value::Namespace(namespace) => namespace.set(attribute, value),
                other => wrong(format!("{name}.{attribute} cannot be set: {name} is {}", other.describe())),
            },
        }
    }

    fn look_up(&self, name: &str) -> Value {
        for scope in self.scopes.iter().rev() {
            if let Some(value) = scope.names.get(name) {
                return value.clone();
            }
            if scope.barrier {
                break;
            }
        }
        if let Some(value) = self.scopes.first().and_then(|scope| scope.names.get(name)) {
            return value.clone();
        }
        match name {
            "raise_exception" => Value::Function(Function::Raise),
            "strftime_now" => Value::Function(Function::StrftimeNow),
            "namespace" => Value::Function(Function::Namespace),
            "range" => Value::Function(Function::Range),
            "dict" => Value::Function(Function::Dict),
            _ => Value::undefined(name),
        }
    }

    /// Captures the output of a block.
    fn capture(&mut self, body: &'t Body) -> Result<Text> {
        let before = std::mem::take(&mut self.out);
        self.body(body)?;
        Ok(std::mem::replace(&mut self.out, before))
    }

    /// Captures the output of a macro.
    pub(super) fn call_macro(&mut self, number: usize, args: &Arguments) -> Result<Value> {
        let Macro { name, params, body } = &self.macros[number];
        let names: Vec<&str> = params.iter().map(|param| param.0.as_str()).collect();
        args.only(name, &names)?;
        self.scopes.push(Scope { names: HashMap::new(), barrier: true });
        for (at, (param, default)) in params.iter().enumerate() {
            let value = match (args.get(at, param), default) {
                (Some(value), _) => value.clone(),
                (None, Some(default)) => self.eval(default)?,
                (None, None) => Value::undefined(param),
            };
            self.define(param, value);
        }
        let line = self.line;
        let text = self.capture(body)?;
        self.line = line;
        self.scopes.pop();
        Ok(Value::text(text))
    }

    fn filter_all(&mut self, mut value: Value, filters: &'t [Filter]) -> Result<Value> {
        for filter in filters {
            let args = self.arguments(&filter.args)?;
            value = self.filter(&filter.name, value, args)?;
        }
        Ok(value)
    }

    pub(super) fn eval(&mut self, expr: &'t Expr) -> Result<Value> {
        self.meter.pay(1)?;
        self.meter.enter()?;
        let value = self.eval_inner(expr)?;
        self.meter.leave();
        Ok(value)
    }

    fn eval_inner(&mut self, expr: &'t Expr) -> Result<Value> {
        Ok(match expr {
            Expr::None => Value::None,
            Expr::Bool(flag) => Value::Bool(*flag),
            Expr::Int(number) => Value::Int(*number),
            Expr::Float(number) => Value::Float(*number),
            Expr::Str(text) => {
                self.meter.pay(text.len())?;
                Value::own(text.as_str())
            }
            Expr::Name(name) => self.look_up(name),
            Expr::List(items) => {
                let items = items.iter().map(|item| self.eval(item)).collect::<Result<_>>()?;
                Value::list(items, &mut self.meter)?
            }
            Expr::Map(entries) => {
                let mut values = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    values.push((self.eval(key)?, self.eval(value)?));
                }
                Value::map(values, &mut self.meter)?
            }
            Expr::Attribute(value, name) => {
                let value = self.eval(value)?;
                ops::attribute(&value, name, &mut self.meter)?
            }
            Expr::Index(value, index) => {
                let (value, index) = (self.eval(value)?, self.eval(index)?);
                ops::item(&value, &index, &mut self.meter)?
            }
            Expr::Slice(value, bounds) => {
                let value = self.eval(value)?;
                let mut numbers = [None; 3];
                for (number, bound) in numbers.iter_mut().zip(bounds) {
                    *number = match bound {
                        None => None,
                        Some(bound) => match self.eval(bound)? {
                            Value::None => None,
                            bound => Some(bound.expect_int("a slice")?),
                        },
                    };
                }
                ops::slice(&value, numbers, &mut self.meter)?
            }
            Expr::Call(function, args) => self.call(function, args)?,
            Expr::Filter(value, filter) => {
                let value = self.eval(value)?;
                self.filter_all(value, std::slice::from_ref(filter))?
            }
            Expr::Test(value, name, args) => {
                let value = self.eval(value)?;
                let args = self.arguments(args)?;
                Value::Bool(self.check(name, &value, &args)?)
            }
            Expr::Not(value) => Value::Bool(!self.eval(value)?.is_true()),
            Expr::Negative(value) => ops::negative(&self.eval(value)?)?,
            Expr::Positive(value) => {
                let value = self.eval(value)?;
                match value.number() {
                    Some(_) => value,
                    None => return wrong(format!("bad operand for +: {}", value.describe())),
                }
            }
            Expr::Binary(op, left, right) => {
                let (left, right) = (self.eval(left)?, self.eval(right)?);
                ops::binary(*op, &left, &right, &mut self.meter)?
            }
            Expr::And(left, right) => {
                let left = self.eval(left)?;
                if left.is_true() { self.eval(right)? } else { left }
            }
            Expr::Or(left, right) => {
                let left = self.eval(left)?;
                if left.is_true() { left } else { self.eval(right)? }
            }
            Expr::Compare(left, others) => {
                let mut left = self.eval(left)?;
                for (op, right) in others {
                    let right = self.eval(right)?;
                    if !ops::compare(*op, &left, &right, &mut self.meter)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::If(condition, value, otherwise) => match self.eval(condition)?.is_true() {
                true => self.eval(value)?,
                false => match otherwise {
                    Some(otherwise) => self.eval(otherwise)?,
                    None => Value::undefined("the else of an if"),
                },
            },
        })
    }

    /// The failure for an unknown filter, test or method.
    pub(super) fn unknown<T>(what: &str, name: &str) -> Result<T> {
        Err(Failure::Unsupported(format!("the {what} {name:?}")))
    }
}
