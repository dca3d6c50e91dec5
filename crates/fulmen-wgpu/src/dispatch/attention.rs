//! RoPE, KV cache stores and attention, each alone and fused.

use fulmen_core::{
    AttentionCall, BackendError, Heads, KV_PAGE, KvCache, KvSource, KvStoreCall, RopeCall, RopeStoreCall,
};

use super::{LaunchCount, WgpuDispatcher};
use crate::BACKEND;
use crate::buffer::BufferSlice;
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, LaunchList, Role,
    attention::{
        Attention, AttentionKernel, BATCH_INVARIANT_ROWS, KvInput, attention, attention_by,
        attention_with_q8, rope_store_attention,
    },
    kv::{self, Cache, KvStore, RopeStore},
    qmatmul::q8_bytes,
    rope::{Rope, rope},
};
use crate::queue::{ScratchSlot, unsupported};

impl WgpuDispatcher {
    pub(super) fn rope(&mut self, call: &RopeCall) -> LaunchCount {
        let &RopeCall { input, positions, factors, output, m, n_heads, head_dim, rope: ref spec } = call;
        self.writes(output);
        let width = n_heads.saturating_mul(head_dim);
        let kernel = Rope { m, n_heads, head_dim, rope: *spec, factors: factors.is_some() };
        let mut operands = vec![
            (Role::Input(0), self.matrix("the input", input, m, width)?),
            (Role::Input(1), self.at("positions", positions, m as usize)?),
            (Role::Output(0), self.matrix("the output", output, m, width)?),
        ];
        if let Some(ptr) = factors {
            operands.push((Role::Input(2), self.matrix("the frequency factors", ptr, 1, spec.n_rot / 2)?));
        }
        let launches = rope(&kernel, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn kv_store(&mut self, call: &KvStoreCall) -> LaunchCount {
        let [k_cache, v_cache] = self.caches(&call.cache, call.heads)?;
        let (width, m) = (call.heads.kv_width(), call.m);
        self.writes(call.cache.k_ptr);
        self.writes(call.cache.v_ptr);
        let mut operands = vec![
            (Role::Input(0), self.matrix("k", call.k, m, width)?),
            (Role::Input(1), self.matrix("v", call.v, m, width)?),
            (Role::Input(2), self.at("positions", call.positions, m as usize)?),
            (Role::Output(0), k_cache),
            (Role::Output(1), v_cache),
            (Role::Output(2), self.queue.fault()),
        ];
        if let Some(ptr) = call.sequences {
            operands.push((Role::Input(3), self.at("sequences", ptr, m as usize)?));
        }
        operands.push((Role::Input(4), self.page_table(&call.cache)?));
        let launches = kv::kv_store(&kv_store_spec(call), &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn rope_store(&mut self, call: &RopeStoreCall) -> LaunchCount {
        let rows = &call.store;
        let [k_cache, v_cache] = self.caches(&rows.cache, rows.heads)?;
        let (heads, m) = (rows.heads, rows.m);
        self.writes(rows.cache.k_ptr);
        self.writes(rows.cache.v_ptr);
        self.writes(call.output);
        let spec = rope_store_spec(call);
        let mut operands = vec![
            (Role::Input(0), self.matrix("q", call.q, m, heads.q_width())?),
            (Role::Input(1), self.matrix("k", rows.k, m, heads.kv_width())?),
            (Role::Input(2), self.matrix("v", rows.v, m, heads.kv_width())?),
            (Role::Input(3), self.at("positions", rows.positions, m as usize)?),
            (Role::Output(0), self.matrix("the output", call.output, m, heads.q_width())?),
            (Role::Output(1), k_cache),
            (Role::Output(2), v_cache),
            (Role::Output(3), self.queue.fault()),
            (Role::Input(8), self.page_table(&rows.cache)?),
        ];
        let optional = [
            (4, "sequences", rows.sequences, m),
            (5, "the gain of q", call.q_gamma, heads.head_dim),
            (6, "the gain of k", call.k_gamma, heads.head_dim),
            (7, "the frequency factors", call.factors, call.rope.n_rot / 2),
        ];
        for (number, what, ptr, elements) in optional {
            if let Some(ptr) = ptr {
                operands.push((Role::Input(number), self.at(what, ptr, elements as usize)?));
            }
        }
        let launches = kv::rope_store(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    pub(super) fn attention(&mut self, call: &AttentionCall) -> LaunchCount {
        if call.batch_invariant {
            return self.batch_invariant_attention(call);
        }
        let (spec, operands) = self.attention_operands(call)?;
        let launches = attention(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    /// Flash decoding of every row, with a partition of the context that depends on the row's position alone,
    /// a range of rows at a time.
    fn batch_invariant_attention(&mut self, call: &AttentionCall) -> LaunchCount {
        let mut launched = 0;
        let step = match call.kv {
            // Rows that see each other are one launch.
            KvSource::Rows { .. } => call.m,
            KvSource::Cache { .. } => BATCH_INVARIANT_ROWS,
        };
        for first in (0..call.m).step_by(step.max(1) as usize) {
            let rows = AttentionCall { m: step.min(call.m - first), ..rows_from(call, first) };
            let (spec, operands) = self.attention_operands(&rows)?;
            let launches = attention_by(AttentionKernel::BatchInvariant, &spec, &self.queue.caps());
            launched += self.queue.run_launches_with(launches, operands)?;
        }
        Ok(launched)
    }

    /// Whether attention can also write its result as q8 activations.
    pub(super) fn attention_makes_q8(&self, call: &AttentionCall) -> bool {
        matches!(attention_with_q8(&attention_spec(call), &self.queue.caps()), Ok(Some(_)))
    }

    /// Attention that also writes its result as q8 activations; see
    /// [`attention_makes_q8`](WgpuDispatcher::attention_makes_q8).
    pub(super) fn attention_with_q8(&mut self, call: &AttentionCall, q8: BufferSlice) -> LaunchCount {
        let (spec, mut operands) = self.attention_operands(call)?;
        let launches = attention_with_q8(&spec, &self.queue.caps()).map_err(unsupported)?;
        let launches = launches.ok_or_else(|| unsupported("attention with q8 activations"))?;
        operands.push((Role::Output(2), q8));
        self.queue.run_launches_with(Ok(launches), operands)
    }

    /// Whether per-head norm, RoPE, KV store and attention of one row are two launches.
    pub(super) fn fuses_store(&self, first: &RopeStoreCall, second: &AttentionCall) -> bool {
        let rows = &first.store;
        let same =
            KvSource::Cache { cache: rows.cache, positions: rows.positions, sequences: rows.sequences };
        let one = (second.m, rows.m) == (1, 1) && !second.batch_invariant;
        if !one
            || !second.scores().is_plain()
            || second.kv != same
            || second.heads != rows.heads
            || second.q != first.output
        {
            return false;
        }
        let launches = fused_launches(first, second, &self.queue.caps());
        // Unaligned operands go through copies, which the fused kernel does not know.
        let operands = self.fused_operands(first, second);
        matches!(launches, Ok(Some(_)))
            && operands.is_ok_and(|operands| {
                self.queue.can_bind(&operands.iter().map(|(_, slice)| slice).collect::<Vec<_>>())
            })
    }

    /// Per-head norm, RoPE, KV store and attention of one row, in two launches, with the result also as q8
    /// activations if heads are multiples of 32 elements; see [`fuses_store`](WgpuDispatcher::fuses_store).
    pub(super) fn rope_store_attention(
        &mut self,
        first: &RopeStoreCall,
        second: &AttentionCall,
        q8: Option<BufferSlice>,
    ) -> LaunchCount {
        let launches = fused_launches(first, second, &self.queue.caps()).map_err(unsupported)?;
        let launches = launches.ok_or_else(|| unsupported("RoPE and KV store fused with attention"))?;
        let mut operands = self.fused_operands(first, second)?;
        let cache = &first.store.cache;
        for ptr in [cache.k_ptr, cache.v_ptr, first.output, second.output] {
            self.writes(ptr);
        }
        let heads = second.heads;
        if heads.head_dim.is_multiple_of(32) {
            let unread = self.queue.scratch(ScratchSlot::Q8, q8_bytes(1, heads.q_width()))?;
            operands.push((Role::Output(2), q8.unwrap_or(unread)));
        }
        self.queue.run_launches_with(Ok(launches), operands)
    }

    /// The operands of RoPE, KV store and attention of one row, but for the q8 activations.
    fn fused_operands(
        &self,
        first: &RopeStoreCall,
        second: &AttentionCall,
    ) -> Result<Vec<(Role, BufferSlice)>, BackendError> {
        let rows = &first.store;
        let (heads, width) = (rows.heads, rows.heads.q_width());
        let [k_cache, v_cache] = self.caches(&rows.cache, heads)?;
        let mut operands = vec![
            (Role::Input(0), self.matrix("q", first.q, 1, width)?),
            (Role::Input(3), self.at("positions", rows.positions, 1)?),
            (Role::Input(5), self.matrix("k", rows.k, 1, heads.kv_width())?),
            (Role::Input(6), self.matrix("v", rows.v, 1, heads.kv_width())?),
            (Role::Output(0), self.matrix("the output", second.output, 1, width)?),
            (Role::Output(1), self.queue.fault()),
            (Role::Output(3), k_cache),
            (Role::Output(4), v_cache),
            (Role::Input(10), self.page_table(&rows.cache)?),
        ];
        if keeps_queries(first, second) {
            operands.push((Role::Output(5), self.matrix("the rotated queries", first.output, 1, width)?));
        }
        let optional = [
            (4, "sequences", rows.sequences, 1),
            (7, "the gain of q", first.q_gamma, heads.head_dim),
            (8, "the gain of k", first.k_gamma, heads.head_dim),
            (9, "the frequency factors", first.factors, first.rope.n_rot / 2),
        ];
        for (number, what, ptr, elements) in optional {
            if let Some(ptr) = ptr {
                operands.push((Role::Input(number), self.at(what, ptr, elements as usize)?));
            }
        }
        Ok(operands)
    }

    /// The attention spec and its operands.
    fn attention_operands(
        &mut self,
        call: &AttentionCall,
    ) -> Result<(Attention, Vec<(Role, BufferSlice)>), BackendError> {
        let &AttentionCall { q, ref kv, output, m, heads, .. } = call;
        self.writes(output);
        let mut operands = vec![
            (Role::Input(0), self.matrix("q", q, m, heads.q_width())?),
            (Role::Output(0), self.matrix("the output", output, m, heads.q_width())?),
        ];
        match kv {
            KvSource::Rows { k, v } => {
                operands.push((Role::Input(1), self.matrix("k", *k, m, heads.kv_width())?));
                operands.push((Role::Input(2), self.matrix("v", *v, m, heads.kv_width())?));
            }
            KvSource::Cache { cache, positions, sequences } => {
                let [k, v] = self.caches(cache, heads)?;
                operands.extend([(Role::Input(1), k), (Role::Input(2), v)]);
                operands.push((Role::Input(3), self.at("positions", *positions, m as usize)?));
                if let Some(ptr) = sequences {
                    operands.push((Role::Input(4), self.at("sequences", *ptr, m as usize)?));
                }
                operands.push((Role::Input(10), self.page_table(cache)?));
                operands.push((Role::Output(1), self.queue.fault()));
            }
        }
        if let Some(ptr) = call.scores.sinks {
            operands.push((Role::Input(11), self.matrix("the sinks", ptr, 1, heads.n_heads)?));
        }
        // Only the device knows the positions, so the work is bounded by the capacity, the window or a chunk.
        let most = match kv {
            KvSource::Rows { .. } => m,
            KvSource::Cache { cache, .. } => cache.capacity(),
        };
        let most = most.min(call.scores.most_visible().unwrap_or(u32::MAX));
        self.queue.count_multiplications(m, most, heads.q_width().saturating_mul(2));
        Ok((attention_spec(call), operands))
    }

    /// The key cache and the value cache.
    fn caches(&self, cache: &KvCache, heads: Heads) -> Result<[BufferSlice; 2], BackendError> {
        let row = cache.dtype.bytes(heads.head_dim as usize).map_err(|error| BackendError::Device {
            backend: BACKEND,
            call: "the size of a row",
            source: Box::new(error),
        })?;
        let sizes = [cache.n_pages, heads.n_kv_heads, KV_PAGE];
        let bytes = sizes.iter().fold(row, |bytes, &n| bytes.saturating_mul(n as usize));
        Ok([
            self.memory.slice("the keys' cache", cache.k_ptr, bytes)?,
            self.memory.slice("the values' cache", cache.v_ptr, bytes)?,
        ])
    }

    fn page_table(&self, cache: &KvCache) -> Result<BufferSlice, BackendError> {
        let entries = (cache.n_seqs as usize).saturating_mul(cache.seq_pages as usize);
        self.at("the page table", cache.table_ptr, entries)
    }
}

fn attention_spec(call: &AttentionCall) -> Attention {
    let kv = match &call.kv {
        KvSource::Rows { .. } => KvInput::Rows,
        KvSource::Cache { cache, sequences, .. } => {
            KvInput::Cache { cache: cache_layout(cache), sequences: sequences.is_some() }
        }
    };
    Attention { m: call.m, heads: call.heads, scores: call.scores().map(|_| ()), kv }
}

/// The rows of a call from one on, over a cache.
fn rows_from(call: &AttentionCall, first: u32) -> AttentionCall {
    let words = |ptr: u64| ptr + u64::from(first) * 4;
    let row = u64::from(first) * u64::from(call.heads.q_width()) * 4;
    let kv = match call.kv {
        KvSource::Cache { cache, positions, sequences } => {
            KvSource::Cache { cache, positions: words(positions), sequences: sequences.map(words) }
        }
        rows => rows,
    };
    AttentionCall { q: call.q + row, kv, output: call.output + row, ..call.clone() }
}

/// Where the result overwrites the queries, the rotated queries need not be stored.
fn keeps_queries(first: &RopeStoreCall, second: &AttentionCall) -> bool {
    second.output != first.output
}

/// The launches of RoPE, KV store and attention of one row, if they can be fused.
fn fused_launches(
    first: &RopeStoreCall,
    second: &AttentionCall,
    caps: &Caps,
) -> Result<Option<LaunchList>, KernelError> {
    rope_store_attention(&rope_store_spec(first), second.scores.scale, keeps_queries(first, second), caps)
}

/// The cache layout for kernels.
fn cache_layout(cache: &KvCache) -> Cache {
    let &KvCache { dtype, n_pages, n_seqs, seq_pages, .. } = cache;
    Cache { dtype, n_pages, n_seqs, seq_pages }
}

fn rope_store_spec(call: &RopeStoreCall) -> RopeStore {
    RopeStore {
        store: kv_store_spec(&call.store),
        rope: call.rope,
        factors: call.factors.is_some(),
        q_norm: call.q_gamma.is_some(),
        k_norm: call.k_gamma.is_some(),
        epsilon: call.epsilon,
    }
}

fn kv_store_spec(call: &KvStoreCall) -> KvStore {
    KvStore {
        m: call.m,
        heads: call.heads,
        cache: cache_layout(&call.cache),
        sequences: call.sequences.is_some(),
    }
}
