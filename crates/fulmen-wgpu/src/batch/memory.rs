//! The memory plan: which buffer each group writes to, and which buffers are reused by several values.

use std::collections::HashMap;

use super::fuse::FusionGroup;
use super::value::Value;

/// A buffer that the memory plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BufferSlot(pub(super) usize);

/// The buffer slots of values and scratch.
#[derive(Debug, Default)]
pub(super) struct MemoryPlan {
    /// Bytes of each slot.
    pub(super) slots: Vec<u64>,
    /// The slot of each stored value.
    pub(super) values: HashMap<u32, BufferSlot>,
    /// The scratch slots of each group.
    pub(super) scratch: Vec<Vec<BufferSlot>>,
    /// For each group, the input whose buffer its result overwrites.
    pub(super) replaced: Vec<Option<u32>>,
}

/// What a group needs besides its inputs.
pub(super) struct GroupNeeds {
    /// Bytes of its scratch buffers.
    pub(super) scratch: Vec<u64>,
    /// Inputs whose buffer its result may reuse if nothing reads them later.
    pub(super) in_place: Vec<u32>,
    /// The upload or import that its result overwrites because it was recorded in place; it has no slot.
    pub(super) overwrites: Option<u32>,
}

/// Assigns a slot to every group's result and scratch. `targets` keep theirs; without `share` no slot
/// is reused.
pub(super) fn plan_memory(
    values: &[Value],
    groups: &[FusionGroup],
    needs: &[GroupNeeds],
    targets: &[u32],
    share: bool,
) -> MemoryPlan {
    let mut last_read: HashMap<u32, usize> = HashMap::new();
    for (at, group) in groups.iter().enumerate() {
        last_read.extend(group.inputs(values).into_iter().map(|id| (id, at)));
    }
    last_read.extend(targets.iter().map(|&id| (id, usize::MAX)));

    let mut memory = MemoryPlan::default();
    let mut free: Vec<BufferSlot> = Vec::new();
    for (at, (group, need)) in groups.iter().zip(needs).enumerate() {
        let dies = |id: &u32| last_read.get(id) == Some(&at);
        let replaced =
            need.in_place.iter().copied().find(|id| share && dies(id) && memory.values.contains_key(id));
        let slot = match (need.overwrites, replaced) {
            (Some(_), _) => None,
            (None, Some(id)) => Some(memory.values[&id]),
            (None, None) => Some(take(&mut memory.slots, &mut free, values[group.root as usize].bytes())),
        };
        memory.replaced.push(need.overwrites.or(replaced));
        memory.values.extend(slot.map(|slot| (group.root, slot)));
        let scratch: Vec<BufferSlot> =
            need.scratch.iter().map(|&bytes| take(&mut memory.slots, &mut free, bytes)).collect();
        if share {
            free.extend(&scratch);
            // Inputs read for the last time are free for the following groups.
            for id in group.inputs(values).iter().filter(|id| dies(id)) {
                free.extend(memory.values.get(id).filter(|&&freed| Some(freed) != slot));
            }
        }
        memory.scratch.push(scratch);
    }
    memory
}

/// The smallest free slot that is large enough, or a new one.
fn take(slots: &mut Vec<u64>, free: &mut Vec<BufferSlot>, bytes: u64) -> BufferSlot {
    let best = (0..free.len()).filter(|&i| slots[free[i].0] >= bytes).min_by_key(|&i| slots[free[i].0]);
    if let Some(i) = best {
        return free.swap_remove(i);
    }
    slots.push(bytes);
    BufferSlot(slots.len() - 1)
}
