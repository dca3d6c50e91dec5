//! The syntax tree of a template.

/// A block of a template with the line it starts on.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u32,
    pub(super) kind: NodeKind,
}

pub(super) type Body = Vec<Node>;

#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    /// Text between tags.
    Text(String),
    /// `{{ … }}`
    Output(Expr),
    If {
        arms: Vec<(Expr, Body)>,
        otherwise: Body,
    },
    For {
        targets: Vec<String>,
        items: Expr,
        only_if: Option<Expr>,
        body: Body,
        otherwise: Body,
    },
    Set {
        target: Target,
        value: Expr,
    },
    /// `{% set x %}…{% endset %}` and `{% filter … %}…{% endfilter %}` (without a target).
    Capture {
        target: Option<Target>,
        filters: Vec<Filter>,
        body: Body,
    },
    /// A macro, by index.
    Macro(usize),
    With {
        names: Vec<(String, Expr)>,
        body: Body,
    },
    Break,
    Continue,
}

/// The target of `set`.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Names(Vec<String>),
    /// `ns.name`
    Attribute(String, String),
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) params: Vec<(String, Option<Expr>)>,
    pub(super) body: Body,
}

#[derive(Clone, Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Name(String),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>),
    /// Start, stop, step.
    Slice(Box<Expr>, [Option<Box<Expr>>; 3]),
    Call(Box<Expr>, Args),
    Filter(Box<Expr>, Filter),
    /// Value, name, arguments.
    Test(Box<Expr>, String, Args),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    /// `a < b < c`
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// Condition, then, else.
    If(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
}

#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) name: String,
    pub(super) args: Args,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
    /// `~`
    Concat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}
