//! The definition of every op: an interpreter of logical graphs in f64.
//!
//! It is written for clarity, not for speed. Inputs, weights and caches are decoded exactly from their bytes;
//! results stay in f64 until they are stored to a cache, which rounds to the cache's type as the op does.
//! Q8_0 caches are rows of blocks here; [`Rig`](crate::rig::Rig) converts them to pages for devices and back.

mod attention;
mod data;
mod experts;
mod matmul;
mod recurrent;
mod rows;
mod select;
mod step;

pub use data::{Data, Values};
pub use rows::{gelu, gelu_tanh, relu2, sigmoid, silu, soft_cap};

use std::collections::HashMap;
use std::sync::Arc;

use fulmen_core::{BinaryKind, DType, DTypeError, LogicalGraph, Op, OpNode, Role, TensorId, UnaryKind};

/// The bytes of inputs, weights and states, by name.
pub type DataSet = HashMap<String, Arc<Vec<u8>>>;

/// Why the reference could not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// A tensor that has no data yet.
    #[error("tensor {0} has no data")]
    NoData(String),
    /// Integers where floating-point data is needed, or vice versa.
    #[error("tensor {0} holds the wrong kind of data")]
    Kind(String),
    /// A token, position or sequence number outside its range.
    #[error("{what} {value} is out of range: there are {limit}")]
    Index {
        /// What is indexed.
        what: &'static str,
        /// The value found.
        value: u32,
        /// The first value out of range.
        limit: u32,
    },
    /// An op that the reference does not define.
    #[error("the reference has no definition of {0}")]
    Undefined(&'static str),
    /// Bytes that do not fit their tensor.
    #[error(transparent)]
    DType(#[from] DTypeError),
}

/// Matmuls with more multiplications than this are computed at some columns only, if no op reads the result.
pub const MATMUL_LIMIT: u64 = 1 << 25;

/// Runs a logical graph in f64. States (caches, sampling states) live on from run to run.
#[derive(Clone, Debug)]
pub struct Interpreter {
    graph: LogicalGraph,
    tensors: Vec<Option<Data>>,
    /// Larger matmuls are computed at some columns only; see [`MATMUL_LIMIT`].
    pub matmul_limit: u64,
}

type Result<T, E = ReferenceError> = std::result::Result<T, E>;

impl Interpreter {
    /// An interpreter of `graph` with the data of its inputs, weights and states.
    pub fn new(graph: &LogicalGraph, data: &DataSet) -> Result<Interpreter> {
        let tensors = vec![None; graph.tensors.len()];
        let mut interpreter = Interpreter { graph: graph.clone(), tensors, matmul_limit: MATMUL_LIMIT };
        for tensor in graph.tensors.iter().filter(|tensor| tensor.role != Role::Computed) {
            let name = tensor.name.as_deref().unwrap_or("");
            let bytes = data.get(name).ok_or_else(|| ReferenceError::NoData(name.to_owned()))?;
            interpreter.set(name, Arc::clone(bytes))?;
        }
        Ok(interpreter)
    }

    /// Sets the bytes of an input, weight or state.
    pub fn set(&mut self, name: &str, bytes: Arc<Vec<u8>>) -> Result<()> {
        let id = self.graph.find(name).ok_or_else(|| ReferenceError::NoData(name.to_owned()))?;
        let def = &self.graph.tensors[id];
        let (dtype, elements, expected, got) = (def.dtype, def.elements(), def.bytes()?, bytes.len());
        if expected != got {
            return Err(DTypeError::Length { call: "reference", dtype, elements, expected, got }.into());
        }
        self.tensors[id] = Some(Data::Stored { dtype, width: def.width as usize, bytes });
        Ok(())
    }

    /// The data of a tensor.
    pub fn data(&self, id: TensorId) -> Result<&Data> {
        self.tensors[id].as_ref().ok_or_else(|| ReferenceError::NoData(self.name(id)))
    }

    /// Runs every op, in order.
    pub fn run(&mut self) -> Result<()> {
        for index in 0..self.graph.ops.len() {
            let OpNode { op, outputs } = self.graph.ops[index].clone();
            let results = self.op(&op, &outputs)?;
            for (output, data) in outputs.into_iter().zip(results) {
                self.tensors[output] = Some(data);
            }
        }
        Ok(())
    }

    fn name(&self, id: TensorId) -> String {
        self.graph.tensors[id].name.as_deref().map_or_else(|| format!("%{id}"), str::to_owned)
    }

    fn width(&self, id: TensorId) -> usize {
        self.graph.tensors[id].width as usize
    }

    fn rows(&self, id: TensorId) -> usize {
        self.graph.tensors[id].rows as usize
    }

    fn floats(&self, id: TensorId) -> Result<Vec<f64>> {
        self.data(id)?.floats()?.ok_or_else(|| ReferenceError::Kind(self.name(id)))
    }

    fn optional_floats(&self, id: Option<TensorId>) -> Result<Option<Vec<f64>>> {
        id.map(|id| self.floats(id)).transpose()
    }

    fn ints(&self, id: TensorId) -> Result<Vec<u32>> {
        self.data(id)?.ints().ok_or_else(|| ReferenceError::Kind(self.name(id)))
    }

    /// The norm of rows that are divided among ranks.
    fn divided_norm(&self, op: &Op) -> Result<Vec<f64>> {
        match op {
            Op::MeanSquares { a, b } => {
                let widths = [*a, *b].map(|id| self.width(id));
                Ok(rows::mean_squares([&self.floats(*a)?, &self.floats(*b)?], widths))
            }
            Op::RmsScale { x, means, column, gamma, ranks, epsilon } => {
                let (sums, columns) = (self.floats(*means)?, self.width(*means));
                let means = sums.chunks(columns).map(|sums| sums[*column as usize] / f64::from(*ranks));
                Ok(rows::rms_scale(&self.floats(*x)?, means, &self.floats(*gamma)?, *epsilon))
            }
            other => Err(ReferenceError::Undefined(other.name())),
        }
    }

    /// What a tensor holds, for ops that copy it.
    fn same(&self, id: TensorId) -> Result<Vec<Data>> {
        Ok(vec![match self.graph.tensors[id].dtype {
            DType::U32 => Data::Ints { values: self.ints(id)?, undecided: Vec::new() },
            _ => Data::Floats(Values::plain(self.floats(id)?)),
        }])
    }

    /// Whether an op reads a tensor.
    fn is_read(&self, id: TensorId) -> bool {
        self.graph.ops.iter().any(|node| node.op.operands().contains(&id))
    }

    /// The results of an op, one per output.
    fn op(&mut self, op: &Op, outputs: &[TensorId]) -> Result<Vec<Data>> {
        let one = |values: Vec<f64>| Ok(vec![Data::Floats(Values::plain(values))]);
        match op {
            Op::Embed { table, tokens, part } => one(self.embed(*table, *tokens, *part)?),
            Op::MulMat { x, weights, residual } => self.mul_mat(*x, weights, *residual, outputs),
            Op::GateUp { x, gate, up, activation } => self.gate_up(*x, [*gate, *up], *activation, outputs),
            Op::Route { logits, bias, route, part } => self.route(*logits, *bias, route, *part),
            Op::ExpertGateUp { x, ids, gate, up, n_experts, activation } => {
                self.expert_gate_up([*x, *ids], [*gate, *up], *n_experts, *activation, outputs)
            }
            Op::ExpertDown { x, ids, weights, down, residual, n_experts } => {
                self.expert_down([*x, *ids, *weights], *down, *residual, *n_experts, outputs)
            }
            Op::RmsNorm { x, gamma, epsilon } => {
                one(rows::rms_norm(&self.floats(*x)?, &self.floats(*gamma)?, *epsilon))
            }
            Op::AddRmsNorm { a, b, gamma, epsilon } => {
                let sum = rows::zip(&self.floats(*a)?, &self.floats(*b)?, |a, b| a + b);
                let normed = rows::rms_norm(&sum, &self.floats(*gamma)?, *epsilon);
                Ok([normed, sum].map(|values| Data::Floats(Values::plain(values))).into())
            }
            Op::Binary { kind, a, b } => {
                let f = match kind {
                    BinaryKind::Add => |a: f64, b: f64| a + b,
                    BinaryKind::Mul => |a, b| a * b,
                    BinaryKind::SwiGlu => |a, b| silu(a) * b,
                };
                one(rows::zip(&self.floats(*a)?, &self.floats(*b)?, f))
            }
            Op::Unary { kind, x } => {
                let mut values = self.floats(*x)?;
                for x in &mut values {
                    *x = match kind {
                        UnaryKind::Silu => silu(*x),
                        UnaryKind::Gelu => gelu(*x),
                        UnaryKind::GeluTanh => gelu_tanh(*x),
                        UnaryKind::Relu2 => relu2(*x),
                        UnaryKind::Scale(factor) => *x * f64::from(*factor),
                        UnaryKind::SoftCap(cap) => soft_cap(*x, f64::from(*cap)),
                    };
                }
                one(values)
            }
            Op::Rope { x, positions, factors, head_dim, rope } => {
                let (mut values, positions) = (self.floats(*x)?, self.ints(*positions)?);
                let factors = self.optional_floats(*factors)?;
                rows::rope(&mut values, &positions, factors.as_deref(), *head_dim as usize, rope);
                one(values)
            }
            Op::SoftMax { x, scale } => {
                let mut values = self.floats(*x)?;
                for row in values.chunks_mut(self.width(*x).max(1)) {
                    row.iter_mut().for_each(|x| *x *= f64::from(*scale));
                    rows::softmax(row);
                }
                one(values)
            }
            Op::Attention { q, k, v, heads, scores } => {
                let (q, k, v) = (self.floats(*q)?, self.floats(*k)?, self.floats(*v)?);
                let sinks = self.optional_floats(scores.sinks)?;
                one(attention::over_rows(&q, &k, &v, *heads, scores, sinks.as_deref()))
            }
            Op::CacheAttention { q, cache, slots, heads, scores, .. } => {
                one(self.cache_attention(*q, cache, slots, *heads, scores)?)
            }
            Op::KvStore { k, v, cache, slots, heads } => {
                let (k, v) = (self.floats(*k)?, self.floats(*v)?);
                self.store(&k, &v, cache, slots, *heads)?;
                Ok(Vec::new())
            }
            Op::RopeStore { q, k, v, q_gamma, k_gamma, epsilon, rope, factors, cache, slots, heads } => {
                let positions = self.ints(slots.positions)?;
                let factors = self.optional_floats(*factors)?;
                let mut rotated = Vec::new();
                for (x, gamma) in [(*q, *q_gamma), (*k, *k_gamma)] {
                    let mut values = self.floats(x)?;
                    if let Some(gamma) = gamma {
                        values = rows::rms_norm(&values, &self.floats(gamma)?, *epsilon);
                    }
                    rows::rope(&mut values, &positions, factors.as_deref(), heads.head_dim as usize, rope);
                    rotated.push(values);
                }
                let v = self.floats(*v)?;
                self.store(&rotated[1], &v, cache, slots, *heads)?;
                one(rotated.swap_remove(0))
            }
            Op::CausalConv { x, weight, state, slots, .. } => {
                one(self.causal_conv(*x, *weight, *state, slots)?)
            }
            Op::GatedDeltaRule { qkv, alpha, beta, decay, dt, state, slots, heads, epsilon, .. } => {
                let vectors = [*decay, *dt];
                one(self.gated_delta_rule([*qkv, *alpha, *beta], vectors, *state, slots, *heads, *epsilon)?)
            }
            Op::SigmoidGate { x, gate } => one(rows::sigmoid_gate(&self.floats(*x)?, &self.floats(*gate)?)),
            Op::MeanSquares { .. } | Op::RmsScale { .. } => one(self.divided_norm(op)?),
            // The interpreter is the only rank.
            Op::Copy { x } | Op::AllReduce { x, ranks: 1 } | Op::AllGather { x, ranks: 1 } => self.same(*x),
            Op::ArgMax { x } => {
                let (values, width) = (self.floats(*x)?, self.width(*x));
                let indices = values.chunks(width).map(select::argmax).collect();
                Ok(vec![Data::Ints { values: indices, undecided: Vec::new() }])
            }
            Op::TopK { x, k, first } => self.top_k(*x, *k, *first),
            Op::Sample { logits, tokens, states } => self.sample(*logits, *tokens, *states),
            Op::Penalize { logits, penalties, history, slots } => {
                one(self.penalize(*logits, *penalties, *history, slots)?)
            }
            Op::GatherTokens { history, slots } => self.gather_tokens(*history, slots),
            Op::MaskLogits { logits, edits, masks, slots } => {
                one(self.mask_logits(*logits, *edits, *masks, *slots)?)
            }
            Op::LogProbs { logits, tokens, top } => self.log_probs(*logits, *tokens, *top),
            Op::Advance { drawn, tokens, positions, history, sequences } => {
                self.advance(*drawn, *tokens, *positions, *history, *sequences)?;
                Ok(Vec::new())
            }
            other => Err(ReferenceError::Undefined(other.name())),
        }
    }
}
