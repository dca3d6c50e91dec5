//! KV store: writes rows of keys and values into the cache, as they are, or after per-head norm and
//! RoPE, which then also rotates the queries.

use fulmen_core::{DType, Heads, KV_PAGE, RopePairing, RopeSpec};

use super::Cache;
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    fault,
    launch_list::{product, threads},
    preprocess::{Value, values},
    rope::{check, sin_cos_values},
    workgroup::{WorkgroupOp, WorkgroupReduce},
};

/// Rows to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvStore {
    /// Rows.
    pub m: u32,
    /// Heads.
    pub heads: Heads,
    /// The cache.
    pub cache: Cache,
    /// Rows have sequence numbers; otherwise all are of sequence 0.
    pub sequences: bool,
}

/// Rows to rotate and to store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeStore {
    /// Rows, heads and cache.
    pub store: KvStore,
    /// The rotation.
    pub rope: RopeSpec,
    /// There are frequency factors.
    pub factors: bool,
    /// The query heads have a norm.
    pub q_norm: bool,
    /// The key heads have a norm.
    pub k_norm: bool,
    /// Epsilon of both norms.
    pub epsilon: f32,
}

/// One input (queries, keys or values), and what is done with its heads.
#[derive(Clone, Copy)]
struct HeadInput {
    /// Name of the binding.
    name: &'static str,
    /// Input number.
    input: usize,
    heads: u32,
    /// Name and input number of the norm's gain.
    gamma: Option<(&'static str, usize)>,
    rotate: bool,
    /// Output number.
    output: usize,
    to: Target,
}

/// Where the heads are written, with the name of the binding.
#[derive(Clone, Copy)]
enum Target {
    Rows(&'static str),
    Cache(&'static str),
}

/// The numbers of the other inputs and outputs.
struct Roles {
    positions: usize,
    sequences: usize,
    pages: usize,
    factors: usize,
    fault: usize,
}

/// The work, and how it is launched.
struct KvStoreKernel<'a> {
    op: &'static str,
    spec: &'a KvStore,
    rope: Option<(&'a RopeSpec, bool)>,
    epsilon: f32,
    roles: Roles,
    /// A previous launch finds the slots of the rows.
    has_slots: bool,
    threads: u32,
    caps: &'a Caps,
}

/// Up to this many rows, each head's workgroup searches for later rows with the same slot.
const SMALL_BATCH: u32 = 32;

/// Stores rows of keys and values in the cache, rounded to its type.
///
/// Inputs 0 and 1 are keys and values, `[m, n_kv_heads · head_dim]`; input 2 the `m` positions, input
/// 3 (if any) the `m` sequence numbers, input 4 the page table. Outputs 0 and 1 are the cache's keys
/// and values, output 2 the [record of faults](crate::kernels::fault). Of rows with the same position
/// and sequence the last wins; rows whose position, sequence or page is out of range are reported and
/// not stored.
///
/// # Errors
/// [`KernelError`] where the heads do not fit the cache's type, or something is larger than a binding.
pub fn kv_store(spec: &KvStore, caps: &Caps) -> Result<LaunchList, KernelError> {
    let heads = spec.heads.n_kv_heads;
    let input =
        |name, input, to| HeadInput { name, input, heads, gamma: None, rotate: false, output: input, to };
    let inputs = [input("k", 0, Target::Cache("k_cache")), input("v", 1, Target::Cache("v_cache"))];
    let roles = Roles { positions: 2, sequences: 3, pages: 4, factors: usize::MAX, fault: 2 };
    launch_list("kv_store", spec, None, 0.0, &inputs, roles, caps)
}

/// Per-head norm (where there is a gain) and RoPE of queries and keys; keys and values are stored in
/// the cache.
///
/// Inputs 0, 1 and 2 are queries, keys and values, `[m, heads · head_dim]`; input 3 the `m` positions,
/// 4 (if any) the `m` sequence numbers, 5 and 6 (if any) the gains of the queries' and the keys' norm,
/// 7 (if any) the frequency factors, 8 the page table. Output 0 is the rotated queries, which may be
/// the memory of input 0; 1 and 2 are the cache's keys and values, 3 is the [record of
/// faults](crate::kernels::fault). Slots are as in [`kv_store`]; the queries of a row that is out of
/// range are not written.
///
/// # Errors
/// [`KernelError`] where the heads do not fit the cache's type or the rotation, or something is larger
/// than a binding.
pub fn rope_store(spec: &RopeStore, caps: &Caps) -> Result<LaunchList, KernelError> {
    let Heads { n_heads, n_kv_heads, head_dim } = spec.store.heads;
    check("rope_store", &spec.rope, head_dim)?;
    let inputs = [
        HeadInput {
            name: "q",
            input: 0,
            heads: n_heads,
            gamma: spec.q_norm.then_some(("q_gamma", 5)),
            rotate: true,
            output: 0,
            to: Target::Rows("out"),
        },
        HeadInput {
            name: "k",
            input: 1,
            heads: n_kv_heads,
            gamma: spec.k_norm.then_some(("k_gamma", 6)),
            rotate: true,
            output: 1,
            to: Target::Cache("k_cache"),
        },
        HeadInput {
            name: "v",
            input: 2,
            heads: n_kv_heads,
            gamma: None,
            rotate: false,
            output: 2,
            to: Target::Cache("v_cache"),
        },
    ];
    let roles = Roles { positions: 3, sequences: 4, pages: 8, factors: 7, fault: 3 };
    let rope = Some((&spec.rope, spec.factors));
    launch_list("rope_store", &spec.store, rope, spec.epsilon, &inputs, roles, caps)
}

fn launch_list(
    op: &'static str,
    spec: &KvStore,
    rope: Option<(&RopeSpec, bool)>,
    epsilon: f32,
    inputs: &[HeadInput],
    roles: Roles,
    caps: &Caps,
) -> Result<LaunchList, KernelError> {
    spec.cache.bytes(op, spec.heads, caps)?;
    let mut list = LaunchList::default();
    if spec.m == 0 {
        return Ok(list);
    }
    let wanted = (spec.heads.head_dim / 2).next_power_of_two().clamp(32, 128);
    let has_slots = spec.m > SMALL_BATCH;
    let threads = threads(wanted, caps);
    let store = KvStoreKernel { op, spec, rope, epsilon, roles, has_slots, threads, caps };
    if has_slots {
        store.launch_find_slots(&mut list)?;
    }
    store.launch(inputs, &mut list)?;
    Ok(list)
}

impl KvStoreKernel<'_> {
    fn bind_positions(&self, bind: &mut KernelBindings<'_>) -> Result<(), KernelError> {
        let bytes = u64::from(self.spec.m) * 4;
        bind.read("positions", Role::Input(self.roles.positions), "u32", bytes)?;
        if self.spec.sequences {
            bind.read("sequences", Role::Input(self.roles.sequences), "u32", bytes)?;
        }
        bind.read("pages", Role::Input(self.roles.pages), "u32", self.spec.cache.table_bytes())?;
        bind.write("fault", Role::Output(self.roles.fault), fault::ELEMENT, fault::FAULT_BYTES)
    }

    /// Finds the slots of a large batch in a launch of their own.
    fn launch_find_slots(&self, list: &mut LaunchList) -> Result<(), KernelError> {
        let KvStore { m, cache, sequences, .. } = *self.spec;
        let mut bind = KernelBindings::new("kv_store slots", self.caps);
        self.bind_positions(&mut bind)?;
        bind.write("slots", Role::Scratch(0), "vec2<u32>", u64::from(m) * 8)?;
        list.scratch.push(u64::from(m) * 8);
        let values = values![sequences, threads: self.threads, page: KV_PAGE];
        let params = vec![m, cache.n_seqs, cache.capacity(), cache.n_pages];
        bind.launch(list, "kv/find_slots.wgsl", &values, params, m.into())
    }

    /// Stores the inputs in one launch, or in one launch each where the device cannot bind that many buffers.
    fn launch(&self, inputs: &[HeadInput], list: &mut LaunchList) -> Result<(), KernelError> {
        let bind = self.bind(inputs)?;
        if bind.len() > self.caps.max_storage_buffers as usize && inputs.len() > 1 {
            return inputs.iter().try_for_each(|input| self.launch(std::slice::from_ref(input), list));
        }
        let tasks_per_row: u32 = inputs.iter().map(|input| input.heads).sum();
        let tasks = u64::from(self.spec.m) * u64::from(tasks_per_row);
        let tasks_word = u32::try_from(tasks).map_err(|_| invalid(self.op, "more than 2^32 heads"))?;
        let cache = self.spec.cache;
        let mut params = vec![self.spec.m, cache.n_seqs, cache.capacity(), cache.n_pages, tasks_word];
        params.push(self.epsilon.to_bits());
        bind.launch(list, "kv/store.wgsl", &self.values(inputs, tasks_per_row), params, tasks)
    }

    fn values(&self, inputs: &[HeadInput], tasks_per_row: u32) -> Vec<(&'static str, Value)> {
        let norm = inputs.iter().any(|input| input.gamma.is_some());
        let ops: &[WorkgroupOp] = if norm { &[WorkgroupOp::Sum] } else { &[] };
        let mut values = WorkgroupReduce::new(ops, self.threads, self.threads, self.caps).values().to_vec();
        let (mut neox, mut rotates) = (false, false);
        if let Some((rope, factors)) = self.rope {
            values.extend(sin_cos_values(rope, factors));
            neox = rope.pairing == RopePairing::NeoX;
            rotates = inputs.iter().any(|input| input.rotate);
        }
        let kv_type = match self.spec.cache.dtype {
            DType::F32 => "f32",
            DType::F16 => "f16",
            _ => "q8_0",
        };
        let first_tasks = inputs.iter().scan(0, |next, input| {
            let first = *next;
            *next += input.heads;
            Some(first)
        });
        let of = |map: &dyn Fn(&HeadInput) -> Value| inputs.iter().map(map).collect::<Vec<_>>();
        values.extend(values![
            neox,
            rotates,
            kv_type,
            tasks_per_row,
            sequences: self.spec.sequences,
            has_slots: self.has_slots,
            head_dim: self.spec.heads.head_dim,
            page: KV_PAGE,
            whole_words: self.whole_words(),
            stores: inputs.iter().any(|input| matches!(input.to, Target::Cache(_))),
            first_tasks: first_tasks.collect::<Vec<u32>>(),
            inputs: of(&|input| input.name.into()),
            input_heads: of(&|input| input.heads.into()),
            gammas: of(&|input| input.gamma.map_or("", |(name, _)| name).into()),
            rotated: of(&|input| (self.rope.is_some() && input.rotate).into()),
            to_cache: of(&|input| matches!(input.to, Target::Cache(_)).into()),
            outputs: of(&|input| match input.to {
                Target::Rows(name) | Target::Cache(name) => name.into(),
            }),
        ]);
        values
    }

    fn bind(&self, inputs: &[HeadInput]) -> Result<KernelBindings<'_>, KernelError> {
        let KvStore { m, heads, cache, .. } = *self.spec;
        let mut bind = KernelBindings::new(self.op, self.caps);
        let cache_bytes = cache.bytes(self.op, heads, self.caps)?;
        let element = if self.whole_words() { "u32" } else { "atomic<u32>" };
        for input in inputs {
            let bytes =
                product(self.op, "the rows", &[m.into(), input.heads.into(), heads.head_dim.into(), 4])?;
            bind.read(input.name, Role::Input(input.input), "f32", bytes)?;
            if let Some((name, gamma)) = input.gamma {
                bind.read(name, Role::Input(gamma), "f32", u64::from(heads.head_dim) * 4)?;
            }
            match input.to {
                Target::Rows(name) => bind.write(name, Role::Output(input.output), "f32", bytes)?,
                Target::Cache(name) => bind.write(name, Role::Output(input.output), element, cache_bytes)?,
            }
        }
        if let Some((rope, true)) = self.rope
            && rope.n_rot > 0
            && inputs.iter().any(|input| input.rotate)
        {
            let bytes = u64::from(rope.n_rot / 2) * 4;
            bind.read("factors", Role::Input(self.roles.factors), "f32", bytes)?;
        }
        if self.has_slots {
            bind.read("slots", Role::Scratch(0), "vec2<u32>", u64::from(m) * 8)?;
        } else {
            self.bind_positions(&mut bind)?;
        }
        Ok(bind)
    }

    /// No word of the cache belongs to two positions.
    fn whole_words(&self) -> bool {
        let head_dim = self.spec.heads.head_dim;
        match self.spec.cache.dtype {
            DType::F32 => true,
            DType::F16 => head_dim.is_multiple_of(2),
            // The scales.
            _ => (head_dim / 32).is_multiple_of(2),
        }
    }
}
