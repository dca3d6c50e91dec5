//! The threads of the ranks after the first of a process, each of which owns what its rank runs. On node 0,
//! there is also one for each other node, which owns the connection.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fulmen_core::clock::Instant;
use fulmen_core::{BackendError, Communicator, CommunicatorError};
use fulmen_model::ModelError;

use super::Group;

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;
type Done<R> = (u32, Result<R, ModelError>);

/// What the other ranks run, each on its own thread. Dropping it drops that there and waits for it.
pub(crate) struct Workers<T> {
    group: Arc<Group>,
    workers: Vec<Worker<T>>,
}

struct Worker<T> {
    rank: u32,
    /// `None` when no more jobs come.
    jobs: Option<Sender<Job<T>>>,
    thread: Option<JoinHandle<()>>,
}

/// Aborts the group unless the rank has come to the end of its job: also if it panics.
struct Abort<'a>(Option<&'a dyn Communicator>);

impl Abort<'_> {
    fn end<R>(mut self, result: &Result<R, ModelError>) {
        let communicator = self.0.take();
        if let (Some(communicator), Err(error)) = (communicator, result) {
            communicator.abort(&error.to_string());
        }
    }
}

impl Drop for Abort<'_> {
    fn drop(&mut self) {
        if let Some(communicator) = self.0 {
            communicator.abort("its thread panicked");
        }
    }
}

impl<T: Send + 'static> Workers<T> {
    /// Threads for ranks after the first of this process, by their numbers.
    pub(crate) fn start(group: &Arc<Group>, states: Vec<(u32, T)>) -> Result<Workers<T>, ModelError> {
        let mut workers = Workers { group: Arc::clone(group), workers: Vec::new() };
        for (rank, mut state) in states {
            let (jobs, queue) = channel::<Job<T>>();
            let work = move || queue.into_iter().for_each(|job| job(&mut state));
            let thread = thread::Builder::new().name(format!("rank {rank}")).spawn(work);
            let thread = thread.map_err(|error| {
                let source = Box::new(error);
                group.of_rank(rank, BackendError::Device { backend: "rank", call: "spawn", source }.into())
            })?;
            workers.workers.push(Worker { rank, jobs: Some(jobs), thread: Some(thread) });
        }
        Ok(workers)
    }

    /// Runs `job` on the other ranks, and `own`, the same for the first rank of this process, here. Returns
    /// the results in the order of the ranks, or the error of the rank that failed first by itself. Does not
    /// wait longer than the time-out for a rank when the others are done.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        job: impl Fn(&mut T) -> Result<R, ModelError> + Clone + Send + 'static,
        own: impl FnOnce() -> Result<R, ModelError>,
    ) -> Result<Vec<R>, ModelError> {
        let _turn = self.group.turn()?;
        let (sender, done) = channel::<Done<R>>();
        for worker in &self.workers {
            let (rank, job, sender) = (worker.rank, job.clone(), sender.clone());
            let communicator = Arc::clone(self.group.communicator(rank));
            let job = move |state: &mut T| {
                let abort = Abort(Some(communicator.as_ref()));
                let result = job(state);
                abort.end(&result);
                // If nobody waits any more, the group is lost.
                let _ = sender.send((rank, result));
            };
            // A thread that has ended is missed below.
            let _ = worker.jobs.as_ref().map(|jobs| jobs.send(Box::new(job)));
        }
        drop(sender);
        let first = self.group.first_rank();
        let abort = Abort(Some(self.group.communicator(first).as_ref()));
        let result = own();
        abort.end(&result);
        self.collect((first, result), &done)
    }

    /// The results of all ranks.
    fn collect<R>(&self, own: Done<R>, done: &Receiver<Done<R>>) -> Result<Vec<R>, ModelError> {
        let (began, timeout) = (Instant::now(), self.group.timeout());
        let (mut results, mut errors) = (Vec::new(), Vec::new());
        let mut missing: Vec<u32> = self.workers.iter().map(|worker| worker.rank).collect();
        // A rank that a collective waited for in vain is not waited for again.
        let late = own.1.as_ref().err().and_then(Group::late_rank);
        let mut sort = |(rank, result)| match result {
            Ok(result) => results.push((rank, result)),
            Err(error) => errors.push((rank, error)),
        };
        sort(own);
        while !missing.is_empty() {
            let wait = match missing[..] == late.as_slice()[..] {
                true => Duration::ZERO,
                false => timeout.saturating_sub(began.elapsed()),
            };
            let Ok(one) = done.recv_timeout(wait) else { break };
            missing.retain(|&rank| rank != one.0);
            sort(one);
        }
        if let Some(&rank) = missing.first() {
            self.group.lose();
            let late = CommunicatorError::Rank { rank, reason: "it did not return from a step".to_owned() };
            errors.push((rank, BackendError::from(late).into()));
        }
        results.sort_by_key(|(rank, _)| *rank);
        match self.group.error_of(errors) {
            Some(error) => Err(error),
            None => Ok(results.into_iter().map(|(_, result)| result).collect()),
        }
    }
}

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.jobs = None;
            // A rank that did not return from a step may never do so.
            if let Some(thread) = worker.thread.take().filter(|_| !self.group.is_lost()) {
                // It has reported a panic itself.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TensorParallel;
    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    fn workers(ranks: u32, timeout: Duration) -> Workers<u32> {
        let group = Arc::new(Group::in_process(ranks, timeout));
        Workers::start(&group, (1..ranks).map(|rank| (rank, rank)).collect()).unwrap()
    }

    /// The sum of the ranks, computed by each of them.
    fn sum(group: &Group, rank: u32) -> Result<f32, ModelError> {
        let mut value = [rank as f32];
        group.communicator(rank).all_reduce(&mut value).map_err(BackendError::from)?;
        Ok(value[0])
    }

    #[test]
    fn ranks_run_the_same_job_in_their_order() {
        let workers = workers(3, TensorParallel::TIMEOUT);
        for _ in 0..100 {
            let group = Arc::clone(&workers.group);
            let job = move |rank: &mut u32| Ok((*rank, sum(&group, *rank)?));
            let own = Arc::clone(&workers.group);
            let found = workers.run(job, || Ok((0, sum(&own, 0)?))).unwrap();
            assert_eq!(found, [(0, 3.0), (1, 3.0), (2, 3.0)]);
        }
    }

    #[test]
    fn the_error_is_that_of_the_rank_that_failed() {
        let workers = workers(4, TensorParallel::TIMEOUT);
        for failing in 0..4 {
            let fails = move || ModelError::from(BackendError::OutOfMemory { needed: 5, available: None });
            let group = Arc::clone(&workers.group);
            let of = move |rank: u32| if rank == failing { Err(fails()) } else { sum(&group, rank) };
            let job = of.clone();
            let error = workers.run(move |rank: &mut u32| job(*rank), || of(0)).unwrap_err();
            let expected = format!("rank {failing} of 4: out of memory: 5 bytes needed, free memory unknown");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn a_rank_that_does_not_return_is_named_within_the_timeout() {
        for in_collective in [true, false] {
            let workers = workers(3, SHORT);
            let (began, group) = (Instant::now(), Arc::clone(&workers.group));
            let of = move |rank: u32| match in_collective {
                true => sum(&group, rank),
                false => Ok(0.0),
            };
            let job = of.clone();
            let hang = move |rank: &mut u32| {
                if *rank == 2 {
                    thread::sleep(20 * SHORT);
                }
                job(*rank)
            };
            let error = workers.run(hang, || of(0)).unwrap_err().to_string();
            assert!(error.starts_with("rank 2 of 3: rank 2 "), "{error}");
            assert!(began.elapsed() < 5 * SHORT, "{:?}", began.elapsed());
            let again = workers.run(|_: &mut u32| Ok(()), || Ok(())).unwrap_err().to_string();
            assert_eq!(again, "the model has no ranks any more: one did not return from a step");
            drop(workers);
            assert!(began.elapsed() < 10 * SHORT, "dropping does not wait for it either");
        }
    }

    #[test]
    fn a_rank_that_panics_ends_the_others() {
        let workers = workers(2, TensorParallel::TIMEOUT);
        let (began, group) = (Instant::now(), Arc::clone(&workers.group));
        let panics = |_: &mut u32| -> Result<f32, ModelError> { panic!("on purpose") };
        let error = workers.run(panics, || sum(&group, 0)).unwrap_err().to_string();
        assert!(error.starts_with("rank 1 of 2: rank 1 failed: "), "{error}");
        assert!(began.elapsed() < TensorParallel::TIMEOUT / 4);
    }
}
