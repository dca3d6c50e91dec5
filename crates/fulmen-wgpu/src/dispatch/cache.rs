//! Positions, the KV cache and attention: rotation, stores, both in one, and what reads them.

use fulmen_core::{
    AttentionCall, BackendError, Heads, KvCache, KvSource, KvStoreCall, RopeCall, RopeStoreCall, WeightArg,
};

use super::{Launched, WgpuDispatcher, matmul::SMALL_M};
use crate::BACKEND;
use crate::buffer::BufferSlice;
use crate::kernels::{
    Role,
    attention::{Attention, Source, attention, attention_and_codes, rope_store_attention},
    kv::{self, Cache, KvStore, RopeStore},
    qmatmul::q8_bytes,
    rope::{Rope, rope},
};
use crate::queue::{Slot, unsupported};

impl WgpuDispatcher {
    pub(super) fn rope(&mut self, call: &RopeCall) -> Launched {
        let &RopeCall { input, positions, factors, output, m, n_heads, head_dim, rope: ref turn } = call;
        self.writes(output);
        let width = n_heads.saturating_mul(head_dim);
        let spec = Rope { m, n_heads, head_dim, rope: *turn, factors: factors.is_some() };
        let mut operands = vec![
            (Role::Input(0), self.matrix("the input", input, m, width)?),
            (Role::Input(1), self.at("positions", positions, m as usize)?),
            (Role::Output(0), self.matrix("the output", output, m, width)?),
        ];
        if let Some(ptr) = factors {
            operands.push((Role::Input(2), self.matrix("the frequency factors", ptr, 1, turn.n_rot / 2)?));
        }
        let plan = rope(&spec, &self.queue.caps());
        self.queue.run_over(plan, operands)
    }

    pub(super) fn kv_store(&mut self, call: &KvStoreCall) -> Launched {
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
        let plan = kv::kv_store(&store(call), &self.queue.caps());
        self.queue.run_over(plan, operands)
    }

    pub(super) fn rope_store(&mut self, call: &RopeStoreCall) -> Launched {
        let rows = &call.store;
        let [k_cache, v_cache] = self.caches(&rows.cache, rows.heads)?;
        let (heads, m) = (rows.heads, rows.m);
        self.writes(rows.cache.k_ptr);
        self.writes(rows.cache.v_ptr);
        self.writes(call.output);
        let spec = rotated(call);
        let mut operands = vec![
            (Role::Input(0), self.matrix("q", call.q, m, heads.q_width())?),
            (Role::Input(1), self.matrix("k", rows.k, m, heads.kv_width())?),
            (Role::Input(2), self.matrix("v", rows.v, m, heads.kv_width())?),
            (Role::Input(3), self.at("positions", rows.positions, m as usize)?),
            (Role::Output(0), self.matrix("the output", call.output, m, heads.q_width())?),
            (Role::Output(1), k_cache),
            (Role::Output(2), v_cache),
            (Role::Output(3), self.queue.fault()),
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
        let plan = kv::rope_store(&spec, &self.queue.caps());
        self.queue.run_over(plan, operands)
    }

    pub(super) fn attention(&mut self, call: &AttentionCall) -> Launched {
        let (spec, operands) = self.attention_operands(call)?;
        let plan = attention(&spec, &self.queue.caps());
        self.queue.run_over(plan, operands)
    }

    /// Attention whose result block weights of the next call are multiplied by: its codes are made with it. `None` where that
    /// is not so.
    pub(super) fn attention_with_codes(
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
        let Some(plan) = attention_and_codes(&spec, &self.queue.caps()).map_err(unsupported)? else {
            return Ok(None);
        };
        let codes = self.queue.scratch(Slot::Codes, q8_bytes(m, width))?;
        operands.push((Role::Output(2), codes));
        let launched = self.queue.run_over(Ok(plan), operands)?;
        self.queue.made_codes(&out);
        Ok(Some(launched))
    }

    /// Norm per head, rotation, store and attention of one row, in two launches, with codes. `None` where that cannot be.
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
        // A result that takes the place of the queries is what stays there.
        let turned = second.output != first.output;
        let spec = rotated(first);
        let caps = self.queue.caps();
        let Some(plan) = rope_store_attention(&spec, second.scale, turned, &caps).map_err(unsupported)?
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
        ];
        if turned {
            operands.push((Role::Output(5), self.matrix("the turned queries", first.output, 1, width)?));
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
        // Offsets that no binding can have go through copies, and a copy has no codes.
        if !self.queue.can_bind(&operands.iter().map(|(_, slice)| slice).collect::<Vec<_>>()) {
            return Ok(None);
        }
        for ptr in [rows.cache.k_ptr, rows.cache.v_ptr, first.output, second.output] {
            self.writes(ptr);
        }
        let codes = heads.head_dim.is_multiple_of(32);
        if codes {
            operands.push((Role::Output(2), self.queue.scratch(Slot::Codes, q8_bytes(1, width))?));
        }
        let launched = self.queue.run_over(Ok(plan), operands)?;
        if codes {
            self.queue.made_codes(&output);
        }
        Ok(Some(launched))
    }

    /// What attention computes, and over what.
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
        let source = match kv {
            KvSource::Rows { k, v } => {
                operands.push((Role::Input(1), self.matrix("k", *k, m, heads.kv_width())?));
                operands.push((Role::Input(2), self.matrix("v", *v, m, heads.kv_width())?));
                Source::Rows
            }
            KvSource::Cache { cache, positions, sequences } => {
                let [k, v] = self.caches(cache, heads)?;
                operands.extend([(Role::Input(1), k), (Role::Input(2), v)]);
                operands.push((Role::Input(3), self.at("positions", *positions, m as usize)?));
                if let Some(ptr) = sequences {
                    operands.push((Role::Input(4), self.at("sequences", *ptr, m as usize)?));
                }
                operands.push((Role::Output(1), self.queue.fault()));
                Source::Cache { cache: lies(cache), sequences: sequences.is_some() }
            }
        };
        // What rows see is known to the device alone.
        let most = match kv {
            KvSource::Rows { .. } => m,
            KvSource::Cache { cache, .. } => cache.capacity,
        };
        self.queue.will_multiply(m, most, heads.q_width().saturating_mul(2));
        Ok((Attention { m, heads, scale, source }, operands))
    }

    /// Keys and values.
    fn caches(&self, cache: &KvCache, heads: Heads) -> Result<[BufferSlice; 2], BackendError> {
        let row = cache.dtype.bytes(heads.head_dim as usize).map_err(|error| BackendError::Device {
            backend: BACKEND,
            call: "the size of a row",
            source: Box::new(error),
        })?;
        let sizes = [cache.n_seqs, heads.n_kv_heads, cache.capacity];
        let bytes = sizes.iter().fold(row, |bytes, &n| bytes.saturating_mul(n as usize));
        Ok([
            self.memory.slice("the keys' cache", cache.k_ptr, bytes)?,
            self.memory.slice("the values' cache", cache.v_ptr, bytes)?,
        ])
    }
}

/// How a cache lies, for kernels.
fn lies(cache: &KvCache) -> Cache {
    let &KvCache { dtype, n_seqs, capacity, .. } = cache;
    Cache { dtype, n_seqs, capacity }
}

fn rotated(call: &RopeStoreCall) -> RopeStore {
    RopeStore {
        store: store(&call.store),
        rope: call.rope,
        factors: call.factors.is_some(),
        q_norm: call.q_gamma.is_some(),
        k_norm: call.k_gamma.is_some(),
        epsilon: call.epsilon,
    }
}

fn store(call: &KvStoreCall) -> KvStore {
    KvStore { m: call.m, heads: call.heads, cache: lies(&call.cache), sequences: call.sequences.is_some() }
}
