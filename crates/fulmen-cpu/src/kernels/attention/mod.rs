//! Flash attention over a KV cache: causal, grouped-query, with online softmax; for decode, batches and
//! prefill chunks.
//!
//! Consecutive rows of one sequence form a *row group*. A row group with the query heads that share one KV
//! head is a set of *queries* that reads the same keys, about `TASK_QUERIES` of them. A task computes the
//! queries of one row group and KV head over one *split* of the context (flash decoding, `MIN_SPLIT`
//! positions or more), one KV chunk at a time with online softmax. If the context has several splits, the
//! task that finishes last combines the partial results in the order of the positions. The partition depends
//! on the shapes alone, so the result does not depend on the threads.
//!
//! Keys and values are dequantized to f32 one KV tile at a time into L1, where every query of the task reads
//! them. With few queries (decode) scores are dot products along the head: chunks of 256 keys in tiles of 32.
//! From `LANE_QUERIES` queries on (prefill) queries are transposed, one query per SIMD lane, which needs no
//! horizontal sums: chunks of 64 keys.
//!
//! Layouts: q and out `[m][n_heads][head_dim]` f32; KV cache `[page][n_kv_heads][KV_PAGE][head_dim]` in F32,
//! F16 or Q8_0 ([`KvView`]), with the pages of each sequence in a table. No KV tile crosses a page. Decode is
//! bound by the bandwidth of reading the cache, prefill by multiply-adds.

use std::{
    ops::Range,
    sync::{Mutex, PoisonError, atomic::AtomicUsize},
};

use fulmen_core::{KV_PAGE, Scores};

use crate::{
    isa::Isa,
    kv_view::{KvError, KvView, PageTable, RowPages, check_strided},
    simd::dispatch,
    threads::Pool,
};

mod microkernels;
mod task;
#[cfg(test)]
mod tests;

use task::{Task, TaskOutputs};

/// The smallest number of positions in a split of the context.
const MIN_SPLIT: usize = 256;
/// Splits are enlarged until there are no more tasks than this, which bounds the memory for partial results.
const MAX_TASKS: usize = 256;
/// Target number of queries per task.
const TASK_QUERIES: usize = 64;
/// From this many queries on, each query has its own SIMD lane.
const LANE_QUERIES: usize = 16;
/// Keys per online-softmax update, and keys per tile, for few queries.
const DOT_CHUNK: (usize, usize) = (256, 32);
const _: () = assert!((KV_PAGE as usize).is_multiple_of(DOT_CHUNK.1));
/// Keys per online-softmax update and per tile, with a query per lane.
const LANE_CHUNK: usize = 64;
const _: () = assert!((KV_PAGE as usize).is_multiple_of(LANE_CHUNK));
/// A larger score becomes the new maximum only if it exceeds the old one by this, which avoids most of the
/// rescaling; weights then reach e^8 instead of 1.
const SLACK: f32 = 8.0;
/// Sizes in the workspace are multiples of the longest vector.
const PAD: usize = 16;

/// Arguments of [`attention`].
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Queries, `n_heads * head_dim` per row.
    pub q: &'a [f32],
    /// Elements from one row of `q` to the next.
    pub q_stride: usize,
    /// Query heads; each KV head serves an equal number of adjacent ones.
    pub n_heads: usize,
    /// What scores are, which keys a row sees, and a sink for each query head.
    pub scores: Scores<&'a [f32]>,
    /// The K cache.
    pub k: KvView<'a>,
    /// The V cache.
    pub v: KvView<'a>,
    /// The pages of each sequence.
    pub table: PageTable<'a>,
    /// The position of each row: the last position that it sees.
    pub positions: &'a [u32],
    /// The sequence of each row; sequence 0 for all if `None`.
    pub sequences: Option<&'a [u32]>,
    /// Whether the bits of a row depend on nothing but its sequence, its position and, among consecutive
    /// positions, those of its block of a page, and not on other sequences.
    pub by_position: bool,
}

/// Scratch memory of [`attention`]. It grows as needed and is reused from call to call.
#[derive(Default)]
pub struct AttentionScratch {
    row_groups: Vec<RowGroup>,
    /// (row group, KV head, split).
    tasks: Vec<(usize, usize, usize)>,
    /// Unfinished splits of each row group and KV head.
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

/// Consecutive rows of one sequence that are computed together.
#[derive(Clone, Copy)]
struct RowGroup {
    row: usize,
    rows: usize,
    seq: usize,
    /// The first position that any of the rows sees, rounded down to a tile.
    begin: usize,
    /// The position behind the last that any of the rows sees.
    end: usize,
    splits: usize,
    /// Offset of its partial results.
    partial: usize,
}

impl RowGroup {
    /// The number of positions from the first to the last that any of the rows sees.
    fn keys(&self) -> usize {
        self.end - self.begin
    }
}

/// Causal attention: row `r` of `out`, `n_heads * head_dim` elements wide and `out_stride` apart, gets for
/// each head the mean of the values at positions `0..=positions[r]` of its sequence, or those of them that it
/// sees, weighted by the softmax of the [`Scores`].
///
/// A NaN in a query gives NaN in its head. A head whose scores are all -inf is zero. Positions that a row
/// does not see have no influence on it, whatever they contain.
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
    let pages = RowPages::Seen(args.scores.map(|_| ()));
    let m = args.table.check_rows(&kl, args.positions, args.sequences, pages)?;
    args.table.check_rows(&vl, args.positions, args.sequences, pages)?;
    if let Some(sinks) = args.scores.sinks.filter(|sinks| sinks.len() != n_heads) {
        return Err(KvError::Shape { what: "sinks", expected: n_heads, got: sinks.len() });
    }
    let width = n_heads.checked_mul(hd).ok_or(KvError::Overflow)?;
    check_strided("q rows", m, width, args.q_stride, args.q.len())?;
    check_strided("output rows", m, width, out_stride, out.len())?;
    if m == 0 || width == 0 {
        return Ok(());
    }

    let group = n_heads / n_kv_heads;
    let hd_pad = hd.next_multiple_of(PAD);
    let split_len = partition(scratch, args, group);
    let AttentionScratch { row_groups, tasks, pending, partials, workspaces } = scratch;
    let shared = TaskOutputs { out: out.as_mut_ptr(), out_stride, partials: partials.as_mut_ptr() };
    let (row_groups, tasks, pending, workspaces) = (&row_groups[..], &tasks[..], &pending[..], &*workspaces);
    pool.run(tasks.len(), &|task| {
        let (at, head, index) = tasks[task];
        let lock = || workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = lock().pop().unwrap_or_default();
        let row_group = row_groups[at];
        let queries = row_group.rows * group;
        let ptrs = workspace.prepare(queries, hd_pad);
        let positions = &args.positions[row_group.row..][..row_group.rows];
        for (visible, &position) in workspace.visible.chunks_mut(group).zip(positions) {
            let first = args.scores.first_visible(position) as usize;
            visible.fill(Visible { first, end: position as usize + 1 });
        }
        let task = Task {
            args,
            row_group,
            head,
            index,
            keys: match row_group.splits {
                1 => row_group.begin..row_group.end,
                _ => {
                    let from = row_group.begin + index * split_len;
                    from..row_group.end.min(from + split_len)
                }
            },
            queries,
            group,
            hd_pad,
            ptrs,
            visible: &workspace.visible,
            shared: &shared,
            pending: &pending[at * n_kv_heads + head],
        };
        dispatch(isa, task);
        lock().push(workspace);
    });
    Ok(())
}

/// Partitions the work into row groups, splits and tasks, and reserves the partial results. Returns the split
/// length.
fn partition(scratch: &mut AttentionScratch, args: &Attention<'_>, group: usize) -> usize {
    let AttentionScratch { row_groups, tasks, pending, partials, .. } = scratch;
    let n_kv_heads = args.k.layout().n_kv_heads;
    let hd_pad = args.k.layout().head_dim.next_multiple_of(PAD);
    let mut most_rows = (TASK_QUERIES / group).max(1);
    if args.by_position {
        // A power of two divides a page, so blocks of positions begin at page borders.
        most_rows = 1 << most_rows.ilog2();
    }
    let starts_block = |position: u32| args.by_position && (position as usize).is_multiple_of(most_rows);
    row_groups.clear();
    for (row, &position) in args.positions.iter().enumerate() {
        let seq = args.sequences.map_or(0, |s| s[row]) as usize;
        let end = position as usize + 1;
        let begin = args.scores.first_visible(position) as usize / LANE_CHUNK * LANE_CHUNK;
        match row_groups.last_mut() {
            Some(row_group)
                if row_group.seq == seq && row_group.rows < most_rows && !starts_block(position) =>
            {
                row_group.rows += 1;
                row_group.begin = row_group.begin.min(begin);
                row_group.end = row_group.end.max(end);
            }
            _ => row_groups.push(RowGroup { row, rows: 1, seq, begin, end, splits: 0, partial: 0 }),
        }
    }
    let longest = row_groups.iter().map(RowGroup::keys).max().unwrap_or(0);
    let mut split_len = MIN_SPLIT;
    let n_tasks = |split_len: usize, groups: &[RowGroup]| {
        groups.iter().map(|rows| rows.keys().div_ceil(split_len) * n_kv_heads).sum::<usize>()
    };
    while !args.by_position && split_len < longest && n_tasks(split_len, row_groups) > MAX_TASKS {
        split_len *= 2;
    }

    tasks.clear();
    pending.clear();
    let mut floats = 0;
    for row_group in row_groups.iter_mut() {
        // Rows of prefill have enough tasks; the partial results of all their splits would take much memory.
        let whole = args.by_position && row_group.rows > 1;
        row_group.splits = if whole { 1 } else { row_group.keys().div_ceil(split_len) };
        row_group.partial = floats;
        if row_group.splits > 1 {
            floats += row_group.splits * n_kv_heads * partial_len(row_group.rows * group, hd_pad);
        }
        pending.extend((0..n_kv_heads).map(|_| AtomicUsize::new(row_group.splits)));
    }
    // The last rows of a prefill chunk see the most positions, so they go first.
    for (at, row_group) in row_groups.iter().enumerate().rev() {
        for head in 0..n_kv_heads {
            tasks.extend((0..row_group.splits).map(|index| (at, head, index)));
        }
    }
    partials.reserve(floats);
    split_len
}

/// f32 values in one partial result: the maximum and the sum of each query, then the weighted values.
const fn partial_len(queries: usize, hd_pad: usize) -> usize {
    2 * queries.next_multiple_of(PAD) + queries * hd_pad
}

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; PAD]);

/// f32 values aligned to a cache line.
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

/// Scratch memory of one task.
#[derive(Default)]
struct Workspace {
    floats: Lines,
    /// The positions that each query sees.
    visible: Vec<Visible>,
}

/// The positions that a query sees: from `first` to before `end`.
#[derive(Clone, Copy, Default)]
struct Visible {
    first: usize,
    end: usize,
}

impl Visible {
    /// Those among `keys`, counted from its start.
    fn within(self, keys: &Range<usize>) -> Range<usize> {
        let end = self.end.min(keys.end).saturating_sub(keys.start);
        self.first.saturating_sub(keys.start).min(end)..end
    }
}

/// The arrays in a workspace.
#[derive(Clone, Copy)]
struct WorkspacePtrs {
    /// `[queries][hd_pad]`, or `[hd][queries]` with a query per lane.
    q: *mut f32,
    /// `[queries][chunk]`, or `[chunk][queries]` with a query per lane.
    scores: *mut f32,
    /// `[tile][hd_pad]`.
    tile: *mut f32,
    /// The rescaling factor of the online softmax for each query.
    alpha: *mut f32,
    /// A partial result.
    partial: *mut f32,
}

impl Workspace {
    fn prepare(&mut self, queries: usize, hd_pad: usize) -> WorkspacePtrs {
        let padded = queries.next_multiple_of(PAD);
        let tile = DOT_CHUNK.1.max(LANE_CHUNK);
        let chunk = if queries < LANE_QUERIES { DOT_CHUNK.0 } else { LANE_CHUNK };
        let sizes = [padded * hd_pad, padded * chunk, tile * hd_pad, padded, partial_len(queries, hd_pad)];
        self.floats.reserve(sizes.iter().sum());
        self.visible.clear();
        self.visible.resize(queries, Visible::default());
        let mut next = self.floats.as_mut_ptr();
        let [q, scores, tile, alpha, partial] = sizes.map(|size| {
            let array = next;
            // SAFETY: the sizes add up to what was reserved.
            next = unsafe { next.add(size) };
            array
        });
        WorkspacePtrs { q, scores, tile, alpha, partial }
    }
}
