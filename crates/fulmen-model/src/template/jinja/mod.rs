//! A small Jinja interpreter for chat templates.
//!
//! - **Bounded.** Every step, every byte created and every item visited is charged to one budget (`meter`),
//!   so a template that loops, doubles a string forty times or compares a list with itself a million times
//!   fails in bounded time and memory. Nesting is limited everywhere: in the source, in calls and in values.
//! - **Sandboxed.** There are no files, no imports and no attributes of host objects: values are plain Python
//!   data.
//! - **Text tracks its origin** (`text`): user text never becomes a control token, whatever the template does
//!   with it.
//! - Whitespace, truthiness, comparison and printing follow Python and Jinja, as chat templates expect.

mod ast;
mod call;
mod checks;
mod error;
mod eval;
mod expression;
mod filters;
mod lexer;
mod meter;
mod methods;
mod ops;
mod parser;
mod print;
mod strftime;
mod text;
mod value;

use std::time::SystemTime;

pub use error::Failure;
use error::wrong;
pub(crate) use text::Text;

use ast::{Body, Macro};
use eval::Interpreter;
use meter::Meter;
use value::Value;

/// A failure and the template line where it occurred, from 1.
pub(crate) type At = (Failure, u32);

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Template {
    body: Body,
    macros: Vec<Macro>,
}

/// A variable of a template.
#[derive(Clone, Debug)]
pub(crate) enum Variable<'a> {
    /// JSON whose text counts as the template's own.
    Own(serde_json::Value),
    /// JSON with user text.
    Foreign(&'a serde_json::Value),
    /// A list of mappings.
    Records(Vec<Vec<(&'a str, Field<'a>)>>),
}

/// A value of a mapping in [`Variable::Records`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field<'a> {
    /// Text, and whether it is user text.
    Text(&'a str, bool),
    /// JSON with user text.
    Foreign(&'a serde_json::Value),
}

impl Template {
    /// Parses a template.
    pub(crate) fn new(source: &str) -> Result<Template, At> {
        // A single newline at the end belongs to the file, not to the template.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source = source.strip_suffix('\n').unwrap_or(&source);
        let (body, macros) = parser::parse(source)?;
        Ok(Template { body, macros })
    }

    /// Renders the template. `work` is the budget in steps and bytes; variables come on top.
    pub(crate) fn render(
        &self,
        variables: &[(&str, Variable<'_>)],
        now: SystemTime,
        work: u64,
    ) -> Result<Text, At> {
        let mut meter = Meter::new(work);
        let at_start = |failure| (failure, 1);
        let mut values = Vec::with_capacity(variables.len());
        for (name, variable) in variables {
            values.push((*name, variable.value(&mut meter).map_err(at_start)?));
        }
        Interpreter::new(meter, now, &self.macros, values).run(&self.body)
    }
}

impl Variable<'_> {
    fn value(&self, meter: &mut Meter) -> error::Result<Value> {
        match self {
            Variable::Own(json) => Value::from_json(json, false, meter),
            Variable::Foreign(json) => Value::from_json(json, true, meter),
            Variable::Records(records) => {
                let mut list = Vec::with_capacity(records.len());
                for record in records {
                    let mut entries = Vec::with_capacity(record.len());
                    for &(name, field) in record {
                        entries.push((Value::own(name), field.value(meter)?));
                    }
                    list.push(Value::map(entries, meter)?);
                }
                Value::list(list, meter)
            }
        }
    }
}

impl Field<'_> {
    fn value(self, meter: &mut Meter) -> error::Result<Value> {
        match self {
            Field::Text(text, foreign) => {
                meter.pay(text.len())?;
                Ok(Value::text(if foreign { Text::foreign(text) } else { Text::own(text) }))
            }
            Field::Foreign(json) => Value::from_json(json, true, meter),
        }
    }
}

#[cfg(test)]
mod tests;
