//! Random graphs: valid ones agree with the f64 reference for every fusion and memory plan; invalid ones give
//! an error or a result, never a panic.

use fulmen_core::{
    Backend, BinaryKind, BuildError, Cache, CacheSpec, ComputeGraph, DType, Fusions, GraphBuilder, Heads,
    LogicalGraph, OpCall, PlanOptions, Program, RopePairing, RopeSpec, Rotation, Sharing, Tensor, TensorOp,
    UnaryKind, execute_graph,
};
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::Tolerance;
use fulmen_testkit::check::compare_all;
use fulmen_testkit::draw::{Draw, Pools};
use fulmen_testkit::nodes::nodes_of;
use fulmen_testkit::reference::Interpreter;
use fulmen_testkit::rig::{GUARD, Rig};
use proptest::prelude::*;

const HEADS: Heads = Heads { n_heads: 4, n_kv_heads: 2, head_dim: 8 };
const WIDTH: u32 = 32;
const KV_WIDTH: u32 = 16;
const CAPACITY: u32 = 8;

/// Builds a random graph of tensors `[m, WIDTH]` and `[m, KV_WIDTH]`.
struct Maker {
    b: GraphBuilder,
    m: u32,
    wide: Vec<Tensor>,
    narrow: Vec<Tensor>,
    square: Vec<Tensor>,
    gain: Tensor,
    head_gain: Tensor,
    /// For rows of `KV_WIDTH`.
    to_narrow: Tensor,
    caches: Vec<Cache>,
    rotation: Rotation,
}

impl Maker {
    fn new(m: u32) -> Result<Maker, BuildError> {
        let mut b = GraphBuilder::new();
        let wide = vec![b.input("x", m, WIDTH)?, b.input("y", m, WIDTH)?];
        let narrow = vec![b.input("k", m, KV_WIDTH)?];
        let positions = b.indices("positions", m)?;
        let square =
            vec![b.weight("w0", DType::F32, WIDTH, WIDTH)?, b.weight("w1", DType::F16, WIDTH, WIDTH)?];
        let spec = RopeSpec::new(RopePairing::NeoX, HEADS.head_dim, 100.0);
        let mut caches = Vec::new();
        let table = b.page_table("pages", 1, 1)?;
        for name in ["kv0", "kv1"] {
            let spec = CacheSpec { dtype: DType::F32, n_pages: 2, table, heads: HEADS };
            caches.push(b.kv_cache(name, spec)?);
        }
        Ok(Maker {
            gain: b.vector("gain", WIDTH)?,
            head_gain: b.vector("head_gain", HEADS.head_dim)?,
            to_narrow: b.weight("w2", DType::F32, KV_WIDTH, WIDTH)?,
            rotation: Rotation { spec, positions, factors: None },
            b,
            m,
            wide,
            narrow,
            square,
            caches,
        })
    }

    /// Adds the op and operands that three numbers select.
    fn op(&mut self, kind: u8, first: u8, second: u8) -> Result<(), BuildError> {
        // Mostly the latest tensors, so that chains form.
        let pick =
            |pool: &[Tensor], by: u8| pool[pool.len() - 1 - (by as usize * by as usize / 256) % pool.len()];
        let (x, y) = (pick(&self.wide, first), pick(&self.wide, second));
        let (k, w) = (pick(&self.narrow, first), self.square[second as usize % self.square.len()]);
        let (cache, b) = (self.caches[second as usize % self.caches.len()], &mut self.b);
        let scale = 1.0 / (HEADS.head_dim as f32).sqrt();
        let made = match kind % 22 {
            0 => b.add(x, y)?,
            1 => b.mul(x, y)?,
            2 => b.binary(BinaryKind::SwiGlu, x, y)?,
            3 => b.silu(x)?,
            4 => b.unary(UnaryKind::Gelu, x)?,
            5 => b.unary(UnaryKind::Scale(0.5), x)?,
            6 => b.rms_norm(x, self.gain, 1e-5)?,
            // With one row, a computed tensor can be a gain or a bias.
            7 => b.rms_norm(x, if self.m == 1 { y } else { self.gain }, 1e-5)?,
            8 => b.rms_norm(x, self.head_gain, 1e-5)?,
            9 => b.mul_mat(x, w)?,
            10 => b.linear(x, w, (self.m == 1).then_some(y), None)?,
            11 => b.linear(x, w, None, Some(y))?,
            12 => b.gate_up(x, w, self.square[0])?,
            13 => b.rope(x, HEADS.head_dim, self.rotation)?,
            14 => b.softmax(x, 1.0)?,
            15 => b.copy(x)?,
            16 => {
                let (normed, sum) = b.add_rms_norm(x, y, self.gain, 1e-5)?;
                self.wide.push(sum);
                normed
            }
            17 => {
                let k = if first.is_multiple_of(2) { b.rope(k, HEADS.head_dim, self.rotation)? } else { k };
                b.kv_store(k, k, cache, self.rotation.positions, None)?;
                return Ok(());
            }
            18 => b.cache_attention(x, cache, self.rotation.positions, None, scale)?,
            19 => b.soft_cap(x, 2.0)?,
            20 => b.relu2(x)?,
            _ => {
                let made = b.mul_mat(x, self.to_narrow)?;
                self.narrow.push(made);
                return Ok(());
            }
        };
        self.wide.push(made);
        Ok(())
    }

    fn finish(mut self, outputs: &[u8]) -> Result<LogicalGraph, BuildError> {
        let last = self.wide.len() - 1;
        let mut chosen = vec![last];
        chosen.extend(outputs.iter().map(|&by| by as usize % self.wide.len()));
        chosen.sort_unstable();
        chosen.dedup();
        // The inputs have their names already.
        for at in chosen.into_iter().filter(|&at| at > 1) {
            self.b.output(&format!("out{at}"), self.wide[at])?;
        }
        Ok(self.b.finish())
    }
}

fn graph(m: u32, ops: &[(u8, u8, u8)], outputs: &[u8]) -> LogicalGraph {
    let mut maker = Maker::new(m).unwrap();
    for &(kind, first, second) in ops {
        maker.op(kind, first, second).unwrap();
    }
    maker.finish(outputs).unwrap()
}

fn draws() -> Vec<(String, Draw)> {
    let mut draws = vec![("positions".to_owned(), Draw::Below(CAPACITY))];
    for (name, width) in [("w0", WIDTH), ("w1", WIDTH), ("w2", WIDTH)] {
        draws.push((name.to_owned(), Draw::Normal(0.0, 1.0 / (width as f32).sqrt())));
    }
    draws.extend(["gain", "head_gain"].map(|name| (name.to_owned(), Draw::GAIN)));
    draws
}

fn calls(program: &Program) -> impl Iterator<Item = &OpCall> {
    program.calls().iter().map(|step| &step.call)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_match_the_reference(
        m in 1u32..4,
        ops in prop::collection::vec(any::<(u8, u8, u8)>(), 1..24),
        outputs in prop::collection::vec(any::<u8>(), 0..3),
        seed in any::<u64>(),
    ) {
        let graph = graph(m, &ops, &outputs);
        let mut data = Pools::new(seed).draw_graph("random", &graph, &draws()).unwrap();
        // Two rows at one cache slot would have no defined order.
        let positions: Vec<u8> = (0..m).flat_map(|row| (row * 2 + 1).to_le_bytes()).collect();
        data.insert("positions".to_owned(), positions.into());
        let mut reference = Interpreter::new(&graph, &data).unwrap();
        reference.run().unwrap();
        let mut cpu = CpuDispatcher::with_threads(1);
        for fusions in [Fusions::none(), Fusions::all()] {
            for sharing in [Sharing::Never, Sharing::ByLifetime, Sharing::InPlace] {
                let options = PlanOptions { fusions, sharing, guard: GUARD, ..PlanOptions::default() };
                let rig = Rig::new(&mut cpu, graph.clone(), &options, &data).unwrap();
                let through_nodes = nodes_of(rig.bound.program()).check().unwrap();
                prop_assert!(calls(rig.bound.program()).eq(calls(&through_nodes)));
                rig.run(&mut cpu).unwrap();
                let result = compare_all(&mut cpu, &rig, &reference, Tolerance::nmse(1e-5));
                let planned = &rig.plan.graph;
                prop_assert!(result.is_ok(), "{options:?}: {}\n{graph}\n{planned}", result.unwrap_err());
                rig.surroundings(&mut cpu).unwrap().unwrap();
                rig.release(&mut cpu).unwrap();
            }
        }
    }

    #[test]
    fn invalid_graphs_never_panic(
        ops in prop::collection::vec(any::<(u8, u8, u8)>(), 1..12),
        changes in prop::collection::vec(any::<(u8, u8, u64)>(), 1..4),
    ) {
        let graph = graph(2, &ops, &[]);
        let data = Pools::new(1).draw_graph("random", &graph, &draws()).unwrap();
        let mut cpu = CpuDispatcher::with_threads(1);
        let rig = Rig::new(&mut cpu, graph, &PlanOptions::default(), &data).unwrap();
        let mut broken = nodes_of(rig.bound.program());
        for (node, what, value) in changes {
            mutate(&mut broken, node as usize, what, value);
        }
        // Any result is fine.
        let _ = execute_graph(&broken, &mut cpu as &mut dyn Backend);
        let _ = broken.to_dot();
        let _ = broken.to_string();
        rig.release(&mut cpu).unwrap();
    }
}

/// Values that are wrong in different ways: small, huge, slightly off.
fn wrong(old: u64, value: u64) -> u64 {
    match value % 8 {
        0 => 0,
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => old.wrapping_add(value >> 8 & 0xFFF),
        4 => u64::MAX - (value >> 8 & 0xFF),
        5 => u64::from(u32::MAX),
        6 => value >> 3 & 0xFF,
        _ => value,
    }
}

fn wrong_u32(old: u32, value: u64) -> u32 {
    wrong(old.into(), value) as u32
}

fn wrong_float(value: u64) -> f32 {
    [f32::NAN, f32::INFINITY, -1.0, 0.0, 1e30, 1e-6][(value >> 3) as usize % 6]
}

/// Changes one field of one node.
fn mutate(graph: &mut ComputeGraph, node: usize, what: u8, value: u64) {
    let nodes = graph.nodes.len();
    let types = DType::ALL;
    let dtype = types[(value >> 3) as usize % types.len()];
    let node = &mut graph.nodes[node % nodes];
    let params = &mut node.params;
    match what % 24 {
        0 => node.op = TensorOp::ALL[(value >> 3) as usize % TensorOp::ALL.len()],
        1 => node.data_ptr = wrong(node.data_ptr, value),
        2 | 3 => {
            let at = (value >> 32) as usize % 4;
            node.shape[at] = wrong_u32(node.shape[at], value);
        }
        4 => node.dtype = dtype,
        5 => drop(node.inputs.pop()),
        6 => node.inputs.push((value >> 3) as usize % (nodes + 2)),
        7 => node.inputs.iter_mut().for_each(|input| *input = wrong(*input as u64, value) as usize),
        8 => params.weight_ptr = wrong(params.weight_ptr, value),
        9 => params.weight_qtype = (!value.is_multiple_of(5)).then_some(dtype),
        10 => params.up_ptr = wrong(params.up_ptr, value),
        11 => params.up_qtype = (!value.is_multiple_of(5)).then_some(dtype),
        12 => {
            (params.bias_ptr, params.bias_len) =
                (wrong(params.bias_ptr, value), wrong_u32(params.bias_len, value >> 8))
        }
        13 => params.gamma_ptr = wrong(params.gamma_ptr, value),
        14 => params.k_gamma_ptr = wrong(params.k_gamma_ptr, value),
        15 => params.scalar = wrong_float(value),
        16 => params.second_ptr = wrong(params.second_ptr, value),
        17 => params.table_rows = wrong_u32(params.table_rows, value),
        18 => {
            let heads = &mut params.heads;
            match value >> 32 & 3 {
                0 => heads.n_heads = wrong_u32(heads.n_heads, value),
                1 => heads.n_kv_heads = wrong_u32(heads.n_kv_heads, value),
                _ => heads.head_dim = wrong_u32(heads.head_dim, value),
            }
        }
        19 => match &mut params.rope {
            Some(rope) if value.is_multiple_of(3) => rope.n_rot = wrong_u32(rope.n_rot, value),
            Some(rope) if value % 3 == 1 => rope.base = wrong_float(value),
            rope => *rope = None,
        },
        20 => params.rope_factors_ptr = wrong(params.rope_factors_ptr, value),
        21 | 22 => match &mut params.kv {
            Some(kv) => match value >> 32 & 7 {
                0 => kv.k_ptr = wrong(kv.k_ptr, value),
                1 => kv.v_ptr = wrong(kv.v_ptr, value),
                2 => kv.dtype = dtype,
                3 => kv.n_seqs = wrong_u32(kv.n_seqs, value),
                4 => kv.seq_pages = wrong_u32(kv.seq_pages, value),
                5 => kv.n_pages = wrong_u32(kv.n_pages, value),
                6 => kv.table_ptr = wrong(kv.table_ptr, value),
                _ if value.is_multiple_of(2) => params.kv = None,
                _ => kv.v_ptr = kv.k_ptr,
            },
            None => params.sample_ptr = wrong(params.sample_ptr, value),
        },
        _ => {
            for extra in &mut params.extra_weights {
                match value >> 32 & 3 {
                    0 => extra.rows = wrong_u32(extra.rows, value),
                    1 => extra.output_ptr = wrong(extra.output_ptr, value),
                    2 => extra.weight_qtype = dtype,
                    _ => extra.weight_ptr = wrong(extra.weight_ptr, value),
                }
            }
        }
    }
}
