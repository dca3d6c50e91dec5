//! The WGSL preprocessor: kernels are `.wgsl` files with directives, and Rust gives the constants.
//!
//! [`render`] takes the name of a file in the table of embedded files ([`FILES`](files::FILES)) and a list of
//! named values ([`values!`]), and returns plain WGSL. Files are parsed once per process, and what was
//! rendered is kept: kernels are made for every dispatch, and their text must cost no more than a lookup
//! then.
//!
//! # The language
//!
//! A line whose first character other than a blank is `#` is a directive and leaves nothing in the output. A
//! line that starts with `//!` is a comment for readers of the file and not part of the output either; those
//! before the first other line are the file's documentation. Every other line is text, in which `{{expr}}` is
//! replaced by the value of an expression.
//!
//! | directive | meaning |
//! |---|---|
//! | `#include "dir/name.wgsl"` | another file, in the same scope; `{{expr}}` may be in its name |
//! | `#define NAME EXPR` | names a value until the end of the loop body or macro, or of the output |
//! | `#if EXPR`, `#elif EXPR`, `#else`, `#endif` | conditional text |
//! | `#for NAME in EXPR..EXPR`, `#endfor` | unrolls: the body once for every integer, the end excluded |
//! | `#macro NAME(a, b)`, `#endmacro` | text with parameters, usable from here on, also by included files |
//! | `#expand NAME(EXPR, EXPR)` | the text of a macro, with its parameters bound |
//!
//! Expressions have integers, booleans, strings and lists:
//!
//! - literals `12`, `true`, `"text"`; names of values, loop variables, parameters and `#define`s (the
//!   innermost wins);
//! - `a[i]` takes an element of a list or a character of a string: `"xyzw"[c]`;
//! - `* / %`, `+ -`, `<< >>`, `== != < <= > >=`, `!`, `&&`, `||`, `c ? a : b`, in C's order of precedence;
//!   `+` of a string and anything joins their texts;
//! - `min(a, b)`, `max(a, b)`, `len(list)`.
//!
//! Integers are written without a suffix, so a kernel writes `{{bm}}u`. String values are put in as they are
//! and are not searched for `{{`. Registers, and cooperative matrices above all, cannot be indexed at run
//! time, so names such as `acc{{i}}_{{j}}` inside `#for` stand for arrays of registers.
//!
//! # Errors
//!
//! A mistake (an unknown name, a type that does not fit, a missing `#endif`) is a mistake in a kernel, which
//! every test of that kernel finds: rendering panics with file, line and reason.

mod expr;
mod files;
mod parse;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{LazyLock, PoisonError, RwLock};

pub(crate) use expr::Value;
use expr::{Expr, Scope};
use parse::{Line, Macro, Node, Piece};

/// A list of named values: `values![bm, bn, threads: 64, element: "vec4<f32>"]`. A name alone takes the
/// variable of that name.
macro_rules! values {
    ($($name:ident $(: $value:expr)?),* $(,)?) => {
        [$((stringify!($name), $crate::kernels::preprocess::values!(@one $name $($value)?))),*]
    };
    (@one $name:ident $value:expr) => { $crate::kernels::preprocess::Value::from($value) };
    (@one $name:ident) => { $crate::kernels::preprocess::Value::from($name) };
}
pub(crate) use values;

/// The embedded file `name` with these values.
///
/// # Panics
/// Where the file or a value has a mistake; see the [module](self).
pub(crate) fn render(name: &str, values: &[(&str, Value)]) -> String {
    let mut hasher = DefaultHasher::new();
    (name, values).hash(&mut hasher);
    let hash = hasher.finish();
    let same = |known: &&Rendered| known.file == name && known.is_for(values);
    let rendered = RENDERED.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = rendered.get(&hash).and_then(|all| all.iter().find(same)) {
        return known.text.clone();
    }
    drop(rendered);
    let file = File::named(name).unwrap_or_else(|| panic!("there is no kernel file {name:?}"));
    let text = file.render(values);
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let known = Rendered { file: file.name, values, text: text.clone() };
    RENDERED.write().unwrap_or_else(PoisonError::into_inner).entry(hash).or_default().push(known);
    text
}

/// A text that was rendered before.
struct Rendered {
    file: &'static str,
    values: Vec<(String, Value)>,
    text: String,
}

impl Rendered {
    fn is_for(&self, values: &[(&str, Value)]) -> bool {
        let pairs = || self.values.iter().zip(values);
        self.values.len() == values.len() && pairs().all(|(a, b)| a.0 == b.0 && a.1 == b.1)
    }
}

/// What was rendered, by the hash of file and values: as many texts as there are different kernels.
static RENDERED: LazyLock<RwLock<HashMap<u64, Vec<Rendered>>>> = LazyLock::new(Default::default);

/// The `//!` lines of an embedded file, without their marks; empty where there is no such file.
pub(crate) fn documentation(name: &str) -> &'static str {
    File::named(name).map_or("", |file| &file.about)
}

/// The parsed files of the table.
static PARSED: LazyLock<HashMap<&'static str, File>> = LazyLock::new(|| {
    let parsed = files::FILES.iter().map(|&(name, text)| (name, File::parse(name, text)));
    parsed.collect()
});

/// A parsed file.
struct File {
    name: &'static str,
    about: String,
    body: Vec<Node>,
}

impl File {
    fn named(name: &str) -> Option<&'static Self> {
        PARSED.get(name)
    }

    fn parse(name: &'static str, text: &str) -> Self {
        match parse::parse(text) {
            Ok((about, body)) => Self { name, about, body },
            Err((line, message)) => panic!("{name}:{line}: {message}"),
        }
    }

    fn render(&self, values: &[(&str, Value)]) -> String {
        let mut output =
            Output { text: String::with_capacity(8 << 10), scope: Scope::new(values), macros: Vec::new() };
        output.nodes(self.name, &self.body);
        output.text
    }
}

/// A file while it is rendered.
struct Output<'a> {
    text: String,
    scope: Scope<'a>,
    /// The macros so far, with the file of each.
    macros: Vec<(&'static str, &'a Macro)>,
}

impl<'a> Output<'a> {
    fn nodes(&mut self, file: &'static str, nodes: &'a [Node]) {
        for node in nodes {
            let Line { number, of } = node;
            if let Err(message) = self.node(file, of) {
                panic!("{file}:{number}: {message}");
            }
        }
    }

    fn node(&mut self, file: &'static str, node: &'a Piece) -> Result<(), String> {
        match node {
            Piece::Text(text) => self.text.push_str(text),
            Piece::Value(expr) => self.scope.borrowed(expr)?.write(&mut self.text)?,
            Piece::Define(name, expr) => {
                let value = self.scope.eval(expr)?;
                self.scope.push(name, value);
            }
            Piece::If(branches) => {
                for (condition, body) in branches {
                    let taken = match condition {
                        Some(condition) => self.scope.eval(condition)?.boolean()?,
                        None => true,
                    };
                    if taken {
                        self.nodes(file, body);
                        break;
                    }
                }
            }
            Piece::For { name, from, to, body } => {
                let range = self.scope.eval(from)?.integer()?..self.scope.eval(to)?.integer()?;
                for i in range {
                    let mark = self.scope.mark();
                    self.scope.push(name, Value::Int(i));
                    self.nodes(file, body);
                    self.scope.restore(mark);
                }
            }
            Piece::Include(name) => {
                let mut path = String::new();
                self.scope.borrowed(name)?.write(&mut path)?;
                let included = File::named(&path);
                let included = included.ok_or_else(|| format!("there is no file {path:?} to include"))?;
                self.nodes(included.name, &included.body);
            }
            Piece::Macro(of) => self.macros.push((file, of)),
            Piece::Expand(name, arguments) => self.expand(name, arguments)?,
        }
        Ok(())
    }

    fn expand(&mut self, name: &str, arguments: &'a [Expr]) -> Result<(), String> {
        let found = self.macros.iter().rev().find(|(_, of)| of.name == name);
        let &(file, of) = found.ok_or_else(|| format!("there is no macro {name}"))?;
        let (wanted, got) = (of.parameters.len(), arguments.len());
        if wanted != got {
            return Err(format!("{name} takes {wanted} arguments, not {got}"));
        }
        let values = arguments.iter().map(|argument| self.scope.eval(argument));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let mark = self.scope.mark();
        for (parameter, value) in of.parameters.iter().zip(values) {
            self.scope.push(parameter, value);
        }
        self.nodes(file, &of.body);
        self.scope.restore(mark);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
