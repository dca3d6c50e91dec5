//! The memory plan: which buffer each unit writes to, and which buffers serve one value after the other.

use std::collections::HashMap;

use super::group::Unit;
use super::value::Value;

/// A buffer that the plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot(pub(super) usize);

/// Where values and scratch lie.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Bytes of each slot.
    pub(super) slots: Vec<u64>,
    /// The slot of each value that is stored.
    pub(super) values: HashMap<u32, Slot>,
    /// The scratch slots of each unit.
    pub(super) scratch: Vec<Vec<Slot>>,
    /// The input whose slot each unit's result takes.
    pub(super) replaced: Vec<Option<u32>>,
}

/// What a unit needs besides its inputs.
pub(super) struct Need {
    /// Bytes of its scratch buffers.
    pub(super) scratch: Vec<u64>,
    /// Inputs whose buffer its result may take, if nothing reads them later.
    pub(super) in_place: Vec<u32>,
    /// The input that its result overwrites because it was recorded so, which has no slot.
    pub(super) overwrites: Option<u32>,
}

/// Gives every unit's result and scratch a slot. `targets` keep theirs; with `share` off nothing is shared.
pub(super) fn plan(values: &[Value], units: &[Unit], needs: &[Need], targets: &[u32], share: bool) -> Memory {
    let mut last_read: HashMap<u32, usize> = HashMap::new();
    for (at, unit) in units.iter().enumerate() {
        last_read.extend(unit.inputs(values).into_iter().map(|id| (id, at)));
    }
    last_read.extend(targets.iter().map(|&id| (id, usize::MAX)));

    let mut memory = Memory::default();
    let mut free: Vec<Slot> = Vec::new();
    for (at, (unit, need)) in units.iter().zip(needs).enumerate() {
        let dies = |id: &u32| last_read.get(id) == Some(&at);
        let replaced =
            need.in_place.iter().copied().find(|id| share && dies(id) && memory.values.contains_key(id));
        let slot = match (need.overwrites, replaced) {
            (Some(_), _) => None,
            (None, Some(id)) => Some(memory.values[&id]),
            (None, None) => Some(take(&mut memory.slots, &mut free, values[unit.root as usize].bytes())),
        };
        memory.replaced.push(need.overwrites.or(replaced));
        memory.values.extend(slot.map(|slot| (unit.root, slot)));
        let scratch: Vec<Slot> =
            need.scratch.iter().map(|&bytes| take(&mut memory.slots, &mut free, bytes)).collect();
        if share {
            free.extend(&scratch);
            // What is read for the last time is free for the units after this one.
            for id in unit.inputs(values).iter().filter(|id| dies(id)) {
                free.extend(memory.values.get(id).filter(|&&freed| Some(freed) != slot));
            }
        }
        memory.scratch.push(scratch);
    }
    memory
}

/// The free slot that fits best, or a new one.
fn take(slots: &mut Vec<u64>, free: &mut Vec<Slot>, bytes: u64) -> Slot {
    let best = (0..free.len()).filter(|&i| slots[free[i].0] >= bytes).min_by_key(|&i| slots[free[i].0]);
    if let Some(i) = best {
        return free.swap_remove(i);
    }
    slots.push(bytes);
    Slot(slots.len() - 1)
}
