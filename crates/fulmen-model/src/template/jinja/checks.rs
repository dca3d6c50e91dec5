//! Jinja tests, used with `is`.

use super::ast::Comparison;
use super::call::Arguments;
use super::error::Result;
use super::eval::Interpreter;
use super::ops;
use super::value::Value;

impl Interpreter<'_> {
    pub(super) fn check(&mut self, name: &str, value: &Value, args: &Arguments) -> Result<bool> {
        let comparison = match name {
            "eq" | "equalto" | "sameas" => Some(Comparison::Equal),
            "ne" => Some(Comparison::NotEqual),
            "lt" | "lessthan" => Some(Comparison::Less),
            "le" => Some(Comparison::LessOrEqual),
            "gt" | "greaterthan" => Some(Comparison::Greater),
            "ge" => Some(Comparison::GreaterOrEqual),
            "in" => Some(Comparison::In),
            _ => None,
        };
        if let Some(comparison) = comparison {
            args.only(name, &["other"])?;
            return ops::compare(comparison, value, args.need(0, "other", name)?, &mut self.meter);
        }
        if name == "divisibleby" {
            args.only(name, &["num"])?;
            let by = args.need(0, "num", name)?.expect_int(name)?;
            let number = value.expect_int(name)?;
            return Ok(number.checked_rem(by).is_some_and(|rest| rest == 0));
        }
        args.only(name, &[])?;
        Ok(match name {
            "defined" => !matches!(value, Value::Undefined(_)),
            "undefined" => matches!(value, Value::Undefined(_)),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.number().is_some(),
            "string" => matches!(value, Value::Str(_)),
            "mapping" => matches!(value, Value::Map(_)),
            "sequence" | "iterable" => {
                matches!(value, Value::Str(_) | Value::List(_) | Value::Map(_))
                    || (name == "iterable" && matches!(value, Value::Undefined(_)))
            }
            "callable" => matches!(value, Value::Macro(_) | Value::Function(_)),
            "odd" => value.expect_int(name)?.rem_euclid(2) == 1,
            "even" => value.expect_int(name)?.rem_euclid(2) == 0,
            "lower" | "upper" => {
                let text = value.to_text(&mut self.meter)?;
                let cased = text.as_str().chars().any(|c| c.is_lowercase() || c.is_uppercase());
                let fits = |c: char| if name == "lower" { !c.is_uppercase() } else { !c.is_lowercase() };
                cased && text.as_str().chars().all(fits)
            }
            _ => return Interpreter::unknown("test", name),
        })
    }
}
