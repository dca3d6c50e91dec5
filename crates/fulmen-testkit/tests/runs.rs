//! Eager, interrupted and replayed runs of random graphs give the same bits.

use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::runs::assert_runs_agree;
use fulmen_testkit::{sample::some_of, seed};

#[test]
fn runs_on_cpu_agree() {
    let mut cpu = CpuDispatcher::with_threads(2);
    let seed = seed();
    assert_runs_agree(&mut cpu, some_of("numbers of rows", 12, 1..=33), seed);
}
