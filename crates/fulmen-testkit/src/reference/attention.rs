//! Attention and the KV cache.

use std::sync::Arc;

use fulmen_core::{CacheRef, DType, Heads, KV_PAGE, Scores, Slots, TensorId, quant};
use half::f16;

use super::{Data, Interpreter, ReferenceError, Result, rows::softmax};

/// One query head of a row at `position` over the keys and values of positions 0 to `position`,
/// `[position + 1, head_dim]`. `sink`: the head's extra logit.
fn attend(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    position: usize,
    rule: &Scores<TensorId>,
    sink: Option<f64>,
) -> Vec<f64> {
    let head_dim = q.len();
    let scale = f64::from(rule.scale) * rule.temperature.map_or(1.0, |t| t.factor(position as u32));
    let capped = |score: f64| match rule.softcap.map(f64::from) {
        Some(cap) => cap * (score / cap).tanh(),
        None => score,
    };
    let first = rule.first_visible(position as u32) as usize;
    let (k, v) = (&k[first * head_dim..], &v[first * head_dim..]);
    let dot = |key: &[f64]| q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
    let mut scores: Vec<f64> = k.chunks(head_dim).map(|key| capped(scale * dot(key))).collect();
    // The sink has a weight and no value.
    scores.extend(sink);
    softmax(&mut scores);
    let mut out = vec![0.0; head_dim];
    for (weight, value) in scores.iter().zip(v.chunks(head_dim)) {
        out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v);
    }
    out
}

/// Row `r` attends to rows 0 to `r`, or those of them that are in the window.
pub(super) fn over_rows(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    heads: Heads,
    rule: &Scores<TensorId>,
    sinks: Option<&[f64]>,
) -> Vec<f64> {
    let head_dim = heads.head_dim as usize;
    let (q_width, kv_width) = (heads.q_width() as usize, heads.kv_width() as usize);
    let group = (heads.n_heads / heads.n_kv_heads) as usize;
    let mut out = Vec::with_capacity(q.len());
    for (row, q) in q.chunks(q_width).enumerate() {
        for (head, q) in q.chunks(head_dim).enumerate() {
            let at = head / group * head_dim;
            let seen = |x: &[f64]| -> Vec<f64> {
                x.chunks(kv_width).take(row + 1).flat_map(|x| &x[at..at + head_dim]).copied().collect()
            };
            out.extend(attend(q, &seen(k), &seen(v), row, rule, sinks.map(|sinks| sinks[head])));
        }
    }
    out
}

/// The pages of the sequences of a cache, and where the rows of a batch go.
struct Places {
    table: Vec<u32>,
    /// (sequence, position) of each row.
    rows: Vec<(usize, usize)>,
}

impl Places {
    /// The row of the cache that holds a position of a sequence.
    fn row(&self, cache: &CacheRef, heads: Heads, at: (usize, usize), head: usize) -> Result<usize> {
        let ((sequence, position), page_len) = (at, KV_PAGE as usize);
        let page = self.table[sequence * cache.seq_pages as usize + position / page_len];
        if page >= cache.n_pages {
            return Err(ReferenceError::Index { what: "page", value: page, limit: cache.n_pages });
        }
        Ok((page as usize * heads.n_kv_heads as usize + head) * page_len + position % page_len)
    }
}

impl Interpreter {
    fn places(&self, cache: &CacheRef, slots: &Slots) -> Result<Places> {
        let positions = self.ints(slots.positions)?;
        let sequences = match slots.sequences {
            Some(sequences) => self.ints(sequences)?,
            None => vec![0; positions.len()],
        };
        let mut rows = Vec::with_capacity(positions.len());
        for (position, sequence) in positions.into_iter().zip(sequences) {
            let capacity = cache.seq_pages * KV_PAGE;
            for (what, value, limit) in
                [("position", position, capacity), ("sequence", sequence, cache.n_seqs)]
            {
                if value >= limit {
                    return Err(ReferenceError::Index { what, value, limit });
                }
            }
            rows.push((sequence as usize, position as usize));
        }
        Ok(Places { table: self.ints(cache.table)?, rows })
    }

    /// Row `r` attends to positions 0 to `positions[r]` of its sequence.
    pub(super) fn cache_attention(
        &self,
        q: TensorId,
        cache: &CacheRef,
        slots: &Slots,
        heads: Heads,
        rule: &Scores<TensorId>,
    ) -> Result<Vec<f64>> {
        let sinks = self.optional_floats(rule.sinks)?;
        let head_dim = heads.head_dim as usize;
        let (q, group) = (self.floats(q)?, (heads.n_heads / heads.n_kv_heads) as usize);
        let mut out = Vec::with_capacity(q.len());
        let places = self.places(cache, slots)?;
        // A page at a time: its rows of one head are contiguous.
        let seen = |id: TensorId, (sequence, position): (usize, usize), head| -> Result<Vec<f64>> {
            let mut rows = Vec::with_capacity((position + 1) * head_dim);
            // Pages behind the window may be missing; what would be in them is not looked at.
            let hidden = rule.first_visible(position as u32) as usize / KV_PAGE as usize * KV_PAGE as usize;
            rows.resize(hidden * head_dim, f64::NAN);
            for first in (hidden..=position).step_by(KV_PAGE as usize) {
                let row = places.row(cache, heads, (sequence, first), head)?;
                let n = (position + 1 - first).min(KV_PAGE as usize);
                let page = self.data(id)?.rows(row..row + n, head_dim)?;
                rows.extend(page.ok_or_else(|| ReferenceError::Kind(self.name(id)))?);
            }
            Ok(rows)
        };
        for (q, &at) in q.chunks(heads.q_width() as usize).zip(&places.rows) {
            for (kv_head, q) in q.chunks(group * head_dim).enumerate() {
                let (k, v) = (seen(cache.k, at, kv_head)?, seen(cache.v, at, kv_head)?);
                for (head, q) in (kv_head * group..).zip(q.chunks(head_dim)) {
                    let sink = sinks.as_ref().map(|sinks| sinks[head]);
                    out.extend(attend(q, &k, &v, at.1, rule, sink));
                }
            }
        }
        Ok(out)
    }

    /// Writes rows of keys and values, rounded to the cache's type. Of rows with the same slot the last
    /// is kept.
    pub(super) fn store(
        &mut self,
        k: &[f64],
        v: &[f64],
        cache: &CacheRef,
        slots: &Slots,
        heads: Heads,
    ) -> Result<()> {
        let head_dim = heads.head_dim as usize;
        let (kv_width, row_bytes) = (heads.kv_width() as usize, cache.dtype.bytes(head_dim)?);
        let places = self.places(cache, slots)?;
        for (id, rows) in [(cache.k, k), (cache.v, v)] {
            let Some(Data::Stored { bytes, .. }) = &mut self.tensors[id] else {
                return Err(ReferenceError::NoData(self.name(id)));
            };
            let bytes = Arc::make_mut(bytes);
            for (row, &at) in rows.chunks(kv_width).zip(&places.rows) {
                for (head, x) in row.chunks(head_dim).enumerate() {
                    let at = places.row(cache, heads, at, head)? * row_bytes;
                    encode(cache.dtype, x, &mut bytes[at..at + row_bytes])?;
                }
            }
        }
        Ok(())
    }
}

/// Encodes one row of a cache. F16 overflows to infinity, as in hardware.
fn encode(dtype: DType, x: &[f64], out: &mut [u8]) -> Result<()> {
    match dtype {
        DType::F16 => {
            for (out, &x) in out.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                *out = f16::from_f64(x).to_le_bytes();
            }
        }
        DType::F32 => {
            for (out, &x) in out.as_chunks_mut::<4>().0.iter_mut().zip(x) {
                *out = (x as f32).to_le_bytes();
            }
        }
        _ => {
            let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
            quant::quantize(dtype, &x, out)?;
        }
    }
    Ok(())
}
