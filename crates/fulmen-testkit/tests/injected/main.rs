//! Every call that can fail, made to fail: the n-th allocation, read, write and launch of loading, prefill,
//! decode, an engine and quantizing, on the processor and through wgpu.
//!
//! Each fault must give a typed error; nothing may be leaked or half-written; the same call made again must
//! give the bits of a run without faults. `cargo test` takes a sample; `FULMEN_TEST_FULL=1` runs them all and
//! prints how many there were.

mod engine;
mod files;
mod host;
mod model;
mod source;

use std::sync::atomic::{AtomicU64, Ordering};

use fulmen_testkit::inject::{FailingAllocator, Injector, Site};

#[global_allocator]
static ALLOCATOR: FailingAllocator = FailingAllocator;

fn is_full() -> bool {
    std::env::var("FULMEN_TEST_FULL").is_ok_and(|value| value == "1")
}

/// The calls to fail, of `count`: all in a full run, otherwise `sample` of them, spread evenly, the first and
/// the last among them.
fn numbers(count: u64, sample: u64) -> Vec<u64> {
    if is_full() || count <= sample {
        return (1..=count).collect();
    }
    (0..sample).map(|at| 1 + at * (count - 1) / (sample - 1).max(1)).collect()
}

/// Faults of all tests of this run.
static INJECTED: AtomicU64 = AtomicU64::new(0);

/// Runs `work` once to count its calls, then once for each call that is made to fail. `work` returns its
/// results, which must be the same each time; it tries again what failed.
fn fail_each<T: PartialEq + std::fmt::Debug>(
    name: &str,
    injector: &Injector,
    sample: u64,
    mut work: impl FnMut() -> T,
) {
    injector.count();
    let expected = work();
    let calls = Site::ALL.map(|site| (site, injector.calls(site)));
    let mut injected = 0;
    for (site, count) in calls {
        for number in numbers(count, sample) {
            injector.fail(site, number);
            let results = work();
            assert!(injector.fired(), "{name}: {site:?} {number} of {count} was not reached");
            assert!(results == expected, "{name}: {site:?} {number} of {count} changed the results");
            injected += 1;
        }
    }
    report(name, injected);
}

fn report(name: &str, injected: u64) {
    let total = INJECTED.fetch_add(injected, Ordering::Relaxed) + injected;
    println!("{name}: {injected} faults injected ({total} in all)");
}

#[test]
fn samples_have_both_ends() {
    if !is_full() {
        assert_eq!(numbers(3, 5), [1, 2, 3]);
        assert_eq!(numbers(100, 4), [1, 34, 67, 100]);
        assert_eq!(numbers(0, 4), [] as [u64; 0]);
    }
}
