//! The memory plan: which buffer each group writes to, and which buffers are reused by several values.

use std::collections::HashMap;
use std::ops::Range;

use fulmen_core::dataflow::{InPlace, Lifetime, StoredValue, alias_groups, assign_slots};

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

    // Values are numbered: the result of each group, and behind them its scratch buffers, group by group.
    let number_of: HashMap<u32, usize> = groups.iter().map(|group| group.root).zip(0..).collect();
    let result = |(at, (group, need)): (usize, (&FusionGroup, &GroupNeeds))| {
        let last = last_read.get(&group.root).map_or(at, |&last| last.max(at));
        let (life, bytes) = (Lifetime { first: at, last }, values[group.root as usize].bytes());
        need.overwrites.is_none().then_some(StoredValue { life, bytes })
    };
    let mut stored: Vec<Option<StoredValue>> = groups.iter().zip(needs).enumerate().map(result).collect();
    let mut in_place = Vec::new();
    let mut scratch_of: Vec<Range<usize>> = Vec::new();
    for (at, need) in needs.iter().enumerate() {
        let life = Lifetime { first: at, last: at };
        let first = stored.len();
        stored.extend(need.scratch.iter().map(|&bytes| Some(StoredValue { life, bytes })));
        scratch_of.push(first..stored.len());
        let operands = need.in_place.iter().filter_map(|id| number_of.get(id).filter(|_| share));
        in_place.extend(operands.map(|&operand| InPlace { step: at, output: at, operand }));
    }

    let aliases = alias_groups(&stored, in_place);
    let slots = assign_slots(&aliases.groups, share);
    let mut slot_of = vec![None; stored.len()];
    for (group, &slot) in aliases.groups.iter().zip(&slots.slot_of) {
        group.members.iter().for_each(|&number| slot_of[number] = Some(BufferSlot(slot)));
    }
    let replaced = |(at, need): (usize, &GroupNeeds)| {
        need.overwrites.or_else(|| aliases.replaced[at].map(|operand| groups[operand].root))
    };
    MemoryPlan {
        slots: slots.bytes,
        values: number_of.iter().filter_map(|(&id, &number)| Some((id, slot_of[number]?))).collect(),
        // Scratch buffers are always stored.
        scratch: scratch_of
            .into_iter()
            .map(|range| slot_of[range].iter().flatten().copied().collect())
            .collect(),
        replaced: needs.iter().enumerate().map(replaced).collect(),
    }
}
