//! One task: the queries of a row group and KV head over one split of the context, with online softmax.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use fulmen_core::{DType, Scores};

use super::{
    Attention, DOT_CHUNK, LANE_CHUNK, LANE_QUERIES, PAD, RowGroup, SLACK, Visible, WorkspacePtrs,
    microkernels::{Tile, accumulate_values, dequantize_row, dot_scores, exp_one, lane_scores, rescale},
    partial_len,
};
use crate::{
    kv_view::KvView,
    simd::{Kernel, Simd, math},
};

/// The memory that all tasks write to.
pub(super) struct TaskOutputs {
    pub(super) out: *mut f32,
    pub(super) out_stride: usize,
    pub(super) partials: *mut f32,
}
// SAFETY: a task writes its own partial result, which others read only after the counter of pending splits
// has reached zero, and only one task writes the outputs of a row group and KV head.
unsafe impl Sync for TaskOutputs {}

/// The queries of one row group and KV head over one split of the context.
pub(super) struct Task<'a> {
    pub(super) args: &'a Attention<'a>,
    pub(super) row_group: RowGroup,
    pub(super) head: usize,
    pub(super) index: usize,
    pub(super) keys: Range<usize>,
    pub(super) queries: usize,
    pub(super) group: usize,
    pub(super) hd_pad: usize,
    pub(super) ptrs: WorkspacePtrs,
    pub(super) visible: &'a [Visible],
    pub(super) shared: &'a TaskOutputs,
    pub(super) pending: &'a AtomicUsize,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (queries, padded) = (self.queries, self.queries.next_multiple_of(PAD));
        let WorkspacePtrs { scores, tile, alpha, partial, .. } = self.ptrs;
        let splits = self.row_group.splits;
        let len = partial_len(queries, self.hd_pad);
        let partial = match splits {
            1 => partial,
            // SAFETY: `partition` reserved every split of every row group that has several.
            _ => unsafe {
                self.shared.partials.add(self.row_group.partial + (self.head * splits + self.index) * len)
            },
        };
        // SAFETY: a partial result has two padded rows of queries, then the values.
        let (max, sum, acc) = unsafe { (partial, partial.add(padded), partial.add(2 * padded)) };
        let by_lanes = queries >= LANE_QUERIES;
        let (chunk, step) = if by_lanes { (LANE_CHUNK, LANE_CHUNK) } else { DOT_CHUNK };
        // SAFETY: the arrays have the sizes of `Workspace::prepare` and only this task uses them; `partial`
        // likewise; keys are below the end of the row group, whose pages were checked.
        unsafe {
            for i in 0..padded {
                *max.add(i) = f32::NEG_INFINITY;
            }
            sum.write_bytes(0, padded + queries * self.hd_pad);
            if by_lanes {
                self.pack_lanes(padded)
            } else {
                self.pack_rows()
            }
            let mut from = self.keys.start;
            while from < self.keys.end {
                let to = self.keys.end.min(from + chunk);
                let mut at = from;
                while at < to {
                    let n = step.min(to - at);
                    let k = self.tile(s, &self.args.k, at, n, tile);
                    if by_lanes {
                        self.scores_lanes(s, padded, k, n, scores);
                    } else {
                        self.scores_dot(s, k, n, scores.add(at - from));
                    }
                    at += n;
                }
                if by_lanes {
                    self.softmax_lanes(s, padded, from..to, scores, max, sum, alpha);
                } else {
                    self.softmax_dot(s, from..to, scores, max, sum, alpha);
                }
                rescale(s, queries, self.hd_pad, alpha, acc);
                let mut at = from;
                while at < to {
                    let n = step.min(to - at);
                    let v = self.tile(s, &self.args.v, at, n, tile);
                    if by_lanes {
                        self.values(s, v, at..at + n, scores, (1, padded), acc);
                    } else {
                        self.values(s, v, at..at + n, scores.add(at - from), (DOT_CHUNK.0, 1), acc);
                    }
                    at += n;
                }
                from = to;
            }
            if splits == 1 {
                self.finish(s, partial, len);
            } else if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                let first = self.row_group.partial + self.head * splits * len;
                self.finish(s, self.shared.partials.add(first), len);
            }
        }
    }
}

impl Task<'_> {
    /// The query row that `query` is packed from.
    #[inline(always)]
    fn query(&self, query: usize) -> &[f32] {
        let hd = self.args.k.layout().head_dim;
        let row = self.row_group.row + query / self.group;
        let head = self.head * self.group + query % self.group;
        &self.args.q[row * self.args.q_stride + head * hd..][..hd]
    }

    /// The factor of the scores of `query`.
    #[inline(always)]
    fn scale(&self, query: usize) -> f32 {
        let Scores { scale, temperature, .. } = self.args.scores;
        let position = || self.args.positions[self.row_group.row + query / self.group];
        temperature.map_or(scale, |temperature| scale * temperature.factor(position()) as f32)
    }

    /// Caps `n` scores from `scores` on; `n` is a multiple of the vector length, or the scores behind are
    /// unused up to one.
    ///
    /// # Safety
    /// There is room for that many.
    #[inline(always)]
    unsafe fn cap<S: Simd>(&self, s: S, scores: *mut f32, n: usize) {
        let Some(cap) = self.args.scores.softcap else { return };
        for i in (0..n).step_by(S::LANES) {
            // SAFETY: by the contract.
            unsafe {
                let score = s.div(s.load(scores.add(i)), s.splat(cap));
                s.store(scores.add(i), s.mul(s.splat(cap), math::tanh(s, score)));
            }
        }
    }

    /// Scaled queries as padded rows.
    ///
    /// # Safety
    /// The arrays are those of this task.
    #[inline(always)]
    unsafe fn pack_rows(&self) {
        for query in 0..self.queries {
            // SAFETY: the array has a padded row for each query.
            let row =
                unsafe { std::slice::from_raw_parts_mut(self.ptrs.q.add(query * self.hd_pad), self.hd_pad) };
            let from = self.query(query);
            row[from.len()..].fill(0.0);
            let scale = self.scale(query);
            for (to, from) in row.iter_mut().zip(from) {
                *to = from * scale;
            }
        }
    }

    /// Scaled queries as columns; padding columns are zero.
    ///
    /// # Safety
    /// The arrays are those of this task.
    #[inline(always)]
    unsafe fn pack_lanes(&self, padded: usize) {
        let hd = self.args.k.layout().head_dim;
        // SAFETY: the array has this many columns of a padded head.
        let columns = unsafe { std::slice::from_raw_parts_mut(self.ptrs.q, hd * padded) };
        if padded > self.queries {
            columns.fill(0.0);
        }
        // Staged through the tile: whole rows are read first, for contiguous loads, then transposed four at a
        // time, for contiguous stores.
        let mut first = 0;
        while first < self.queries {
            let n = LANE_CHUNK.min(self.queries - first);
            // SAFETY: the tile has this many padded rows, and `hd` is not longer than one of them.
            let rows = unsafe { std::slice::from_raw_parts_mut(self.ptrs.tile, n * hd) };
            for (i, row) in rows.chunks_mut(hd).enumerate() {
                let scale = self.scale(first + i);
                for (to, from) in row.iter_mut().zip(self.query(first + i)) {
                    *to = from * scale;
                }
            }
            for (block, rows) in rows.chunks(4 * hd).enumerate() {
                let query = first + 4 * block;
                if rows.len() == 4 * hd {
                    for i in 0..hd {
                        let quad = [rows[i], rows[hd + i], rows[2 * hd + i], rows[3 * hd + i]];
                        columns[i * padded + query..][..4].copy_from_slice(&quad);
                    }
                } else {
                    for (at, x) in rows.iter().enumerate() {
                        columns[at % hd * padded + query + at / hd] = *x;
                    }
                }
            }
            first += n;
        }
    }

    /// The rows of `n` positions of one page from `at` on, dequantized into `buffer` unless they can be read
    /// in place.
    ///
    /// # Safety
    /// The positions are below the capacity, and `buffer` has room for `n` padded rows.
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, s: S, view: &KvView<'_>, at: usize, n: usize, buffer: *mut f32) -> Tile {
        let (layout, hd, hd_pad) = (view.layout(), view.layout().head_dim, self.hd_pad);
        let page = self.args.table.page(self.row_group.seq, at / layout.page_len);
        let at = at % layout.page_len;
        let (stride, row_bytes) = (layout.pos_bytes(), layout.row_bytes());
        let scale_bytes = layout.scale_bytes();
        // SAFETY: the view contains every row of its layout; the pages of the positions were checked.
        let (first, scales) = unsafe {
            let bytes = view.bytes().as_ptr();
            let first = bytes.add(layout.offset(page, self.head, at));
            match scale_bytes {
                0 => (first, first),
                _ => (first, bytes.add(layout.scales_offset(page, self.head, at))),
            }
        };
        if layout.dtype == DType::F32 && hd == hd_pad && first.cast::<f32>().is_aligned() {
            return Tile(first.cast(), layout.pos_stride);
        }
        for i in 0..n {
            // SAFETY: as above; the buffer by the contract.
            let (from, scales, to) = unsafe {
                let from = std::slice::from_raw_parts(first.add(i * stride), row_bytes);
                let scales = std::slice::from_raw_parts(scales.add(i * scale_bytes), scale_bytes);
                (from, scales, std::slice::from_raw_parts_mut(buffer.add(i * hd_pad), hd_pad))
            };
            dequantize_row(s, layout.dtype, from, scales, &mut to[..hd]);
            to[hd..].fill(0.0);
        }
        Tile(buffer, hd_pad)
    }

    /// Scores as dot products: `scores[query * chunk + key]`.
    ///
    /// # Safety
    /// The tile holds `n` padded rows, and `scores` has room for them in each of its rows.
    #[inline(always)]
    unsafe fn scores_dot<S: Simd>(&self, s: S, k: Tile, n: usize, scores: *mut f32) {
        let mut key = 0;
        while key < n {
            let several = n - key >= 4;
            let mut query = 0;
            while query < self.queries {
                // SAFETY: by the contract; the queries and keys are counted.
                query += unsafe {
                    let q = self.ptrs.q.add(query * self.hd_pad);
                    let k = Tile(k.0.add(key * k.1), k.1);
                    let out = scores.add(query * DOT_CHUNK.0 + key);
                    match (self.queries - query, several) {
                        (1, true) => dot_scores::<S, 1, 4>(s, q, self.hd_pad, k, out),
                        (1, false) => dot_scores::<S, 1, 1>(s, q, self.hd_pad, k, out),
                        (2, true) => dot_scores::<S, 2, 4>(s, q, self.hd_pad, k, out),
                        (2, false) => dot_scores::<S, 2, 1>(s, q, self.hd_pad, k, out),
                        (3, true) => dot_scores::<S, 3, 4>(s, q, self.hd_pad, k, out),
                        (3, false) => dot_scores::<S, 3, 1>(s, q, self.hd_pad, k, out),
                        (_, true) if S::LANES == 8 => {
                            dot_scores::<S, 4, 2>(s, q, self.hd_pad, k, out);
                            dot_scores::<S, 4, 2>(s, q, self.hd_pad, Tile(k.0.add(2 * k.1), k.1), out.add(2))
                        }
                        (_, true) => dot_scores::<S, 4, 4>(s, q, self.hd_pad, k, out),
                        (_, false) => dot_scores::<S, 4, 1>(s, q, self.hd_pad, k, out),
                    }
                };
            }
            key += if several { 4 } else { 1 };
        }
    }

    /// Scores with a query in each lane: `scores[key * padded + query]`.
    ///
    /// # Safety
    /// The tile holds `n` rows, and `scores` has room for them.
    #[inline(always)]
    unsafe fn scores_lanes<S: Simd>(&self, s: S, padded: usize, k: Tile, n: usize, scores: *mut f32) {
        let hd = self.args.k.layout().head_dim;
        let mut key = 0;
        while key < n {
            let keys = [1, 1, 2, 2, 4, 4, 6][(n - key).min(6)];
            let mut query = 0;
            while query < padded {
                let vectors = (padded - query) / S::LANES;
                // SAFETY: by the contract; the queries and keys are counted.
                query += unsafe {
                    let q = Tile(self.ptrs.q.add(query), padded);
                    let k = Tile(k.0.add(key * k.1), k.1);
                    let out = scores.add(key * padded + query);
                    match keys {
                        6 => lane_scores::<S, 6>(s, q, vectors, hd, k, out),
                        4 => lane_scores::<S, 4>(s, q, vectors, hd, k, out),
                        2 => lane_scores::<S, 2>(s, q, vectors, hd, k, out),
                        _ => lane_scores::<S, 1>(s, q, vectors, hd, k, out),
                    }
                };
            }
            key += keys;
        }
    }

    /// Online softmax: converts scores to weights relative to the running maximum, and updates the maximum
    /// and the sum of each query. The factor that rescales earlier results goes to `alpha`.
    ///
    /// # Safety
    /// `scores` has a chunk for each query; the others have one value for each.
    #[inline(always)]
    unsafe fn softmax_dot<S: Simd>(
        &self,
        s: S,
        keys: Range<usize>,
        scores: *mut f32,
        max: *mut f32,
        sum: *mut f32,
        alpha: *mut f32,
    ) {
        for (query, visible) in self.visible.iter().enumerate() {
            let Range { start: hidden, end: n } = visible.within(&keys);
            // SAFETY: by the contract; chunks are a multiple of every vector length.
            unsafe {
                let row = scores.add(query * DOT_CHUNK.0);
                self.cap(s, row, n);
                for i in (0..hidden).chain(n..n.next_multiple_of(S::LANES)) {
                    *row.add(i) = f32::NEG_INFINITY;
                }
                let old = *max.add(query);
                let mut top = s.splat(old);
                for i in (0..n).step_by(S::LANES) {
                    top = s.max(top, s.load(row.add(i)));
                }
                let top = s.reduce_max(top);
                let top = if top < old + SLACK { old } else { top };
                let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
                let mut total = s.splat(0.0);
                for i in (0..n).step_by(S::LANES) {
                    let weight = math::exp(s, s.sub(s.load(row.add(i)), s.splat(base)));
                    total = s.add(total, weight);
                    s.store(row.add(i), weight);
                }
                let factor = if old == f32::NEG_INFINITY { 1.0 } else { exp_one(s, old - base) };
                *alpha.add(query) = factor;
                *max.add(query) = top;
                *sum.add(query) = *sum.add(query) * factor + s.reduce_sum(total);
            }
        }
    }

    /// [`Task::softmax_dot`] with a query in each lane, over rows of `padded` scores. Weights after the last
    /// key that any query of a vector sees are not written.
    ///
    /// # Safety
    /// `scores` has these rows; the others have one value for each query.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the ptrs of the task")]
    unsafe fn softmax_lanes<S: Simd>(
        &self,
        s: S,
        padded: usize,
        keys: Range<usize>,
        scores: *mut f32,
        max: *mut f32,
        sum: *mut f32,
        alpha: *mut f32,
    ) {
        for query in (0..padded).step_by(S::LANES) {
            let lanes = &self.visible[query.min(self.queries)..self.queries.min(query + S::LANES)];
            let common_first = lanes.iter().map(|lane| lane.first).max().unwrap_or(0);
            let common_end = lanes.iter().map(|lane| lane.end).min().unwrap_or(0);
            let end = lanes.iter().map(|lane| lane.end).max().unwrap_or(0).min(keys.end);
            let n = end.saturating_sub(keys.start);
            // SAFETY: by the contract; `padded` is a multiple of every vector length.
            unsafe {
                let column = scores.add(query);
                if self.args.scores.softcap.is_some() {
                    (0..n).for_each(|key| self.cap(s, column.add(key * padded), S::LANES));
                }
                // Keys that some of the lanes do not see, at both ends.
                let behind = keys.start..common_first.min(end);
                for key in behind.chain(keys.start.max(common_first).max(common_end)..end) {
                    for (lane, visible) in lanes.iter().enumerate() {
                        if !(visible.first..visible.end).contains(&key) {
                            *column.add((key - keys.start) * padded + lane) = f32::NEG_INFINITY;
                        }
                    }
                }
                let (never, old) = (s.splat(f32::NEG_INFINITY), s.load(max.add(query)));
                let mut top = old;
                for key in 0..n {
                    top = s.max(top, s.load(column.add(key * padded)));
                }
                let top = s.select(s.lt(top, s.add(old, s.splat(SLACK))), old, top);
                let base = s.select(s.eq(top, never), s.splat(0.0), top);
                let mut total = s.splat(0.0);
                for key in 0..n {
                    let at = column.add(key * padded);
                    let weight = math::exp(s, s.sub(s.load(at), base));
                    total = s.add(total, weight);
                    s.store(at, weight);
                }
                let factor = s.select(s.eq(old, never), s.splat(1.0), math::exp(s, s.sub(old, base)));
                s.store(alpha.add(query), factor);
                s.store(max.add(query), top);
                s.store(sum.add(query), s.fma(s.load(sum.add(query)), factor, total));
            }
        }
    }

    /// Adds the weighted values of the keys that each query sees. The weight of the tile's key `i` for query
    /// `q` is at `q * strides.0 + i * strides.1`.
    ///
    /// # Safety
    /// The tile holds a padded row for each key, `weights` a weight for each key and query, and `acc` a
    /// padded row for each query.
    #[inline(always)]
    unsafe fn values<S: Simd>(
        &self,
        s: S,
        v: Tile,
        keys: Range<usize>,
        weights: *const f32,
        strides: (usize, usize),
        acc: *mut f32,
    ) {
        let mut query = 0;
        while query < self.queries {
            let block = match self.queries - query {
                n @ ..=4 => n,
                5 => 3,
                7 | 8 => 4,
                _ => 6,
            };
            let visible = || self.visible[query..query + block].iter().map(|visible| visible.within(&keys));
            // The keys that all queries of the block see, then those that single ones see before and after.
            let first = visible().map(|seen| seen.start).max().unwrap_or(0);
            let end = visible().map(|seen| seen.end).min().unwrap_or(0).max(first);
            // SAFETY: by the contract; the queries are counted, and the keys are those of the tile.
            unsafe {
                let acc = acc.add(query * self.hd_pad);
                let weights = weights.add(query * strides.0);
                let (values, w) = (Tile(v.0.add(first * v.1), v.1), weights.add(first * strides.1));
                let n = end - first;
                match block {
                    1 => accumulate_values::<S, 1>(s, values, n, w, strides, acc, self.hd_pad),
                    2 => accumulate_values::<S, 2>(s, values, n, w, strides, acc, self.hd_pad),
                    3 => accumulate_values::<S, 3>(s, values, n, w, strides, acc, self.hd_pad),
                    4 => accumulate_values::<S, 4>(s, values, n, w, strides, acc, self.hd_pad),
                    _ => accumulate_values::<S, 6>(s, values, n, w, strides, acc, self.hd_pad),
                }
                for (i, seen) in visible().enumerate() {
                    let acc = acc.add(i * self.hd_pad);
                    let parts = [seen.start..seen.end.min(first), seen.start.max(end)..seen.end];
                    for part in parts.into_iter().filter(|part| !part.is_empty()) {
                        let values = Tile(v.0.add(part.start * v.1), v.1);
                        let w = weights.add(i * strides.0 + part.start * strides.1);
                        accumulate_values::<S, 1>(s, values, part.len(), w, strides, acc, self.hd_pad);
                    }
                }
            }
            query += block;
        }
    }

    /// Combines the partial results of all splits, which are consecutive from `first` on, into the outputs.
    ///
    /// # Safety
    /// All splits are done, and only this task combines them.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, first: *mut f32, len: usize) {
        let padded = self.queries.next_multiple_of(PAD);
        let (hd, splits) = (self.args.k.layout().head_dim, self.row_group.splits);
        for query in 0..self.queries {
            let row = self.row_group.row + query / self.group;
            let head = self.head * self.group + query % self.group;
            // SAFETY: by the contract; the rows and heads of the row group are inside the output.
            unsafe {
                let mut top = f32::NEG_INFINITY;
                for split in 0..splits {
                    top = top.max(*first.add(split * len + query));
                }
                let sink = self.args.scores.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
                let top = top.max(sink);
                let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
                let mut sum = if sink == f32::NEG_INFINITY { 0.0 } else { exp_one(s, sink - base) };
                for split in 0..splits {
                    // The weight of the split replaces its maximum.
                    let partial = first.add(split * len + query);
                    *partial = exp_one(s, *partial - base);
                    sum += *partial * *partial.add(padded);
                }
                let out = self.shared.out.add(row * self.shared.out_stride + head * hd);
                let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                let mut i = 0;
                while i < hd {
                    let mut total = s.splat(0.0);
                    for split in 0..splits {
                        let partial = first.add(split * len);
                        let x = s.load(partial.add(2 * padded + query * self.hd_pad + i));
                        total = s.fma(s.splat(*partial.add(query)), x, total);
                    }
                    s.store_part(out.add(i), s.mul(total, s.splat(inverse)), S::LANES.min(hd - i));
                    i += S::LANES;
                }
            }
        }
    }
}
