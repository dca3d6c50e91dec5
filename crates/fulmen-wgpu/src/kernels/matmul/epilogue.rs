//! What is done to each value of a matmul before it is stored.

/// How an input of an epilogue is indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EpilogueInput {
    /// `[m, n]`, one value for each of the output.
    PerElement,
    /// `[n]`, such as a bias.
    PerColumn,
    /// `[m]`.
    PerRow,
}

/// A WGSL expression for the stored value.
///
/// In its scope are the accumulated `v` (in a pair `v0` and `v1`), the inputs `e0`, `e1`, … in the order of
/// `inputs`, the scalars as `params.s0`, `params.s1`, …, and the place as `row` and `col`.
#[derive(Clone, Debug, PartialEq)]
pub struct EpilogueSource {
    /// The expression, an `f32`.
    pub expr: String,
    /// The further input buffers, each of f32.
    pub inputs: Vec<EpilogueInput>,
    /// Functions that the expression calls.
    pub functions: String,
    /// Values of the scalars. They are parameters of the launch and not part of the kernel.
    pub scalars: Vec<f32>,
}

impl EpilogueSource {
    /// The matmul as it is.
    pub fn none() -> Self {
        Self::of("v", [])
    }

    /// An expression over `inputs`, without functions and scalars.
    pub fn of(expr: impl Into<String>, inputs: impl Into<Vec<EpilogueInput>>) -> Self {
        Self { expr: expr.into(), inputs: inputs.into(), functions: String::new(), scalars: Vec::new() }
    }

    /// `silu(v0) * v1`, the pair of a gated feed-forward layer: gate first, up second.
    pub fn silu_gate() -> Self {
        Self::of("v0 / (1.0 + exp(-v0)) * v1", [])
    }
}
