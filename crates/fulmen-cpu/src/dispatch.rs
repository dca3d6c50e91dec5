//! [`CpuDispatcher`]: the CPU's kernels behind [`KernelDispatch`].
//!
//! Each method looks up its operands, rejects overlaps that its kernel does not support, and runs the kernel.

mod divided_norm;
mod experts;
mod logits;
mod matmul;
mod operands;
mod recurrent;
mod step;

use std::sync::Arc;

use fulmen_core::sampling::Penalties;
use fulmen_core::*;

use crate::buffer::{CpuMemory, Span};
use crate::isa::Isa;
use crate::kernels::attention::{Attention, AttentionScratch, attention};
use crate::kernels::mul_mat::{Activations, ExpertScratch, Out, Scratch, Weight, mul_mat_gate_up};
use crate::kernels::{argmax, copy, elementwise, embed, penalize, rms_norm, rope, softmax};
use crate::kv_view::{KvLayout, KvView, PageTable, RowPages};
use crate::rope_cache::RopeCache;
use crate::threads::Pool;
use operands::{StoreOperands, cache_layout, check_below, device_error, kv_error};

type Launched = Result<usize, BackendError>;

/// Runs graphs on the processor.
///
/// ```
/// use fulmen_core::{ComputeGraph, DeviceMemory, OpParams, TensorOp, execute_graph};
/// use fulmen_cpu::CpuDispatcher;
///
/// let mut cpu = CpuDispatcher::new();
/// let (x, y) = (cpu.alloc(12)?, cpu.alloc(12)?);
/// cpu.write(x, bytemuck::bytes_of(&[1.0f32, -2.0, 3.0]))?;
///
/// let mut graph = ComputeGraph::new();
/// let leaf = graph.add_leaf(x, [3, 1, 1, 0]);
/// graph.add_op(TensorOp::Add, y, [3, 1, 1, 0], vec![leaf, leaf], OpParams::default());
/// assert_eq!(execute_graph(&graph, &mut cpu)?, 1);
///
/// let mut out = [0f32; 3];
/// cpu.read(y, bytemuck::bytes_of_mut(&mut out))?;
/// assert_eq!(out, [2.0, -4.0, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CpuDispatcher {
    memory: CpuMemory,
    pool: Arc<Pool>,
    isa: Isa,
    matmul_scratch: Scratch,
    experts: ExpertScratch,
    attention: AttentionScratch,
    rope: RopeCache,
    /// Rotated keys before they are stored in the cache.
    keys: Vec<f32>,
}

impl Default for CpuDispatcher {
    fn default() -> CpuDispatcher {
        CpuDispatcher::new()
    }
}

impl CpuDispatcher {
    /// All threads and the widest instruction set of this processor.
    pub fn new() -> CpuDispatcher {
        CpuDispatcher::with_threads(std::thread::available_parallelism().map_or(1, |n| n.get()))
    }

    /// This many threads, including the calling one; at least one.
    pub fn with_threads(threads: usize) -> CpuDispatcher {
        CpuDispatcher {
            memory: CpuMemory::new(),
            pool: Arc::new(Pool::new(threads.max(1))),
            isa: Isa::best(),
            matmul_scratch: Scratch::new(),
            experts: ExpertScratch::default(),
            attention: AttentionScratch::new(),
            rope: RopeCache::default(),
            keys: Vec::new(),
        }
    }

    /// Uses another instruction set than the widest; an error if this processor does not have it.
    pub fn with_isa(mut self, isa: Isa) -> Result<CpuDispatcher, BackendError> {
        if !Isa::available().contains(&isa) {
            return Err(BackendError::Unsupported { backend: "cpu", what: format!("{isa} instructions") });
        }
        self.isa = isa;
        Ok(self)
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes that graphs, weights and caches take on this dispatcher.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl KernelDispatch for CpuDispatcher {
    fn backend(&self) -> &'static str {
        "cpu"
    }

    fn batch_invariant(&self, _: &OpCall) -> bool {
        true
    }

    fn dispatch_mul_mat(&mut self, call: &MulMatCall) -> Launched {
        let x = self.f32_rows("the input", call.input, call.m, call.k)?;
        let mut outs: Vec<Span> = Vec::with_capacity(call.parts.len());
        for part in &call.parts {
            let out = self.f32_rows_mut("the output", part.output, call.m, part.weight.rows)?;
            out.apart_from(x)?;
            if let Some(residual) = call.residual {
                out.apart_or_same(self.f32_rows("the residual", residual, call.m, part.weight.rows)?)?;
            }
            for other in &outs {
                out.apart_from(*other)?;
            }
            outs.push(out);
        }
        for part in &call.parts {
            let weight = self.weight("the weight", &part.weight, call.k)?;
            let bias =
                part.bias.map(|ptr| self.f32_rows("the bias", ptr, 1, part.weight.rows)).transpose()?;
            for out in &outs {
                out.apart_from(weight)?;
                bias.map_or(Ok(()), |bias| out.apart_from(bias))?;
            }
        }
        let mut matmul_scratch = std::mem::take(&mut self.matmul_scratch);
        // SAFETY: looked up, and no output overlaps it.
        let mut x =
            Activations::new(&mut matmul_scratch, unsafe { x.slice() }, call.m as usize, call.k as usize)
                .by_rows(call.batch_invariant);
        let done = call.parts.iter().try_for_each(|part| self.mul_mat_projection(call, part, &mut x));
        self.matmul_scratch = matmul_scratch;
        done.map(|()| call.parts.len())
    }

    fn dispatch_gate_up(&mut self, call: &GateUpCall) -> Launched {
        let (m, n, k) = (call.m as usize, call.gate.rows as usize, call.k as usize);
        let x = self.f32_rows("the input", call.input, call.m, call.k)?;
        let gate = self.weight("the gate weight", &call.gate, call.k)?;
        let up = self.weight("the up weight", &call.up, call.k)?;
        let out = self.f32_rows_mut("the output", call.output, call.m, call.gate.rows)?;
        for operand in [x, gate, up] {
            out.apart_from(operand)?;
        }
        // SAFETY: looked up, and the output is disjoint from what is read.
        unsafe {
            let x = Activations::new(&mut self.matmul_scratch, x.slice(), m, k);
            let mut x = x.by_rows(call.batch_invariant);
            let gate = Weight::new(call.gate.dtype, gate.slice(), n, k);
            let up = Weight::new(call.up.dtype, up.slice(), n, k);
            let out = Out::rows(out.slice_mut(), n);
            mul_mat_gate_up(&self.pool, self.isa, [gate, up], call.activation, &mut x, out);
        }
        Ok(1)
    }

    fn dispatch_route(&mut self, call: &RouteCall) -> Launched {
        self.route(call)
    }

    fn dispatch_expert_gate_up(&mut self, call: &ExpertGateUpCall) -> Launched {
        self.expert_gate_up(call)
    }

    fn dispatch_expert_down(&mut self, call: &ExpertDownCall) -> Launched {
        self.expert_down(call)
    }

    fn dispatch_rms_norm(&mut self, call: &RmsNormCall) -> Launched {
        let x = self.f32_rows("the input", call.input, call.rows, call.width)?;
        let gamma = self.f32_rows("the gain", call.gamma, 1, call.width)?;
        let out = self.f32_rows_mut("the output", call.output, call.rows, call.width)?;
        out.apart_or_same(x)?;
        out.apart_from(gamma)?;
        // SAFETY: looked up; the output is the input or disjoint from it, and disjoint from the gain.
        unsafe {
            let (gamma, rows) = (gamma.slice(), call.rows as usize);
            rms_norm::rms_norm(&self.pool, self.isa, x.ptr.cast(), gamma, call.epsilon, rows, out.ptr.cast());
        }
        Ok(1)
    }

    fn dispatch_add_rms_norm(&mut self, call: &AddRmsNormCall) -> Launched {
        let (rows, width) = (call.rows, call.width);
        let a = self.f32_rows("the first input", call.a, rows, width)?;
        let b = self.f32_rows("the second input", call.b, rows, width)?;
        let gamma = self.f32_rows("the gain", call.gamma, 1, width)?;
        let sum = self.f32_rows_mut("the sum", call.sum, rows, width)?;
        let out = self.f32_rows_mut("the output", call.output, rows, width)?;
        for operand in [a, b] {
            sum.apart_or_same(operand)?;
            out.apart_from(operand)?;
        }
        sum.apart_from(gamma)?;
        out.apart_from(gamma)?;
        out.apart_from(sum)?;
        // SAFETY: looked up; the sum is an input or disjoint from it, the output is disjoint from everything.
        unsafe {
            let (a, b, gamma) = (a.ptr.cast(), b.ptr.cast(), gamma.slice());
            let (sum, out) = (sum.ptr.cast(), out.ptr.cast());
            rms_norm::add_rms_norm(&self.pool, self.isa, a, b, gamma, call.epsilon, rows as usize, sum, out);
        }
        Ok(1)
    }

    fn dispatch_add(&mut self, call: &BinaryCall) -> Launched {
        self.binary(call, elementwise::add)
    }

    fn dispatch_mul(&mut self, call: &BinaryCall) -> Launched {
        self.binary(call, elementwise::mul)
    }

    fn dispatch_swiglu(&mut self, call: &BinaryCall) -> Launched {
        self.binary(call, elementwise::swiglu)
    }

    fn dispatch_silu(&mut self, call: &UnaryCall) -> Launched {
        self.unary(call, elementwise::silu)
    }

    fn dispatch_gelu(&mut self, call: &UnaryCall) -> Launched {
        self.unary(call, elementwise::gelu)
    }

    fn dispatch_gelu_tanh(&mut self, call: &UnaryCall) -> Launched {
        self.unary(call, elementwise::gelu_tanh)
    }

    fn dispatch_scale(&mut self, call: &UnaryCall) -> Launched {
        self.unary_with(call, elementwise::scale)
    }

    fn dispatch_relu2(&mut self, call: &UnaryCall) -> Launched {
        self.unary(call, elementwise::relu2)
    }

    fn dispatch_softcap(&mut self, call: &UnaryCall) -> Launched {
        self.unary_with(call, elementwise::softcap)
    }

    fn dispatch_rope(&mut self, call: &RopeCall) -> Launched {
        let width = call.n_heads * call.head_dim;
        let x = self.f32_rows("the input", call.input, call.m, width)?;
        let positions = self.indices("positions", call.positions, call.m)?;
        let n_factors = call.rope.n_rot / 2;
        let factors =
            call.factors.map(|ptr| self.f32_rows("the frequency factors", ptr, 1, n_factors)).transpose()?;
        let out = self.f32_rows_mut("the output", call.output, call.m, width)?;
        out.apart_or_same(x)?;
        out.apart_from(positions)?;
        factors.map_or(Ok(()), |factors| out.apart_from(factors))?;
        let (heads, head_dim) = (call.n_heads as usize, call.head_dim as usize);
        let layout = rope::Heads { heads, head_dim, row_stride: width as usize };
        // SAFETY: looked up; the output is the input or disjoint from it, and disjoint from the rest.
        unsafe {
            let (positions, factors) = (positions.slice(), factors.map(|f| f.slice()));
            let angles = self.rope.angles(&self.pool, call.rope, factors, positions);
            rope::rotate(&self.pool, self.isa, angles, x.ptr.cast(), layout, out.ptr.cast(), layout);
        }
        Ok(1)
    }

    fn dispatch_softmax(&mut self, call: &SoftMaxCall) -> Launched {
        let x = self.f32_rows("the input", call.input, call.rows, call.width)?;
        let out = self.f32_rows_mut("the output", call.output, call.rows, call.width)?;
        out.apart_or_same(x)?;
        let (rows, width) = (call.rows as usize, call.width as usize);
        let (from, to) = (x.ptr.cast(), out.ptr.cast());
        // SAFETY: both ranges were looked up, and are the identical or disjoint.
        unsafe { softmax::softmax(&self.pool, self.isa, from, call.scale, rows, width, to) };
        Ok(1)
    }

    fn dispatch_attention(&mut self, call: &AttentionCall) -> Launched {
        let (heads, m) = (call.heads, call.m);
        let q = self.f32_rows("q", call.q, m, heads.q_width())?;
        let out = self.f32_rows_mut("the output", call.output, m, heads.q_width())?;
        out.apart_from(q)?;
        let sinks =
            call.scores.sinks.map(|ptr| self.f32_rows("the sinks", ptr, 1, heads.n_heads)).transpose()?;
        sinks.map_or(Ok(()), |sinks| out.apart_from(sinks))?;
        let own_positions: Vec<u32>;
        let (layout, k, v, table, positions, sequences) = match call.kv {
            KvSource::Rows { k, v } => {
                let layout = KvLayout::rows(m as usize, heads.n_kv_heads as usize, heads.head_dim as usize);
                let k = self.f32_rows("k", k, m, heads.kv_width())?;
                let v = self.f32_rows("v", v, m, heads.kv_width())?;
                own_positions = (0..m).collect();
                (layout.map_err(kv_error)?, k, v, PageTable::ONE, &own_positions[..], None)
            }
            KvSource::Cache { cache, positions, sequences } => {
                let layout = cache_layout(&cache, heads)?;
                let bytes = layout.bytes().map_err(kv_error)?;
                let k = self.memory.span::<u8>("the keys' cache", cache.k_ptr, bytes)?;
                let v = self.memory.span::<u8>("the values' cache", cache.v_ptr, bytes)?;
                let positions = self.indices("positions", positions, m)?;
                let sequences = sequences.map(|ptr| self.indices("sequences", ptr, m)).transpose()?;
                let table = self.page_table(&cache)?;
                out.apart_from(positions)?;
                out.apart_from(table)?;
                sequences.map_or(Ok(()), |sequences| out.apart_from(sequences))?;
                // SAFETY: looked up, and the output is disjoint from them.
                let positions: &[u32] = unsafe { positions.slice() };
                let (n_seqs, seq_pages) = (cache.n_seqs as usize, cache.seq_pages as usize);
                // SAFETY: as above.
                let table = PageTable::new(unsafe { table.slice() }, n_seqs, seq_pages).map_err(kv_error)?;
                // SAFETY: as above.
                (layout, k, v, table, positions, sequences.map(|s| unsafe { s.slice::<u32>() }))
            }
        };
        out.apart_from(k)?;
        out.apart_from(v)?;
        let stride = heads.q_width() as usize;
        // SAFETY: looked up, and the output is disjoint from all that is read.
        unsafe {
            let args = Attention {
                by_position: call.batch_invariant,
                q: q.slice(),
                q_stride: stride,
                n_heads: heads.n_heads as usize,
                scores: call.scores.map(|_| sinks.map_or(&[][..], |sinks| sinks.slice())),
                k: KvView::new(layout, k.slice()).map_err(kv_error)?,
                v: KvView::new(layout, v.slice()).map_err(kv_error)?,
                table,
                positions,
                sequences,
            };
            attention(self.isa, &self.pool, &mut self.attention, &args, out.slice_mut(), stride)
                .map_err(kv_error)?;
        }
        Ok(1)
    }

    fn dispatch_kv_store(&mut self, call: &KvStoreCall) -> Launched {
        let operands = self.store_operands(call)?;
        // SAFETY: no reference to the operands exists.
        unsafe { operands.run(&self.pool, None)? };
        Ok(1)
    }

    fn dispatch_rope_store(&mut self, call: &RopeStoreCall) -> Launched {
        let (store, heads) = (&call.store, call.store.heads);
        let (m, head_dim) = (store.m, heads.head_dim);
        let operands = self.store_operands(store)?;
        let q = self.f32_rows("q", call.q, m, heads.q_width())?;
        let out = self.f32_rows_mut("the output", call.output, m, heads.q_width())?;
        let n_factors = call.rope.n_rot / 2;
        let factors =
            call.factors.map(|ptr| self.f32_rows("the frequency factors", ptr, 1, n_factors)).transpose()?;
        let q_gamma = call.q_gamma.map(|ptr| self.f32_rows("the gain of q", ptr, 1, head_dim)).transpose()?;
        let k_gamma = call.k_gamma.map(|ptr| self.f32_rows("the gain of k", ptr, 1, head_dim)).transpose()?;
        out.apart_or_same(q)?;
        let StoreOperands { k, v, positions, sequences, table, k_cache, v_cache, layout, .. } = &operands;
        let read =
            [Some(*k), Some(*v), Some(*positions), *sequences, Some(*table), factors, q_gamma, k_gamma];
        for operand in read.into_iter().flatten() {
            out.apart_from(operand)?;
        }
        for cache in [*k_cache, *v_cache] {
            for operand in [Some(out), Some(q), factors, q_gamma, k_gamma].into_iter().flatten() {
                cache.apart_from(operand)?;
            }
        }
        // SAFETY: looked up, and no output overlaps them.
        let (positions, sequences) = unsafe { (positions.slice(), sequences.map(|s| s.slice())) };
        // Nothing is written if a row is outside the cache.
        // SAFETY: as above.
        let table = unsafe { operands.page_table()? };
        table.check_rows(layout, positions, sequences, RowPages::Own).map_err(kv_error)?;

        let (pool, isa) = (&*self.pool, self.isa);
        self.keys.resize(m as usize * heads.kv_width() as usize, 0.0);
        // SAFETY: looked up, and no output overlaps them.
        let factors = factors.map(|f| unsafe { f.slice() });
        let angles = self.rope.angles(pool, call.rope, factors, positions);
        let mut launches = 3;
        let sides = [
            (q.ptr.cast::<f32>().cast_const(), q_gamma, heads.n_heads, out.ptr.cast::<f32>()),
            (k.ptr.cast::<f32>().cast_const(), k_gamma, heads.n_kv_heads, self.keys.as_mut_ptr()),
        ];
        for (x, gamma, n_heads, to) in sides {
            let (n_heads, head_dim) = (n_heads as usize, head_dim as usize);
            let layout = rope::Heads { heads: n_heads, head_dim, row_stride: n_heads * head_dim };
            // SAFETY: `x` holds m rows and `to` has room for them; they are the identical or disjoint, and
            // disjoint from the gain.
            unsafe {
                let normed = match gamma {
                    Some(gamma) => {
                        let rows = m as usize * n_heads;
                        rms_norm::rms_norm(pool, isa, x, gamma.slice(), call.epsilon, rows, to);
                        launches += 1;
                        to.cast_const()
                    }
                    None => x,
                };
                rope::rotate(pool, isa, angles, normed, layout, to, layout);
            }
        }
        // SAFETY: no reference to the operands is used any more, but for shared ones to positions and
        // sequences.
        unsafe { operands.run(pool, Some(&self.keys))? };
        Ok(launches)
    }

    fn dispatch_embed(&mut self, call: &EmbedCall) -> Launched {
        let dtype = call.table.dtype;
        let row_bytes = dtype.bytes(call.width as usize).map_err(|e| device_error("embed", e))?;
        let table = self.weight("the table", &call.table, call.width)?;
        let tokens = self.indices("tokens", call.tokens, call.m)?;
        let out = self.f32_rows_mut("the output", call.output, call.m, call.width)?;
        out.apart_from(table)?;
        out.apart_from(tokens)?;
        let decode = |row: &[u8], out: &mut [f32]| {
            // The lengths are those of a row, and every weight type can be decoded.
            let _ = quant::dequantize(dtype, row, out);
        };
        // SAFETY: looked up, and the output is disjoint from what is read.
        let (table, tokens, out) = unsafe { (table.slice(), tokens.slice(), out.slice_mut()) };
        let (TablePart { first, of }, width) = (call.whole(), call.width as usize);
        let rows = embed::TableRows { bytes: table, row_bytes, first, of };
        let done = embed::embed(&self.pool, rows, tokens, width, decode, out);
        done.map_err(|e| BackendError::Index {
            what: "the token",
            row: e.position,
            value: e.token,
            limit: call.whole().of,
        })?;
        Ok(1)
    }

    fn dispatch_copy(&mut self, call: &CopyCall) -> Launched {
        let from = self.memory.span::<u8>("the input", call.input, call.bytes)?;
        let to = self.memory.span_mut::<u8>("the output", call.output, call.bytes)?;
        to.apart_from(from)?;
        // SAFETY: looked up, and disjoint from each other.
        unsafe { copy::copy(&self.pool, from.slice(), to.slice_mut()) };
        Ok(1)
    }

    fn dispatch_argmax(&mut self, call: &ArgMaxCall) -> Launched {
        let x = self.f32_rows("the input", call.input, call.m, call.n)?;
        let out = self.memory.span_mut::<u32>("the output", call.output, call.m as usize)?;
        out.apart_from(x)?;
        // SAFETY: looked up, and disjoint from each other.
        unsafe { argmax::argmax(&self.pool, self.isa, x.slice(), call.n as usize, out.slice_mut()) };
        Ok(1)
    }

    fn dispatch_sample(&mut self, call: &SampleCall) -> Launched {
        self.sample(call)
    }

    fn dispatch_penalize(&mut self, call: &PenalizeCall) -> Launched {
        let TokenHistory { ptr, n_seqs, capacity } = call.history;
        let logits = self.f32_rows("the logits", call.logits, call.m, call.n)?;
        let penalties = self.memory.span::<Penalties>("the penalties", call.penalties, call.m as usize)?;
        let history = self.memory.span::<u32>("the history", ptr, n_seqs as usize * capacity as usize)?;
        let positions = self.indices("positions", call.positions, call.m)?;
        let sequences = call.sequences.map(|ptr| self.indices("sequences", ptr, call.m)).transpose()?;
        let out = self.f32_rows_mut("the output", call.output, call.m, call.n)?;
        out.apart_or_same(logits)?;
        for operand in [Some(penalties), Some(history), Some(positions), sequences].into_iter().flatten() {
            out.apart_from(operand)?;
        }
        // SAFETY: looked up, and the output is disjoint from them.
        let (penalties, history, positions, sequences) = unsafe {
            let sequences = sequences.map(|sequences| sequences.slice::<u32>());
            (penalties.slice::<Penalties>(), history.slice::<u32>(), positions.slice::<u32>(), sequences)
        };
        check_below("the sequence", sequences.unwrap_or(&[]), n_seqs)?;
        check_below("the position", positions, capacity)?;
        let past = |row: usize| {
            let sequence = sequences.map_or(0, |sequences| sequences[row] as usize);
            let end = positions[row] as usize + 1;
            let start = end.saturating_sub(penalties[row].window as usize);
            &history[sequence * capacity as usize..][start..end]
        };
        for (row, penalties) in penalties.iter().enumerate() {
            penalties.validate().map_err(|e| BackendError::Parameter {
                what: "the penalties",
                row,
                detail: e.to_string(),
            })?;
            if let Some(&value) = past(row).iter().find(|&&token| token >= call.n) {
                return Err(BackendError::Index { what: "the token", row, value, limit: call.n });
            }
        }
        if out.ptr != logits.ptr {
            // SAFETY: looked up, and disjoint from each other.
            unsafe { copy::copy(&self.pool, logits.slice(), out.slice_mut()) };
        }
        // SAFETY: looked up; nothing refers to the logits any more.
        let rows = unsafe { out.slice_mut::<f32>() };
        let mut sorted = Vec::new();
        for (row, logits) in rows.chunks_mut(call.n as usize).enumerate() {
            penalize::penalize(logits, past(row), &penalties[row], &mut sorted);
        }
        Ok(1)
    }

    fn dispatch_gather_tokens(&mut self, call: &GatherTokensCall) -> Launched {
        self.gather_tokens(call)
    }

    fn dispatch_causal_conv(&mut self, call: &CausalConvCall) -> Launched {
        self.causal_conv(call)
    }

    fn dispatch_gated_delta_rule(&mut self, call: &GatedDeltaRuleCall) -> Launched {
        self.gated_delta_rule(call)
    }

    fn dispatch_sigmoid_gate(&mut self, call: &SigmoidGateCall) -> Launched {
        self.sigmoid_gate(call)
    }

    fn dispatch_mean_squares(&mut self, call: &MeanSquaresCall) -> Launched {
        self.mean_squares(call)
    }

    fn dispatch_rms_scale(&mut self, call: &RmsScaleCall) -> Launched {
        self.rms_scale(call)
    }

    fn dispatch_mask_logits(&mut self, call: &MaskLogitsCall) -> Launched {
        self.mask_logits(call)
    }

    fn dispatch_top_k(&mut self, call: &TopKCall) -> Launched {
        self.top_k(call)
    }

    fn dispatch_log_probs(&mut self, call: &LogProbsCall) -> Launched {
        self.log_probs(call)
    }

    fn dispatch_advance(&mut self, call: &AdvanceCall) -> Launched {
        self.advance(call)
    }
}

impl DeviceMemory for CpuDispatcher {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.memory.alloc(bytes)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.memory.free(ptr)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.memory.write(ptr, data)
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.memory.start_read(ptr, bytes)
    }

    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.memory.read(ptr, out)
    }

    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.memory.import(bytes)
    }

    fn reads_imports_in_place(&self) -> bool {
        self.memory.reads_imports_in_place()
    }

    fn available_bytes(&self) -> Option<u64> {
        self.memory.available_bytes()
    }
}
