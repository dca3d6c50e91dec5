//! Random data of a case, from a seed.
//!
//! Each tensor of each case has its own generator, seeded by the seed of the run and the names: a row that
//! runs alone gets the same data as in the whole table, and a weight is the same for inputs of any size.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fulmen_core::sampling::SampleState;
use fulmen_core::{CacheRef, DType, DTypeError, LogicalGraph, NO_PAGE, Op, Role, TensorDef, quant};

use crate::case::Case;
use crate::reference::DataSet;
use crate::rig::POISON;

/// The distribution of a tensor's data.
#[derive(Clone, Debug, PartialEq)]
pub enum Draw {
    /// Normal values of this mean and standard deviation, quantized to the tensor's type; random
    /// [blocks](Draw::Blocks) of types that are only read.
    Normal(f32, f32),
    /// Normal values with some replaced: (index, value). For tensors of F32 and F16.
    With(Vec<(usize, f32)>),
    /// These values.
    Floats(Vec<f32>),
    /// Blocks of random bits with scales of ordinary size, including quants that no encoder would write.
    Blocks,
    /// Integers below a limit.
    Below(u32),
    /// These integers.
    Ints(Vec<u32>),
    /// These sampling states.
    States(Vec<SampleState>),
    /// A page table: random pages of a pool, each once.
    Pages {
        /// Pages in the pool.
        pool: u32,
        /// How many pages each sequence has; the other entries are `NO_PAGE`.
        assigned: Vec<u32>,
        /// How many of the first ones each sequence has given back, because they are behind its window: their
        /// entries are `NO_PAGE`, too. Empty for none.
        behind: Vec<u32>,
        /// How many first pages of sequence 0 the other sequences have as well.
        shared: u32,
    },
}

impl Draw {
    /// Standard normal values; zeros for integers, whose range the caller must give.
    pub fn default_of(tensor: &TensorDef) -> Draw {
        if tensor.dtype == DType::U32 { Draw::Below(1) } else { Draw::Normal(0.0, 1.0) }
    }

    /// As many random pages for each sequence as the table has room for.
    fn all_pages(cache: &CacheRef) -> Draw {
        let assigned = vec![cache.seq_pages; cache.n_seqs as usize];
        Draw::Pages { pool: cache.n_pages, assigned, behind: Vec::new(), shared: 0 }
    }

    /// Gains around 1.
    pub const GAIN: Draw = Draw::Normal(1.0, 0.1);
}

/// Quantized rows that weights are assembled from, by type, width and distribution: quantizing takes much
/// longer than copying.
#[derive(Debug)]
pub struct Pools {
    seed: u64,
    rows: HashMap<(DType, u32, [u32; 2]), Arc<Vec<u8>>>,
}

/// Above this many elements values repeat, with a period that is not a multiple of any block, row or
/// workgroup.
const PERIOD: usize = 1_000_003;

impl Pools {
    /// Empty pools for a run with this seed.
    pub fn new(seed: u64) -> Pools {
        Pools { seed, rows: HashMap::new() }
    }

    /// The data of all inputs, weights and states of a case.
    pub fn draw_case(&mut self, case: &Case) -> Result<DataSet, DTypeError> {
        self.draw_graph(&case.name, &case.graph, &case.draws)
    }

    /// The data of all inputs, weights and states of a graph.
    pub fn draw_graph(
        &mut self,
        name: &str,
        graph: &LogicalGraph,
        draws: &[(String, Draw)],
    ) -> Result<DataSet, DTypeError> {
        let case = name;
        let mut data = DataSet::new();
        for tensor in graph.tensors.iter().filter(|tensor| tensor.role != Role::Computed) {
            let name = tensor.name.as_deref().unwrap_or("");
            let given = draws.iter().rev().find(|(of, _)| of == name).map(|(_, draw)| draw.clone());
            let pages = || caches(graph).find(|cache| graph.tensors[cache.table].name == tensor.name);
            let draw = given.or_else(|| pages().map(Draw::all_pages));
            let draw = draw.unwrap_or_else(|| Draw::default_of(tensor));
            let mut random = self.generator(&(case, name));
            data.insert(name.to_owned(), Arc::new(self.draw(&mut random, tensor, &draw)?));
        }
        poison_unused_pages(graph, &mut data);
        Ok(data)
    }

    /// A generator for one purpose.
    fn generator(&self, purpose: &impl Hash) -> fastrand::Rng {
        let mut hasher = DefaultHasher::new();
        (self.seed, purpose).hash(&mut hasher);
        fastrand::Rng::with_seed(hasher.finish())
    }

    /// The bytes of one tensor.
    pub fn draw(
        &mut self,
        random: &mut fastrand::Rng,
        tensor: &TensorDef,
        draw: &Draw,
    ) -> Result<Vec<u8>, DTypeError> {
        let elements = tensor.elements();
        match draw {
            Draw::Normal(mean, deviation) if tensor.dtype == DType::F32 => {
                Ok(floats(&normal(random, elements, *mean, *deviation)))
            }
            Draw::Normal(..) if !tensor.dtype.can_encode() => {
                Ok(blocks(random, tensor.dtype, elements / tensor.dtype.block_len()))
            }
            Draw::Normal(mean, deviation) => self.pooled(random, tensor, *mean, *deviation),
            Draw::With(special) => {
                let mut values = normal(random, elements, 0.0, 1.0);
                for &(at, value) in special {
                    values[at] = value;
                }
                // The encoder refuses what is not finite.
                match tensor.dtype {
                    DType::F16 => Ok(values
                        .iter()
                        .flat_map(|&value| half::f16::from_f32(value).to_le_bytes())
                        .collect()),
                    _ => Ok(floats(&values)),
                }
            }
            Draw::Floats(values) => {
                let expected = DType::F32.bytes(elements)?;
                let got = 4 * values.len();
                if expected != got {
                    let dtype = DType::F32;
                    return Err(DTypeError::Length { call: "draw", dtype, elements, expected, got });
                }
                Ok(floats(values))
            }
            Draw::Blocks => Ok(blocks(random, tensor.dtype, elements / tensor.dtype.block_len())),
            Draw::Below(limit) => {
                Ok((0..elements).flat_map(|_| random.u32(..(*limit).max(1)).to_le_bytes()).collect())
            }
            Draw::Ints(values) => Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
            Draw::States(states) => Ok(bytemuck::cast_slice(states).to_vec()),
            Draw::Pages { pool, assigned, behind, shared } => {
                let mut pages = page_table(random, *pool, assigned, *shared, tensor.width);
                for (line, &behind) in pages.chunks_mut(tensor.width as usize).zip(behind) {
                    line[..behind as usize].fill(NO_PAGE);
                }
                Ok(bytemuck::cast_slice(&pages).to_vec())
            }
        }
    }

    /// Random rows of a pool of quantized rows, each rotated by a random number of blocks so that they
    /// differ.
    fn pooled(
        &mut self,
        random: &mut fastrand::Rng,
        tensor: &TensorDef,
        mean: f32,
        deviation: f32,
    ) -> Result<Vec<u8>, DTypeError> {
        let key = (tensor.dtype, tensor.width, [mean.to_bits(), deviation.to_bits()]);
        let row = tensor.dtype.bytes(tensor.width as usize)?;
        if !self.rows.contains_key(&key) {
            let count = (65_536 / tensor.width.max(1) as usize).clamp(5, 251);
            let mut random = self.generator(&key);
            let values = normal(&mut random, count * tensor.width as usize, mean, deviation);
            self.rows.insert(key, Arc::new(quant::quantize_to_vec(tensor.dtype, &values)?));
        }
        let pool = &self.rows[&key];
        let count = pool.len() / row.max(1);
        let mut bytes = Vec::with_capacity(tensor.bytes()?);
        for _ in 0..tensor.rows {
            let at = random.usize(..count.max(1)) * row;
            let block = tensor.dtype.block_bytes();
            let split = at + random.usize(..(row / block).max(1)) * block;
            bytes.extend_from_slice(&pool[split..at + row]);
            bytes.extend_from_slice(&pool[at..split]);
        }
        Ok(bytes)
    }
}

/// The KV caches of a graph.
fn caches(graph: &LogicalGraph) -> impl Iterator<Item = &CacheRef> {
    graph.ops.iter().filter_map(|node| match &node.op {
        Op::CacheAttention { cache, .. } | Op::KvStore { cache, .. } | Op::RopeStore { cache, .. } => {
            Some(cache)
        }
        _ => None,
    })
}

/// Random pages of a pool for sequences that have `assigned` pages each, of up to `seq_pages`.
fn page_table(
    random: &mut fastrand::Rng,
    pool: u32,
    assigned: &[u32],
    shared: u32,
    seq_pages: u32,
) -> Vec<u32> {
    let mut free: Vec<u32> = (0..pool).collect();
    random.shuffle(&mut free);
    let mut table = vec![NO_PAGE; assigned.len() * seq_pages as usize];
    for (sequence, &count) in assigned.iter().enumerate() {
        for index in 0..count.min(seq_pages) as usize {
            let page = if sequence > 0 && index < shared as usize { table[index] } else { NO_PAGE };
            let page = if page == NO_PAGE { free.pop().unwrap_or(NO_PAGE) } else { page };
            table[sequence * seq_pages as usize + index] = page;
        }
    }
    table
}

/// Overwrites the pages that no sequence has: no kernel may use what is there.
fn poison_unused_pages(graph: &LogicalGraph, data: &mut DataSet) {
    let name = |id: usize| graph.tensors[id].name.as_deref().unwrap_or("");
    for cache in caches(graph) {
        let Some(table) = data.get(name(cache.table)) else { continue };
        let used: HashSet<u32> = bytemuck::pod_collect_to_vec(table.as_slice()).into_iter().collect();
        for id in [cache.k, cache.v] {
            let Some(bytes) = data.get_mut(name(id)) else { continue };
            let page_bytes = (bytes.len() / cache.n_pages as usize).max(1);
            for (page, bytes) in Arc::make_mut(bytes).chunks_mut(page_bytes).enumerate() {
                if !used.contains(&(page as u32)) {
                    bytes.fill(POISON);
                }
            }
        }
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// Normal values by the Box-Muller transform, clipped at three standard deviations: the error of q8
/// activations is proportional to the largest value of a block, and the tolerances assume ordinary ones.
pub fn normal(random: &mut fastrand::Rng, n: usize, mean: f32, deviation: f32) -> Vec<f32> {
    let fresh = n.min(PERIOD);
    let mut values = Vec::with_capacity(n);
    while values.len() < fresh {
        let radius = (-2.0 * (1.0 - random.f32()).ln()).sqrt().min(3.0) * deviation;
        let (sin, cos) = (std::f32::consts::TAU * random.f32()).sin_cos();
        values.extend([mean + radius * cos, mean + radius * sin]);
    }
    values.truncate(fresh);
    while values.len() < n {
        let more = (n - values.len()).min(fresh);
        values.extend_from_within(..more);
    }
    values
}

/// The byte offsets of the f16 scales and minima in a block.
fn scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::IQ4_NL | DType::IQ4_XS => &[0],
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ3_XXS | DType::IQ3_S => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        _ => &[],
    }
}

/// Blocks of random quants.
fn blocks(random: &mut fastrand::Rng, dtype: DType, count: usize) -> Vec<u8> {
    let size = dtype.block_bytes();
    let mut bytes = vec![0; count * size];
    random.fill(&mut bytes);
    for block in bytes.chunks_mut(size) {
        for &at in scales(dtype) {
            let sign = if random.bool() { 1.0 } else { -1.0 };
            let scale = half::f16::from_f32(sign * (0.005 + 0.01 * random.f32()));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        if dtype == DType::MXFP4 {
            // Scales of 2^-8 to 2^-6.
            block[0] = random.u8(119..=121);
        }
        if dtype == DType::Q8_K {
            block[..4].copy_from_slice(&(0.005 + 0.01 * random.f32()).to_le_bytes());
            // The sums of each 16 quants must match the quants.
            for group in 0..16 {
                let quants = &block[4 + 16 * group..20 + 16 * group];
                let sum: i16 = quants.iter().map(|&quant| i16::from(quant as i8)).sum();
                block[260 + 2 * group..262 + 2 * group].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
    bytes
}
