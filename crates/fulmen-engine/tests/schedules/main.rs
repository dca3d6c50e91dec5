//! Random schedules on the mock device, in simulated time.
//!
//! A schedule is a configuration, requests with arrivals, cancellations and deadlines, and faults, all drawn
//! from a seed. Whatever happens, every request ends once, its tokens are those of the request run alone, no
//! page or slot is lost, and the first request in line makes progress.
//!
//! `FULMEN_TEST_SEED=N` repeats one run; `FULMEN_TEST_FULL=1` runs ten times as many.

mod scenario;
mod simulation;

use scenario::{Flavor, Scenario};
use simulation::{Counts, Simulation};

/// Schedules of all tests of this file together.
const SCHEDULES: u64 = 10_000;

fn run(flavor: Flavor, share: u64) {
    let full = std::env::var_os("FULMEN_TEST_FULL").is_some();
    let fixed = std::env::var("FULMEN_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = fixed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let schedules = SCHEDULES / 100 * share * if full { 10 } else { 1 };
    let mut counts = Counts::default();
    for seed in first..first + schedules {
        let scenario = Scenario::draw(flavor, seed);
        if let Err(problem) = Simulation::new(&scenario).run(&mut counts) {
            panic!("{flavor:?}, FULMEN_TEST_SEED={seed}: {problem}\n{scenario:?}");
        }
    }
    println!("{flavor:?}: {schedules} schedules from FULMEN_TEST_SEED={first}: {counts:?}");
    counts.check(flavor);
}

#[test]
fn requests_end_with_the_tokens_they_have_alone() {
    run(Flavor::Plain, 30);
}

#[test]
fn faults_of_the_device_and_of_allocations_hit_single_requests() {
    run(Flavor::Faults, 25);
}

#[test]
fn batch_invariant_schedules_never_prefill_decoded_positions() {
    run(Flavor::BatchInvariant, 15);
}

#[test]
fn windows_and_recurrent_states_follow_their_sequences() {
    run(Flavor::Groups, 5);
}

#[test]
fn prefixes_of_layers_with_windows_give_the_tokens_of_cold_runs() {
    run(Flavor::Windows, 15);
}

#[test]
fn snapshots_of_recurrent_states_give_the_tokens_of_cold_runs() {
    run(Flavor::Hybrid, 10);
}
