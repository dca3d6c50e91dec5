//! Recording of a logical graph; every shape is checked when an op is recorded.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

use super::builder_call::BuilderCall;
use super::op::{BinaryKind, CacheRef, Linear, Op, Slots, TensorId, UnaryKind};
use super::{LogicalGraph, OpNode, Role, TensorDef};
use crate::graph::checks::{check_cache, check_heads, epsilon, finite};
use crate::{
    AttentionRows, BuildError, DType, GateActivation, Heads, KV_PAGE, KvCache, Problem, RopeSpec, Scores,
    TablePart,
};

/// A handle to a tensor of one builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    id: u32,
    pub(super) owner: u32,
}

impl Tensor {
    /// Its index in the finished graph.
    pub fn id(self) -> TensorId {
        self.id as usize
    }
}

/// The pages of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// F32, F16 or Q8_0.
    pub dtype: DType,
    /// Pages of the layer.
    pub n_pages: u32,
    /// The pages of each sequence, from [`GraphBuilder::page_table`]. Layers share it.
    pub table: Tensor,
    /// Heads; `n_heads` is that of the queries that read it.
    pub heads: Heads,
}

/// A handle to the KV cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    pub(super) k: Tensor,
    v: Tensor,
    spec: CacheSpec,
    n_seqs: u32,
    seq_pages: u32,
}

impl Cache {
    /// The tensors of the keys and of the values.
    pub fn tensors(self) -> (Tensor, Tensor) {
        (self.k, self.v)
    }
}

/// The RoPE of the rows of a batch: the rotation, the positions and optional frequency factors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotation {
    /// The rotation.
    pub spec: RopeSpec,
    /// One position per row.
    pub positions: Tensor,
    /// `n_rot / 2` factors.
    pub factors: Option<Tensor>,
}

/// Records a logical graph. Each method checks its arguments and returns the tensor that the op writes.
///
/// ```
/// use fulmen_core::{DType, GraphBuilder, PlanOptions};
///
/// let mut b = GraphBuilder::new();
/// let x = b.input("x", 4, 256)?;
/// let gamma = b.vector("norm", 256)?;
/// let w = b.weight("w", DType::Q4_K, 512, 256)?;
/// let h = b.rms_norm(x, gamma, 1e-6)?;
/// let y = b.mul_mat(h, w)?;
/// b.output("y", y)?;
/// let plan = b.finish().plan(&PlanOptions::default())?;
/// println!("{}", plan.graph);
/// # Ok::<(), fulmen_core::BuildError>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    pub(super) owner: u32,
    pub(super) graph: LogicalGraph,
    names: HashSet<Box<str>>,
}

impl Default for GraphBuilder {
    fn default() -> GraphBuilder {
        GraphBuilder::new()
    }
}

pub(super) type Built<T> = Result<T, BuildError>;

pub(super) fn id_of(tensor: Option<Tensor>) -> Option<TensorId> {
    tensor.map(Tensor::id)
}

fn cache_ref(cache: Cache) -> CacheRef {
    let Cache { k, v, spec, n_seqs, seq_pages } = cache;
    let CacheSpec { dtype, n_pages, table, .. } = spec;
    CacheRef { k: k.id(), v: v.id(), table: table.id(), dtype, n_pages, n_seqs, seq_pages }
}

impl GraphBuilder {
    /// An empty builder.
    pub fn new() -> GraphBuilder {
        static OWNERS: AtomicU32 = AtomicU32::new(0);
        let graph = LogicalGraph { tensors: Vec::new(), ops: Vec::new(), outputs: Vec::new() };
        GraphBuilder { owner: OWNERS.fetch_add(1, Ordering::Relaxed), graph, names: HashSet::new() }
    }

    /// The recorded graph.
    pub fn finish(self) -> LogicalGraph {
        self.graph
    }

    /// What was recorded so far.
    pub fn graph(&self) -> &LogicalGraph {
        &self.graph
    }

    /// The shape of a tensor: rows and width.
    pub fn shape(&self, tensor: Tensor) -> Built<(u32, u32)> {
        let call = self.call("shape");
        let def = call.def("the tensor", tensor)?;
        Ok((def.rows, def.width))
    }

    /// Element type of a tensor.
    pub fn dtype(&self, tensor: Tensor) -> Built<DType> {
        Ok(self.call("dtype").def("the tensor", tensor)?.dtype)
    }

    pub(super) fn call(&self, name: &'static str) -> BuilderCall<'_> {
        BuilderCall { name, builder: self }
    }

    pub(super) fn push(&mut self, def: TensorDef) -> Tensor {
        self.graph.tensors.push(def);
        // 2^32 tensors do not fit memory.
        Tensor { id: (self.graph.tensors.len() - 1) as u32, owner: self.owner }
    }

    fn take_name(&mut self, call: &'static str, name: &str) -> Built<()> {
        if self.names.insert(name.into()) {
            return Ok(());
        }
        Err(BuildError { call, problem: Problem::Duplicate(name.to_owned()) })
    }

    pub(super) fn external(
        &mut self,
        call: &'static str,
        name: &str,
        role: Role,
        dtype: DType,
        rows: u32,
        width: u32,
    ) -> Built<Tensor> {
        let def = TensorDef { name: Some(name.into()), rows, width, dtype, role };
        self.call(call).check(def.bytes().map_err(Problem::DType))?;
        self.take_name(call, name)?;
        Ok(self.push(def))
    }

    pub(super) fn emit(&mut self, op: Op, rows: u32, width: u32) -> Tensor {
        let output =
            self.push(TensorDef { name: None, rows, width, dtype: DType::F32, role: Role::Computed });
        self.graph.ops.push(OpNode { op, outputs: vec![output.id()] });
        output
    }

    /// An f32 tensor that the caller writes before a run.
    pub fn input(&mut self, name: &str, rows: u32, width: u32) -> Built<Tensor> {
        self.external("input", name, Role::Input, DType::F32, rows, width)
    }

    /// u32 values that the caller writes before a run: tokens, positions, sequence numbers.
    pub fn indices(&mut self, name: &str, rows: u32) -> Built<Tensor> {
        self.external("indices", name, Role::Input, DType::U32, rows, 1)
    }

    /// u32 values that the caller writes before a run, several in a row: expert ids.
    pub fn index_rows(&mut self, name: &str, rows: u32, width: u32) -> Built<Tensor> {
        self.external("index_rows", name, Role::Input, DType::U32, rows, width)
    }

    /// A weight `[rows, k]`, or an embedding table.
    pub fn weight(&mut self, name: &str, dtype: DType, rows: u32, k: u32) -> Built<Tensor> {
        self.external("weight", name, Role::Weight, dtype, rows, k)
    }

    /// A constant f32 vector: the gain of a norm, a bias, frequency factors.
    pub fn vector(&mut self, name: &str, len: u32) -> Built<Tensor> {
        self.external("vector", name, Role::Weight, DType::F32, 1, len)
    }

    /// A state that holds the pages of each sequence: `[n_seqs][seq_pages]` page numbers, `NO_PAGE` for none.
    /// A sequence has `seq_pages · KV_PAGE` positions. The caller writes it; no op does.
    pub fn page_table(&mut self, name: &str, n_seqs: u32, seq_pages: u32) -> Built<Tensor> {
        self.index_state(name, n_seqs, seq_pages)
    }

    /// A state that holds the work list of a mixed step with up to `max_chunks` prefill chunks: see
    /// [`attention_work`](crate::attention_work()). The caller writes it; no op does.
    pub fn attention_work(&mut self, name: &str, max_chunks: u32) -> Built<AttentionRows<Tensor>> {
        let work = self.index_state(name, max_chunks.saturating_add(1), 4)?;
        Ok(AttentionRows::Mixed { work, max_chunks })
    }

    /// The KV cache of one layer: two states, `name.k` and `name.v`, of `spec.n_pages` pages each.
    pub fn kv_cache(&mut self, name: &str, spec: CacheSpec) -> Built<Cache> {
        let call = self.call("kv_cache");
        let (n_seqs, seq_pages) = call.page_table(spec.table)?;
        let CacheSpec { dtype, n_pages, heads, .. } = spec;
        // Addresses are not known yet.
        let cache = KvCache { k_ptr: 1, v_ptr: 1, dtype, n_pages, table_ptr: 1, n_seqs, seq_pages };
        call.check(check_heads(heads).and_then(|()| check_cache(&cache, heads)))?;
        let (rows, width) = (n_pages * heads.n_kv_heads * KV_PAGE, heads.head_dim);
        let k = self.external("kv_cache", &format!("{name}.k"), Role::State, dtype, rows, width)?;
        let v = self.external("kv_cache", &format!("{name}.v"), Role::State, dtype, rows, width)?;
        Ok(Cache { k, v, spec, n_seqs, seq_pages })
    }

    /// One [`SampleState`](crate::sampling::SampleState) per row.
    pub fn sample_states(&mut self, name: &str, rows: u32) -> Built<Tensor> {
        self.external("sample_states", name, Role::State, DType::U32, rows, 8)
    }

    /// u32 values that persist across runs: the tokens and positions of the next step, the token history.
    pub fn index_state(&mut self, name: &str, rows: u32, width: u32) -> Built<Tensor> {
        self.external("index_state", name, Role::State, DType::U32, rows, width)
    }

    /// One [`Penalties`](crate::sampling::Penalties) per row.
    pub fn penalties(&mut self, name: &str, rows: u32) -> Built<Tensor> {
        self.external("penalties", name, Role::State, DType::U32, rows, 4)
    }

    /// Marks a computed tensor as a result of the graph and names it.
    pub fn output(&mut self, name: &str, tensor: Tensor) -> Built<()> {
        let call = self.call("output");
        if let Some(other) = call.def("the tensor", tensor)?.name.as_deref() {
            return call.fail(Problem::Named(other.to_owned()));
        }
        self.take_name("output", name)?;
        self.graph.tensors[tensor.id()].name = Some(name.into());
        self.graph.outputs.push(tensor.id());
        Ok(())
    }

    /// Rows of `table` by token id; those of several tokens in a row side by side.
    pub fn embed(&mut self, table: Tensor, tokens: Tensor) -> Built<Tensor> {
        self.embed_from(table, tokens, None)
    }

    /// As [`embed`](GraphBuilder::embed) from the part of a table that `table` is: tokens of other rows give
    /// zeros.
    pub fn embed_part(&mut self, table: Tensor, tokens: Tensor, part: TablePart) -> Built<Tensor> {
        let call = self.call("embed_part");
        call.check(part.check(call.def("the table", table)?.rows))?;
        self.embed_from(table, tokens, Some(part))
    }

    fn embed_from(&mut self, table: Tensor, tokens: Tensor, part: Option<TablePart>) -> Built<Tensor> {
        let call = self.call("embed");
        let ((rows, count), width) = (call.words("tokens", tokens)?, call.def("the table", table)?.width);
        call.weight("the table", table, width)?;
        let Some(width) = width.checked_mul(count) else {
            let (what, expected) = ("the width of all tokens of a row", "less than 2^32");
            return call.fail(Problem::Value { what, expected, got: f64::from(width) * f64::from(count) });
        };
        Ok(self.emit(Op::Embed { table: table.id(), tokens: tokens.id(), part }, rows, width))
    }

    /// `x · wᵀ`.
    pub fn mul_mat(&mut self, x: Tensor, w: Tensor) -> Built<Tensor> {
        self.linear(x, w, None, None)
    }

    /// `x · wᵀ + bias + residual`.
    pub fn linear(
        &mut self,
        x: Tensor,
        w: Tensor,
        bias: Option<Tensor>,
        residual: Option<Tensor>,
    ) -> Built<Tensor> {
        let call = self.call("linear");
        let (m, k) = call.rows("the input", x)?;
        let n = call.weight("the weight", w, k)?;
        call.bias(bias, n)?;
        if let Some(residual) = residual {
            call.rows_of("the residual", residual, m, n)?;
        }
        let weights = vec![Linear { weight: w.id(), bias: id_of(bias) }];
        Ok(self.emit(Op::MulMat { x: x.id(), weights, residual: id_of(residual) }, m, n))
    }

    /// Several projections of one input: `x · wᵀ + bias` for each weight.
    pub fn linear_many(&mut self, x: Tensor, weights: &[(Tensor, Option<Tensor>)]) -> Built<Vec<Tensor>> {
        let call = self.call("linear_many");
        let (m, k) = call.rows("the input", x)?;
        if weights.is_empty() {
            return call.fail(Problem::Arity { expected: "at least 1 weight as", got: 0 });
        }
        let mut widths = Vec::new();
        for &(w, bias) in weights {
            let n = call.weight("the weight", w, k)?;
            call.bias(bias, n)?;
            widths.push(n);
        }
        let linears = weights.iter().map(|&(w, bias)| Linear { weight: w.id(), bias: id_of(bias) }).collect();
        let outputs: Vec<Tensor> = widths
            .into_iter()
            .map(|width| {
                self.push(TensorDef { name: None, rows: m, width, dtype: DType::F32, role: Role::Computed })
            })
            .collect();
        self.graph.ops.push(OpNode {
            op: Op::MulMat { x: x.id(), weights: linears, residual: None },
            outputs: outputs.iter().map(|t| t.id()).collect(),
        });
        Ok(outputs)
    }

    /// `silu(x · gateᵀ) ∘ (x · upᵀ)`.
    pub fn gate_up(&mut self, x: Tensor, gate: Tensor, up: Tensor) -> Built<Tensor> {
        self.gate_up_with(x, gate, up, GateActivation::Silu)
    }

    /// `activation(x · gateᵀ) ∘ (x · upᵀ)`.
    pub fn gate_up_with(
        &mut self,
        x: Tensor,
        gate: Tensor,
        up: Tensor,
        activation: GateActivation,
    ) -> Built<Tensor> {
        let call = self.call("gate_up");
        let (m, k) = call.rows("the input", x)?;
        let n = call.weight("the gate weight", gate, k)?;
        call.size("the rows of the up weight", n, call.weight("the up weight", up, k)?)?;
        Ok(self.emit(Op::GateUp { x: x.id(), gate: gate.id(), up: up.id(), activation }, m, n))
    }

    /// RMS norm; a gain shorter than the row (by a whole factor) gives the norm per head.
    pub fn rms_norm(&mut self, x: Tensor, gamma: Tensor, eps: f32) -> Built<Tensor> {
        let call = self.call("rms_norm");
        let (rows, width) = call.rows("the input", x)?;
        let (gamma_rows, head) = call.rows("the gain", gamma)?;
        call.size("the rows of the gain", 1, gamma_rows)?;
        if head == 0 || !width.is_multiple_of(head) {
            let (of, got) = (head.into(), width.into());
            return call.fail(Problem::Multiple { what: "the width of the input", of, got });
        }
        let epsilon = call.check(epsilon(eps))?;
        Ok(self.emit(Op::RmsNorm { x: x.id(), gamma: gamma.id(), epsilon }, rows, width))
    }

    /// The RMS norm of `a + b`, and the sum.
    pub fn add_rms_norm(&mut self, a: Tensor, b: Tensor, gamma: Tensor, eps: f32) -> Built<(Tensor, Tensor)> {
        let call = self.call("add_rms_norm");
        let (rows, width) = call.rows("the first input", a)?;
        call.rows_of("the second input", b, rows, width)?;
        call.rows_of("the gain", gamma, 1, width)?;
        let epsilon = call.check(epsilon(eps))?;
        let op = Op::AddRmsNorm { a: a.id(), b: b.id(), gamma: gamma.id(), epsilon };
        let normed = self.emit(op, rows, width);
        let sum = self.push(TensorDef { name: None, rows, width, dtype: DType::F32, role: Role::Computed });
        self.graph.ops.last_mut().expect("an op was just added").outputs.push(sum.id());
        Ok((normed, sum))
    }

    /// An element-wise op of two operands of one shape.
    pub fn binary(&mut self, kind: BinaryKind, a: Tensor, b: Tensor) -> Built<Tensor> {
        let call = self.call("binary");
        let (rows, width) = call.rows("the first input", a)?;
        call.rows_of("the second input", b, rows, width)?;
        Ok(self.emit(Op::Binary { kind, a: a.id(), b: b.id() }, rows, width))
    }

    /// `a + b`.
    pub fn add(&mut self, a: Tensor, b: Tensor) -> Built<Tensor> {
        self.binary(BinaryKind::Add, a, b)
    }

    /// `a · b`, element by element.
    pub fn mul(&mut self, a: Tensor, b: Tensor) -> Built<Tensor> {
        self.binary(BinaryKind::Mul, a, b)
    }

    /// An element-wise op of one operand.
    pub fn unary(&mut self, kind: UnaryKind, x: Tensor) -> Built<Tensor> {
        let call = self.call("unary");
        let (rows, width) = call.rows("the input", x)?;
        call.check(kind.check())?;
        Ok(self.emit(Op::Unary { kind, x: x.id() }, rows, width))
    }

    /// `x · sigmoid(x)`.
    pub fn silu(&mut self, x: Tensor) -> Built<Tensor> {
        self.unary(UnaryKind::Silu, x)
    }

    /// Squared ReLU, `max(x, 0)²`.
    pub fn relu2(&mut self, x: Tensor) -> Built<Tensor> {
        self.unary(UnaryKind::Relu2, x)
    }

    /// Logit soft capping, `cap · tanh(x / cap)`; `cap` must be finite and above 0.
    pub fn soft_cap(&mut self, x: Tensor, cap: f32) -> Built<Tensor> {
        self.unary(UnaryKind::SoftCap(cap), x)
    }

    /// Rotary position embedding of every head.
    pub fn rope(&mut self, x: Tensor, head_dim: u32, rotation: Rotation) -> Built<Tensor> {
        let call = self.call("rope");
        let (rows, width) = call.rows("the input", x)?;
        if head_dim == 0 || !width.is_multiple_of(head_dim) {
            let (of, got) = (head_dim.into(), width.into());
            return call.fail(Problem::Multiple { what: "the width of the input", of, got });
        }
        call.rotation(rotation, head_dim, rows)?;
        let Rotation { spec, positions, factors } = rotation;
        let (positions, factors) = (positions.id(), id_of(factors));
        Ok(self.emit(Op::Rope { x: x.id(), positions, factors, head_dim, rope: spec }, rows, width))
    }

    /// Softmax of `x · scale` over rows.
    pub fn softmax(&mut self, x: Tensor, scale: f32) -> Built<Tensor> {
        let call = self.call("softmax");
        let (rows, width) = call.rows("the input", x)?;
        call.check(finite("the scale", scale))?;
        Ok(self.emit(Op::SoftMax { x: x.id(), scale }, rows, width))
    }

    /// Causal attention among the rows of the batch, with a scale or more elaborate [`Scores`].
    pub fn attention(
        &mut self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: Heads,
        scores: impl Into<Scores<Tensor>>,
    ) -> Built<Tensor> {
        let call = self.call("attention");
        call.check(check_heads(heads))?;
        let (m, _) = call.rows("q", q)?;
        call.rows_of("q", q, m, heads.q_width())?;
        call.rows_of("k", k, m, heads.kv_width())?;
        call.rows_of("v", v, m, heads.kv_width())?;
        let scores = call.scores(scores.into(), heads)?;
        let (q, k, v) = (q.id(), k.id(), v.id());
        Ok(self.emit(Op::Attention { q, k, v, heads, scores }, m, heads.q_width()))
    }

    /// Causal attention over a cache that already holds the rows' own keys and values, with a scale or more
    /// elaborate [`Scores`].
    pub fn cache_attention(
        &mut self,
        q: Tensor,
        cache: Cache,
        positions: Tensor,
        sequences: Option<Tensor>,
        scores: impl Into<Scores<Tensor>>,
    ) -> Built<Tensor> {
        self.step_attention(q, cache, positions, sequences, AttentionRows::Any, scores)
    }

    /// As [`cache_attention`](GraphBuilder::cache_attention), with what is known of the rows. The work list
    /// of a mixed step is an [`attention_work`](GraphBuilder::attention_work).
    pub fn step_attention(
        &mut self,
        q: Tensor,
        cache: Cache,
        positions: Tensor,
        sequences: Option<Tensor>,
        rows: AttentionRows<Tensor>,
        scores: impl Into<Scores<Tensor>>,
    ) -> Built<Tensor> {
        let (call, heads) = (self.call("cache_attention"), cache.spec.heads);
        let (m, _) = call.rows("q", q)?;
        call.rows_of("q", q, m, heads.q_width())?;
        call.slots(cache, positions, sequences, m)?;
        if let Some((&work, max_chunks)) = rows.work() {
            call.work_list(work, max_chunks)?;
        }
        let scores = call.scores(scores.into(), heads)?;
        let slots = Slots { positions: positions.id(), sequences: id_of(sequences) };
        let (q, rows) = (q.id(), rows.map(Tensor::id));
        let op = Op::CacheAttention { q, cache: cache_ref(cache), slots, rows, heads, scores };
        Ok(self.emit(op, m, heads.q_width()))
    }

    /// Writes rows of keys and values into a cache.
    pub fn kv_store(
        &mut self,
        k: Tensor,
        v: Tensor,
        cache: Cache,
        positions: Tensor,
        sequences: Option<Tensor>,
    ) -> Built<()> {
        let (call, heads) = (self.call("kv_store"), cache.spec.heads);
        let (m, _) = call.rows("k", k)?;
        call.rows_of("k", k, m, heads.kv_width())?;
        call.rows_of("v", v, m, heads.kv_width())?;
        call.slots(cache, positions, sequences, m)?;
        let slots = Slots { positions: positions.id(), sequences: id_of(sequences) };
        let op = Op::KvStore { k: k.id(), v: v.id(), cache: cache_ref(cache), slots, heads };
        self.graph.ops.push(OpNode { op, outputs: Vec::new() });
        Ok(())
    }

    /// Norm per head (where gains are given), RoPE, and keys and values into the cache; returns the rotated
    /// queries.
    #[allow(clippy::too_many_arguments)]
    pub fn rope_store(
        &mut self,
        [q, k, v]: [Tensor; 3],
        [q_gamma, k_gamma]: [Option<Tensor>; 2],
        eps: f32,
        rotation: Rotation,
        cache: Cache,
        sequences: Option<Tensor>,
    ) -> Built<Tensor> {
        let (call, heads) = (self.call("rope_store"), cache.spec.heads);
        let (m, _) = call.rows("q", q)?;
        call.rows_of("q", q, m, heads.q_width())?;
        call.rows_of("k", k, m, heads.kv_width())?;
        call.rows_of("v", v, m, heads.kv_width())?;
        for gamma in [q_gamma, k_gamma].into_iter().flatten() {
            call.rows_of("the gain", gamma, 1, heads.head_dim)?;
        }
        call.rotation(rotation, heads.head_dim, m)?;
        call.slots(cache, rotation.positions, sequences, m)?;
        let epsilon = call.check(epsilon(eps))?;
        let op = Op::RopeStore {
            q: q.id(),
            k: k.id(),
            v: v.id(),
            q_gamma: id_of(q_gamma),
            k_gamma: id_of(k_gamma),
            epsilon,
            rope: rotation.spec,
            factors: id_of(rotation.factors),
            cache: cache_ref(cache),
            slots: Slots { positions: rotation.positions.id(), sequences: id_of(sequences) },
            heads,
        };
        Ok(self.emit(op, m, heads.q_width()))
    }

    /// A copy.
    pub fn copy(&mut self, x: Tensor) -> Built<Tensor> {
        let (rows, width) = self.call("copy").rows("the input", x)?;
        Ok(self.emit(Op::Copy { x: x.id() }, rows, width))
    }

    pub(super) fn not_empty(&self, call: &'static str, width: u32) -> Built<()> {
        if width > 0 {
            return Ok(());
        }
        let problem = Problem::Value { what: "the width of the input", expected: "at least 1", got: 0.0 };
        Err(BuildError { call, problem })
    }
}
