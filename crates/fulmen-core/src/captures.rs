//! The captured programs of a dispatcher.
//!
//! A captured program runs without looking at its operands again, so it must not outlive them: it is added
//! with the allocations that its operands lie in, and refused once one of them was freed or changed.

use std::collections::{BTreeSet, HashMap};

use crate::{BackendError, ReplayId};

/// A captured program, and what it needs.
#[derive(Debug)]
struct Captured<T> {
    program: T,
    /// First addresses of the allocations that its operands lie in.
    uses: BTreeSet<u64>,
    /// Why it can no longer run.
    invalid: Option<String>,
}

/// Captured programs by number, each with what a backend stores of it.
#[derive(Debug)]
pub struct Captures<T> {
    programs: HashMap<u64, Captured<T>>,
    next: u64,
}

impl<T> Default for Captures<T> {
    fn default() -> Captures<T> {
        Captures { programs: HashMap::new(), next: 0 }
    }
}

impl<T> Captures<T> {
    /// Adds a program whose operands lie in these allocations.
    pub fn add(&mut self, program: T, uses: BTreeSet<u64>) -> ReplayId {
        let id = self.next;
        self.next += 1;
        self.programs.insert(id, Captured { program, uses, invalid: None });
        ReplayId(id)
    }

    /// The program, if it can run.
    pub fn get(&self, id: ReplayId) -> Result<&T, BackendError> {
        let found = self.programs.get(&id.0);
        check(id, found)?;
        found.map(|captured| &captured.program).ok_or_else(|| missing(id))
    }

    /// The program, if it can run.
    pub fn get_mut(&mut self, id: ReplayId) -> Result<&mut T, BackendError> {
        check(id, self.programs.get(&id.0))?;
        self.programs.get_mut(&id.0).map(|captured| &mut captured.program).ok_or_else(|| missing(id))
    }

    /// The program, whether it can run or not.
    pub fn peek(&self, id: ReplayId) -> Option<&T> {
        self.programs.get(&id.0).map(|captured| &captured.program)
    }

    /// Removes a program.
    pub fn remove(&mut self, id: ReplayId) -> Option<T> {
        self.programs.remove(&id.0).map(|captured| captured.program)
    }

    /// Refuses the programs that use the allocation at `ptr` from now on; `why` says what happened to it.
    pub fn invalidate(&mut self, ptr: u64, why: &str) {
        for captured in self.programs.values_mut().filter(|captured| captured.uses.contains(&ptr)) {
            captured.invalid.get_or_insert_with(|| format!("the memory at {ptr:#x}, which it uses, {why}"));
        }
    }
}

fn missing(id: ReplayId) -> BackendError {
    BackendError::Replay { program: id.0, reason: "there is no program of this number".to_owned() }
}

fn check<T>(id: ReplayId, found: Option<&Captured<T>>) -> Result<(), BackendError> {
    match &found.ok_or_else(|| missing(id))?.invalid {
        Some(reason) => Err(BackendError::Replay { program: id.0, reason: reason.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason<T: std::fmt::Debug>(result: Result<T, BackendError>) -> String {
        match result {
            Err(error @ BackendError::Replay { .. }) => error.to_string(),
            other => panic!("expected a refused program, got {other:?}"),
        }
    }

    #[test]
    fn programs_are_refused_once_their_memory_is_gone() {
        let mut captures = Captures::default();
        let first = captures.add("first", BTreeSet::from([0x1000, 0x2000]));
        let second = captures.add("second", BTreeSet::from([0x2000]));
        captures.invalidate(0x3000, "was freed");
        assert_eq!((captures.get(first).unwrap(), captures.get(second).unwrap()), (&"first", &"second"));
        captures.invalidate(0x1000, "was freed");
        captures.invalidate(0x2000, "was written");
        let refused = "program 0 cannot be replayed: the memory at 0x1000, which it uses, was freed";
        assert_eq!(reason(captures.get(first)), refused);
        assert!(reason(captures.get_mut(second)).ends_with("0x2000, which it uses, was written"));
        assert_eq!(captures.peek(first), Some(&"first"));
    }

    #[test]
    fn numbers_are_not_reused() {
        let mut captures = Captures::default();
        let first = captures.add(1, BTreeSet::new());
        assert_eq!(captures.remove(first), Some(1));
        let second = captures.add(2, BTreeSet::new());
        assert_ne!(first, second);
        let refused = format!("program {} cannot be replayed: there is no program of this number", first.0);
        assert_eq!(reason(captures.get(first)), refused);
        assert_eq!((captures.remove(first), captures.peek(first)), (None, None));
    }
}
