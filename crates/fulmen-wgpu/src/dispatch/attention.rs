//! RoPE, KV cache stores and attention, each alone and fused.

use fulmen_core::{
    AttentionCall, BackendError, Heads, KV_PAGE, KvCache, KvSource, KvStoreCall, RopeCall, RopeStoreCall,
    WeightArg,
};

use super::{LaunchCount, WgpuDispatcher, matmul::SMALL_M};
use crate::BACKEND;
use crate::buffer::BufferSlice;
use crate::kernels::{
    Role,
    attention::{Attention, KvInput, attention, attention_with_q8, rope_store_attention},
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
        let (spec, operands) = self.attention_operands(call)?;
        let launches = attention(&spec, &self.queue.caps());
        self.queue.run_launches_with(launches, operands)
    }

    /// Attention that also writes its result as q8 activations, for a following matmul with
    /// block-quantized weights. `None` where the next call has no such weights or the kernel cannot do
    /// it.
    pub(super) fn attention_with_q8(
        &mut self,
        call: &AttentionCall,
        weights: &[&WeightArg],
    ) -> Result<Option<usize>, BackendError> {
        let (m, width) = (call.m, call.heads.q_width());
        if m > SMALL_M || !self.any_blocks(weights, width)? {
            return Ok(None);
        }
        let out = self.matrix("the output", call.output, m, width)?;
        if !self.queue.can_bind(&[&out]) {
            return Ok(None);
        }
        let (spec, mut operands) = self.attention_operands(call)?;
        let Some(launches) = attention_with_q8(&spec, &self.queue.caps()).map_err(unsupported)? else {
            return Ok(None);
        };
        let q8 = self.queue.scratch(ScratchSlot::Q8, q8_bytes(m, width))?;
        operands.push((Role::Output(2), q8));
        let launched = self.queue.run_launches_with(Ok(launches), operands)?;
        self.queue.set_q8(&out);
        Ok(Some(launched))
    }

    /// Per-head norm, RoPE, KV store and attention of one row, in two launches, with the result also as q8
    /// activations. `None` where no kernel fuses them.
    pub(super) fn rope_store_attention(
        &mut self,
        first: &RopeStoreCall,
        second: &AttentionCall,
    ) -> Result<Option<usize>, BackendError> {
        let rows = &first.store;
        let same =
            KvSource::Cache { cache: rows.cache, positions: rows.positions, sequences: rows.sequences };
        let one = (second.m, rows.m) == (1, 1);
        if !one || second.kv != same || second.heads != rows.heads || second.q != first.output {
            return Ok(None);
        }
        let (heads, width) = (rows.heads, rows.heads.q_width());
        // Where the result overwrites the queries, the rotated queries need not be stored.
        let keep_queries = second.output != first.output;
        let spec = rope_store_spec(first);
        let caps = self.queue.caps();
        let Some(launches) =
            rope_store_attention(&spec, second.scale, keep_queries, &caps).map_err(unsupported)?
        else {
            return Ok(None);
        };
        let [k_cache, v_cache] = self.caches(&rows.cache, heads)?;
        let output = self.matrix("the output", second.output, 1, width)?;
        let mut operands = vec![
            (Role::Input(0), self.matrix("q", first.q, 1, width)?),
            (Role::Input(3), self.at("positions", rows.positions, 1)?),
            (Role::Input(5), self.matrix("k", rows.k, 1, heads.kv_width())?),
            (Role::Input(6), self.matrix("v", rows.v, 1, heads.kv_width())?),
            (Role::Output(0), output.clone()),
            (Role::Output(1), self.queue.fault()),
            (Role::Output(3), k_cache),
            (Role::Output(4), v_cache),
            (Role::Input(10), self.page_table(&rows.cache)?),
        ];
        if keep_queries {
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
        // Unaligned operands go through copies, and q8 activations belong to an address, not to a copy.
        if !self.queue.can_bind(&operands.iter().map(|(_, slice)| slice).collect::<Vec<_>>()) {
            return Ok(None);
        }
        for ptr in [rows.cache.k_ptr, rows.cache.v_ptr, first.output, second.output] {
            self.writes(ptr);
        }
        let q8 = heads.head_dim.is_multiple_of(32);
        if q8 {
            operands.push((Role::Output(2), self.queue.scratch(ScratchSlot::Q8, q8_bytes(1, width))?));
        }
        let launched = self.queue.run_launches_with(Ok(launches), operands)?;
        if q8 {
            self.queue.set_q8(&output);
        }
        Ok(Some(launched))
    }

    /// The attention spec and its operands.
    fn attention_operands(
        &mut self,
        call: &AttentionCall,
    ) -> Result<(Attention, Vec<(Role, BufferSlice)>), BackendError> {
        let &AttentionCall { q, ref kv, output, m, heads, scale, .. } = call;
        self.writes(output);
        let mut operands = vec![
            (Role::Input(0), self.matrix("q", q, m, heads.q_width())?),
            (Role::Output(0), self.matrix("the output", output, m, heads.q_width())?),
        ];
        let kv_input = match kv {
            KvSource::Rows { k, v } => {
                operands.push((Role::Input(1), self.matrix("k", *k, m, heads.kv_width())?));
                operands.push((Role::Input(2), self.matrix("v", *v, m, heads.kv_width())?));
                KvInput::Rows
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
                KvInput::Cache { cache: cache_layout(cache), sequences: sequences.is_some() }
            }
        };
        // Only the device knows the positions, so the work is bounded by the capacity.
        let most = match kv {
            KvSource::Rows { .. } => m,
            KvSource::Cache { cache, .. } => cache.capacity(),
        };
        self.queue.count_multiplications(m, most, heads.q_width().saturating_mul(2));
        Ok((Attention { m, heads, scale, kv: kv_input }, operands))
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
