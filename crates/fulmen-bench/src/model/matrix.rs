//! Decode along every axis from one base cell: rows, weight types, KV cache types, contexts and targets; and
//! the cells that are slower than their neighbors explain.

use fulmen_core::DType;
use fulmen_engine::SessionOptions;
use fulmen_model::quantize::Recipe;
use serde::Serialize;

use super::decode::{DecodeOptions, measure};
use super::{LoadedModel, largest};
use crate::memory_bandwidth::{self, DeviceState};
use crate::progress::{Progress, Steps};
use crate::{BenchError, dtype_name};

/// How much slower a cell may be than its neighbors explain.
const TOLERANCE: f64 = 0.02;

/// What changes along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Sequences that decode together.
    Rows,
    /// The weight type.
    Type,
    /// The type of the KV cache.
    Cache,
    /// Tokens in the KV cache.
    Context,
    /// The compute capability whose kernels run.
    Target,
}

impl Axis {
    /// Every axis, in display order.
    pub const ALL: [Axis; 5] = [Axis::Rows, Axis::Type, Axis::Cache, Axis::Context, Axis::Target];

    /// What its values are.
    pub const fn title(self) -> &'static str {
        match self {
            Axis::Rows => "rows",
            Axis::Type => "weights",
            Axis::Cache => "KV cache",
            Axis::Context => "context",
            Axis::Target => "target",
        }
    }
}

/// The values of each axis, and the base cell.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixOptions {
    /// Rows of the base cell.
    pub base_rows: u32,
    /// Weight type of the base cell.
    pub base_type: Recipe,
    /// Context of the base cell. Its cache type is that of `session`.
    pub base_depth: u32,
    /// Rows, in ascending order.
    pub rows: Vec<u32>,
    /// Weight types.
    pub types: Vec<Recipe>,
    /// Cache types.
    pub caches: Vec<DType>,
    /// Contexts, in ascending order.
    pub depths: Vec<u32>,
    /// Steps of a run.
    pub steps: u16,
    /// Steps that the device runs before the host reads a token.
    pub steps_ahead: u16,
    /// Timed runs of each cell.
    pub repeat: u16,
    /// The cache type of the base cell, the prefill chunk and eager mode.
    pub session: SessionOptions,
}

/// One cell of an axis. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatrixCell {
    /// The axis that it lies on.
    pub axis: Axis,
    /// Sequences that decode together.
    pub rows: u32,
    /// The weight type.
    #[serde(rename = "type")]
    pub recipe: String,
    /// The type of the KV cache.
    pub kv: String,
    /// Tokens in the KV cache.
    pub depth: u32,
    /// The compute capability whose kernels run; the device's own if not given.
    pub target: Option<String>,
    /// Bytes that a step must read.
    pub read_bytes: u64,
    /// Tokens of all sequences per second.
    pub tokens_per_second: f64,
    /// Time of a step.
    pub step_us: f64,
    /// The [bound](crate::Bound) of a step.
    pub bound_us: Option<f64>,
    /// The bound divided by the time of a step.
    pub share_of_bound: Option<f64>,
    /// Why there are no times, such as too little memory.
    pub error: Option<String>,
}

impl MatrixCell {
    /// Its value on its axis.
    pub fn value(&self) -> String {
        match self.axis {
            Axis::Rows => self.rows.to_string(),
            Axis::Type => self.recipe.clone(),
            Axis::Cache => self.kv.clone(),
            Axis::Context => self.depth.to_string(),
            Axis::Target => format!("{} x{}", self.target.as_deref().unwrap_or("own"), self.rows),
        }
    }
}

/// A cell that is slower than a neighbor explains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cliff {
    /// The axis.
    pub axis: Axis,
    /// The cell's value.
    pub cell: String,
    /// The neighbor's value.
    pub neighbor: String,
    /// By how much, as a share: 0.1 is 10 %.
    pub slower_by: f64,
}

/// All cells. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatrixReport {
    /// The device, as `--device` takes it.
    pub device: String,
    /// Its name.
    pub name: String,
    /// The preset, such as `qwen3-4b`.
    pub shape: String,
    /// The measured memory bandwidth of the device.
    pub memory_bytes_per_second: Option<f64>,
    /// The cells, axis after axis.
    pub cells: Vec<MatrixCell>,
    /// The cells that are slower than their neighbors explain.
    pub cliffs: Vec<Cliff>,
}

/// One measurement: a model in `recipe`, and the cells that are measured with it.
struct Group {
    recipe: Recipe,
    cells: Vec<(Axis, u32, DType, u32)>,
}

impl MatrixOptions {
    /// The cells by weight type, so that each model is loaded once.
    fn groups(&self) -> Vec<Group> {
        let (rows, cache, depth) = (self.base_rows, self.session.cache, self.base_depth);
        let mut base = Group { recipe: self.base_type, cells: Vec::new() };
        base.cells.extend(self.rows.iter().map(|&rows| (Axis::Rows, rows, cache, depth)));
        base.cells.extend(self.caches.iter().map(|&cache| (Axis::Cache, rows, cache, depth)));
        base.cells.extend(self.depths.iter().map(|&depth| (Axis::Context, rows, cache, depth)));
        if self.types.contains(&self.base_type) {
            base.cells.push((Axis::Type, rows, cache, depth));
        }
        let others = self.types.iter().filter(|recipe| **recipe != self.base_type);
        let others = others.map(|&recipe| Group { recipe, cells: vec![(Axis::Type, rows, cache, depth)] });
        std::iter::once(base).filter(|group| !group.cells.is_empty()).chain(others).collect()
    }

    fn decode_options(&self, rows: u32, cache: DType, depth: u32) -> DecodeOptions {
        DecodeOptions {
            depths: vec![depth],
            batches: vec![rows],
            steps: self.steps,
            steps_ahead: self.steps_ahead,
            repeat: self.repeat,
            session: SessionOptions { cache, ..self.session },
        }
    }

    /// What a model must be loaded with so that the cells fit.
    fn session_options(&self, group: &Group) -> SessionOptions {
        let depths: Vec<u32> = group.cells.iter().map(|cell| cell.3).collect();
        self.decode_options(1, self.session.cache, largest(&depths)).session_options()
    }
}

/// Times decode steps along every axis. `load` gives the model in a weight type.
///
/// A cell that cannot run, for want of memory for example, has an error instead of times.
///
/// # Errors
/// What `load` reports.
pub fn bench_matrix<E>(
    shape: &str,
    options: &MatrixOptions,
    mut load: impl FnMut(Recipe, SessionOptions) -> Result<LoadedModel, E>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<MatrixReport, E> {
    let groups = options.groups();
    let mut steps = Steps::new(groups.iter().map(|group| group.cells.len()).sum(), progress);
    let mut report = MatrixReport {
        device: String::new(),
        name: String::new(),
        shape: shape.to_owned(),
        memory_bytes_per_second: None,
        cells: Vec::new(),
        cliffs: Vec::new(),
    };
    for group in &groups {
        steps.start(&format!("loading {shape} {}", group.recipe));
        let loaded = load(group.recipe, options.session_options(group))?;
        if report.name.is_empty() {
            report.device = loaded.device.selector().to_string();
            report.name.clone_from(&loaded.device.name);
            report.memory_bytes_per_second = memory_bandwidth::measure(&loaded, DeviceState::Idle);
        }
        for &(axis, rows, cache, depth) in &group.cells {
            steps.start(&format!(
                "{}, {rows} rows, {} cache, context {depth}",
                group.recipe,
                dtype_name(cache)
            ));
            let options = options.decode_options(rows, cache, depth);
            let cell = cell(&loaded, &options, (axis, group.recipe), report.memory_bytes_per_second);
            report.cells.push(cell);
            steps.finish(1);
        }
    }
    report.cells.sort_by_key(|cell| Axis::ALL.iter().position(|axis| *axis == cell.axis));
    report.cliffs = find_cliffs(&report.cells);
    Ok(report)
}

fn cell(
    loaded: &LoadedModel,
    options: &DecodeOptions,
    (axis, recipe): (Axis, Recipe),
    bandwidth: Option<f64>,
) -> MatrixCell {
    let (rows, depth) = (largest(&options.batches), largest(&options.depths));
    let times: Result<_, BenchError> = measure(loaded, options, depth, rows, bandwidth);
    let (times, error) = match times {
        Ok(times) => (Some(times), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let step_us = times.as_ref().map_or(0.0, |times| times.step_us);
    MatrixCell {
        axis,
        rows,
        recipe: recipe.to_string(),
        kv: dtype_name(options.session.cache),
        depth,
        target: None,
        read_bytes: times.as_ref().map_or(0, |times| times.read_bytes),
        tokens_per_second: times.as_ref().map_or(0.0, |times| times.rate.mean),
        step_us,
        bound_us: times.as_ref().and_then(|times| times.bound_us),
        share_of_bound: times.as_ref().and_then(|times| times.share_of_bound),
        error,
    }
}

/// The cells that are slower than a neighbor explains: more rows with fewer tokens per second in all, and on
/// the other axes a cell that reads less and takes longer. Of several such neighbors, the worst.
pub fn find_cliffs(cells: &[MatrixCell]) -> Vec<Cliff> {
    let timed = |cell: &&MatrixCell| cell.error.is_none() && cell.step_us > 0.0;
    let explained = |cell: &MatrixCell, other: &MatrixCell| -> f64 {
        match cell.axis {
            Axis::Rows if other.rows < cell.rows => other.tokens_per_second / cell.tokens_per_second,
            Axis::Target if other.target == cell.target && other.rows < cell.rows => {
                other.tokens_per_second / cell.tokens_per_second
            }
            Axis::Rows | Axis::Target => 0.0,
            _ if cell.read_bytes < other.read_bytes => cell.step_us / other.step_us,
            _ => 0.0,
        }
    };
    let worst = |cell: &MatrixCell| {
        let others = cells.iter().filter(timed).filter(|other| other.axis == cell.axis);
        let (other, ratio) = others
            .map(|other| (other, explained(cell, other)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, ratio)| *ratio > 1.0 + TOLERANCE)?;
        Some(Cliff { axis: cell.axis, cell: cell.value(), neighbor: other.value(), slower_by: ratio - 1.0 })
    };
    cells.iter().filter(timed).filter_map(worst).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(axis: Axis, rows: u32, recipe: &str, read_bytes: u64, step_us: f64) -> MatrixCell {
        MatrixCell {
            axis,
            rows,
            recipe: recipe.to_owned(),
            kv: "f16".to_owned(),
            depth: 1000,
            target: None,
            read_bytes,
            tokens_per_second: 1e6 * f64::from(rows) / step_us,
            step_us,
            bound_us: Some(step_us / 2.0),
            share_of_bound: Some(0.5),
            error: None,
        }
    }

    #[test]
    fn more_rows_with_fewer_tokens_per_second_are_a_cliff() {
        let rows = [(1, 1000.0), (2, 1500.0), (16, 2400.0), (17, 3600.0), (32, 4000.0)];
        let cells = rows.map(|(rows, us)| cell(Axis::Rows, rows, "q4_k_m", 1, us));
        let cliffs = find_cliffs(&cells);
        let [cliff] = cliffs.as_slice() else { panic!("{cliffs:?}") };
        assert_eq!((cliff.cell.as_str(), cliff.neighbor.as_str()), ("17", "16"));
        assert!((cliff.slower_by - (16.0 / 2400.0) / (17.0 / 3600.0) + 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_smaller_type_that_takes_longer_is_a_cliff() {
        let types = [("q4_0", 20, 1050.0), ("q4_k_m", 25, 1000.0), ("q8_0", 42, 1600.0), ("f16", 80, 1500.0)];
        let cells = types.map(|(name, bytes, us)| cell(Axis::Type, 1, name, bytes, us));
        let cliffs = find_cliffs(&cells);
        let found: Vec<_> =
            cliffs.iter().map(|cliff| (cliff.cell.as_str(), cliff.neighbor.as_str())).collect();
        assert_eq!(found, [("q4_0", "q4_k_m"), ("q8_0", "f16")]);
    }

    #[test]
    fn small_differences_and_cells_without_times_are_none() {
        let mut cells =
            vec![cell(Axis::Type, 1, "q4_0", 20, 1015.0), cell(Axis::Type, 1, "q4_k_m", 25, 1000.0)];
        let mut failed = cell(Axis::Type, 1, "f16", 80, 1.0);
        failed.error = Some("out of memory".to_owned());
        cells.push(failed);
        assert_eq!(find_cliffs(&cells), []);
        assert_eq!(find_cliffs(&[]), []);
    }
}
