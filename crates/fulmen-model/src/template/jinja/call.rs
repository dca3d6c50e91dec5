//! Calls of functions and macros, and their arguments.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use super::ast::{Args, Expr};
use super::error::{Failure, Result};
use super::eval::Interpreter;
use super::strftime::strftime;
use super::value::{Function, Namespace, Value};
use super::{ops, wrong};

/// Evaluated arguments.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Arguments {
    /// The argument at this position or with this name.
    pub(super) fn get(&self, at: usize, name: &str) -> Option<&Value> {
        let named = || self.named.iter().find(|row| row.0 == name).map(|row| &row.1);
        self.positional.get(at).or_else(named)
    }

    /// The argument at this position or with this name, which is required.
    pub(super) fn need(&self, at: usize, name: &str, who: &str) -> Result<&Value> {
        match self.get(at, name) {
            Some(value) => Ok(value),
            None => wrong(format!("{who} needs the argument {name}")),
        }
    }

    /// Rejects other arguments, so that none is silently ignored.
    pub(super) fn only(&self, who: &str, names: &[&str]) -> Result<()> {
        if self.positional.len() > names.len() {
            return wrong(format!(
                "{who} takes at most {} arguments, got {}",
                names.len(),
                self.positional.len()
            ));
        }
        match self.named.iter().find(|row| !names.contains(&row.0.as_str())) {
            Some((name, _)) => wrong(format!("{who} has no argument {name:?}")),
            None => Ok(()),
        }
    }
}

impl<'t> Interpreter<'t> {
    pub(super) fn arguments(&mut self, args: &'t Args) -> Result<Arguments> {
        let positional = args.positional.iter().map(|arg| self.eval(arg)).collect::<Result<_>>()?;
        let mut named = Vec::with_capacity(args.named.len());
        for (name, value) in &args.named {
            named.push((name.clone(), self.eval(value)?));
        }
        Ok(Arguments { positional, named })
    }

    pub(super) fn call(&mut self, function: &'t Expr, args: &'t Args) -> Result<Value> {
        if let Expr::Attribute(value, name) = function {
            let value = self.eval(value)?;
            let args = self.arguments(args)?;
            // A mapping may contain a callable; its methods take precedence, as in Python.
            return self.method(&value, name, &args);
        }
        let function = self.eval(function)?;
        let args = self.arguments(args)?;
        match function {
            Value::Function(function) => self.function(function, &args),
            Value::Macro(number) => self.call_macro(number, &args),
            other => wrong(format!("{} cannot be called", other.describe())),
        }
    }

    fn function(&mut self, function: Function, args: &Arguments) -> Result<Value> {
        match function {
            Function::Raise => {
                args.only("raise_exception", &["message"])?;
                let message = args.need(0, "message", "raise_exception")?.to_text(&mut self.meter)?;
                Err(Failure::Raised(message.as_str().to_owned()))
            }
            Function::StrftimeNow => {
                args.only("strftime_now", &["format"])?;
                let format = args.need(0, "format", "strftime_now")?.expect_text("strftime_now")?;
                self.meter.pay(format.len().saturating_mul(16))?;
                Ok(Value::own(strftime(self.now, format.as_str())?))
            }
            Function::Namespace => {
                let mut names = HashMap::new();
                if let Some(Value::Map(map)) = args.positional.first() {
                    for (key, value) in &map.entries {
                        names.insert(key.expect_text("namespace")?.as_str().to_owned(), value.clone());
                    }
                }
                let namespace = Namespace(Arc::new(Mutex::new(names)));
                for (name, value) in &args.named {
                    namespace.set(name, value.clone())?;
                }
                Ok(Value::Namespace(namespace))
            }
            Function::Range => {
                let numbers = args.positional.iter().map(|arg| arg.expect_int("range"));
                let numbers = numbers.collect::<Result<Vec<i64>>>()?;
                let (start, stop, step) = match numbers[..] {
                    [stop] => (0, stop, 1),
                    [start, stop] => (start, stop, 1),
                    [start, stop, step] => (start, stop, step),
                    _ => return wrong("range takes one to three numbers"),
                };
                ops::range(start, stop, step, &mut self.meter)
            }
            Function::Dict => {
                let mut entries = match args.positional.first() {
                    Some(Value::Map(map)) => map.entries.clone(),
                    Some(other) => return wrong(format!("dict needs a mapping, got {}", other.describe())),
                    None => Vec::new(),
                };
                entries.extend(
                    args.named.iter().map(|(name, value)| (Value::own(name.as_str()), value.clone())),
                );
                Value::map(entries, &mut self.meter)
            }
        }
    }
}
