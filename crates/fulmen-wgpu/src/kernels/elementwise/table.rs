//! The table of element-wise ops.

use super::{Helper, reference as r};

/// Values on which every op of one argument is tried: zeros, ends of the range, infinities, NaN, seams
/// of the formulas.
const REALS: &[f32] = &[
    0.0,
    -0.0,
    1e-45,
    -1e-39,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    1e-20,
    -1e-10,
    1e-6,
    -1e-4,
    1e-3,
    0.1,
    -0.34657,
    0.5,
    0.624_999_9,
    0.625,
    -0.625,
    -1.0,
    1.0,
    std::f32::consts::SQRT_2,
    2.0,
    -3.0,
    9.999_999,
    10.0,
    -13.0,
    20.0,
    -20.0,
    87.0,
    -87.0,
    88.9,
    100.0,
    -100.0,
    -104.0,
    1e10,
    -1e10,
    1e30,
    -1e30,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// One row of the table.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) arity: usize,
    pub(super) scalars: usize,
    /// The names of the arguments and then of the scalars in `wgsl`.
    pub(super) names: &'static [&'static str],
    /// The result as an expression of `EwF`.
    pub(super) wgsl: &'static str,
    pub(super) helpers: &'static [Helper],
    reference: fn(&[f64]) -> f64,
    tolerance: f64,
    domain: (f32, f32),
}

macro_rules! table {
    ($(
        $(#[$doc:meta])*
        $variant:ident: $name:literal ($($arg:ident),+ $(; $($scalar:ident),+)?) = $wgsl:literal,
        [$($helper:ident),*], |$v:ident| $reference:expr,
        within $tolerance:literal, on $low:literal to $high:literal;
    )*) => {
        /// An element-wise op: a row of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ElementwiseOp {
            $($(#[$doc])* $variant,)*
        }

        impl ElementwiseOp {
            /// Every row.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub(super) fn row(self) -> &'static Row {
                match self {
                    $(Self::$variant => const { &Row {
                        name: $name,
                        arity: [$(stringify!($arg)),+].len(),
                        scalars: <[&str]>::len(&[$($(stringify!($scalar)),+)?]),
                        names: &[$(stringify!($arg),)+ $($(stringify!($scalar),)+)?],
                        wgsl: $wgsl,
                        helpers: &[$(Helper::$helper),*],
                        reference: |$v| $reference,
                        tolerance: $tolerance,
                        domain: ($low, $high),
                    } },)*
                }
            }
        }
    };
}

table! {
    /// The larger of x and 0. Of -0 it is a zero of either sign.
    Relu: "relu"(x) = "select(x, EwF(0.0), x < EwF(0.0))", [Nan],
        |v| if v[0] < 0.0 { 0.0 } else { v[0] }, within 0.0, on -10.0 to 10.0;
    /// x s.
    Scale: "scale"(x; s) = "x * s", [], |v| v[0] * v[1], within 1e-7, on -10.0 to 10.0;
    /// a + b.
    Add: "add"(a, b) = "a + b", [], |v| v[0] + v[1], within 1e-7, on -10.0 to 10.0;
    /// a b.
    Mul: "mul"(a, b) = "a * b", [], |v| v[0] * v[1], within 1e-7, on -10.0 to 10.0;
    /// a - b.
    Sub: "sub"(a, b) = "a - b", [], |v| v[0] - v[1], within 1e-7, on -10.0 to 10.0;
    /// a / b. Where |b| is finite and above 2^126 the result may be 0.
    Div: "div"(a, b) = "a / b", [], |v| v[0] / v[1], within 5e-7, on -10.0 to 10.0;
    /// 1 / (1 + e^-x).
    Sigmoid: "sigmoid"(x) = "ew_sigmoid(x)", [Nan, Exp, Sigmoid],
        |v| r::sigmoid(v[0]), within 1e-6, on -80.0 to 80.0;
    /// The hyperbolic tangent.
    Tanh: "tanh"(x) = "ew_tanh(x)", [Nan, Exp, Tanh], |v| v[0].tanh(), within 1e-6, on -20.0 to 20.0;
    /// x sigmoid(x), also called SiLU.
    Swish: "swish"(x) = "ew_swish(x)", [Nan, Exp, Sigmoid],
        |v| r::swish(v[0]), within 1e-6, on -80.0 to 80.0;
    /// x Φ(x), exact: by the error function.
    Gelu: "gelu"(x) = "ew_gelu(x)", [Nan, Exp, Sigmoid, Gelu],
        |v| r::gelu(v[0]), within 1e-6, on -14.0 to 14.0;
    /// The approximation of [`Gelu`](Self::Gelu) by tanh: x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2.
    /// On the far left the rounding of x³ is felt.
    GeluTanh: "gelu_tanh"(x)
        = "ew_gated(x, ew_sigmoid(1.59576912 * fma(x * x * 0.044715, x, x)))", [Nan, Exp, Sigmoid],
        |v| r::gelu_tanh(v[0]), within 2e-5, on -10.0 to 10.0;
    /// e^x.
    Exp: "exp"(x) = "ew_exp(x)", [Nan, Exp], |v| v[0].exp(), within 1e-6, on -87.0 to 88.0;
    /// The natural logarithm; -inf of 0, NaN below.
    Log: "log"(x) = "ew_log(x)", [Log], |v| v[0].ln(), within 1e-6, on 0.0 to 10.0;
    /// The square root; NaN below 0.
    Sqrt: "sqrt"(x) = "sqrt(x)", [], |v| v[0].sqrt(), within 1e-6, on 0.0 to 100.0;
    /// x, at least lo and at most hi. A NaN bound is no bound; where the bounds cross, hi wins.
    Clamp: "clamp"(x; lo, hi) = "ew_clamp(x, lo, hi)", [Nan, Clamp],
        |v| r::clamp(v[0], v[1], v[2]), within 0.0, on -10.0 to 10.0;
    /// -x.
    Neg: "neg"(x) = "-x", [], |v| -v[0], within 0.0, on -10.0 to 10.0;
    /// The magnitude.
    Abs: "abs"(x) = "abs(x)", [], |v| v[0].abs(), within 0.0, on -10.0 to 10.0;
    /// The larger; a NaN if either is one.
    Max: "max"(a, b) = "select(select(b, a, a > b), a + b, ew_is_nan(a) | ew_is_nan(b))", [Nan],
        |v| r::max(v[0], v[1]), within 0.0, on -10.0 to 10.0;
    /// The smaller; a NaN if either is one.
    Min: "min"(a, b) = "select(select(b, a, a < b), a + b, ew_is_nan(a) | ew_is_nan(b))", [Nan],
        |v| r::min(v[0], v[1]), within 0.0, on -10.0 to 10.0;
    /// x + s.
    AddScalar: "add_scalar"(x; s) = "x + s", [], |v| v[0] + v[1], within 1e-7, on -10.0 to 10.0;
}

impl ElementwiseOp {
    /// The name: that of the batch's method, and of the op in labels.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The op of this name; `silu` is another one for `swish`.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = if name == "silu" { "swish" } else { name };
        Self::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// Whether its text loses NaN on drivers that turn a comparison into a maximum. The program puts it
    /// back at the end, which is cheaper than doing so in each op of a chain.
    pub(super) fn loses_nan(self) -> bool {
        self == Self::Relu
    }

    /// The number of array arguments.
    pub fn arity(self) -> usize {
        self.row().arity
    }

    /// The number of scalar arguments, after the arrays.
    pub fn scalars(self) -> usize {
        self.row().scalars
    }

    /// The result for one element in f64: the arguments, then the scalars.
    ///
    /// # Panics
    /// If there are fewer values than the op takes.
    pub fn reference(self, values: &[f64]) -> f64 {
        assert!(values.len() >= self.arity() + self.scalars(), "{} of {} values", self.name(), values.len());
        (self.row().reference)(values)
    }

    /// The largest relative error against [`reference`](Self::reference) where the result is a normal number.
    pub fn tolerance(self) -> f64 {
        self.row().tolerance
    }

    /// The range from which tests draw the arguments.
    pub fn domain(self) -> (f32, f32) {
        self.row().domain
    }

    /// Values to try for each argument, beside the [`domain`](Self::domain): zeros, infinities, NaN,
    /// ends and seams.
    pub fn special_values(self) -> &'static [f32] {
        REALS
    }
}
