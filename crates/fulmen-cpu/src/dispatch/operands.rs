//! Lookup of the operands of calls, with checks of sizes and overlaps.

use fulmen_core::*;

use super::{CpuDispatcher, Launched};
use crate::buffer::Span;
use crate::isa::Isa;
use crate::kernels::kv_store::{KvStore, kv_store};
use crate::kv_view::{KvError, KvLayout, KvViewMut, PageTable};
use crate::threads::Pool;

impl CpuDispatcher {
    pub(super) fn f32_rows(
        &self,
        what: &'static str,
        ptr: u64,
        rows: u32,
        width: u32,
    ) -> Result<Span, BackendError> {
        self.memory.span::<f32>(what, ptr, rows as usize * width as usize)
    }

    pub(super) fn f32_rows_mut(
        &self,
        what: &'static str,
        ptr: u64,
        rows: u32,
        width: u32,
    ) -> Result<Span, BackendError> {
        self.memory.span_mut::<f32>(what, ptr, rows as usize * width as usize)
    }

    pub(super) fn weight(
        &self,
        what: &'static str,
        weight: &WeightArg,
        k: u32,
    ) -> Result<Span, BackendError> {
        let row = weight.dtype.bytes(k as usize).map_err(|e| device_error("mul_mat", e))?;
        self.memory.span::<u8>(what, weight.ptr, row.saturating_mul(weight.rows as usize))
    }

    pub(super) fn indices(&self, what: &'static str, ptr: u64, m: u32) -> Result<Span, BackendError> {
        self.memory.span::<u32>(what, ptr, m as usize)
    }

    pub(super) fn unary(
        &self,
        call: &UnaryCall,
        kernel: unsafe fn(&Pool, Isa, *const f32, *mut f32, usize),
    ) -> Launched {
        let (x, out) = self.unary_operands(call)?;
        // SAFETY: both ranges were looked up, and are the identical or disjoint.
        unsafe { kernel(&self.pool, self.isa, x, out, call.n_elements) };
        Ok(1)
    }

    /// An element-wise op of one operand with a constant.
    pub(super) fn unary_with(
        &self,
        call: &UnaryCall,
        kernel: unsafe fn(&Pool, Isa, *const f32, f32, *mut f32, usize),
    ) -> Launched {
        let (x, out) = self.unary_operands(call)?;
        // SAFETY: as in `unary`.
        unsafe { kernel(&self.pool, self.isa, x, call.scalar, out, call.n_elements) };
        Ok(1)
    }

    /// Input and output, each of `n_elements`, identical or disjoint.
    pub(super) fn unary_operands(&self, call: &UnaryCall) -> Result<(*const f32, *mut f32), BackendError> {
        let x = self.memory.span::<f32>("the input", call.input, call.n_elements)?;
        let out = self.memory.span_mut::<f32>("the output", call.output, call.n_elements)?;
        out.apart_or_same(x)?;
        Ok((x.ptr.cast(), out.ptr.cast()))
    }

    pub(super) fn binary(
        &self,
        call: &BinaryCall,
        kernel: unsafe fn(&Pool, Isa, *const f32, *const f32, *mut f32, usize),
    ) -> Launched {
        let n = call.n_elements;
        let a = self.memory.span::<f32>("the first input", call.a, n)?;
        let b = self.memory.span::<f32>("the second input", call.b, n)?;
        let out = self.memory.span_mut::<f32>("the output", call.output, n)?;
        out.apart_or_same(a)?;
        out.apart_or_same(b)?;
        // SAFETY: the ranges were looked up, and the output is the same as an input or disjoint from it.
        unsafe { kernel(&self.pool, self.isa, a.ptr.cast(), b.ptr.cast(), out.ptr.cast(), n) };
        Ok(1)
    }

    pub(super) fn page_table(&self, cache: &KvCache) -> Result<Span, BackendError> {
        let entries = (cache.n_seqs as usize).saturating_mul(cache.seq_pages as usize);
        self.memory.span::<u32>("the page table", cache.table_ptr, entries)
    }

    /// Keys, values, positions and sequences of a store, with the K and V caches to write.
    pub(super) fn store_operands(&self, call: &KvStoreCall) -> Result<StoreOperands, BackendError> {
        let (heads, cache) = (call.heads, &call.cache);
        let layout = cache_layout(cache, heads)?;
        let bytes = layout.bytes().map_err(kv_error)?;
        let operands = StoreOperands {
            k: self.f32_rows("k", call.k, call.m, heads.kv_width())?,
            v: self.f32_rows("v", call.v, call.m, heads.kv_width())?,
            positions: self.indices("positions", call.positions, call.m)?,
            sequences: call.sequences.map(|ptr| self.indices("sequences", ptr, call.m)).transpose()?,
            table: self.page_table(cache)?,
            k_cache: self.memory.span_mut::<u8>("the keys' cache", cache.k_ptr, bytes)?,
            v_cache: self.memory.span_mut::<u8>("the values' cache", cache.v_ptr, bytes)?,
            layout,
            n_seqs: cache.n_seqs as usize,
            seq_pages: cache.seq_pages as usize,
        };
        let StoreOperands { k, v, positions, sequences, table, .. } = operands;
        let reads = [Some(k), Some(v), Some(positions), sequences, Some(table)];
        for operand in reads.into_iter().flatten() {
            operands.k_cache.apart_from(operand)?;
            operands.v_cache.apart_from(operand)?;
        }
        operands.k_cache.apart_from(operands.v_cache)?;
        Ok(operands)
    }
}

/// Integers that must be below a limit.
pub(super) fn check_below(what: &'static str, values: &[u32], limit: u32) -> Result<(), BackendError> {
    match values.iter().position(|&value| value >= limit) {
        None => Ok(()),
        Some(row) => Err(BackendError::Index { what, row, value: values[row], limit }),
    }
}

/// The operands of a store.
pub(super) struct StoreOperands {
    pub(super) k: Span,
    pub(super) v: Span,
    pub(super) positions: Span,
    pub(super) sequences: Option<Span>,
    pub(super) table: Span,
    pub(super) k_cache: Span,
    pub(super) v_cache: Span,
    pub(super) layout: KvLayout,
    n_seqs: usize,
    seq_pages: usize,
}

impl StoreOperands {
    /// # Safety
    /// No mutable reference to the table exists.
    pub(super) unsafe fn page_table(&self) -> Result<PageTable<'_>, BackendError> {
        // SAFETY: looked up; the caller has no mutable reference.
        PageTable::new(unsafe { self.table.slice() }, self.n_seqs, self.seq_pages).map_err(kv_error)
    }

    /// # Safety
    /// No other reference to any of the operands exists.
    pub(super) unsafe fn run(&self, pool: &Pool, keys: Option<&[f32]>) -> Result<(), BackendError> {
        let width = self.layout.n_kv_heads * self.layout.head_dim;
        // SAFETY: looked up and disjoint from each other; the caller has no other reference.
        unsafe {
            let rows = KvStore {
                k: keys.unwrap_or_else(|| self.k.slice()),
                k_stride: width,
                v: self.v.slice(),
                v_stride: width,
                table: self.page_table()?,
                positions: self.positions.slice(),
                sequences: self.sequences.map(|s| s.slice()),
            };
            let mut k = KvViewMut::new(self.layout, self.k_cache.slice_mut()).map_err(kv_error)?;
            let mut v = KvViewMut::new(self.layout, self.v_cache.slice_mut()).map_err(kv_error)?;
            kv_store(pool, &rows, &mut k, &mut v).map_err(kv_error)
        }
    }
}

pub(super) fn cache_layout(cache: &KvCache, heads: Heads) -> Result<KvLayout, BackendError> {
    let (n_pages, n_kv) = (cache.n_pages as usize, heads.n_kv_heads as usize);
    KvLayout::pages(cache.dtype, n_pages, n_kv, heads.head_dim as usize).map_err(kv_error)
}

pub(super) fn device_error(
    call: &'static str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> BackendError {
    BackendError::Device { backend: "cpu", call, source: Box::new(source) }
}

pub(super) fn kv_error(error: KvError) -> BackendError {
    match error {
        KvError::Position { row, position, capacity } => BackendError::Index {
            what: "the position",
            row,
            value: position,
            limit: u32::try_from(capacity).unwrap_or(u32::MAX),
        },
        KvError::Sequence { row, sequence, n_seqs } => BackendError::Index {
            what: "the sequence",
            row,
            value: sequence,
            limit: u32::try_from(n_seqs).unwrap_or(u32::MAX),
        },
        KvError::Page { row, page, n_pages } => BackendError::Index {
            what: "the page",
            row,
            value: page,
            limit: u32::try_from(n_pages).unwrap_or(u32::MAX),
        },
        other => device_error("the KV cache", other),
    }
}
