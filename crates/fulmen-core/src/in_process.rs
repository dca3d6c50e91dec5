//! A communicator for the threads of a process.
//!
//! A rank brings its values and waits. The last one to come computes the result, in the order of the ranks,
//! so that the bits do not depend on who comes when. Nobody takes part in a call before the result of the one
//! before was taken by all: they bring nothing new until then.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Instant;
use crate::{Communicator, CommunicatorError};

/// The ends of a group of ranks, each to be given to its thread. A call fails if a rank does not come within
/// the time-out.
///
/// ```
/// use std::time::Duration;
/// use fulmen_core::{Communicator, in_process_group};
///
/// let ranks = in_process_group(2, Duration::from_secs(1));
/// std::thread::scope(|scope| {
///     for rank in &ranks {
///         scope.spawn(|| {
///             let mut values = [1.0, rank.rank() as f32];
///             rank.all_reduce(&mut values).unwrap();
///             assert_eq!(values, [2.0, 1.0]);
///         });
///     }
/// });
/// ```
pub fn in_process_group(ranks: u32, timeout: Duration) -> Vec<InProcessRank> {
    let brought = (0..ranks).map(|_| None).collect();
    let state = State { brought, number: 0, result: Arc::default(), failure: None };
    let group = Arc::new(Group { timeout, state: Mutex::new(state), changed: Condvar::new() });
    (0..ranks).map(|rank| InProcessRank { rank, size: ranks, group: Arc::clone(&group) }).collect()
}

/// One rank of an [`in_process_group`].
#[derive(Clone, Debug)]
pub struct InProcessRank {
    rank: u32,
    size: u32,
    group: Arc<Group>,
}

#[derive(Debug)]
struct Group {
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// What each rank that has come to the current call brings.
    brought: Vec<Option<Brought>>,
    /// The number of the current call.
    number: u64,
    /// The result of the call before.
    result: Arc<Vec<f32>>,
    failure: Option<CommunicatorError>,
}

#[derive(Debug)]
struct Brought {
    call: &'static str,
    values: Vec<f32>,
}

impl Brought {
    fn describe(&self) -> String {
        format!("{} of {} values", self.call, self.values.len())
    }
}

impl State {
    /// What all ranks have brought, in their order, if all have come.
    fn take_all(&mut self) -> Option<Vec<Brought>> {
        if self.brought.iter().any(Option::is_none) {
            return None;
        }
        Some(self.brought.iter_mut().filter_map(Option::take).collect())
    }

    /// The rank that makes another call than rank 0, as an error.
    fn mismatch(&self, all: &[Brought]) -> Option<CommunicatorError> {
        let first = all.first()?;
        let same = |other: &Brought| (other.call, other.values.len()) == (first.call, first.values.len());
        let rank = all.iter().position(|other| !same(other))?;
        Some(CommunicatorError::Mismatch {
            rank: rank as u32,
            what: format!("call number {}", self.number),
            expected: first.describe(),
            got: all[rank].describe(),
        })
    }
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, state: &mut State, failure: CommunicatorError) -> CommunicatorError {
        let failure = state.failure.get_or_insert(failure).clone();
        self.changed.notify_all();
        failure
    }
}

impl InProcessRank {
    /// Brings values to a call and waits for its result: what `combine` makes of those of all ranks.
    fn call(
        &self,
        call: &'static str,
        values: &[f32],
        combine: fn(Vec<Brought>) -> Vec<f32>,
    ) -> Result<Arc<Vec<f32>>, CommunicatorError> {
        let (group, began) = (self.group.as_ref(), Instant::now());
        let mut state = group.state();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let number = state.number;
        state.brought[self.rank as usize] = Some(Brought { call, values: values.to_vec() });
        if let Some(all) = state.take_all() {
            if let Some(mismatch) = state.mismatch(&all) {
                return Err(group.fail(&mut state, mismatch));
            }
            state.result = Arc::new(combine(all));
            state.number += 1;
            group.changed.notify_all();
            return Ok(Arc::clone(&state.result));
        }
        loop {
            if state.number != number {
                // The call is complete, whatever happened to a rank afterwards.
                return Ok(Arc::clone(&state.result));
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let Some(left) = group.timeout.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) else {
                let missing = state.brought.iter().position(Option::is_none).unwrap_or(0) as u32;
                let timeout = group.timeout;
                let failure = CommunicatorError::Timeout { rank: missing, call, number, timeout };
                return Err(group.fail(&mut state, failure));
            };
            let waited = group.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The sums, in the order of the ranks.
fn sum(all: Vec<Brought>) -> Vec<f32> {
    let mut all = all.into_iter().map(|brought| brought.values);
    let mut sums = all.next().unwrap_or_default();
    for values in all {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sums
}

fn concatenate(all: Vec<Brought>) -> Vec<f32> {
    all.into_iter().flat_map(|brought| brought.values).collect()
}

impl Communicator for InProcessRank {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommunicatorError> {
        let sums = self.call("all_reduce", values, sum)?;
        values.copy_from_slice(&sums);
        Ok(())
    }

    fn all_gather(&self, values: &[f32]) -> Result<Vec<f32>, CommunicatorError> {
        Ok(self.call("all_gather", values, concatenate)?.to_vec())
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), CommunicatorError> {
        // One byte per value, which f32 has exactly.
        let values: Vec<f32> = bytes.iter().map(|&byte| byte.into()).collect();
        let first = self.call("broadcast", &values, |mut all| all.swap_remove(0).values)?;
        bytes.iter_mut().zip(first.iter()).for_each(|(byte, &value)| *byte = value as u8);
        Ok(())
    }

    fn barrier(&self) -> Result<(), CommunicatorError> {
        self.call("barrier", &[], concatenate).map(drop)
    }

    fn abort(&self, reason: &str) {
        let failure = CommunicatorError::Rank { rank: self.rank, reason: reason.to_owned() };
        self.group.fail(&mut self.group.state(), failure);
    }

    fn reset(&self) {
        let mut state = self.group.state();
        state.brought.iter_mut().for_each(|brought| *brought = None);
        state.failure = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    /// Runs `f` on a thread for each rank and returns what they return, rank 0 first.
    fn on_each<T: Send>(ranks: &[InProcessRank], f: impl Fn(&InProcessRank) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| f(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_gets_the_sums_in_the_order_of_the_ranks() {
        // In this order the small values are lost, in another one they are not.
        let own = |rank: u32| [1e8, 1.0, -1e8, 3.0][rank as usize];
        for size in 1..=4 {
            let expected: f32 = (1..size).fold(own(0), |sum, rank| sum + own(rank));
            let ranks = in_process_group(size, LONG);
            for _ in 0..50 {
                let sums = on_each(&ranks, |rank| {
                    let mut values = [own(rank.rank()), 2.0];
                    rank.all_reduce(&mut values).unwrap();
                    values
                });
                assert!(sums.iter().all(|sum| *sum == [expected, 2.0 * size as f32]), "{sums:?}");
            }
        }
    }

    #[test]
    fn calls_behind_each_other_do_not_mix() {
        let ranks = in_process_group(3, LONG);
        on_each(&ranks, |rank| {
            for round in 0..500 {
                let mut values = [round as f32 + rank.rank() as f32];
                rank.all_reduce(&mut values).unwrap();
                assert_eq!(values, [3.0 * round as f32 + 3.0]);
                let all = rank.all_gather(&[round as f32, rank.rank() as f32]).unwrap();
                let round = round as f32;
                assert_eq!(all, [round, 0.0, round, 1.0, round, 2.0]);
                let mut bytes = [round as u8, 255, rank.rank() as u8];
                rank.broadcast(&mut bytes).unwrap();
                assert_eq!(bytes, [round as u8, 255, 0]);
                rank.barrier().unwrap();
            }
        });
    }

    #[test]
    fn a_rank_that_fails_ends_the_calls_of_all_until_a_reset() {
        let ranks = in_process_group(3, LONG);
        let expected = CommunicatorError::Rank { rank: 1, reason: "no memory".to_owned() };
        let errors = on_each(&ranks, |rank| {
            if rank.rank() == 1 {
                rank.abort("no memory");
            }
            rank.all_reduce(&mut [0.0]).unwrap_err()
        });
        assert_eq!(errors, vec![expected.clone(); 3]);
        assert_eq!(expected.to_string(), "rank 1 failed: no memory");
        // A later failure does not replace the first.
        ranks[2].abort("something else");
        assert_eq!(ranks[0].barrier(), Err(expected));
        ranks[0].reset();
        on_each(&ranks, |rank| rank.barrier().unwrap());
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_after_the_timeout() {
        let timeout = Duration::from_millis(50);
        let ranks = in_process_group(3, timeout);
        on_each(&ranks, |rank| rank.barrier().unwrap());
        let began = Instant::now();
        let errors = on_each(&ranks, |rank| match rank.rank() {
            1 => None,
            _ => Some(rank.all_gather(&[1.0]).unwrap_err()),
        });
        assert!(began.elapsed() >= timeout);
        let expected = CommunicatorError::Timeout { rank: 1, call: "all_gather", number: 1, timeout };
        assert_eq!(errors, [Some(expected.clone()), None, Some(expected.clone())]);
        assert_eq!(expected.to_string(), "rank 1 did not come to all_gather number 1 within 50ms");
        assert_eq!(ranks[1].barrier(), Err(expected));
    }

    #[test]
    fn ranks_that_make_different_calls_are_refused() {
        let ranks = in_process_group(2, LONG);
        let errors = on_each(&ranks, |rank| match rank.rank() {
            0 => rank.all_reduce(&mut [0.0; 3]).unwrap_err(),
            _ => rank.all_reduce(&mut [0.0; 4]).unwrap_err(),
        });
        assert_eq!(errors[0], errors[1]);
        let expected = "rank 1 differs from rank 0 in call number 0: expected all_reduce of 3 values, \
                        got all_reduce of 4 values";
        assert_eq!(errors[0].to_string(), expected);
    }
}
