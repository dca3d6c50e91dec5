//! The results of a run of the table, and the filter of its rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use fulmen_core::DType;

use crate::case::{Case, Size};
use crate::check::Outcome;
use crate::compare::Agreement;
#[cfg(feature = "wgpu")]
use crate::gpu::GpuCase;
use crate::sample::{RowKey, Sample};

/// Selects the rows to run. The default selects all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Ops by name; all if empty.
    pub ops: Vec<String>,
    /// Types; all if empty.
    pub dtypes: Vec<DType>,
    /// A substring of the name; empty for any.
    pub name: String,
    /// The largest size to run; all if not given.
    pub up_to: Option<Size>,
}

impl Filter {
    /// Rows of one op.
    pub fn op(op: &str) -> Filter {
        Filter { ops: vec![op.to_owned()], ..Filter::default() }
    }

    /// Whether it selects a row.
    pub fn takes(&self, case: &Case) -> bool {
        self.takes_row(&case.key())
    }

    /// Whether it selects a row of the GPU table.
    #[cfg(feature = "wgpu")]
    pub fn takes_gpu(&self, case: &GpuCase) -> bool {
        self.takes_row(&case.key())
    }

    pub(crate) fn takes_row(&self, row: &RowKey<'_>) -> bool {
        (self.ops.is_empty() || self.ops.iter().any(|taken| taken == row.op))
            && (self.dtypes.is_empty() || self.dtypes.contains(&row.dtype))
            && row.name.contains(&self.name)
            && self.up_to.is_none_or(|largest| row.size <= largest)
    }
}

/// One row of the table and its outcome.
#[derive(Debug)]
pub struct Row {
    /// The case's name.
    pub name: String,
    /// Its op.
    pub op: &'static str,
    /// Its type.
    pub dtype: DType,
    /// Its outcome.
    pub outcome: Outcome,
    /// How long it took, including its data and the reference.
    pub elapsed: Duration,
}

/// The outcomes of the rows of one op, or of one op and type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Rows run.
    pub rows: usize,
    /// Rows that passed.
    pub passed: usize,
    /// Rows that failed.
    pub failed: usize,
    /// Rows without a kernel in the backend.
    pub unsupported: usize,
    /// The passed row that was closest to its tolerance.
    pub worst: Option<Agreement>,
}

impl Tally {
    fn add(&mut self, row: &Row) {
        self.rows += 1;
        match &row.outcome {
            Outcome::Passed(agreement) => {
                self.passed += 1;
                if self.worst.is_none_or(|worst| agreement.share() > worst.share()) {
                    self.worst = Some(*agreement);
                }
            }
            Outcome::Failed(_) => self.failed += 1,
            Outcome::Unsupported(_) => self.unsupported += 1,
        }
    }
}

/// The results of a run of the table.
#[derive(Debug)]
pub struct Report {
    /// The backend's name.
    pub backend: &'static str,
    /// Types of weights that the backend names as unsupported.
    pub unsupported_weights: Vec<DType>,
    /// The seed of the data.
    pub seed: u64,
    /// The rows, in the order of the table.
    pub rows: Vec<Row>,
    /// Which of the filter's rows were run.
    pub sample: Sample,
    /// How many of the filter's rows the sample left out.
    pub skipped: usize,
}

impl Report {
    /// Whether nothing failed and everything is supported except for the ops listed, and for weights of the
    /// types that the backend names.
    pub fn is_good(&self, not_yet: &[&str]) -> bool {
        self.bad_rows(not_yet).next().is_none()
    }

    /// Prints the report and, for each bad row, the command that runs exactly that row again. `test` is the
    /// command that runs this test; see [`this_test!`](crate::this_test).
    ///
    /// # Panics
    /// If a row is bad, or if no row was run.
    pub fn assert_good(&self, not_yet: &[&str], test: &str) {
        println!("{self}");
        assert!(!self.rows.is_empty(), "no row was run: is FULMEN_TEST_ROW a name of this table?");
        for row in self.bad_rows(not_yet).take(20) {
            println!("again: FULMEN_TEST_SEED={} FULMEN_TEST_ROW='{}' {test}", self.seed, row.name);
        }
        assert!(self.is_good(not_yet), "rows of the table fail: see above");
    }

    /// Rows that failed, and unsupported rows of ops that are not in `not_yet` and of types that the backend
    /// does not name as unsupported.
    pub fn bad_rows<'a>(&'a self, not_yet: &'a [&str]) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| match row.outcome {
            Outcome::Passed(_) => false,
            Outcome::Failed(_) => true,
            Outcome::Unsupported(_) => {
                !not_yet.contains(&row.op) && !self.unsupported_weights.contains(&row.dtype)
            }
        })
    }

    /// All rows together.
    pub fn total(&self) -> Tally {
        self.rows.iter().fold(Tally::default(), |mut tally, row| {
            tally.add(row);
            tally
        })
    }

    /// Rows by op, in the order of the table.
    pub fn by_op(&self) -> Vec<(&'static str, Tally)> {
        let mut tallies: Vec<(&'static str, Tally)> = Vec::new();
        for row in &self.rows {
            match tallies.iter_mut().find(|(op, _)| *op == row.op) {
                Some((_, tally)) => tally.add(row),
                None => {
                    let mut tally = Tally::default();
                    tally.add(row);
                    tallies.push((row.op, tally));
                }
            }
        }
        tallies
    }

    /// Rows by op and type.
    pub fn coverage(&self) -> BTreeMap<(&'static str, DType), Tally> {
        let mut tallies: BTreeMap<_, Tally> = BTreeMap::new();
        for row in &self.rows {
            tallies.entry((row.op, row.dtype)).or_default().add(row);
        }
        tallies
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed(Agreement { error, .. }) => write!(f, "ok    {} (error {error:.1e})", self.name),
            Outcome::Failed(failure) => write!(f, "FAIL  {}: {failure}", self.name),
            Outcome::Unsupported(reason) => write!(f, "none  {}: {reason}", self.name),
        }
    }
}

impl fmt::Display for Report {
    /// The rows that did not pass, and a summary line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unsupported = BTreeSet::new();
        for row in &self.rows {
            match &row.outcome {
                Outcome::Passed(_) => {}
                Outcome::Failed(_) => writeln!(f, "{row}")?,
                Outcome::Unsupported(_) => {
                    // One row of each op and type is enough.
                    if unsupported.insert((row.op, row.dtype)) {
                        writeln!(f, "{row}")?;
                    }
                }
            }
        }
        let Tally { rows, passed, failed, unsupported, .. } = self.total();
        write!(
            f,
            "{}: {rows} rows, {passed} passed, {failed} failed, {unsupported} unsupported (seed {})",
            self.backend, self.seed
        )?;
        if let Sample::Seeded { per_group, seed, .. } = self.sample {
            write!(
                f,
                "; {} rows skipped by FULMEN_TEST_SAMPLE={per_group}:{seed} (FULMEN_TEST_FULL=1 runs all)",
                self.skipped
            )?;
        }
        Ok(())
    }
}
