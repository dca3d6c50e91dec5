//! The op table: every op, shape and type, its f64 reference and its tolerance.
//!
//! - **One table for every backend.** [`table()`] lists the cases, the *rows*: a graph of one op each, the
//!   distribution of its inputs, and its tolerance. `fulmen ops check`, `fulmen ops perf` and `cargo test`
//!   run the same rows; tests run a seeded [`sample`] of the slow ones.
//! - **The reference is the definition.** [`Interpreter`](reference::Interpreter) runs a logical graph in
//!   f64, straightforwardly; if a kernel and the reference differ, one of them has a bug.
//! - **The same path as models.** A case is planned, bound and run as a model's graph is; nothing calls a
//!   kernel directly.
//! - **Memory is checked, too.** Inputs are random, from a seed that is printed; memory is filled with NaN
//!   before a run; every byte outside the outputs is compared afterwards; a second run must give the same
//!   bits. An unexpected NaN fails.
//! - **Faults on purpose.** [`inject`] makes the n-th allocation, read, write or launch of a run fail.
//! - **The table itself is tested.** [`Broken`](faults::Broken) injects a fault into a backend, and the tests
//!   check that the table detects it for every op.
//!
//! The operations of the wgpu command batch are rows of a second table, `gpu_table` (feature `wgpu`).
//!
//! A backend joins with one line in a test: see [`enroll!`].

pub mod case;
pub mod check;
pub mod compare;
pub mod draw;
pub mod example;
pub mod faults;
#[cfg(feature = "wgpu")]
pub mod gpu;
pub mod inject;
pub mod layers;
pub mod nodes;
pub mod perf;
pub mod reference;
mod report;
pub mod rig;
pub mod runs;
pub mod sample;
pub mod table;

pub use case::{Case, Size, Tolerance};
pub use check::{Failure, Outcome};
pub use compare::Agreement;
#[cfg(feature = "wgpu")]
pub use gpu::{GpuCase, gpu_ops, gpu_table, run_gpu_sample, run_gpu_table};
pub use report::{Filter, Report, Row, Tally};
pub use sample::Sample;
pub use table::table;

use std::time::Instant;

use fulmen_core::{Backend, DType};

/// Runs the rows that the filter takes.
pub fn run_table(backend: &mut dyn Backend, filter: &Filter, seed: u64) -> Report {
    run_rows(backend, filter, &Sample::Full, seed, |_, _, _| {})
}

/// [`run_table`] with a function that is called after each row, with the row, the number of rows done, and
/// their total.
pub fn run_table_with(
    backend: &mut dyn Backend,
    filter: &Filter,
    seed: u64,
    progress: impl FnMut(&Row, usize, usize),
) -> Report {
    run_rows(backend, filter, &Sample::Full, seed, progress)
}

/// Runs a sample of the rows that the filter takes, as tests do: see [`sample`].
pub fn run_sample(backend: &mut dyn Backend, filter: &Filter, sample: &Sample, seed: u64) -> Report {
    run_rows(backend, filter, sample, seed, |_, _, _| {})
}

fn run_rows(
    backend: &mut dyn Backend,
    filter: &Filter,
    sample: &Sample,
    seed: u64,
    mut progress: impl FnMut(&Row, usize, usize),
) -> Report {
    let table = table();
    let keys: Vec<sample::RowKey<'_>> = table.iter().map(Case::key).collect();
    let selected = sample.select(&keys, filter);
    let total = selected.iter().filter(|run| **run).count();
    let mut pools = draw::Pools::new(seed);
    let mut rows = Vec::with_capacity(total);
    for (case, _) in table.iter().zip(&selected).filter(|(_, run)| **run) {
        let start = Instant::now();
        let outcome = check::check_case(backend, case, &mut pools);
        let row = Row {
            name: case.name.clone(),
            op: case.op,
            dtype: case.dtype,
            outcome,
            elapsed: start.elapsed(),
        };
        progress(&row, rows.len() + 1, total);
        rows.push(row);
    }
    let skipped = table.iter().filter(|case| filter.takes(case)).count().saturating_sub(rows.len());
    let unsupported_weights =
        DType::ALL.into_iter().filter(|dtype| !backend.supports_weight(*dtype)).collect();
    let backend = backend.backend();
    Report { backend, unsupported_weights, seed, rows, sample: sample.clone(), skipped }
}

/// The seed of the data of a test run: `FULMEN_TEST_SEED`, or a random one.
pub fn seed() -> u64 {
    let given = std::env::var("FULMEN_TEST_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..1_000_000_000))
}

/// A device for a test. Without one, prints that the test was skipped and returns `None`; with the
/// environment variable `require` set to 1 that is a failure.
pub fn device_or_say_so<T, E: std::fmt::Display>(opened: Result<T, E>, require: &str) -> Option<T> {
    match opened {
        Ok(device) => Some(device),
        Err(error) if std::env::var(require).is_ok_and(|value| value == "1") => {
            panic!("{require}=1, and there is no device: {error}")
        }
        Err(error) => {
            println!("NOT TESTED, no device ({error}); {require}=1 makes this a failure");
            None
        }
    }
}

/// Large rows of each (op, type) that a test runs unless `FULMEN_TEST_SAMPLE` gives another number.
pub const LARGE_ROWS: usize = 1;

/// Quick rows of each (op, type) in tests that repeat the table on another instruction set, unless
/// `FULMEN_TEST_SAMPLE` gives another number.
pub const QUICK_ROWS: usize = 4;

/// The command that runs the test of this name in the calling test binary.
#[macro_export]
macro_rules! this_test {
    ($name:expr) => {
        concat!(
            "cargo test -p ",
            env!("CARGO_PKG_NAME"),
            " --test ",
            env!("CARGO_CRATE_NAME"),
            " -- --exact ",
            $name
        )
    };
}

/// Enrolls a backend: makes a test of this name that runs the table on it, the large rows as a [`sample`],
/// and prints the rows that fail.
///
/// ```ignore
/// fulmen_testkit::enroll!(cpu, fulmen_cpu::CpuDispatcher::new());
/// fulmen_testkit::enroll!(young, young_backend::Dispatcher::new(), not_yet: ["sample", "argmax"]);
/// ```
///
/// Ops listed as `not_yet`, and weights of types that the backend says it does not support, may be
/// unsupported; every other row must be supported and pass.
#[macro_export]
macro_rules! enroll {
    ($name:ident, $backend:expr) => {
        $crate::enroll!($name, $backend, not_yet: []);
    };
    ($name:ident, $backend:expr, not_yet: [$($op:literal),* $(,)?]) => {
        #[test]
        fn $name() {
            let mut backend = $backend;
            let sample = $crate::Sample::of_large_rows($crate::LARGE_ROWS);
            let all = $crate::Filter::default();
            let report = $crate::run_sample(&mut backend, &all, &sample, $crate::seed());
            report.assert_good(&[$($op),*], $crate::this_test!(stringify!($name)));
        }
    };
}
