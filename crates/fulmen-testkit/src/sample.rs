//! Which rows a test runs: all quick rows and a seeded sample of the slow ones.
//!
//! The rows of real models' shapes take most of the time of a run, above all on a software GPU. A test
//! therefore runs every quick row and, of the larger rows, a few of each (op, type). `fulmen ops check` never
//! samples.
//!
//! - `FULMEN_TEST_SAMPLE=N`, `N:SEED` or `:SEED`: how many rows of each (op, type) are taken, and the seed
//!   that chooses them. Without a count each test has its own default; without a seed it is the number of the
//!   day, so that runs of one day agree. `scripts/test` derives the seed from the files.
//! - `FULMEN_TEST_FULL=1`: every row.
//! - `FULMEN_TEST_ROW=NAME`: exactly the row of this name, whatever the filter and the sample say.
//! - A row that a filter asks for by name always runs.
//!
//! The seed of the sample and the numbers of rows run and skipped are printed with the results, and so is,
//! for each row that fails, the command that runs exactly that row on the same data. The same seed takes the
//! same rows, whichever other rows the table has of other ops and types; every row is taken by some seed.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_core::DType;

use crate::case::Size;
use crate::report::Filter;

/// Which of the rows that a filter takes are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sample {
    /// Every row.
    Full,
    /// The row of this name.
    Row(String),
    /// Some rows of each group: of each op and type, or of each op.
    Seeded {
        /// Rows up to this size are all taken; `None` samples quick rows, too.
        always: Option<Size>,
        /// How many of the other rows of each group are taken.
        per_group: usize,
        /// Whether the types of an op are groups of their own.
        by_type: bool,
        /// Chooses them.
        seed: u64,
    },
}

/// The properties of a row that a filter and a sample look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowKey<'a> {
    pub op: &'a str,
    pub dtype: DType,
    pub name: &'a str,
    pub size: Size,
}

impl Sample {
    /// All quick rows and `per_group` larger rows of each op and type, unless the environment says otherwise.
    ///
    /// # Panics
    /// If an environment variable cannot be read: a test that silently ran other rows would be worse.
    pub fn of_large_rows(per_group: usize) -> Sample {
        Sample::from_env(Some(Size::Quick), per_group)
    }

    /// `per_group` rows of each op and type, quick or not, unless the environment says otherwise.
    ///
    /// # Panics
    /// As [`of_large_rows`](Sample::of_large_rows).
    pub fn of_all_rows(per_group: usize) -> Sample {
        Sample::from_env(None, per_group)
    }

    /// Counts rows of each op, whatever their types, instead of those of each op and type.
    pub fn by_op(mut self) -> Sample {
        if let Sample::Seeded { by_type, .. } = &mut self {
            *by_type = false;
        }
        self
    }

    fn from_env(always: Option<Size>, per_group: usize) -> Sample {
        if let Some(name) = variable("FULMEN_TEST_ROW") {
            return Sample::Row(name);
        }
        if runs_all() {
            return Sample::Full;
        }
        let (count, seed) = count_and_seed();
        Sample::Seeded { always, per_group: count.unwrap_or(per_group), by_type: true, seed }
    }

    /// Whether each row of a table is run, in the order of the table.
    pub(crate) fn select(&self, rows: &[RowKey<'_>], filter: &Filter) -> Vec<bool> {
        let (always, per_group, by_type, seed) = match self {
            Sample::Row(name) => return rows.iter().map(|row| row.name == name).collect(),
            Sample::Full => return rows.iter().map(|row| filter.takes_row(row)).collect(),
            Sample::Seeded { always, per_group, by_type, seed } => (*always, *per_group, *by_type, *seed),
        };
        let mut run = vec![false; rows.len()];
        let mut groups = HashMap::<_, Vec<(u64, usize)>>::new();
        for (index, row) in rows.iter().enumerate().filter(|(_, row)| filter.takes_row(row)) {
            if !filter.name.is_empty() || always.is_some_and(|size| row.size <= size) {
                run[index] = true;
            } else {
                let group = (row.op, by_type.then_some(row.dtype));
                groups.entry(group).or_default().push((rank(seed, row.name), index));
            }
        }
        for mut group in groups.into_values() {
            group.sort_unstable();
            group.iter().take(per_group).for_each(|&(_, index)| run[index] = true);
        }
        run
    }
}

/// `count` of the cases of a test that is not in the table, in their order: those that the seed of
/// `FULMEN_TEST_SAMPLE` chooses, or all with `FULMEN_TEST_FULL=1`. Prints which.
///
/// # Panics
/// As [`Sample::of_large_rows`].
pub fn some_of<T: std::fmt::Debug>(what: &str, count: usize, cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let cases: Vec<T> = cases.into_iter().collect();
    if runs_all() {
        return cases;
    }
    let (total, seed) = (cases.len(), count_and_seed().1);
    let chosen = choose(what, count, seed, cases);
    println!("{what}: {} of {total}, by FULMEN_TEST_SAMPLE=:{seed}: {chosen:?}", chosen.len());
    chosen
}

/// An environment variable, if it is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn runs_all() -> bool {
    variable("FULMEN_TEST_FULL").is_some_and(|value| value == "1")
}

/// The number of rows, if one is given, and the seed of the sample.
fn count_and_seed() -> (Option<usize>, u64) {
    let text = variable("FULMEN_TEST_SAMPLE").unwrap_or_default();
    let (count, seed) = parse(&text)
        .unwrap_or_else(|| panic!("FULMEN_TEST_SAMPLE={text}: expected N, N:SEED or :SEED, both integers"));
    (count, seed.unwrap_or_else(today))
}

fn choose<T>(what: &str, count: usize, seed: u64, cases: Vec<T>) -> Vec<T> {
    let mut ranks: Vec<(u64, usize)> =
        (0..cases.len()).map(|index| (rank(seed, &format!("{what} {index}")), index)).collect();
    ranks.sort_unstable();
    ranks.truncate(count);
    let taken = |index: usize| ranks.iter().any(|&(_, at)| at == index);
    cases.into_iter().enumerate().filter(|(index, _)| taken(*index)).map(|(_, case)| case).collect()
}

/// `N`, `N:SEED`, `:SEED` or nothing.
fn parse(text: &str) -> Option<(Option<usize>, Option<u64>)> {
    let (count, seed) = text.split_once(':').unwrap_or((text, ""));
    let count = if count.is_empty() { None } else { Some(count.parse().ok()?) };
    let seed = if seed.is_empty() { None } else { Some(seed.parse().ok()?) };
    Some((count, seed))
}

/// Days since 1970.
fn today() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400)
}

/// The rank of a row for a seed: FNV-1a over the name, mixed as SplitMix64 does. The same on every
/// platform and with every compiler, unlike `DefaultHasher`.
fn rank(seed: u64, name: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ mix(seed);
    mix(name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
}

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::{Case, table};

    fn names(cases: &[Case], sample: &Sample, filter: &Filter) -> HashSet<String> {
        let rows: Vec<RowKey<'_>> = cases.iter().map(Case::key).collect();
        let run = sample.select(&rows, filter);
        cases.iter().zip(run).filter(|(_, run)| *run).map(|(case, _)| case.name.clone()).collect()
    }

    fn seeded(per_group: usize, seed: u64) -> Sample {
        Sample::Seeded { always: Some(Size::Quick), per_group, by_type: true, seed }
    }

    #[test]
    fn a_seed_takes_the_same_rows_again_and_another_seed_takes_others() {
        let (cases, all) = (table(), Filter::default());
        let first = names(&cases, &seeded(2, 7), &all);
        assert_eq!(first, names(&cases, &seeded(2, 7), &all));
        assert_ne!(first, names(&cases, &seeded(2, 8), &all));
        // Rows of other ops and the order of the table make no difference.
        let mut matmuls: Vec<Case> = cases.into_iter().filter(|case| case.op == "mul_mat").collect();
        matmuls.reverse();
        let alone = names(&matmuls, &seeded(2, 7), &all);
        assert_eq!(alone, first.into_iter().filter(|name| name.starts_with("mul_mat/")).collect());
    }

    #[test]
    fn some_of_a_list_keep_their_order_and_each_is_chosen_by_some_seed() {
        let mut seen = HashSet::new();
        for seed in 0..50 {
            let chosen = choose("rows", 3, seed, (0..10).collect::<Vec<u32>>());
            assert_eq!(chosen.len(), 3);
            assert!(chosen.is_sorted());
            assert_eq!(chosen, choose("rows", 3, seed, (0..10).collect::<Vec<u32>>()));
            seen.extend(chosen);
        }
        assert_eq!(seen.len(), 10);
        assert_eq!(choose("rows", 9, 1, vec!['a', 'b']), ['a', 'b']);
    }

    #[test]
    fn every_quick_row_and_some_large_rows_of_each_op_and_type_are_taken() {
        let cases = table();
        let taken = names(&cases, &seeded(3, 1), &Filter::default());
        let mut groups: HashMap<(&str, DType), (usize, usize)> = HashMap::new();
        for case in &cases {
            let runs = taken.contains(&case.name);
            assert!(runs || case.size > Size::Quick, "{} is quick", case.name);
            if case.size > Size::Quick {
                let (rows, run) = groups.entry((case.op, case.dtype)).or_default();
                *rows += 1;
                *run += usize::from(runs);
            }
        }
        assert!(groups.values().all(|&(rows, run)| run == rows.min(3)), "{groups:?}");
    }

    #[test]
    fn rows_of_an_op_are_counted_whatever_their_types() {
        let large = |sample: &Sample| -> HashMap<&str, usize> {
            let cases = table();
            let taken = names(&cases, sample, &Filter::default());
            let mut counts = HashMap::new();
            for case in cases.iter().filter(|case| case.size > Size::Quick && taken.contains(&case.name)) {
                *counts.entry(case.op).or_default() += 1;
            }
            counts
        };
        assert_eq!(large(&seeded(2, 1).by_op())["mul_mat"], 2);
        assert!(large(&seeded(2, 1))["mul_mat"] > 10);
    }

    #[test]
    fn every_row_is_taken_by_some_seed() {
        let cases: Vec<Case> = table().into_iter().filter(|case| case.size > Size::Quick).collect();
        let rows: Vec<RowKey<'_>> = cases.iter().map(Case::key).collect();
        let mut left: HashSet<&str> = rows.iter().map(|row| row.name).collect();
        for seed in 0..5000 {
            let run = seeded(1, seed).select(&rows, &Filter::default());
            rows.iter().zip(run).filter(|(_, run)| *run).for_each(|(row, _)| _ = left.remove(row.name));
            if left.is_empty() {
                return;
            }
        }
        panic!("5000 seeds never took {left:?}");
    }

    #[test]
    fn a_row_that_is_named_runs() {
        let (cases, name) = (table(), "mul_mat/q4_k/qwen3-4b/m33/2560x9728");
        let exactly = names(&cases, &Sample::Row(name.to_owned()), &Filter::op("softmax"));
        assert_eq!(exactly, HashSet::from([name.to_owned()]));
        let filter = Filter { name: "qwen3-4b/m33".to_owned(), ..Filter::default() };
        assert_eq!(names(&cases, &seeded(0, 1), &filter), names(&cases, &Sample::Full, &filter));
        assert_eq!(names(&cases, &Sample::Full, &Filter::default()).len(), cases.len());
    }

    #[test]
    fn counts_and_seeds_are_read_and_anything_else_is_refused() {
        assert_eq!(parse(""), Some((None, None)));
        assert_eq!(parse("3"), Some((Some(3), None)));
        assert_eq!(parse("3:99"), Some((Some(3), Some(99))));
        assert_eq!(parse(":99"), Some((None, Some(99))));
        for wrong in ["x", "3:x", "-1", "3:1:2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
