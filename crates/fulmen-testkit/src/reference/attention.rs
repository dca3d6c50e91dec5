//! Attention and the KV cache.

use std::sync::Arc;

use fulmen_core::{CacheRef, DType, Heads, Slots, TensorId, quant};
use half::f16;

use super::{Data, Interpreter, ReferenceError, Result, rows::softmax};

/// One query head over keys and values, `[len, head_dim]`.
fn attend(q: &[f64], k: &[f64], v: &[f64], scale: f64) -> Vec<f64> {
    let head_dim = q.len();
    let mut scores: Vec<f64> =
        k.chunks(head_dim).map(|key| scale * q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>()).collect();
    softmax(&mut scores);
    let mut out = vec![0.0; head_dim];
    for (weight, value) in scores.iter().zip(v.chunks(head_dim)) {
        out.iter_mut().zip(value).for_each(|(out, v)| *out += weight * v);
    }
    out
}

/// Row `r` attends to rows 0 to `r`.
pub(super) fn over_rows(q: &[f64], k: &[f64], v: &[f64], heads: Heads, scale: f64) -> Vec<f64> {
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
            out.extend(attend(q, &seen(k), &seen(v), scale));
        }
    }
    out
}

impl Interpreter {
    /// The cache row of each batch row at head 0 and position 0, and its position.
    fn slots(&self, cache: &CacheRef, slots: &Slots, heads: Heads) -> Result<Vec<(usize, usize)>> {
        let positions = self.ints(slots.positions)?;
        let sequences = match slots.sequences {
            Some(sequences) => self.ints(sequences)?,
            None => vec![0; positions.len()],
        };
        let per_sequence = heads.n_kv_heads as usize * cache.capacity as usize;
        let mut places = Vec::with_capacity(positions.len());
        for (position, sequence) in positions.into_iter().zip(sequences) {
            if position >= cache.capacity {
                let (value, limit) = (position, cache.capacity);
                return Err(ReferenceError::Index { what: "position", value, limit });
            }
            if sequence >= cache.n_seqs {
                let (value, limit) = (sequence, cache.n_seqs);
                return Err(ReferenceError::Index { what: "sequence", value, limit });
            }
            places.push((sequence as usize * per_sequence, position as usize));
        }
        Ok(places)
    }

    /// Row `r` attends to positions 0 to `positions[r]` of its sequence.
    pub(super) fn cache_attention(
        &self,
        q: TensorId,
        cache: &CacheRef,
        slots: &Slots,
        heads: Heads,
        scale: f64,
    ) -> Result<Vec<f64>> {
        let (head_dim, capacity) = (heads.head_dim as usize, cache.capacity as usize);
        let (q, group) = (self.floats(q)?, (heads.n_heads / heads.n_kv_heads) as usize);
        let mut out = Vec::with_capacity(q.len());
        let rows = |id: TensorId, range| -> Result<Vec<f64>> {
            self.data(id)?.rows(range, head_dim)?.ok_or_else(|| ReferenceError::Kind(self.name(id)))
        };
        let places = self.slots(cache, slots, heads)?;
        for (q, (start, position)) in q.chunks(heads.q_width() as usize).zip(places) {
            for (kv_head, q) in q.chunks(group * head_dim).enumerate() {
                let start = start + kv_head * capacity;
                let k = rows(cache.k, start..start + position + 1)?;
                let v = rows(cache.v, start..start + position + 1)?;
                for q in q.chunks(head_dim) {
                    out.extend(attend(q, &k, &v, scale));
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
        let (head_dim, capacity) = (heads.head_dim as usize, cache.capacity as usize);
        let (kv_width, row_bytes) = (heads.kv_width() as usize, cache.dtype.bytes(head_dim)?);
        let places = self.slots(cache, slots, heads)?;
        for (id, rows) in [(cache.k, k), (cache.v, v)] {
            let Some(Data::Stored { bytes, .. }) = &mut self.tensors[id] else {
                return Err(ReferenceError::NoData(self.name(id)));
            };
            let bytes = Arc::make_mut(bytes);
            for (row, &(start, position)) in rows.chunks(kv_width).zip(&places) {
                for (head, x) in row.chunks(head_dim).enumerate() {
                    let at = (start + head * capacity + position) * row_bytes;
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
