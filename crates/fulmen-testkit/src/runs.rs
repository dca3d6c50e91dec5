//! Every way of running a program gives the same bits: eager, eager with the host waiting or reading between
//! any two calls, and replayed, for random graphs of the kind that models have.
//!
//! Backends forward results from call to call in forms of their own. A program that was not planned does not,
//! so its results may be rounded differently; they must still be close.

use fulmen_core::{
    Backend, BackendError, BuildError, Cache, CacheSpec, DType, ExecError, Fusions, GraphBuilder, Heads,
    KV_PAGE, LogicalGraph, PlanOptions, Program, Role, RopePairing, RopeSpec, Rotation, Sharing, Tensor,
    TensorId, quant,
};

use crate::draw::{Draw, Pools};
use crate::reference::DataSet;
use crate::rig::Rig;

const HEADS: Heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 64 };
const HIDDEN: u32 = 256;
const INNER: u32 = 512;
const SEQ_PAGES: u32 = 2;
const EPSILON: f32 = 1e-6;
/// Types of weights, those with forwarded activations more often.
const TYPES: [DType; 8] =
    [DType::Q4_K, DType::Q4_K, DType::Q6_K, DType::Q8_0, DType::Q4_0, DType::Q5_K, DType::F16, DType::F32];

/// A random graph of rows `[m, HIDDEN]`: parts of transformer layers in any order, and ops between them that
/// overwrite, copy or reuse their results.
struct Drawing {
    b: GraphBuilder,
    rng: fastrand::Rng,
    /// The residual stream, and other rows.
    rows: Vec<Tensor>,
    positions: Tensor,
    sequences: Option<Tensor>,
    caches: [Cache; 2],
    weights: usize,
    draws: Vec<(String, Draw)>,
}

impl Drawing {
    fn new(m: u32, seed: u64) -> Result<Drawing, BuildError> {
        let (mut b, mut rng) = (GraphBuilder::new(), fastrand::Rng::with_seed(seed));
        let rows = vec![b.input("x", m, HIDDEN)?, b.input("y", m, HIDDEN)?];
        let positions = b.indices("positions", m)?;
        // A decode batch, or rows of one sequence.
        let batch = rng.bool() && m > 1;
        let sequences = if batch { Some(b.indices("sequences", m)?) } else { None };
        let (n_seqs, dtype) =
            (if batch { m } else { 1 }, *pick(&mut rng, &[DType::F16, DType::F16, DType::F32]));
        let table = b.page_table("pages", n_seqs, SEQ_PAGES)?;
        let spec = CacheSpec { dtype, n_pages: n_seqs * SEQ_PAGES + 1, table, heads: HEADS };
        let caches = [b.kv_cache("kv0", spec)?, b.kv_cache("kv1", spec)?];
        let first = rng.u32(0..SEQ_PAGES * KV_PAGE - 33);
        let position = |row: u32| if batch { first + row % 7 } else { first + row };
        let draws = vec![
            ("positions".to_owned(), Draw::Ints((0..m).map(position).collect())),
            ("sequences".to_owned(), Draw::Ints((0..m).rev().collect())),
        ];
        Ok(Drawing { b, rng, rows, positions, sequences, caches, weights: 0, draws })
    }

    fn row(&mut self) -> Tensor {
        // Mostly the latest, so that chains form.
        let back = self.rng.usize(0..self.rows.len()).min(self.rng.usize(0..self.rows.len()));
        self.rows[self.rows.len() - 1 - back.min(self.rng.usize(0..4))]
    }

    fn weight(&mut self, rows: u32, k: u32) -> Result<Tensor, BuildError> {
        let dtype = *pick(&mut self.rng, &TYPES);
        self.weights += 1;
        let name = format!("w{}", self.weights);
        self.draws.push((name.clone(), Draw::Normal(0.0, 1.0 / (k as f32).sqrt())));
        self.b.weight(&name, dtype, rows, k)
    }

    fn matmul(&mut self, x: Tensor, rows: u32, k: u32) -> Result<Tensor, BuildError> {
        let weight = self.weight(rows, k)?;
        self.b.mul_mat(x, weight)
    }

    fn norm(&mut self, x: Tensor, width: u32) -> Result<Tensor, BuildError> {
        self.weights += 1;
        let name = format!("gain{}", self.weights);
        self.draws.push((name.clone(), Draw::GAIN));
        let gain = self.b.vector(&name, width)?;
        self.b.rms_norm(x, gain, EPSILON)
    }

    /// Norm, Q, K and V, RoPE, store, attention and the output projection.
    fn attention(&mut self) -> Result<Tensor, BuildError> {
        let x = self.row();
        let h = if self.rng.u32(0..4) > 0 { self.norm(x, HIDDEN)? } else { x };
        let (mut q, mut k) =
            (self.matmul(h, HEADS.q_width(), HIDDEN)?, self.matmul(h, HEADS.kv_width(), HIDDEN)?);
        let v = self.matmul(h, HEADS.kv_width(), HIDDEN)?;
        if self.rng.bool() {
            (q, k) = (self.norm(q, HEADS.head_dim)?, self.norm(k, HEADS.head_dim)?);
        }
        let spec = RopeSpec::new(RopePairing::NeoX, HEADS.head_dim, 1e4);
        let rotation = Rotation { spec, positions: self.positions, factors: None };
        let (q, k) = (self.b.rope(q, HEADS.head_dim, rotation)?, self.b.rope(k, HEADS.head_dim, rotation)?);
        let cache = *pick(&mut self.rng, &self.caches);
        self.b.kv_store(k, v, cache, self.positions, self.sequences)?;
        let attended = self.b.cache_attention(q, cache, self.positions, self.sequences, 0.125)?;
        let o = self.matmul(attended, HIDDEN, HEADS.q_width())?;
        self.b.add(x, o)
    }

    /// Norm, gate-up and down.
    fn feed_forward(&mut self) -> Result<Tensor, BuildError> {
        let x = self.row();
        let h = if self.rng.u32(0..4) > 0 { self.norm(x, HIDDEN)? } else { x };
        let (gate, up) = (self.weight(INNER, HIDDEN)?, self.weight(INNER, HIDDEN)?);
        let f = self.b.gate_up(h, gate, up)?;
        let d = self.matmul(f, HIDDEN, INNER)?;
        if self.rng.bool() { self.b.add(x, d) } else { Ok(d) }
    }

    fn op(&mut self) -> Result<(), BuildError> {
        let made = match self.rng.u32(0..12) {
            0..3 => self.attention()?,
            3..6 => self.feed_forward()?,
            6 | 7 => {
                let (x, y) = (self.row(), self.row());
                let d = self.matmul(x, HIDDEN, HIDDEN)?;
                self.b.add(y, d)?
            }
            8 => {
                let x = self.row();
                self.norm(x, HIDDEN)?
            }
            9 => {
                let x = self.row();
                self.b.silu(x)?
            }
            10 => {
                let (x, y) = (self.row(), self.row());
                self.b.add(x, y)?
            }
            _ => {
                let x = self.row();
                self.b.copy(x)?
            }
        };
        self.rows.push(made);
        Ok(())
    }

    fn finish(mut self) -> Result<(LogicalGraph, Vec<(String, Draw)>), BuildError> {
        let last = self.rows.len() - 1;
        let other = self.rng.usize(2..self.rows.len());
        self.b.output("last", self.rows[last])?;
        if other != last {
            self.b.output("other", self.rows[other])?;
        }
        Ok((self.b.finish(), self.draws))
    }
}

fn pick<'a, T>(rng: &mut fastrand::Rng, all: &'a [T]) -> &'a T {
    &all[rng.usize(0..all.len())]
}

/// Runs a random graph of `m` rows in every way, and compares the bits of its outputs and KV caches.
///
/// # Errors
/// What differs, or an error of the backend; with the graph.
pub fn compare_runs(backend: &mut dyn Backend, m: u32, seed: u64) -> Result<(), String> {
    let graph = |error: BuildError| format!("{m} rows, seed {seed}: {error}");
    let mut drawing = Drawing::new(m, seed).map_err(graph)?;
    for _ in 0..drawing.rng.u32(2..6) {
        drawing.op().map_err(graph)?;
    }
    let fusions = *pick(&mut drawing.rng, &[backend.fusions(), backend.fusions(), Fusions::none()]);
    let sharing = *pick(&mut drawing.rng, &[Sharing::InPlace, Sharing::ByLifetime, Sharing::Never]);
    let (graph, draws) = drawing.finish().map_err(graph)?;
    let text = graph.to_string();
    let failed = |what: &str| format!("{m} rows, seed {seed}, {fusions:?}, {sharing:?}: {what}\n{text}");
    let data = Pools::new(seed).draw_graph("runs", &graph, &draws).map_err(|e| failed(&e.to_string()))?;
    let options = PlanOptions { fusions, sharing, ..PlanOptions::default() };
    let compared = compare(backend, graph, &options, &data, seed);
    compared.map_err(|e| failed(&e.to_string()))?.map_err(|what| failed(&what))
}

/// A graph with its results.
struct Runs {
    rig: Rig,
    /// Outputs and states.
    results: Vec<TensorId>,
}

impl Runs {
    fn read(&self, backend: &mut dyn Backend) -> Result<Vec<Vec<u8>>, ExecError> {
        self.results.iter().map(|&tensor| self.rig.read(backend, tensor)).collect()
    }

    /// The results of `run` on fresh memory.
    fn results_of(
        &mut self,
        backend: &mut dyn Backend,
        run: impl FnOnce(&Program, &mut dyn Backend) -> Result<(), ExecError>,
    ) -> Result<Vec<Vec<u8>>, ExecError> {
        self.rig.reset(backend)?;
        run(self.rig.bound.program(), backend)?;
        self.read(backend)
    }
}

fn compare(
    backend: &mut dyn Backend,
    graph: LogicalGraph,
    options: &PlanOptions,
    data: &DataSet,
    seed: u64,
) -> Result<Result<(), String>, ExecError> {
    let states = (0..graph.tensors.len()).filter(|&id| graph.tensors[id].role == Role::State);
    let results = graph.outputs.iter().copied().chain(states).collect();
    let rig = Rig::new(backend, graph, options, data)?;
    let mut runs = Runs { rig, results };
    let compared = compare_all(backend, &mut runs, seed);
    let surroundings = runs.rig.surroundings(backend)?.map_err(|stray| stray.to_string());
    runs.rig.release(backend)?;
    Ok(compared?.and(surroundings))
}

fn compare_all(
    backend: &mut dyn Backend,
    runs: &mut Runs,
    seed: u64,
) -> Result<Result<(), String>, ExecError> {
    let eager = runs.results_of(backend, |program, backend| program.run(backend).map(drop))?;
    let scratch = runs.rig.bound.arena();
    let mut others = vec![
        ("again", runs.results_of(backend, |program, backend| program.run(backend).map(drop))?),
        (
            "twice without waiting",
            runs.results_of(backend, |program, backend| {
                program.run(backend)?;
                program.run(backend).map(drop)
            })?,
        ),
        (
            "waiting between calls",
            runs.results_of(backend, |program, backend| {
                program.run_observed(backend, |backend, _, _| backend.synchronize().map(|()| true)).map(drop)
            })?,
        ),
        (
            "reading between some calls",
            runs.results_of(backend, |program, backend| {
                let mut rng = fastrand::Rng::with_seed(seed);
                let read = |backend: &mut dyn Backend| -> Result<bool, BackendError> {
                    if rng.bool() {
                        backend.read(scratch, &mut [0; 4])?;
                    }
                    Ok(true)
                };
                let mut read = read;
                program.run_observed(backend, |backend, _, _| read(backend)).map(drop)
            })?,
        ),
    ];
    if let Some(id) = backend.prepare(runs.rig.bound.program())? {
        let replay = |times: usize| {
            move |_: &Program, backend: &mut dyn Backend| {
                (0..times).try_for_each(|_| backend.replay(id).map(drop)).map_err(ExecError::from)
            }
        };
        others.push(("a replay", runs.results_of(backend, replay(1))?));
        others.push(("two replays", runs.results_of(backend, replay(2))?));
        others.push((
            "eager after a replay",
            runs.results_of(backend, |program, backend| {
                backend.replay(id)?;
                program.run(backend).map(drop)
            })?,
        ));
        backend.release(id);
    }
    for (how, other) in others {
        for ((expected, got), &tensor) in eager.iter().zip(&other).zip(&runs.results) {
            if expected != got {
                let name = runs.rig.plan.graph.tensors[tensor].name.as_deref().unwrap_or("");
                return Ok(Err(format!("{how}: {name} has other bits")));
            }
        }
    }
    let calls: Vec<_> = runs.rig.bound.program().calls().iter().map(|step| step.call.clone()).collect();
    let unplanned = Program::check_calls(calls)?;
    let plain = runs.results_of(backend, |_, backend| unplanned.run(backend).map(drop))?;
    Ok(close(runs, &eager, &plain))
}

/// Whether the outputs of planned and unplanned calls differ by rounding only.
fn close(runs: &Runs, planned: &[Vec<u8>], plain: &[Vec<u8>]) -> Result<(), String> {
    for ((planned, plain), &tensor) in planned.iter().zip(plain).zip(&runs.results) {
        let def = &runs.rig.plan.graph.tensors[tensor];
        let values = |bytes: &[u8]| quant::dequantize_to_vec(def.dtype, bytes, def.elements());
        let (Ok(a), Ok(b)) = (values(planned), values(plain)) else { continue };
        // Pages that no sequence has keep their poison, which is NaN, in both.
        let written = || a.iter().zip(&b).filter(|(a, b)| !(a.is_nan() && b.is_nan()));
        let size: f64 = written().map(|(_, b)| f64::from(*b).powi(2)).sum();
        let error: f64 = written().map(|(a, b)| f64::from(a - b).powi(2)).sum();
        if error > 1e-2 * size || error.is_nan() {
            let name = def.name.as_deref().unwrap_or("");
            return Err(format!("{name} of planned calls is off by {:.1e}", error / size));
        }
    }
    Ok(())
}

/// Compares random graphs of these numbers of rows, each with a seed of its own.
///
/// # Panics
/// If runs differ.
pub fn assert_runs_agree(backend: &mut dyn Backend, rows: impl IntoIterator<Item = u32>, seed: u64) {
    println!("FULMEN_TEST_SEED={seed}");
    for m in rows {
        if let Err(error) = compare_runs(backend, m, seed.wrapping_add(u64::from(m))) {
            panic!("FULMEN_TEST_SEED={seed}: {error}");
        }
    }
}
