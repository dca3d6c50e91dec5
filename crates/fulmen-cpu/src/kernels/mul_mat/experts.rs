//! Matmuls by expert id, for a mixture of experts.
//!
//! A pair is a row and one of its experts. Pairs are grouped by expert, and the rows of each group are one
//! matmul with the weights of that expert, by either algorithm; weights of experts without pairs are not
//! read. The tasks of all groups are one parallel region.

use std::ops::Range;

use fulmen_core::{GatedActivation, NO_EXPERT};

use super::blocking::{BlockGrid, BlockedMatmul};
use super::kernel_table::{KernelTable, kernel_table};
use super::{Activations, LOCAL, Residual, Scratch, Weight, buffer::Buffer};
use crate::kernels::parallel::SharedPtr;
use crate::{isa::Isa, threads::Pool};

/// One projection of all experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWeight<'a> {
    /// `[n_experts · n, k]`.
    pub weight: Weight<'a>,
    /// `[n_experts, n]`.
    pub bias: Option<&'a [f32]>,
}

impl<'a> ExpertWeight<'a> {
    /// The weight of one of `n_experts`.
    fn of(&self, expert: usize, n_experts: usize) -> Weight<'a> {
        let Weight { dtype, data, n, k } = self.weight;
        let bytes = data.len() / n_experts;
        Weight { dtype, data: &data[expert * bytes..][..bytes], n: n / n_experts, k }
    }

    /// The bias of some columns of an expert with `n` columns.
    fn bias(&self, expert: usize, n: usize, cols: &Range<usize>) -> Option<&'a [f32]> {
        self.bias.map(|bias| &bias[expert * n + cols.start..][..cols.len()])
    }
}

/// The experts of the rows of a batch.
#[derive(Clone, Copy, Debug)]
pub struct ExpertIds<'a> {
    /// `[m, top]`, each below `n_experts`, or [`NO_EXPERT`], which is skipped.
    pub ids: &'a [u32],
    /// Experts of a row.
    pub top: usize,
    /// Experts of the layer.
    pub n_experts: usize,
}

/// The pairs of one expert.
#[derive(Default)]
struct Group {
    expert: usize,
    pairs: Vec<usize>,
    /// Their rows, `[pairs, k]`.
    x: Buffer,
    scratch: Scratch,
}

/// Memory for groups and results, reused between calls. It only grows.
#[derive(Default)]
pub struct ExpertScratch {
    groups: Vec<Group>,
    /// The number of the group of each expert, or none.
    group_of: Vec<Option<usize>>,
    /// The results of each pair before they are summed, `[pairs, n]`.
    results: Buffer,
}

impl std::fmt::Debug for ExpertScratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpertScratch").finish_non_exhaustive()
    }
}

impl ExpertScratch {
    /// Groups the pairs by expert; returns the number of groups.
    fn group(&mut self, experts: ExpertIds<'_>) -> usize {
        self.group_of.clear();
        self.group_of.resize(experts.n_experts, None);
        let mut used = 0;
        for (pair, &id) in experts.ids.iter().enumerate().filter(|(_, id)| **id != NO_EXPERT) {
            let expert = id as usize;
            let number = *self.group_of[expert].get_or_insert_with(|| {
                if self.groups.len() == used {
                    self.groups.push(Group::default());
                }
                self.groups[used].expert = expert;
                self.groups[used].pairs.clear();
                used += 1;
                used - 1
            });
            self.groups[number].pairs.push(pair);
        }
        used
    }
}

/// Takes the results of a row of a task: the expert, the pair, the columns, and for each projection the
/// values of these columns.
type WriteRow<'a> = &'a (dyn Fn(usize, usize, Range<usize>, [&mut [f32]; 2]) + Sync);

/// The matmuls of one group.
struct GroupMatmuls<'a> {
    expert: usize,
    pairs: &'a [usize],
    matmuls: Vec<BlockedMatmul<'a>>,
    grid: BlockGrid,
    /// The first of its tasks among those of all groups.
    first_task: usize,
}

/// How pairs are multiplied.
struct GroupedMatmul<'a> {
    pool: &'a Pool,
    isa: Isa,
    experts: ExpertIds<'a>,
    /// One projection, or gate and up.
    weights: &'a [ExpertWeight<'a>],
    by_rows: bool,
}

impl GroupedMatmul<'_> {
    /// Calls `write` with all results. `row` gives the activations of a pair.
    fn run<'x>(&self, groups: &mut [Group], row: &(dyn Fn(usize) -> &'x [f32] + Sync), write: WriteRow<'_>) {
        let (pool, isa, table) = (self.pool, self.isa, kernel_table(self.isa));
        let k = self.weights[0].weight.k;
        let count = groups.len();
        let shared = SharedPtr::new(groups.as_mut_ptr());
        pool.run(count, &|at| {
            // SAFETY: each group is one task's, and `groups` is borrowed for as long as the pool runs.
            let Group { pairs, x, .. } = unsafe { &mut shared.slice(at, 1)[0] };
            let rows = x.slice::<f32>(pairs.len() * k);
            for (to, &pair) in rows.chunks_exact_mut(k).zip(&*pairs) {
                to.copy_from_slice(row(pair));
            }
        });
        let mut inputs: Vec<Activations<'_>> = Vec::with_capacity(count);
        let mut members: Vec<(usize, &[usize])> = Vec::with_capacity(count);
        for Group { expert, pairs, x, scratch } in groups {
            let x = x.get::<f32>(pairs.len() * k);
            inputs.push(Activations::new(scratch, x, pairs.len(), k).by_rows(self.by_rows));
            members.push((*expert, pairs));
        }
        let shared = SharedPtr::new(inputs.as_mut_ptr());
        pool.run(count, &|at| {
            for weight in self.weights {
                let weight = weight.of(members[at].0, self.experts.n_experts);
                // SAFETY: each input is one task's, and `inputs` lives for as long as the pool runs.
                BlockedMatmul::prepare(pool, isa, weight, unsafe { &mut shared.slice(at, 1)[0] });
            }
        });
        // Groups are tasks themselves; few of them are divided further.
        let threads = if pool.threads() == 1 { 1 } else { (2 * pool.threads()).div_ceil(count.max(1)) };
        let mut tasks = 0;
        let mut matmuls: Vec<GroupMatmuls<'_>> = Vec::with_capacity(count);
        for (&(expert, pairs), x) in members.iter().zip(&inputs) {
            let weights = self.weights.iter().map(|weight| weight.of(expert, self.experts.n_experts));
            let group: Vec<BlockedMatmul<'_>> =
                weights.map(|weight| BlockedMatmul::new(table, weight, x)).collect();
            let grid = group[0].grid(threads);
            let first_task = tasks;
            tasks += grid.tasks();
            matmuls.push(GroupMatmuls { expert, pairs, matmuls: group, grid, first_task });
        }
        pool.run(tasks, &|task| {
            let at = matmuls.partition_point(|group| group.first_task <= task) - 1;
            matmuls[at].compute(task, write);
        });
    }
}

impl GroupMatmuls<'_> {
    /// Computes a task and writes its rows.
    fn compute(&self, task: usize, write: WriteRow<'_>) {
        let (rows, cols) = self.grid.task(task - self.first_task);
        LOCAL.with_borrow_mut(|[packed, first, second]| {
            let (height, width) = (rows.len(), cols.len());
            let mut blocks = Vec::with_capacity(self.matmuls.len());
            for (matmul, buffer) in self.matmuls.iter().zip([first, second]) {
                let ld = matmul.padded_cols(width);
                let block = buffer.slice::<f32>(matmul.padded_rows(height) * ld);
                matmul.compute(rows.clone(), cols.clone(), packed, block, ld);
                blocks.push((block, ld));
            }
            for (at, row) in rows.enumerate() {
                let mut values = blocks.iter_mut().map(|(block, ld)| &mut block[at * *ld..][..width]);
                let both = [values.next().unwrap_or_default(), values.next().unwrap_or_default()];
                write(self.expert, self.pairs[row], cols.clone(), both);
            }
        });
    }
}

/// `out[pair] = activation(x · gateᵀ + bias, x · upᵀ + bias)` for each row `x` (`[m, k]`) and each of its
/// experts; `out` is `[m · top, n]`.
///
/// # Panics
///
/// If the sizes are inconsistent or an id is neither below `n_experts` nor [`NO_EXPERT`].
#[expect(clippy::too_many_arguments, reason = "the operands of the op")]
pub fn expert_gate_up(
    pool: &Pool,
    isa: Isa,
    scratch: &mut ExpertScratch,
    experts: ExpertIds<'_>,
    weights: [ExpertWeight<'_>; 2],
    activation: GatedActivation,
    x: &[f32],
    by_rows: bool,
    out: &mut [f32],
) {
    let (k, n) = (weights[0].weight.k, weights[0].weight.n / experts.n_experts);
    assert_eq!(out.len(), experts.ids.len() * n, "expert_gate_up: the size of the output");
    assert_eq!(x.len(), experts.ids.len() / experts.top * k, "expert_gate_up: the size of the input");
    let used = scratch.group(experts);
    let table = kernel_table(isa);
    let data = SharedPtr::new(out.as_mut_ptr());
    let matmul = GroupedMatmul { pool, isa, experts, weights: &weights, by_rows };
    matmul.run(
        &mut scratch.groups[..used],
        &|pair| &x[pair / experts.top * k..][..k],
        &|expert, pair, cols, [gate, up]| {
            for (values, weight) in [&mut *gate, &mut *up].into_iter().zip(&weights) {
                add(values, weight.bias(expert, n, &cols));
            }
            activate(table, activation, gate, up);
            // SAFETY: each pair and column belongs to one task, within the output by its size.
            unsafe { data.slice(pair * n + cols.start, cols.len()) }.copy_from_slice(gate);
        },
    );
}

/// `out = residual + Σ weights[pair] · (x[pair] · downᵀ + bias)` over the pairs of each row; `x` is
/// `[m · top, k]` and `out` `[m, n]`.
///
/// # Panics
///
/// If the sizes are inconsistent or an id is neither below `n_experts` nor [`NO_EXPERT`].
#[expect(clippy::too_many_arguments, reason = "the operands of the op")]
pub fn expert_down(
    pool: &Pool,
    isa: Isa,
    scratch: &mut ExpertScratch,
    experts: ExpertIds<'_>,
    down: ExpertWeight<'_>,
    routing_weights: &[f32],
    x: &[f32],
    residual: Residual<'_>,
    by_rows: bool,
    out: &mut [f32],
) {
    let ExpertIds { ids, top, n_experts } = experts;
    let (k, n, m) = (down.weight.k, down.weight.n / n_experts, ids.len() / top);
    assert_eq!(x.len(), ids.len() * k, "expert_down: the size of the input");
    assert_eq!((routing_weights.len(), out.len()), (ids.len(), m * n), "expert_down: the sizes");
    let used = scratch.group(experts);
    let results = SharedPtr::new(scratch.results.reserve::<f32>(ids.len() * n));
    let matmul = GroupedMatmul { pool, isa, experts, weights: &[down], by_rows };
    matmul.run(
        &mut scratch.groups[..used],
        &|pair| &x[pair * k..][..k],
        &|expert, pair, cols, [values, _]| {
            add(values, down.bias(expert, n, &cols));
            // SAFETY: each pair and column belongs to one task, and the buffer has room for all.
            let to = unsafe { results.slice(pair * n + cols.start, cols.len()) };
            for (to, value) in to.iter_mut().zip(values) {
                *to = routing_weights[pair] * *value;
            }
        },
    );
    let results = scratch.results.get::<f32>(ids.len() * n);
    let data = SharedPtr::new(out.as_mut_ptr());
    pool.run_ranges(m, 1, &|rows| {
        for row in rows {
            // SAFETY: each row is one task's.
            let to = unsafe { data.slice(row * n, n) };
            match residual {
                Residual::None => to.fill(0.0),
                Residual::InPlace => {}
                Residual::Rows { data, stride } => to.copy_from_slice(&data[row * stride..][..n]),
            }
            for pair in (row * top..(row + 1) * top).filter(|&pair| ids[pair] != NO_EXPERT) {
                add(to, Some(&results[pair * n..][..n]));
            }
        }
    });
}

fn add(values: &mut [f32], terms: Option<&[f32]>) {
    for (value, term) in values.iter_mut().zip(terms.unwrap_or(&[])) {
        *value += term;
    }
}

/// `gate = activation(gate, up)`.
fn activate(table: &KernelTable, activation: GatedActivation, gate: &mut [f32], up: &[f32]) {
    match activation {
        // SAFETY: the kernels are those of an instruction set that was detected.
        GatedActivation::SwiGlu => unsafe { (table.silu_mul)(gate, up) },
        // SAFETY: likewise.
        GatedActivation::GeGlu => unsafe { (table.gelu_mul)(gate, up) },
        GatedActivation::ClampedSwiGlu { alpha, limit } => {
            for (gate, up) in gate.iter_mut().zip(up) {
                // A comparison that keeps NaN.
                let g = if *gate > limit { limit } else { *gate };
                *gate = g / (1.0 + (-alpha * g).exp()) * (up.clamp(-limit, limit) + 1.0);
            }
        }
    }
}
