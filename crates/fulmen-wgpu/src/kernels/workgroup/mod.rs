//! Reductions over the threads of a workgroup.

use super::preprocess::{Value, values};
use crate::kernel::Caps;

/// A reduction that a kernel calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkgroupOp {
    /// `group_sum(f32)`.
    Sum,
    /// `group_max(f32)`.
    Max,
    /// `group_max_key(u32)`.
    MaxKey,
}

/// How a kernel reduces over teams of its threads: the values that `workgroup/reduce.wgsl` takes.
#[derive(Clone, Debug)]
pub(super) struct WorkgroupReduce {
    values: [(&'static str, Value); 6],
}

impl WorkgroupReduce {
    /// Reductions over each `team` (a power of two) of the workgroup's `threads`.
    pub(super) fn new(ops: &[WorkgroupOp], threads: u32, team: u32, caps: &Caps) -> Self {
        // How teams smaller than the workgroup map to subgroups differs among devices.
        let reduce_subgroups = caps.subgroups.is_some() && team == threads && team > 1;
        let has = |op| ops.contains(&op);
        let values = values![
            reduce_sum: has(WorkgroupOp::Sum),
            reduce_max: has(WorkgroupOp::Max),
            reduce_max_key: has(WorkgroupOp::MaxKey),
            reduce_subgroups,
            team,
            threads,
        ];
        Self { values }
    }

    /// The values for `render`.
    pub(super) fn values(&self) -> &[(&'static str, Value)] {
        &self.values
    }
}
