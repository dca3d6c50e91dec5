//! A thread pool for many short parallel regions.
//!
//! A decode step is a few hundred regions of tens to hundreds of microseconds each, so the latency to start
//! and to end a region matters. Workers spin for a while after a region before they sleep; a region
//! distributes its indices with an atomic counter; and the caller, which works, too, waits only for workers
//! that have entered the region, never for one that is still waking up.

use std::{
    any::Any,
    cell::{Cell, UnsafeCell},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long an idle worker spins for the next region before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Ranges per thread in [`Pool::run_ranges`]: enough to balance a late or slow thread.
const RANGES_PER_THREAD: usize = 4;

// The gate packs the state of a region into one word: the number of workers inside, whether more may enter,
// and the epoch of the region.
const INSIDE: usize = (1 << 16) - 1;
const OPEN: usize = 1 << 16;
const EPOCH: usize = 1 << 17;

thread_local! {
    /// Whether this thread is inside a region, of any pool: a region started from there runs inline.
    static IN_REGION: Cell<bool> = const { Cell::new(false) };
}

/// A function that runs on every index of a region.
type RegionFn = dyn Fn(usize) + Sync + 'static;

/// The function of a region, with the lifetime erased: valid while the region is open or a worker is inside.
#[derive(Clone, Copy)]
struct Job {
    f: *const RegionFn,
    n: usize,
}

struct Shared {
    gate: AtomicUsize,
    /// Written by the caller while the gate is closed and no worker is inside; read by workers that entered.
    job: UnsafeCell<Option<Job>>,
    /// The next index to run.
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    shutdown: AtomicBool,
}

// SAFETY: `job` is the only member that is not already `Sync`. The gate orders its accesses: it is written
// only while the gate is closed with no worker inside, and read only by workers that entered through an open
// gate.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure that outlives the region (see `Pool::run`).
unsafe impl Send for Shared {}

/// Locks, ignoring poison: no guarded state can be left inconsistent by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Runs indices until none are left. A panic is kept for the caller and ends the region.
    fn work(&self, job: Job) {
        IN_REGION.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller of `run` does not return while this thread is inside the region.
            let f = unsafe { &*job.f };
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= job.n {
                    break;
                }
                f(i);
            }
        }));
        IN_REGION.set(false);
        if let Err(payload) = result {
            self.next.store(job.n, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// The loop of a worker: wait for a new region, enter, work, leave.
    fn worker(&self) {
        let mut seen = 0;
        loop {
            let gate = self.wait(seen);
            if self.shutdown.load(Ordering::Relaxed) {
                return;
            }
            seen = gate & !(INSIDE | OPEN);
            if self.enter(seen) {
                // SAFETY: this thread is counted inside, so the job is not changed until it leaves.
                let job = unsafe { *self.job.get() };
                if let Some(job) = job {
                    self.work(job);
                }
                self.gate.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Enters the region of `epoch`, unless it is already closed.
    fn enter(&self, epoch: usize) -> bool {
        let mut gate = self.gate.load(Ordering::Relaxed);
        while gate & OPEN != 0 && gate & !(INSIDE | OPEN) == epoch {
            match self.gate.compare_exchange_weak(gate, gate + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Spins, then sleeps, until the gate has another epoch than `seen` or the pool shuts down.
    fn wait(&self, seen: usize) -> usize {
        let changed = || {
            let gate = self.gate.load(Ordering::SeqCst);
            let new = gate & !(INSIDE | OPEN) != seen || self.shutdown.load(Ordering::SeqCst);
            new.then_some(gate)
        };
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                if let Some(gate) = changed() {
                    return gate;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        // The caller first changes the gate and then checks for sleepers; a sleeper first counts itself and
        // then checks the gate again, and holds the lock until it sleeps. So at least one of them sees the
        // other.
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let gate = loop {
            if let Some(gate) = changed() {
                break gate;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        gate
    }

    /// Wakes up to `n` sleeping workers. Call it after the gate or the shutdown flag has changed.
    fn wake(&self, n: usize) {
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers == 0 {
            return;
        }
        drop(lock(&self.sleep));
        if n >= sleepers {
            self.wake.notify_all();
        } else {
            for _ in 0..n {
                self.wake.notify_one();
            }
        }
    }
}

/// A fixed number of threads that run parallel regions together with the calling thread.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held for the duration of a region: regions of several callers run one after the other.
    region: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Default for Pool {
    /// As many threads as the process may run at once.
    fn default() -> Pool {
        Pool::new(thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's own included; 0 counts as 1. If the system cannot start that
    /// many, the pool has fewer.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            gate: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            shutdown: AtomicBool::new(false),
        });
        let workers = (1..threads.clamp(1, INSIDE))
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                let name = format!("fulmen-cpu-{i}");
                thread::Builder::new().name(name).spawn(move || shared.worker()).ok()
            })
            .collect();
        Pool { shared, region: Mutex::new(()), workers }
    }

    /// The number of threads in a region, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(i)` once for each `i` in `0..n`, on all threads, and returns when all calls have returned.
    ///
    /// Threads take indices in order. A nested region runs on the thread that started it; regions of several
    /// callers run one after the other.
    ///
    /// # Panics
    ///
    /// A panic in `f` is resumed when all threads have left the region; indices that have not started are
    /// skipped. The pool stays usable.
    pub fn run(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        if n <= 1 || self.workers.is_empty() || IN_REGION.get() {
            (0..n).for_each(f);
            return;
        }
        let region = lock(&self.region);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is used by threads inside the region, and this
        // function does not return (nor unwind: `work` catches) before the gate is closed and all have left.
        let f = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const RegionFn>(f) };
        let job = Job { f, n };
        // SAFETY: this thread holds the region lock, so the gate is closed and no worker is inside.
        unsafe { *shared.job.get() = Some(job) };
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.gate.load(Ordering::Relaxed) & !(INSIDE | OPEN)).wrapping_add(EPOCH);
        shared.gate.store(epoch | OPEN, Ordering::SeqCst);
        shared.wake(n - 1);

        shared.work(job);

        let mut gate = shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while gate & INSIDE != 0 {
            // Another thread runs its last index. If threads outnumber cores, it may need this thread's core.
            spins += 1;
            if spins < 4096 {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
            gate = shared.gate.load(Ordering::Acquire);
        }
        let panic = lock(&shared.panic).take();
        drop(region);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Splits `0..len` into ranges, a few per thread, and calls `f` once for each, on all threads. Every
    /// range starts at a multiple of `grain`.
    ///
    /// # Panics
    ///
    /// As [`run`](Pool::run), and if `grain` is 0.
    pub fn run_ranges(&self, len: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        assert!(grain > 0, "run_ranges: the grain is 0");
        if len == 0 {
            return;
        }
        let ranges = if self.workers.is_empty() { 1 } else { self.threads() * RANGES_PER_THREAD };
        let step = len.div_ceil(ranges).next_multiple_of(grain);
        self.run(len.div_ceil(step), &|i| f(i * step..len.min((i + 1) * step)));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.wake(self.workers.len());
        for worker in self.workers.drain(..) {
            // Workers catch every panic of a region, so `join` cannot fail.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_index_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for n in [0, 1, 2, 3, 7, 64, 1000] {
                let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                pool.run(n, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, n = {n}");
            }
        }
    }

    #[test]
    fn ranges_cover_and_are_aligned() {
        let pool = Pool::new(3);
        for (len, grain) in [(0, 4), (1, 4), (5, 4), (100, 1), (1000, 16), (4096, 64), (12, 100)] {
            let seen: Vec<AtomicUsize> = (0..len).map(|_| AtomicUsize::new(0)).collect();
            pool.run_ranges(len, grain, &|range| {
                assert!(!range.is_empty() && range.start % grain == 0);
                assert!(range.end == len || range.end % grain == 0);
                range.for_each(|i| {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(seen.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{len} by {grain}");
        }
    }

    #[test]
    fn many_short_regions_with_pauses() {
        let pool = Pool::new(4);
        let total = AtomicU64::new(0);
        for round in 0..20_000u64 {
            pool.run(5, &|i| {
                total.fetch_add(i as u64 + 1, Ordering::Relaxed);
            });
            assert_eq!(total.load(Ordering::Relaxed), (round + 1) * 15);
            if round % 2_000 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for round in 0..50 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|i| {
                    if i == round % 20 {
                        panic!("index {i}");
                    }
                });
            }));
            let payload = result.unwrap_err();
            assert_eq!(payload.downcast_ref::<String>(), Some(&format!("index {}", round % 20)));
            let sum = AtomicUsize::new(0);
            pool.run(100, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn nested_and_concurrent_regions() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(4, &|_| {
                            pool.run(3, &|j| {
                                sum.fetch_add(j, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.load(Ordering::Relaxed), 4 * 200 * 4 * 3);
    }

    #[test]
    fn pools_come_and_go() {
        for i in 0..200 {
            let pool = Pool::new(1 + i % 5);
            if i % 3 != 0 {
                pool.run(i, &|_| {});
            }
        }
    }
}
