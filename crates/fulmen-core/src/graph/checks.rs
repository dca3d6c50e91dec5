//! Checks of sizes and parameters that calls and the builder share.

use super::{Heads, KV_PAGE, KvCache, PageLayout, RopeSpec};
use crate::{DType, DTypeError, Problem};

pub(crate) type Checked<T> = Result<T, Problem>;

/// `what` must be `expected`.
pub(crate) fn same(what: &'static str, expected: impl Into<u64>, got: impl Into<u64>) -> Checked<()> {
    let (expected, got) = (expected.into(), got.into());
    if expected == got { Ok(()) } else { Err(Problem::Size { what, expected, got }) }
}

pub(crate) fn at_least_1(what: &'static str, got: u32) -> Checked<()> {
    if got > 0 { Ok(()) } else { Err(Problem::Value { what, expected: "at least 1", got: 0.0 }) }
}

pub(crate) fn finite(what: &'static str, got: f32) -> Checked<f32> {
    let problem = || Problem::Value { what, expected: "finite", got: got.into() };
    got.is_finite().then_some(got).ok_or_else(problem)
}

pub(crate) fn above_0(what: &'static str, got: f32) -> Checked<f32> {
    let problem = || Problem::Value { what, expected: "finite and above 0", got: got.into() };
    (got.is_finite() && got > 0.0).then_some(got).ok_or_else(problem)
}

pub(crate) fn epsilon(got: f32) -> Checked<f32> {
    let problem = || Problem::Value { what: "epsilon", expected: "finite and not negative", got: got.into() };
    (got.is_finite() && got >= 0.0).then_some(got).ok_or_else(problem)
}

/// A weight matrix or embedding table: not integers, whole blocks in a row, and a size that fits memory.
pub(crate) fn weight_type(what: &'static str, dtype: DType, rows: u32, k: u32) -> Checked<()> {
    if dtype == DType::U32 {
        return Err(Problem::Type { what, expected: "a floating-point or quantized type", got: dtype });
    }
    let bytes = dtype.bytes(k as usize)?.checked_mul(rows as usize);
    let overflow = DTypeError::Overflow { dtype, elements: usize::MAX };
    bytes.map(|_| ()).ok_or(Problem::DType(overflow))
}

/// Query heads are a multiple of the KV heads, and the widths fit 32 bits.
pub(crate) fn check_heads(heads: Heads) -> Checked<()> {
    at_least_1("n_heads", heads.n_heads)?;
    at_least_1("n_kv_heads", heads.n_kv_heads)?;
    at_least_1("head_dim", heads.head_dim)?;
    let (of, got) = (heads.n_kv_heads.into(), heads.n_heads.into());
    if !heads.n_heads.is_multiple_of(heads.n_kv_heads) {
        return Err(Problem::Multiple { what: "n_heads", of, got });
    }
    head_widths(heads.n_heads, heads.head_dim)
}

/// A row of this many heads has a width that fits 32 bits.
pub(crate) fn head_widths(n_heads: u32, head_dim: u32) -> Checked<()> {
    let width = u64::from(n_heads) * u64::from(head_dim);
    same("n_heads · head_dim in 32 bits", n_heads.saturating_mul(head_dim), width)
}

/// The rotation fits the head.
pub(crate) fn check_rope(rope: RopeSpec, head_dim: u32) -> Checked<()> {
    if !rope.n_rot.is_multiple_of(2) {
        return Err(Problem::Multiple { what: "n_rot", of: 2, got: rope.n_rot.into() });
    }
    if rope.n_rot > head_dim || rope.n_rot == 0 {
        return Err(Problem::Value { what: "n_rot", expected: "from 2 to head_dim", got: rope.n_rot.into() });
    }
    above_0("RoPE base", rope.base)?;
    finite("RoPE freq_scale", rope.freq_scale)?;
    finite("RoPE magnitude", rope.magnitude)?;
    Ok(())
}

/// LogProbs gives some of the most likely tokens, not many.
pub(crate) fn check_top(top: u32) -> Checked<()> {
    let (what, expected) = ("the number of most likely tokens", "at most 20");
    let is_few = top <= crate::sampling::MAX_TOP_LOGPROBS;
    is_few.then_some(()).ok_or(Problem::Value { what, expected, got: top.into() })
}

/// TopK gives some of the largest values, not many.
pub(crate) fn check_top_k(k: u32) -> Checked<()> {
    let (what, expected) = ("the number of largest values", "from 1 to 64");
    let is_few = (1..=crate::sampling::MAX_TOP_K).contains(&k);
    is_few.then_some(()).ok_or(Problem::Value { what, expected, got: k.into() })
}

/// The indices of `n` columns from `first` on are tokens.
pub(crate) fn check_first_index(first: u32, n: u32) -> Checked<()> {
    let (end, expected) = (u64::from(first) + u64::from(n), "less than 2^32");
    let fits = end < u64::from(u32::MAX);
    fits.then_some(()).ok_or(Problem::Value { what: "the largest index", expected, got: end as f64 })
}

/// The history is not empty and its size fits memory.
pub(crate) fn check_history(n_seqs: u32, capacity: u32) -> Checked<()> {
    at_least_1("the sequences of the history", n_seqs)?;
    at_least_1("the capacity of the history", capacity)?;
    let elements = (n_seqs as usize).saturating_mul(capacity as usize);
    DType::U32.bytes(elements)?;
    Ok(())
}

/// The cache has a valid type and size; the caller checks its addresses. Rows and positions fit 32 bits.
pub(crate) fn check_cache(cache: &KvCache, heads: Heads) -> Checked<()> {
    let layout = PageLayout::new(cache.dtype, heads)?;
    let sizes = [("n_pages", cache.n_pages), ("n_seqs", cache.n_seqs), ("seq_pages", cache.seq_pages)];
    sizes.into_iter().try_for_each(|(what, size)| at_least_1(what, size))?;
    layout.pool_bytes(cache.n_pages)?;
    let below = |what, factors: &[u32]| {
        let product = factors.iter().fold(1.0, |product, &n| product * f64::from(n));
        let problem = Problem::Value { what, expected: "less than 2^32", got: product };
        if product < f64::from(u32::MAX) { Ok(()) } else { Err(problem) }
    };
    below("n_pages · n_kv_heads · 128", &[cache.n_pages, heads.n_kv_heads, KV_PAGE])?;
    below("seq_pages · 128", &[cache.seq_pages, KV_PAGE])?;
    below("n_seqs · seq_pages", &[cache.n_seqs, cache.seq_pages])
}
