//! Causal attention over a KV cache, for one row at a time, batches of sequences and chunks of a prompt alike.
//!
//! Rows that follow each other in one sequence form a *unit*; a unit with the query heads that share one key head
//! is a set of *queries* that reads the same keys. A task takes the queries of one unit and key head over one span
//! of the context, a chunk of keys at a time with a running softmax; where the context has several spans, whoever
//! finishes the last of them combines all, in the order of the positions. How the work is cut follows from its
//! shape alone, so the result does not depend on the threads.
//!
//! Keys and values are widened to `f32` a tile at a time, so that every query of the task uses them from the
//! nearest cache. The scores of few queries are dot products along the head; those of many have one query in
//! each lane and need no sums across lanes.

use std::{
    ops::Range,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use fulmen_core::DType;

use crate::{
    isa::Isa,
    kv_view::{KvError, KvView, check_strided},
    simd::{Kernel, Simd, dispatch, math},
    threads::Pool,
};

mod blocks;
#[cfg(test)]
mod tests;

use blocks::{Tile, dots, exp_one, lanes, rescale, weigh, widen};

/// The shortest span of positions that is a task of its own.
const SPAN: usize = 256;
/// Spans grow until there are no more tasks than this, which keeps the memory for combining them bounded.
const TASKS: usize = 256;
/// Queries that a task aims for.
const QUERIES: usize = 64;
/// From so many queries on, each has a lane.
const WIDE: usize = 16;
/// Keys between two updates of the softmax, and keys per tile, for few queries.
const NARROW: (usize, usize) = (256, 32);
/// The same for many.
const WIDE_CHUNK: usize = 64;
/// A larger score becomes the new maximum only if it is larger by this, which spares most of the rescaling; the
/// weights then reach e^8 instead of 1.
const SLACK: f32 = 8.0;
/// Sizes in the workspace are multiples of the longest vector.
const PAD: usize = 16;

/// What to attend to.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries, `n_heads * head_dim` per row.
    pub q: &'a [f32],
    /// Elements from one row of `q` to the next.
    pub q_stride: usize,
    /// Query heads; each key head serves an equal number of neighbouring ones.
    pub n_heads: usize,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
    /// The cache of the keys.
    pub k: KvView<'a>,
    /// The cache of the values.
    pub v: KvView<'a>,
    /// For each row the last position that it sees, itself included.
    pub positions: &'a [u32],
    /// For each row its sequence; `None` stands for sequence 0 throughout.
    pub sequences: Option<&'a [u32]>,
}

/// Memory that [`attention`] works in. It grows with need and is kept from call to call.
#[derive(Default)]
pub struct AttentionScratch {
    units: Vec<Unit>,
    tasks: Vec<(usize, usize, usize)>,
    /// Spans not yet done, for each unit and key head.
    pending: Vec<AtomicUsize>,
    partials: Lines,
    workspaces: Mutex<Vec<Workspace>>,
}

impl AttentionScratch {
    /// Empty scratch memory.
    pub fn new() -> AttentionScratch {
        AttentionScratch::default()
    }
}

/// Rows of one sequence that are worked on together.
#[derive(Clone, Copy)]
struct Unit {
    row: usize,
    rows: usize,
    seq: usize,
    /// The end of what any of the rows sees.
    end: usize,
    spans: usize,
    /// Where its partial results start.
    partial: usize,
}

/// Attends: row `r` of `out`, `n_heads * head_dim` elements wide and `out_stride` apart, gets for each head the
/// mean of the values at positions `0..=positions[r]` of its sequence, weighted by the softmax of
/// `scale * (q · k)`.
///
/// A NaN in a query gives NaN in its head. A head whose scores are all -inf is zero. Positions that a row does not
/// see have no influence on it, whatever they hold.
pub fn attention(
    isa: Isa,
    pool: &Pool,
    scratch: &mut AttentionScratch,
    args: &Attention<'_>,
    out: &mut [f32],
    out_stride: usize,
) -> Result<(), KvError> {
    let (kl, vl) = (*args.k.layout(), *args.v.layout());
    let (n_heads, n_kv_heads, hd) = (args.n_heads, kl.n_kv_heads, kl.head_dim);
    if vl.n_kv_heads != n_kv_heads {
        return Err(KvError::Shape { what: "value heads", expected: n_kv_heads, got: vl.n_kv_heads });
    }
    if vl.head_dim != hd {
        return Err(KvError::Shape { what: "value head size", expected: hd, got: vl.head_dim });
    }
    if n_heads.checked_rem(n_kv_heads).unwrap_or(n_heads) != 0 {
        return Err(KvError::Heads { n_heads, n_kv_heads });
    }
    let m = kl.check_rows(args.positions, args.sequences)?;
    vl.check_rows(args.positions, args.sequences)?;
    let width = n_heads.checked_mul(hd).ok_or(KvError::Overflow)?;
    check_strided("q rows", m, width, args.q_stride, args.q.len())?;
    check_strided("output rows", m, width, out_stride, out.len())?;
    if m == 0 || width == 0 {
        return Ok(());
    }

    let group = n_heads / n_kv_heads;
    let hd_pad = hd.next_multiple_of(PAD);
    let span = plan(scratch, args, group);
    let AttentionScratch { units, tasks, pending, partials, workspaces } = scratch;
    let shared = Shared { out: out.as_mut_ptr(), out_stride, partials: partials.as_mut_ptr() };
    let (units, tasks, pending, workspaces) = (&units[..], &tasks[..], &pending[..], &*workspaces);
    pool.run(tasks.len(), &|task| {
        let (at, head, index) = tasks[task];
        let lock = || workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = lock().pop().unwrap_or_default();
        let unit = units[at];
        let queries = unit.rows * group;
        let places = workspace.prepare(queries, hd_pad);
        let positions = &args.positions[unit.row..][..unit.rows];
        for (limits, &position) in workspace.limits.chunks_mut(group).zip(positions) {
            limits.fill(position as usize + 1);
        }
        let task = Task {
            args,
            unit,
            head,
            index,
            keys: index * span..unit.end.min((index + 1) * span),
            queries,
            group,
            hd_pad,
            places,
            limits: &workspace.limits,
            shared: &shared,
            pending: &pending[at * n_kv_heads + head],
        };
        dispatch(isa, task);
        lock().push(workspace);
    });
    Ok(())
}

/// Cuts the work into units, spans and tasks, and makes room for the partial results. Returns the span.
fn plan(scratch: &mut AttentionScratch, args: &Attention<'_>, group: usize) -> usize {
    let AttentionScratch { units, tasks, pending, partials, .. } = scratch;
    let n_kv_heads = args.k.layout().n_kv_heads;
    let hd_pad = args.k.layout().head_dim.next_multiple_of(PAD);
    let most_rows = (QUERIES / group).max(1);
    units.clear();
    for (row, &position) in args.positions.iter().enumerate() {
        let seq = args.sequences.map_or(0, |s| s[row]) as usize;
        let end = position as usize + 1;
        match units.last_mut() {
            Some(unit) if unit.seq == seq && unit.rows < most_rows => {
                unit.rows += 1;
                unit.end = unit.end.max(end);
            }
            _ => units.push(Unit { row, rows: 1, seq, end, spans: 0, partial: 0 }),
        }
    }
    let longest = units.iter().map(|unit| unit.end).max().unwrap_or(0);
    let mut span = SPAN;
    while span < longest && units.iter().map(|u| u.end.div_ceil(span) * n_kv_heads).sum::<usize>() > TASKS {
        span *= 2;
    }

    tasks.clear();
    pending.clear();
    let mut floats = 0;
    for unit in units.iter_mut() {
        unit.spans = unit.end.div_ceil(span);
        unit.partial = floats;
        if unit.spans > 1 {
            floats += unit.spans * n_kv_heads * partial_len(unit.rows * group, hd_pad);
        }
        pending.extend((0..n_kv_heads).map(|_| AtomicUsize::new(unit.spans)));
    }
    // The last rows of a prompt see the most, so they go first.
    for (at, unit) in units.iter().enumerate().rev() {
        for head in 0..n_kv_heads {
            tasks.extend((0..unit.spans).map(|index| (at, head, index)));
        }
    }
    partials.reserve(floats);
    span
}

/// Floats in one partial result: the maximum and the sum of each query, then the weighted values.
const fn partial_len(queries: usize, hd_pad: usize) -> usize {
    2 * queries.next_multiple_of(PAD) + queries * hd_pad
}

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; PAD]);

/// Floats that start at a cache line.
#[derive(Default)]
struct Lines(Vec<Line>);

impl Lines {
    fn reserve(&mut self, floats: usize) {
        let lines = floats.div_ceil(PAD);
        if self.0.len() < lines {
            self.0.resize(lines, Line([0.0; PAD]));
        }
    }

    fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// What one task works in.
#[derive(Default)]
struct Workspace {
    floats: Lines,
    /// The end of what each query sees.
    limits: Vec<usize>,
}

/// The parts of a workspace.
#[derive(Clone, Copy)]
struct Places {
    /// `[queries][hd_pad]` for few queries, `[hd][queries]` for many.
    q: *mut f32,
    /// `[queries][chunk]` for few queries, `[chunk][queries]` for many.
    scores: *mut f32,
    /// `[tile][hd_pad]`.
    tile: *mut f32,
    /// What the update of the softmax multiplies earlier results with, for each query.
    alpha: *mut f32,
    /// A partial result.
    partial: *mut f32,
}

impl Workspace {
    fn prepare(&mut self, queries: usize, hd_pad: usize) -> Places {
        let padded = queries.next_multiple_of(PAD);
        let tile = NARROW.1.max(WIDE_CHUNK);
        let chunk = if queries < WIDE { NARROW.0 } else { WIDE_CHUNK };
        let sizes = [padded * hd_pad, padded * chunk, tile * hd_pad, padded, partial_len(queries, hd_pad)];
        self.floats.reserve(sizes.iter().sum());
        self.limits.clear();
        self.limits.resize(queries, 0);
        let mut next = self.floats.as_mut_ptr();
        let [q, scores, tile, alpha, partial] = sizes.map(|size| {
            let place = next;
            // SAFETY: the sizes add up to what was reserved.
            next = unsafe { next.add(size) };
            place
        });
        Places { q, scores, tile, alpha, partial }
    }
}

/// The memory that all tasks write to.
struct Shared {
    out: *mut f32,
    out_stride: usize,
    partials: *mut f32,
}
// SAFETY: a task writes its own partial result, which others read only after the counter of pending spans says that
// it is done, and one task alone writes the outputs of a unit and key head.
unsafe impl Sync for Shared {}

/// The queries of one unit and key head over one span.
struct Task<'a> {
    args: &'a Attention<'a>,
    unit: Unit,
    head: usize,
    index: usize,
    keys: Range<usize>,
    queries: usize,
    group: usize,
    hd_pad: usize,
    places: Places,
    limits: &'a [usize],
    shared: &'a Shared,
    pending: &'a AtomicUsize,
}

impl Kernel for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (queries, padded) = (self.queries, self.queries.next_multiple_of(PAD));
        let Places { scores, tile, alpha, partial, .. } = self.places;
        let spans = self.unit.spans;
        let len = partial_len(queries, self.hd_pad);
        let partial = match spans {
            1 => partial,
            // SAFETY: the plan made room for every span of every unit that has several.
            _ => unsafe {
                self.shared.partials.add(self.unit.partial + (self.head * spans + self.index) * len)
            },
        };
        // SAFETY: a partial result holds two padded rows of queries, then the values.
        let (max, sum, acc) = unsafe { (partial, partial.add(padded), partial.add(2 * padded)) };
        let wide = queries >= WIDE;
        let (chunk, step) = if wide { (WIDE_CHUNK, WIDE_CHUNK) } else { NARROW };
        // SAFETY: the places have the sizes of `Workspace::prepare` and nobody else uses them;
        // `partial` likewise; keys lie below the unit's end, which was checked against the capacity.
        unsafe {
            for i in 0..padded {
                *max.add(i) = f32::NEG_INFINITY;
            }
            sum.write_bytes(0, padded + queries * self.hd_pad);
            if wide {
                self.pack_wide(padded)
            } else {
                self.pack_narrow()
            }
            let mut from = self.keys.start;
            while from < self.keys.end {
                let to = self.keys.end.min(from + chunk);
                let mut at = from;
                while at < to {
                    let n = step.min(to - at);
                    let k = self.tile(s, &self.args.k, at, n, tile);
                    if wide {
                        self.scores_wide(s, padded, k, n, scores);
                    } else {
                        self.scores_narrow(s, k, n, scores.add(at - from));
                    }
                    at += n;
                }
                if wide {
                    self.softmax_wide(s, padded, from..to, scores, max, sum, alpha);
                } else {
                    self.softmax_narrow(s, from..to, scores, max, sum, alpha);
                }
                rescale(s, queries, self.hd_pad, alpha, acc);
                let mut at = from;
                while at < to {
                    let n = step.min(to - at);
                    let v = self.tile(s, &self.args.v, at, n, tile);
                    if wide {
                        self.values(s, v, at..at + n, scores, (1, padded), acc);
                    } else {
                        self.values(s, v, at..at + n, scores.add(at - from), (NARROW.0, 1), acc);
                    }
                    at += n;
                }
                from = to;
            }
            if spans == 1 {
                self.finish(s, partial, len);
            } else if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                let first = self.unit.partial + self.head * spans * len;
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
        let row = self.unit.row + query / self.group;
        let head = self.head * self.group + query % self.group;
        &self.args.q[row * self.args.q_stride + head * hd..][..hd]
    }

    /// Scaled queries as padded rows.
    ///
    /// # Safety
    /// The places are those of this task.
    #[inline(always)]
    unsafe fn pack_narrow(&self) {
        for query in 0..self.queries {
            // SAFETY: the place holds so many padded rows.
            let row = unsafe {
                std::slice::from_raw_parts_mut(self.places.q.add(query * self.hd_pad), self.hd_pad)
            };
            let from = self.query(query);
            row[from.len()..].fill(0.0);
            for (to, from) in row.iter_mut().zip(from) {
                *to = from * self.args.scale;
            }
        }
    }

    /// Scaled queries as columns; those that only fill a vector are zero.
    ///
    /// # Safety
    /// The places are those of this task.
    #[inline(always)]
    unsafe fn pack_wide(&self, padded: usize) {
        let hd = self.args.k.layout().head_dim;
        // SAFETY: the place holds so many columns of a padded head.
        let columns = unsafe { std::slice::from_raw_parts_mut(self.places.q, hd * padded) };
        if padded > self.queries {
            columns.fill(0.0);
        }
        // By way of the tile: whole rows first, which the memory delivers best, then four at a time, so that what
        // is written side by side is written at once.
        let mut first = 0;
        while first < self.queries {
            let n = WIDE_CHUNK.min(self.queries - first);
            // SAFETY: the tile holds so many padded rows, and `hd` is not longer than one of them.
            let rows = unsafe { std::slice::from_raw_parts_mut(self.places.tile, n * hd) };
            for (i, row) in rows.chunks_mut(hd).enumerate() {
                for (to, from) in row.iter_mut().zip(self.query(first + i)) {
                    *to = from * self.args.scale;
                }
            }
            for (block, rows) in rows.chunks(4 * hd).enumerate() {
                let query = first + 4 * block;
                if rows.len() == 4 * hd {
                    for i in 0..hd {
                        let four = [rows[i], rows[hd + i], rows[2 * hd + i], rows[3 * hd + i]];
                        columns[i * padded + query..][..4].copy_from_slice(&four);
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

    /// The rows of `n` positions from `at` on, widened into `buffer` unless they can be used where they are.
    ///
    /// # Safety
    /// The positions are below the capacity, and `buffer` holds `n` padded rows.
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, s: S, view: &KvView<'_>, at: usize, n: usize, buffer: *mut f32) -> Tile {
        let (layout, hd, hd_pad) = (view.layout(), view.layout().head_dim, self.hd_pad);
        let offset = layout.offset(self.unit.seq, self.head, at);
        let (stride, row_bytes) = (layout.pos_bytes(), layout.row_bytes());
        // SAFETY: the view holds every row of its layout, and the caller's promise about the positions.
        let first = unsafe { view.bytes().as_ptr().add(offset) };
        if layout.dtype == DType::F32 && hd == hd_pad && first.cast::<f32>().is_aligned() {
            return Tile(first.cast(), layout.pos_stride);
        }
        for i in 0..n {
            // SAFETY: as above, and the caller's promise about the buffer.
            let (from, to) = unsafe {
                let from = std::slice::from_raw_parts(first.add(i * stride), row_bytes);
                (from, std::slice::from_raw_parts_mut(buffer.add(i * hd_pad), hd_pad))
            };
            widen(s, layout.dtype, from, &mut to[..hd]);
            to[hd..].fill(0.0);
        }
        Tile(buffer, hd_pad)
    }

    /// Scores as dot products: `scores[query * chunk + key]`.
    ///
    /// # Safety
    /// The tile holds `n` padded rows, and `scores` has room for them in each of its rows.
    #[inline(always)]
    unsafe fn scores_narrow<S: Simd>(&self, s: S, k: Tile, n: usize, scores: *mut f32) {
        let mut key = 0;
        while key < n {
            let several = n - key >= 4;
            let mut query = 0;
            while query < self.queries {
                // SAFETY: the caller's promise; the queries and keys are counted.
                query += unsafe {
                    let q = self.places.q.add(query * self.hd_pad);
                    let k = Tile(k.0.add(key * k.1), k.1);
                    let out = scores.add(query * NARROW.0 + key);
                    match (self.queries - query, several) {
                        (1, true) => dots::<S, 1, 4>(s, q, self.hd_pad, k, out),
                        (1, false) => dots::<S, 1, 1>(s, q, self.hd_pad, k, out),
                        (2, true) => dots::<S, 2, 4>(s, q, self.hd_pad, k, out),
                        (2, false) => dots::<S, 2, 1>(s, q, self.hd_pad, k, out),
                        (3, true) => dots::<S, 3, 4>(s, q, self.hd_pad, k, out),
                        (3, false) => dots::<S, 3, 1>(s, q, self.hd_pad, k, out),
                        (_, true) if S::LANES == 8 => {
                            dots::<S, 4, 2>(s, q, self.hd_pad, k, out);
                            dots::<S, 4, 2>(s, q, self.hd_pad, Tile(k.0.add(2 * k.1), k.1), out.add(2))
                        }
                        (_, true) => dots::<S, 4, 4>(s, q, self.hd_pad, k, out),
                        (_, false) => dots::<S, 4, 1>(s, q, self.hd_pad, k, out),
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
    unsafe fn scores_wide<S: Simd>(&self, s: S, padded: usize, k: Tile, n: usize, scores: *mut f32) {
        let hd = self.args.k.layout().head_dim;
        let mut key = 0;
        while key < n {
            let keys = [1, 1, 2, 2, 4, 4, 6][(n - key).min(6)];
            let mut query = 0;
            while query < padded {
                let vectors = (padded - query) / S::LANES;
                // SAFETY: the caller's promise; the queries and keys are counted.
                query += unsafe {
                    let q = Tile(self.places.q.add(query), padded);
                    let k = Tile(k.0.add(key * k.1), k.1);
                    let out = scores.add(key * padded + query);
                    match keys {
                        6 => lanes::<S, 6>(s, q, vectors, hd, k, out),
                        4 => lanes::<S, 4>(s, q, vectors, hd, k, out),
                        2 => lanes::<S, 2>(s, q, vectors, hd, k, out),
                        _ => lanes::<S, 1>(s, q, vectors, hd, k, out),
                    }
                };
            }
            key += keys;
        }
    }

    /// Turns scores into weights relative to the running maximum, and updates it and the sum of each query. What
    /// earlier results are to be multiplied with goes to `alpha`.
    ///
    /// # Safety
    /// `scores` holds a chunk for each query; the others hold a float for each.
    #[inline(always)]
    unsafe fn softmax_narrow<S: Simd>(
        &self,
        s: S,
        keys: Range<usize>,
        scores: *mut f32,
        max: *mut f32,
        sum: *mut f32,
        alpha: *mut f32,
    ) {
        for (query, &limit) in self.limits.iter().enumerate() {
            let n = limit.min(keys.end).saturating_sub(keys.start);
            // SAFETY: the caller's promise; chunks are a multiple of every vector length.
            unsafe {
                let row = scores.add(query * NARROW.0);
                for i in n..n.next_multiple_of(S::LANES) {
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

    /// [`Task::softmax_narrow`] with a query in each lane, over rows of `padded` scores. Weights past the last key
    /// that any query of a vector sees are not written.
    ///
    /// # Safety
    /// `scores` holds these rows; the others hold a float for each query.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the places of the task")]
    unsafe fn softmax_wide<S: Simd>(
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
            let limits = &self.limits[query.min(self.queries)..self.queries.min(query + S::LANES)];
            let seen_by_all = limits.iter().copied().min().unwrap_or(0);
            let end = limits.iter().copied().max().unwrap_or(0).min(keys.end);
            let n = end.saturating_sub(keys.start);
            // SAFETY: the caller's promise; `padded` is a multiple of every vector length.
            unsafe {
                let column = scores.add(query);
                for key in keys.start.max(seen_by_all)..end {
                    for (lane, &limit) in limits.iter().enumerate() {
                        if key >= limit {
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
                    let place = column.add(key * padded);
                    let weight = math::exp(s, s.sub(s.load(place), base));
                    total = s.add(total, weight);
                    s.store(place, weight);
                }
                let factor = s.select(s.eq(old, never), s.splat(1.0), math::exp(s, s.sub(old, base)));
                s.store(alpha.add(query), factor);
                s.store(max.add(query), top);
                s.store(sum.add(query), s.fma(s.load(sum.add(query)), factor, total));
            }
        }
    }

    /// Adds the weighted values of the keys that each query sees. The weight of the tile's key `i` for query `q` is
    /// at `q * strides.0 + i * strides.1`.
    ///
    /// # Safety
    /// The tile holds a padded row for each key, `weights` a weight for each key and query, and `acc` a padded row
    /// for each query.
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
        let seen = |limit: usize| limit.min(keys.end).saturating_sub(keys.start);
        let mut query = 0;
        while query < self.queries {
            let block = match self.queries - query {
                n @ ..=4 => n,
                5 => 3,
                7 | 8 => 4,
                _ => 6,
            };
            let limits = &self.limits[query..query + block];
            let common = seen(limits.iter().copied().min().unwrap_or(0));
            // SAFETY: the caller's promise; the queries are counted, and the keys are those of the tile.
            unsafe {
                let w = weights.add(query * strides.0);
                let acc = acc.add(query * self.hd_pad);
                match block {
                    1 => weigh::<S, 1>(s, v, common, w, strides, acc, self.hd_pad),
                    2 => weigh::<S, 2>(s, v, common, w, strides, acc, self.hd_pad),
                    3 => weigh::<S, 3>(s, v, common, w, strides, acc, self.hd_pad),
                    4 => weigh::<S, 4>(s, v, common, w, strides, acc, self.hd_pad),
                    _ => weigh::<S, 6>(s, v, common, w, strides, acc, self.hd_pad),
                }
                for (i, &limit) in limits.iter().enumerate() {
                    let rest = seen(limit) - common;
                    if rest > 0 {
                        let v = Tile(v.0.add(common * v.1), v.1);
                        let w = w.add(i * strides.0 + common * strides.1);
                        weigh::<S, 1>(s, v, rest, w, strides, acc.add(i * self.hd_pad), self.hd_pad);
                    }
                }
            }
            query += block;
        }
    }

    /// Combines the partial results of all spans, which follow each other from `first` on, into the outputs.
    ///
    /// # Safety
    /// All spans are done, and this is the only task to finish them.
    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, first: *mut f32, len: usize) {
        let padded = self.queries.next_multiple_of(PAD);
        let (hd, spans) = (self.args.k.layout().head_dim, self.unit.spans);
        for query in 0..self.queries {
            let row = self.unit.row + query / self.group;
            let head = self.head * self.group + query % self.group;
            // SAFETY: the caller's promise; the rows and heads of the unit are inside the output.
            unsafe {
                let mut top = f32::NEG_INFINITY;
                for span in 0..spans {
                    top = top.max(*first.add(span * len + query));
                }
                let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
                let mut sum = 0.0;
                for span in 0..spans {
                    // The maximum gives way to the weight of the span.
                    let partial = first.add(span * len + query);
                    *partial = exp_one(s, *partial - base);
                    sum += *partial * *partial.add(padded);
                }
                let out = self.shared.out.add(row * self.shared.out_stride + head * hd);
                let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                let mut i = 0;
                while i < hd {
                    let mut total = s.splat(0.0);
                    for span in 0..spans {
                        let partial = first.add(span * len);
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
