//! What model graphs and command batches have in common: who reads a value, how long it lives, and where it is
//! stored.
//!
//! Both are a list of steps that read and write numbered values. Fusion asks whether a value has readers outside
//! of what is fused ([`Readers`]). The memory plan merges values that are computed in place ([`alias_groups`]) and
//! gives what is left a place: an offset in one arena ([`pack_arena`]), or one of several buffers, where a device
//! cannot bind parts of one buffer for reading and for writing ([`assign_slots`]).

use std::cmp::Reverse;

/// Who reads each value.
#[derive(Clone, Debug, Default)]
pub struct Readers {
    readers: Vec<Vec<usize>>,
    kept: Vec<bool>,
}

impl Readers {
    /// Nobody reads any of so many values.
    pub fn new(values: usize) -> Readers {
        Readers { readers: vec![Vec::new(); values], kept: vec![false; values] }
    }

    /// A step reads a value. A step that reads it twice counts twice.
    pub fn read(&mut self, value: usize, by: usize) {
        self.readers[value].push(by);
    }

    /// A value is a result, and must not be fused away.
    pub fn keep(&mut self, value: usize) {
        self.kept[value] = true;
    }

    /// The steps that read a value.
    pub fn of(&self, value: usize) -> &[usize] {
        &self.readers[value]
    }

    /// Values that are read or kept, in order.
    pub fn needed(&self) -> impl DoubleEndedIterator<Item = usize> {
        (0..self.readers.len()).filter(|&value| self.kept[value] || !self.readers[value].is_empty())
    }

    /// Whether a value is read exactly once, and is no result.
    pub fn is_read_once(&self, value: usize) -> bool {
        self.readers[value].len() == 1 && !self.kept[value]
    }

    /// Whether a value is read by steps of a group alone, and is no result.
    pub fn only_by(&self, value: usize, in_group: impl FnMut(&usize) -> bool) -> bool {
        !self.kept[value] && !self.readers[value].is_empty() && self.readers[value].iter().all(in_group)
    }
}

/// The steps during which a value must be kept: from the one that writes it to the last that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The step that writes it.
    pub first: usize,
    /// The last step that reads it.
    pub last: usize,
}

impl Lifetime {
    /// Whether both are needed at some step.
    pub fn overlaps(self, other: Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A value that needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// When it is needed.
    pub life: Lifetime,
    /// Its size.
    pub bytes: u64,
}

/// A step that may write a value over one of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The step.
    pub step: usize,
    /// The value that it writes.
    pub output: usize,
    /// The operand.
    pub operand: usize,
}

/// Values in the same memory: one value, or a chain of results that are computed in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasGroup {
    /// From the first value to the last.
    pub life: Lifetime,
    /// The size of each.
    pub bytes: u64,
    /// The values, in the order in which they are written.
    pub members: Vec<usize>,
}

/// Which values share memory because they are computed in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aliases {
    /// All stored values, each in one group.
    pub groups: Vec<AliasGroup>,
    /// For each value, the operand that it overwrites.
    pub replaced: Vec<Option<usize>>,
}

/// Merges values that can be computed in place. `values` has `None` for what is not stored here; `in_place` is in
/// the order of the steps, and within a step the best choice comes first. A result takes the memory of an operand
/// of the same size that nothing reads after this step and that no other result of the step has taken.
pub fn alias_groups(values: &[Option<StoredValue>], in_place: impl IntoIterator<Item = InPlace>) -> Aliases {
    let mut groups: Vec<AliasGroup> = Vec::new();
    let mut group_of = vec![None; values.len()];
    let mut replaced = vec![None; values.len()];
    for (id, value) in values.iter().enumerate() {
        if let Some(StoredValue { life, bytes }) = *value {
            group_of[id] = Some(groups.len());
            groups.push(AliasGroup { life, bytes, members: vec![id] });
        }
    }
    let mut taken: Vec<(usize, usize)> = Vec::new(); // (step, operand), of the current step
    for InPlace { step, output, operand } in in_place {
        taken.retain(|(at, _)| *at == step);
        let (Some(from), Some(to)) = (group_of[output], group_of[operand]) else { continue };
        let fits = groups[from].bytes == groups[to].bytes && groups[from].members == [output] && from != to;
        let dies =
            values[operand].is_some_and(|value| value.life.last == step) && groups[to].life.last == step;
        if !fits || !dies || taken.contains(&(step, operand)) {
            continue;
        }
        taken.push((step, operand));
        groups[from].members.clear();
        groups[to].members.push(output);
        groups[to].life.last = groups[from].life.last;
        group_of[output] = Some(to);
        replaced[output] = Some(operand);
    }
    groups.retain(|group| !group.members.is_empty());
    Aliases { groups, replaced }
}

/// The offset of each group in one arena, and the bytes of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlan {
    /// The offset of each group: a multiple of the alignment, behind its guard.
    pub offsets: Vec<u64>,
    /// The bytes of the arena.
    pub bytes: u64,
}

/// Places groups in one arena, each with `guard` bytes before and after it. With `share`, groups that do not live at
/// the same time may share bytes. `None` if the arena would not fit 64 bits.
pub fn pack_arena(groups: &[AliasGroup], alignment: u64, guard: u64, share: bool) -> Option<ArenaPlan> {
    let guard = guard.checked_next_multiple_of(alignment)?;
    // Largest first: small ones then fit into the remaining gaps.
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&group| (Reverse(groups[group].bytes), groups[group].life.first));
    let mut plan = ArenaPlan { offsets: vec![0; groups.len()], bytes: 0 };
    let mut placed: Vec<(u64, u64, Lifetime)> = Vec::new(); // (start, end, lifetime), by start
    for group in order {
        let AliasGroup { life, bytes, .. } = groups[group];
        let size = bytes.checked_next_multiple_of(alignment)?.checked_add(guard.checked_mul(2)?)?;
        let mut start = 0u64;
        for &(from, to, other) in &placed {
            if (!share || other.overlaps(life)) && start.saturating_add(size) > from {
                start = start.max(to);
            }
        }
        let end = start.checked_add(size)?;
        plan.bytes = plan.bytes.max(end);
        plan.offsets[group] = start + guard;
        let at = placed.partition_point(|&(from, ..)| from <= start);
        placed.insert(at, (start, end, life));
    }
    Some(plan)
}

/// The buffer of each group, and the size of each buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotPlan {
    /// The number of the buffer of each group.
    pub slot_of: Vec<usize>,
    /// The bytes of each buffer.
    pub bytes: Vec<u64>,
}

/// Gives each group a buffer: with `share` the smallest one that is large enough and whose groups are not needed any
/// more, otherwise a new one. Groups of one step are served in their order.
pub fn assign_slots(groups: &[AliasGroup], share: bool) -> SlotPlan {
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&group| groups[group].life.first);
    let mut plan = SlotPlan { slot_of: vec![0; groups.len()], bytes: Vec::new() };
    // The last step that needs each buffer.
    let mut needed_until: Vec<usize> = Vec::new();
    for group in order {
        let AliasGroup { life, bytes, .. } = groups[group];
        let candidates = if share { plan.bytes.len() } else { 0 };
        let free = |slot: &usize| needed_until[*slot] < life.first && plan.bytes[*slot] >= bytes;
        let best = (0..candidates).filter(free).min_by_key(|&slot| plan.bytes[slot]);
        let slot = best.unwrap_or(plan.bytes.len());
        if best.is_none() {
            plan.bytes.push(bytes);
            needed_until.push(0);
        }
        needed_until[slot] = life.last;
        plan.slot_of[group] = slot;
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(first: usize, last: usize, bytes: u64) -> Option<StoredValue> {
        Some(StoredValue { life: Lifetime { first, last }, bytes })
    }

    #[test]
    fn readers_decide_what_can_be_fused_away() {
        let mut readers = Readers::new(5);
        readers.read(0, 7);
        readers.read(1, 7);
        readers.read(1, 8);
        readers.read(2, 7);
        readers.read(2, 7);
        readers.read(3, 7);
        readers.keep(3);
        assert_eq!([0, 1, 2, 3, 4].map(|id| readers.is_read_once(id)), [true, false, false, false, false]);
        let by_7 = |id| readers.only_by(id, |&step| step == 7);
        assert_eq!([0, 1, 2, 3, 4].map(by_7), [true, false, true, false, false]);
        assert_eq!(readers.needed().rev().collect::<Vec<_>>(), [3, 2, 1, 0]);
        assert_eq!(readers.of(1), [7, 8]);
    }

    #[test]
    fn a_chain_in_place_is_one_group() {
        let values = [value(0, 1, 64), value(1, 2, 64), value(2, 9, 64), None];
        let step = |step: usize, output, operand| InPlace { step, output, operand };
        let aliases = alias_groups(&values, [step(1, 1, 0), step(2, 2, 1), step(3, 3, 2)]);
        let group = AliasGroup { life: Lifetime { first: 0, last: 9 }, bytes: 64, members: vec![0, 1, 2] };
        assert_eq!(aliases, Aliases { groups: vec![group], replaced: vec![None, Some(0), Some(1), None] });
    }

    #[test]
    fn memory_that_is_read_later_or_differs_or_is_taken_is_not_overwritten() {
        let in_place = |output, operand| InPlace { step: 1, output, operand };
        // Read later; of another size; and two outputs of one operand, of which nobody reads the first.
        for (values, pairs, replaced) in [
            (vec![value(0, 2, 8), value(1, 2, 8)], vec![in_place(1, 0)], vec![None, None]),
            (vec![value(0, 1, 16), value(1, 2, 8)], vec![in_place(1, 0)], vec![None, None]),
            (
                vec![value(0, 1, 8), value(1, 1, 8), value(1, 2, 8)],
                vec![in_place(1, 0), in_place(2, 0)],
                vec![None, Some(0), None],
            ),
            // The first choice that fits.
            (
                vec![value(0, 3, 8), value(0, 1, 8), value(0, 1, 8), value(1, 2, 8)],
                vec![in_place(3, 0), in_place(3, 1), in_place(3, 2)],
                vec![None, None, None, Some(1)],
            ),
        ] {
            assert_eq!(alias_groups(&values, pairs).replaced, replaced);
        }
    }

    /// Random groups, and whether two of them may share memory.
    fn random_groups(random: &mut fastrand::Rng) -> Vec<AliasGroup> {
        (0..random.usize(1..40))
            .map(|id| {
                let first = random.usize(..30);
                let life = Lifetime { first, last: first + random.usize(..8) };
                AliasGroup { life, bytes: random.u64(..600), members: vec![id] }
            })
            .collect()
    }

    #[test]
    fn groups_that_live_at_the_same_time_are_apart() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let groups = random_groups(&mut random);
            let (guard, share) = (random.u64(..2) * 100, random.bool());
            let arena = pack_arena(&groups, 256, guard, share).unwrap();
            let slots = assign_slots(&groups, share);
            for (i, a) in groups.iter().enumerate() {
                assert!(slots.bytes[slots.slot_of[i]] >= a.bytes);
                assert!(arena.offsets[i].is_multiple_of(256) && arena.offsets[i] + a.bytes <= arena.bytes);
                for (j, b) in groups.iter().enumerate().skip(i + 1) {
                    if !share || a.life.overlaps(b.life) {
                        assert_ne!(slots.slot_of[i], slots.slot_of[j]);
                        let (x, y) = (arena.offsets[i], arena.offsets[j]);
                        assert!(x + a.bytes + guard <= y || y + b.bytes + guard <= x, "{i} and {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_chain_needs_two_slots_or_two_places() {
        let groups: Vec<AliasGroup> = (0..10)
            .map(|i| AliasGroup { life: Lifetime { first: i, last: i + 1 }, bytes: 256, members: vec![i] })
            .collect();
        assert_eq!(assign_slots(&groups, true).bytes, [256, 256]);
        assert_eq!(pack_arena(&groups, 256, 0, true).unwrap().bytes, 512);
        assert_eq!(assign_slots(&groups, false).bytes.len(), 10);
        assert_eq!(pack_arena(&groups, 256, 0, false).unwrap().bytes, 2560);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let life = Lifetime { first: 0, last: 1 };
        let group = |bytes| AliasGroup { life, bytes, members: vec![0] };
        assert_eq!(pack_arena(&[group(u64::MAX)], 256, 0, true), None);
        assert_eq!(pack_arena(&[group(u64::MAX / 2), group(u64::MAX / 2 + 600)], 256, 0, true), None);
        assert_eq!(pack_arena(&[group(1)], 256, u64::MAX, true), None);
    }
}
