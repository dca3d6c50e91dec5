//! A group of ranks: who failed, and how long the ranks of this process wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_core::{CommunicatorError, DeviceGroup};

use super::library::{Library, NcclError, NcclVersion, UniqueId};
use crate::error::CudaError;

/// How often a wait looks at more than the work itself.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// How long a wait polls without a pause: longer than a step takes.
const POLL_FOR: Duration = Duration::from_millis(20);

/// How long work may take to end by itself after another rank has failed: it does if it waits for no
/// collective.
const GRACE: Duration = Duration::from_secs(1);

/// How long an aborted collective may take to end.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// What a rank of this process has given to its device.
pub(crate) trait Work {
    /// Whether it has ended. Does not wait.
    fn is_done(&self) -> Result<bool, CudaError>;

    /// What NCCL has found out meanwhile.
    fn error(&self) -> Option<String>;

    /// Ends its collectives, which then have no result.
    fn end_collectives(&self);
}

/// A group of ranks whose collectives NCCL runs. Its ranks may be in several processes; what is kept here is
/// known to those of this process.
pub struct NcclGroup {
    pub(super) id: UniqueId,
    version: NcclVersion,
    ranks: u32,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failure: Option<CommunicatorError>,
    /// Whether collectives were aborted: NCCL cannot use the group again.
    lost: bool,
    /// The ranks of this process that wait for their work.
    waiting: Vec<u32>,
    members: Vec<(u32, Weak<dyn Work + Send + Sync>)>,
    waits: u64,
}

impl NcclGroup {
    /// A new group, or that of an id which another process has made.
    pub(crate) fn new(ranks: u32, timeout: Duration, id: Option<&[u8]>) -> Result<NcclGroup, NcclError> {
        let library = Library::get()?;
        let id = match id {
            None => library.unique_id()?,
            Some(id) => UniqueId(id.try_into().map_err(|_| NcclError::Id { got: id.len() })?),
        };
        Ok(NcclGroup::of(id, library.version(), ranks, timeout))
    }

    fn of(id: UniqueId, version: NcclVersion, ranks: u32, timeout: Duration) -> NcclGroup {
        NcclGroup { id, version, ranks, timeout, state: Mutex::default() }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank of this process.
    pub(super) fn add(&self, rank: u32, member: Weak<dyn Work + Send + Sync>) {
        self.state().members.push((rank, member));
    }

    /// The first failure since the last reset.
    pub(super) fn failure(&self) -> Option<CommunicatorError> {
        self.state().failure.clone()
    }

    /// An error after a failure.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        self.failure().map_or(Ok(()), |failure| Err(CudaError::Collective(failure)))
    }

    /// A rank has failed. Returns the first failure.
    pub(super) fn fail(&self, failure: CommunicatorError) -> CudaError {
        CudaError::Collective(self.state().failure.get_or_insert(failure).clone())
    }

    pub(super) fn lose(&self) {
        self.state().lost = true;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.state().lost
    }

    /// Waits for the work of a rank. After a failure of any rank of this process, or the time-out, the work
    /// is ended.
    pub(crate) fn wait(&self, rank: u32, work: &dyn Work) -> Result<(), CudaError> {
        if work.is_done()? {
            return self.check();
        }
        let number = {
            let mut state = self.state();
            state.waiting.push(rank);
            state.waits += 1;
            state.waits - 1
        };
        let waited = self.poll(rank, work, number);
        self.state().waiting.retain(|&waiting| waiting != rank);
        waited
    }

    fn poll(&self, rank: u32, work: &dyn Work, number: u64) -> Result<(), CudaError> {
        let began = Instant::now();
        let mut next_check = CHECK_EVERY;
        loop {
            if work.is_done()? {
                return self.check();
            }
            let waited = began.elapsed();
            if waited >= next_check {
                next_check = waited + CHECK_EVERY;
                if let Some(reason) = work.error() {
                    self.fail(CommunicatorError::Rank { rank, reason });
                } else if waited >= self.timeout {
                    let late = self.late_rank(rank);
                    let (call, timeout) = ("the collectives before wait", self.timeout);
                    self.fail(CommunicatorError::Timeout { rank: late, call, number, timeout });
                }
                if self.failure().is_some() {
                    self.end(work);
                    return self.check();
                }
            }
            pause(waited);
        }
    }

    /// The rank that the others wait for: one of this process that does not wait, else one of another
    /// process.
    fn late_rank(&self, own: u32) -> u32 {
        let state = self.state();
        let local: Vec<u32> = state.members.iter().map(|(rank, _)| *rank).collect();
        let busy = local.iter().copied().find(|rank| !state.waiting.contains(rank));
        busy.or_else(|| (0..self.ranks).find(|rank| !local.contains(rank))).unwrap_or(own)
    }

    /// Ends the work of a rank after a failure.
    fn end(&self, work: &dyn Work) {
        if !ends_within(work, GRACE.min(self.timeout)) {
            self.lose();
            work.end_collectives();
            ends_within(work, ABORT_LIMIT);
        }
    }

    /// Makes the group usable again unless a collective had to be aborted. No rank may be in a call.
    pub(super) fn reset(&self) {
        if self.failure().is_none() {
            return;
        }
        let members = self.state().members.clone();
        members.iter().filter_map(|(_, member)| member.upgrade()).for_each(|member| self.end(&*member));
        let mut state = self.state();
        if !state.lost {
            state.failure = None;
        }
    }
}

/// Whether work ends within a limit. A lost device has ended it.
fn ends_within(work: &dyn Work, limit: Duration) -> bool {
    let began = Instant::now();
    loop {
        match work.is_done() {
            Ok(false) if began.elapsed() < limit => pause(POLL_FOR),
            done => return done.unwrap_or(true),
        }
    }
}

fn pause(waited: Duration) {
    match waited < POLL_FOR {
        true => thread::yield_now(),
        false => thread::sleep(Duration::from_micros(50)),
    }
}

impl DeviceGroup for NcclGroup {
    fn id(&self) -> &[u8] {
        &self.id.0
    }

    fn describe(&self) -> String {
        format!("NCCL {}", self.version)
    }
}

impl std::fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NcclGroup { version, ranks, timeout, .. } = self;
        f.debug_struct("NcclGroup")
            .field("version", version)
            .field("ranks", ranks)
            .field("timeout", timeout)
            .finish_non_exhaustive()
    }
}

/// A group as [`KernelDispatch::join_group`](fulmen_core::KernelDispatch::join_group) gets it.
pub(crate) fn of_nccl(group: &Arc<dyn DeviceGroup>) -> Option<Arc<NcclGroup>> {
    let group: Arc<dyn std::any::Any + Send + Sync> = Arc::clone(group) as _;
    group.downcast().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Work that ends when it is told to, or aborted.
    #[derive(Default)]
    struct Fake {
        done: AtomicBool,
        aborted: AtomicBool,
        error: Option<&'static str>,
    }

    impl Work for Fake {
        fn is_done(&self) -> Result<bool, CudaError> {
            Ok(self.done.load(Ordering::Relaxed))
        }

        fn error(&self) -> Option<String> {
            self.error.map(str::to_owned)
        }

        fn end_collectives(&self) {
            self.aborted.store(true, Ordering::Relaxed);
            self.done.store(true, Ordering::Relaxed);
        }
    }

    impl Fake {
        fn end(&self) {
            self.done.store(true, Ordering::Relaxed);
        }

        fn was_aborted(&self) -> bool {
            self.aborted.load(Ordering::Relaxed)
        }
    }

    fn group(ranks: u32, timeout_ms: u64) -> (NcclGroup, Vec<Arc<Fake>>) {
        let timeout = Duration::from_millis(timeout_ms);
        let group = NcclGroup::of(UniqueId([7; 128]), NcclVersion(22_809), ranks, timeout);
        let works: Vec<Arc<Fake>> = (0..ranks).map(|_| Arc::new(Fake::default())).collect();
        for (rank, work) in (0..).zip(&works) {
            let weak: Weak<Fake> = Arc::downgrade(work);
            group.add(rank, weak);
        }
        (group, works)
    }

    #[test]
    fn work_that_ends_is_waited_for() {
        let (group, works) = group(1, 60_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                works[0].end();
            });
            assert_eq!(group.wait(0, &*works[0]), Ok(()));
        });
        assert_eq!((group.describe(), group.id()), ("NCCL 2.28.9".to_owned(), &[7; 128][..]));
        assert!(!works[0].was_aborted() && !group.is_lost());
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_after_the_timeout_and_the_others_are_aborted() {
        let (group, works) = group(3, 40);
        let wait = |rank: u32| group.wait(rank, &*works[rank as usize]).unwrap_err().to_string();
        let (first, third) = thread::scope(|scope| {
            let third = scope.spawn(|| wait(2));
            (wait(0), third.join().unwrap())
        });
        assert!(first.starts_with("rank 1 did not come to the collectives before wait number"), "{first}");
        assert!(first.ends_with("within 40ms"), "{first}");
        assert_eq!(first, third);
        assert!(works[0].was_aborted() && works[2].was_aborted() && group.is_lost());
        group.reset();
        assert!(group.check().is_err(), "aborted collectives cannot be used again");
    }

    #[test]
    fn a_rank_of_another_process_is_named_if_all_here_wait() {
        let (mut group, works) = group(1, 20);
        group.ranks = 2;
        let error = group.wait(0, &*works[0]).unwrap_err().to_string();
        assert!(error.starts_with("rank 1 did not come"), "{error}");
    }

    #[test]
    fn an_error_of_nccl_ends_the_wait() {
        let (group, _) = group(2, 60_000);
        let work = Fake { error: Some("remote process exited"), ..Fake::default() };
        work.end();
        assert_eq!(group.wait(0, &work), Ok(()), "work that has ended is not asked");
        let work = Fake { error: Some("remote process exited"), ..Fake::default() };
        let error = group.wait(0, &work).unwrap_err();
        assert_eq!(error.to_string(), "rank 0 failed: remote process exited");
        assert!(work.was_aborted() && group.is_lost());
    }

    #[test]
    fn a_failure_without_collectives_is_forgotten_by_a_reset() {
        let (group, works) = group(2, 60_000);
        let failure = CommunicatorError::Rank { rank: 1, reason: "no memory".to_owned() };
        let failed = group.fail(failure.clone());
        assert_eq!(failed, CudaError::Collective(failure));
        // A later one does not replace it.
        group.fail(CommunicatorError::Rank { rank: 0, reason: "another".to_owned() });
        works.iter().for_each(|work| work.end());
        assert_eq!(group.wait(0, &*works[0]), Err(failed));
        group.reset();
        assert_eq!(group.wait(0, &*works[0]), Ok(()));
        assert!(!group.is_lost() && !works[0].was_aborted());
    }

    #[test]
    fn work_that_nobody_waits_for_is_aborted_by_a_reset() {
        let (group, works) = group(2, 10);
        works[1].end();
        group.fail(CommunicatorError::Rank { rank: 1, reason: "no memory".to_owned() });
        group.reset();
        assert!(works[0].was_aborted() && !works[1].was_aborted());
        assert_eq!(group.check().unwrap_err().to_string(), "rank 1 failed: no memory");
    }
}
