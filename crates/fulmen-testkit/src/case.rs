//! A row of the table: a graph of one op, the distribution of its inputs, and its tolerance.

use fulmen_core::{
    BuildError, DType, Fusions, GraphBuilder, LogicalGraph, Op, PlanOptions, Role, Sharing, TensorId, Work,
    used_experts,
};

use crate::draw::Draw;
use crate::sample::RowKey;

/// The tolerance of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Bit for bit the reference, rounded once to f32 (NaN with any payload).
    Exact,
    /// A bound on the whole tensor and one on each element.
    Within {
        /// The normalized mean-square error, `Σ (got - expected)² / Σ size²`, where the size of an element is
        /// its magnitude or, for a matmul, that of its terms.
        nmse: f64,
        /// The largest error of any element relative to its size or to the root mean square of all sizes,
        /// whichever is larger. The mean alone would hide one wrong element among ten thousand.
        element: f64,
    },
}

impl Tolerance {
    /// A bound on the mean-square error; the error of an element is bounded by eight times the square root of
    /// the largest power of ten that is not above it.
    pub const fn nmse(nmse: f64) -> Tolerance {
        // `sqrt` is not const.
        let mut root = 1.0;
        while root * root > nmse * 1.000_001 {
            root /= 3.162_277_660_168_379_5;
        }
        Tolerance::Within { nmse, element: 8.0 * root }
    }

    /// Element-wise ops, norms and RoPE: rounding to f32.
    pub const ELEMENT: Tolerance = Tolerance::nmse(1e-7);
    /// Softmax: sums of exponentials.
    pub const SOFTMAX: Tolerance = Tolerance::nmse(1e-6);
    /// Matmul with floating-point weights.
    pub const FLOAT_MATMUL: Tolerance = Tolerance::nmse(1e-6);
    /// Matmul with quantized weights: kernels may quantize the activations to q8.
    pub const QUANTIZED_MATMUL: Tolerance = Tolerance::nmse(1e-4);
    /// Matmul with random quants. Their mean over a block is not zero, so the rounding errors of the
    /// activations add up over blocks, equally for all rows of the weight: the mean-square error varies much
    /// from run to run.
    pub const RANDOM_QUANTS_MATMUL: Tolerance = Tolerance::nmse(2e-4);
    /// Matmul of quantized weights and a norm: products of activations and random gains have long tails, so
    /// that q8 blocks of 256 have coarse steps.
    pub const NORMED_QUANTIZED_MATMUL: Tolerance = Tolerance::nmse(1e-3);
    /// Matmuls behind each other, each of which may quantize its activations.
    pub const CHAINED_MATMULS: Tolerance = Tolerance::nmse(1e-3);
    /// The same with q8 blocks of 256. The largest value of a block is at most 16 times its root mean square,
    /// and the error of rounding a 127th of it 16² / 127² / 12 = 1.3e-3, which the activations of a gate-up
    /// enter twice and those of the matmul behind it once. Products of gates come close to it, as a single
    /// row has two blocks.
    pub const CHAINED_K_MATMULS: Tolerance = Tolerance::nmse(4e-3);
    /// Attention, also over an F16 or Q8_0 cache.
    pub const ATTENTION: Tolerance = Tolerance::nmse(1e-4);
    /// Attention over rows that the case itself has stored as Q8_0. A quant may be off by one, which is 1/127
    /// of the largest value of its block; a row that sees one position shows it undiminished beside rows
    /// that average many.
    pub const STORED_Q8_0_ATTENTION: Tolerance = Tolerance::Within { nmse: 1e-4, element: 0.3 };
    /// Q8_0 blocks of another encoder: a quant may be off by one.
    pub const REENCODED: Tolerance = Tolerance::nmse(1e-4);
}

/// How long a case takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// Milliseconds.
    Quick,
    /// Shapes of real models: up to a second on a fast device.
    Large,
    /// Every combination, for fast machines.
    Full,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its name: op, type and shape, e.g. `mul_mat/q4_k/m1/9728x2560`.
    pub name: String,
    /// The op, as [`Op::name`] gives it.
    pub op: &'static str,
    /// The type of the weight, the cache or the embedding table; F32 for other ops.
    pub dtype: DType,
    /// The graph.
    pub graph: LogicalGraph,
    /// The distributions of tensors; [`Draw::default_of`] for those that are not listed.
    pub draws: Vec<(String, Draw)>,
    /// The tolerance of the results.
    pub tolerance: Tolerance,
    /// How memory is shared while it runs.
    pub sharing: Sharing,
    /// The work of a run.
    pub work: Work,
    /// How long it takes.
    pub size: Size,
    /// Whether `fulmen ops perf` times it by default.
    pub timed: bool,
}

impl Case {
    /// A case whose name is the op and `name`. The op and the work are those of the graph's last op, the type
    /// is F32 and the tolerance that of element-wise ops, until a method below says otherwise.
    ///
    /// # Panics
    /// If the graph is invalid or has no op: the table itself is wrong.
    pub fn new(
        name: impl AsRef<str>,
        record: impl FnOnce(&mut GraphBuilder) -> Result<(), BuildError>,
    ) -> Case {
        let (name, mut builder) = (name.as_ref(), GraphBuilder::new());
        record(&mut builder).unwrap_or_else(|error| panic!("the case {name:?} of the table: {error}"));
        let graph = builder.finish();
        let op = graph.ops.last().unwrap_or_else(|| panic!("the case {name:?} has no op")).op.name();
        Case {
            name: format!("{op}/{name}"),
            op,
            dtype: DType::F32,
            work: work(&graph),
            graph,
            draws: Vec::new(),
            tolerance: Tolerance::ELEMENT,
            sharing: Sharing::Never,
            size: Size::Quick,
            timed: false,
        }
    }

    /// Sets the distribution of a tensor.
    pub fn draw(mut self, name: &str, draw: Draw) -> Case {
        assert!(self.graph.find(name).is_some(), "{}: no tensor {name:?}", self.name);
        self.draws.push((name.to_owned(), draw));
        self
    }

    /// Sets the type of the row, and inserts it after the op in the name.
    pub fn dtype(mut self, dtype: DType) -> Case {
        let rest = self.name[self.op.len()..].to_owned();
        self.name = format!("{}/{}{rest}", self.op, dtype.name().to_lowercase());
        self.dtype = dtype;
        self
    }

    /// Sets the tolerance.
    pub fn tolerance(self, tolerance: Tolerance) -> Case {
        Case { tolerance, ..self }
    }

    /// Sets how memory is shared.
    pub fn sharing(self, sharing: Sharing) -> Case {
        Case { sharing, ..self }
    }

    /// Marks it as [`Size::Large`].
    pub fn large(self) -> Case {
        Case { size: Size::Large, ..self }
    }

    /// Marks it for `fulmen ops perf`.
    pub fn timed(self) -> Case {
        Case { timed: true, ..self }
    }

    /// Sets the work, where it depends on more than the shapes.
    pub fn work(self, work: Work) -> Case {
        Case { work, ..self }
    }

    pub(crate) fn key(&self) -> RowKey<'_> {
        RowKey { op: self.op, dtype: self.dtype, name: &self.name, size: self.size }
    }

    /// The options that it is planned with: no fusion, so that the op runs as recorded.
    pub fn plan_options(&self) -> PlanOptions {
        let (fusions, sharing) = (Fusions::none(), self.sharing);
        PlanOptions { fusions, sharing, guard: crate::rig::GUARD, ..PlanOptions::default() }
    }
}

/// The bytes of experts that no row is expected to use.
fn unused_bytes(graph: &LogicalGraph, ids: TensorId, weights: &[TensorId], n_experts: u32) -> u64 {
    let (m, top) = (graph.tensors[ids].rows, graph.tensors[ids].width);
    let bytes: u64 = weights.iter().map(|&id| graph.tensors[id].bytes().unwrap_or(0) as u64).sum();
    let unused = 1.0 - used_experts(m, top, n_experts) / f64::from(n_experts);
    (bytes as f64 * unused) as u64
}

/// The work of a graph's ops, each operand read and each result written once. Of an embedding table only the
/// selected rows are read. Caches are not counted: how much of them is read depends on the positions.
fn work(graph: &LogicalGraph) -> Work {
    let mut total = Work::default();
    let bytes = |id: usize| graph.tensors[id].bytes().unwrap_or(0) as u64;
    for node in &graph.ops {
        let elements = |id: usize| graph.tensors[id].elements() as u64;
        let outputs: u64 = node.outputs.iter().map(|&id| bytes(id)).sum();
        let mut operands = node.op.operands();
        operands.sort_unstable();
        operands.dedup();
        operands.retain(|&id| graph.tensors[id].role != Role::State);
        let mut inputs: u64 = operands.iter().map(|&id| bytes(id)).sum();
        let first = node.outputs.first().map_or(0, |&id| elements(id));
        total.flops += match &node.op {
            Op::Embed { table, tokens, .. } => {
                let row = bytes(*table) / u64::from(graph.tensors[*table].rows.max(1));
                inputs = bytes(*tokens) + row * elements(*tokens);
                0
            }
            Op::MulMat { x, weights, .. } => {
                let rows = u64::from(graph.tensors[*x].rows);
                weights.iter().map(|linear| 2 * rows * elements(linear.weight)).sum()
            }
            Op::GateUp { x, gate, .. } => 4 * u64::from(graph.tensors[*x].rows) * elements(*gate),
            Op::ExpertGateUp { ids, gate, up, n_experts, .. } => {
                inputs -= unused_bytes(graph, *ids, &[gate.weight, up.weight], *n_experts);
                4 * elements(*ids) * elements(gate.weight) / u64::from(*n_experts)
            }
            Op::ExpertDown { ids, down, n_experts, .. } => {
                inputs -= unused_bytes(graph, *ids, &[down.weight], *n_experts);
                2 * elements(*ids) * elements(down.weight) / u64::from(*n_experts)
            }
            Op::Attention { q, heads, .. } => {
                let m = u64::from(graph.tensors[*q].rows);
                2 * m * (m + 1) * u64::from(heads.q_width())
            }
            Op::CausalConv { weight, .. } => 2 * first * u64::from(graph.tensors[*weight].width),
            Op::GatedDeltaRule { qkv, heads, .. } => {
                7 * u64::from(graph.tensors[*qkv].rows) * u64::from(heads.state_width())
            }
            Op::Copy { .. } | Op::AllReduce { .. } | Op::AllGather { .. } => 0,
            _ => first,
        };
        total.bytes += inputs + outputs;
    }
    total
}
