//! Rows of keys and values into a cache, as they are or after norm and rotation, which then also turns the queries.

use fulmen_core::{DType, Heads, RopeSpec};

use super::Cache;
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    fault,
    group::Group,
    plan::{product, threads},
    rope::{check, first_and_second, turn_text},
    template::expand,
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

/// Rows to turn and to store.
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

/// What is done with the heads of an input.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    input: usize,
    heads: u32,
    gamma: Option<(&'static str, usize)>,
    turn: bool,
    output: usize,
    to: To,
}

#[derive(Clone, Copy)]
enum To {
    Rows(&'static str),
    Cache(&'static str),
}

/// The numbers of the inputs and outputs that are not those of a part.
struct Roles {
    positions: usize,
    sequences: usize,
    factors: usize,
    fault: usize,
}

/// The work, and how its parts are launched.
struct Store<'a> {
    op: &'static str,
    spec: &'a KvStore,
    rope: Option<(&'a RopeSpec, bool)>,
    epsilon: f32,
    roles: Roles,
    /// Rows whose places a launch before has found.
    slots: bool,
    threads: u32,
    caps: &'a Caps,
}

/// Rows up to which each head's workgroup looks for later rows with its place.
const FEW_ROWS: u32 = 32;

/// Stores rows of keys and values in the cache, rounded to its type.
///
/// Inputs 0 and 1 are keys and values, `[m, n_kv_heads · head_dim]`; input 2 the `m` positions, input 3 (if any) the
/// `m` sequence numbers. Outputs 0 and 1 are the cache's keys and values, output 2 the
/// [record of faults](crate::kernels::fault). Of rows that name one place the last stays; rows without a place in the
/// cache are reported and stored nowhere.
///
/// # Errors
/// [`KernelError`] where the heads do not fit the cache's type, or something is larger than a binding.
pub fn kv_store(spec: &KvStore, caps: &Caps) -> Result<Plan, KernelError> {
    let heads = spec.heads.n_kv_heads;
    let part = |name, input, to| Part { name, input, heads, gamma: None, turn: false, output: input, to };
    let parts = [part("k", 0, To::Cache("k_cache")), part("v", 1, To::Cache("v_cache"))];
    let roles = Roles { positions: 2, sequences: 3, factors: usize::MAX, fault: 2 };
    plan("kv_store", spec, None, 0.0, &parts, roles, caps)
}

/// Norm per head (where there is a gain) and rotation of queries and keys; keys and values go into the cache.
///
/// Inputs 0, 1 and 2 are queries, keys and values, `[m, heads · head_dim]`; input 3 the `m` positions, 4 (if any) the
/// `m` sequence numbers, 5 and 6 (if any) the gains of the queries' and the keys' norm, 7 (if any) the frequency
/// factors. Output 0 is the turned queries, which may be the memory of input 0; 1 and 2 are the cache's keys and values,
/// 3 is the [record of faults](crate::kernels::fault). Places are as in [`kv_store`]; the queries of a row without one are
/// not written.
///
/// # Errors
/// [`KernelError`] where the heads do not fit the cache's type or the rotation, or something is larger than a binding.
pub fn rope_store(spec: &RopeStore, caps: &Caps) -> Result<Plan, KernelError> {
    let Heads { n_heads, n_kv_heads, head_dim } = spec.store.heads;
    check("rope_store", &spec.rope, head_dim)?;
    let parts = [
        Part {
            name: "q",
            input: 0,
            heads: n_heads,
            gamma: spec.q_norm.then_some(("q_gamma", 5)),
            turn: true,
            output: 0,
            to: To::Rows("out"),
        },
        Part {
            name: "k",
            input: 1,
            heads: n_kv_heads,
            gamma: spec.k_norm.then_some(("k_gamma", 6)),
            turn: true,
            output: 1,
            to: To::Cache("k_cache"),
        },
        Part {
            name: "v",
            input: 2,
            heads: n_kv_heads,
            gamma: None,
            turn: false,
            output: 2,
            to: To::Cache("v_cache"),
        },
    ];
    let roles = Roles { positions: 3, sequences: 4, factors: 7, fault: 3 };
    let rope = Some((&spec.rope, spec.factors));
    plan("rope_store", &spec.store, rope, spec.epsilon, &parts, roles, caps)
}

fn plan(
    op: &'static str,
    spec: &KvStore,
    rope: Option<(&RopeSpec, bool)>,
    epsilon: f32,
    parts: &[Part],
    roles: Roles,
    caps: &Caps,
) -> Result<Plan, KernelError> {
    spec.cache.bytes(op, spec.heads, caps)?;
    let mut plan = Plan::default();
    if spec.m == 0 {
        return Ok(plan);
    }
    let wanted = (spec.heads.head_dim / 2).next_power_of_two().clamp(32, 128);
    let slots = spec.m > FEW_ROWS;
    let store = Store { op, spec, rope, epsilon, roles, slots, threads: threads(wanted, caps), caps };
    if slots {
        store.find_slots(&mut plan)?;
    }
    store.launch(parts, &mut plan)?;
    Ok(plan)
}

impl Store<'_> {
    fn sequence_of(&self) -> &'static str {
        if self.spec.sequences {
            "fn sequence_of(row: u32) -> u32 { return sequences[row]; }\n"
        } else {
            "fn sequence_of(row: u32) -> u32 { return 0u; }\n"
        }
    }

    fn bind_places(&self, bind: &mut Bind<'_>) -> Result<(), KernelError> {
        let bytes = u64::from(self.spec.m) * 4;
        bind.read("positions", Role::Input(self.roles.positions), "u32", bytes)?;
        if self.spec.sequences {
            bind.read("sequences", Role::Input(self.roles.sequences), "u32", bytes)?;
        }
        bind.write("fault", Role::Output(self.roles.fault), fault::ELEMENT, fault::FAULT_BYTES)
    }

    /// Finds the places of many rows once.
    fn find_slots(&self, plan: &mut Plan) -> Result<(), KernelError> {
        let (m, cache) = (self.spec.m, self.spec.cache);
        let mut bind = Bind::new("kv slots", self.caps);
        self.bind_places(&mut bind)?;
        bind.write("slots", Role::Scratch(0), "vec2<u32>", u64::from(m) * 8)?;
        plan.scratch.push(u64::from(m) * 8);
        let threads = self.threads.to_string();
        bind.launch(
            plan,
            include_str!("slots.wgsl"),
            &[
                ("report", fault::REPORT),
                ("functions", self.sequence_of()),
                ("place", include_str!("place.wgsl")),
                ("threads", &threads),
            ],
            vec![m, cache.n_seqs, cache.capacity],
            m.into(),
        )
    }

    /// Launches the parts, together where the device binds so many buffers.
    fn launch(&self, parts: &[Part], plan: &mut Plan) -> Result<(), KernelError> {
        let bind = self.bind(parts)?;
        if bind.len() > self.caps.max_storage_buffers as usize && parts.len() > 1 {
            return parts.iter().try_for_each(|part| self.launch(std::slice::from_ref(part), plan));
        }
        let per_row: u32 = parts.iter().map(|part| part.heads).sum();
        let tasks = u64::from(self.spec.m) * u64::from(per_row);
        let tasks_word = u32::try_from(tasks).map_err(|_| invalid(self.op, "more than 2^32 heads"))?;
        let (head_dim, cache) = (self.spec.heads.head_dim, self.spec.cache);
        let norm = parts.iter().any(|part| part.gamma.is_some());
        let names: &[&str] = if norm { &["group_sum"] } else { &[] };
        let group = Group::new(names, self.threads, self.threads, self.caps);
        let turn = match self.rope {
            Some((rope, factors)) if parts.iter().any(|part| part.turn) => turn_text(rope, factors),
            _ => String::new(),
        };
        let (report, place) =
            if self.slots { ("", SLOT) } else { (fault::REPORT, include_str!("place.wgsl")) };
        let sequence_of = if self.slots { "" } else { self.sequence_of() };
        let functions = [&group.functions, sequence_of, &*turn].concat();
        let mut first = 0;
        let mut text = String::new();
        for part in parts {
            text += &format!(
                "    if (task >= {first}u && task < {}u) {{\n        let head = task - {first}u;\n{}    }}\n",
                first + part.heads,
                self.part(part)
            );
            first += part.heads;
        }
        bind.launch(
            plan,
            include_str!("store.wgsl"),
            &[
                ("label", self.op),
                ("report", report),
                ("functions", &functions),
                ("encode", &self.encode(parts)),
                ("arguments", group.arguments),
                ("begin", group.begin),
                ("place", place),
                ("parts", &text),
                ("per_row", &per_row.to_string()),
                ("head_dim", &head_dim.to_string()),
                ("threads", &self.threads.to_string()),
            ],
            vec![self.spec.m, cache.n_seqs, cache.capacity, tasks_word, self.epsilon.to_bits()],
            tasks,
        )
    }

    fn bind(&self, parts: &[Part]) -> Result<Bind<'_>, KernelError> {
        let KvStore { m, heads, cache, .. } = *self.spec;
        let mut bind = Bind::new(self.op, self.caps);
        let cache_bytes = cache.bytes(self.op, heads, self.caps)?;
        let element = if self.whole_words() { "u32" } else { "atomic<u32>" };
        for part in parts {
            let bytes =
                product(self.op, "the rows", &[m.into(), part.heads.into(), heads.head_dim.into(), 4])?;
            bind.read(part.name, Role::Input(part.input), "f32", bytes)?;
            if let Some((name, input)) = part.gamma {
                bind.read(name, Role::Input(input), "f32", u64::from(heads.head_dim) * 4)?;
            }
            match part.to {
                To::Rows(name) => bind.write(name, Role::Output(part.output), "f32", bytes)?,
                To::Cache(name) => bind.write(name, Role::Output(part.output), element, cache_bytes)?,
            }
        }
        if let Some((rope, true)) = self.rope
            && rope.n_rot > 0
            && parts.iter().any(|part| part.turn)
        {
            let bytes = u64::from(rope.n_rot / 2) * 4;
            bind.read("factors", Role::Input(self.roles.factors), "f32", bytes)?;
        }
        if self.slots {
            bind.read("slots", Role::Scratch(0), "vec2<u32>", u64::from(m) * 8)?;
        } else {
            self.bind_places(&mut bind)?;
        }
        Ok(bind)
    }

    /// Halves (16 bits) of a head in the cache, where it is not in f32.
    fn halves(&self) -> Option<u32> {
        let head_dim = self.spec.heads.head_dim;
        match self.spec.cache.dtype {
            DType::F32 => None,
            DType::F16 => Some(head_dim),
            _ => Some(head_dim / 32 * 17),
        }
    }

    /// No word of the cache belongs to two heads.
    fn whole_words(&self) -> bool {
        self.halves().is_none_or(|halves| halves.is_multiple_of(2))
    }

    fn encode(&self, parts: &[Part]) -> String {
        if !parts.iter().any(|part| matches!(part.to, To::Cache(_))) {
            return String::new();
        }
        let half = include_str!("half.wgsl");
        match self.spec.cache.dtype {
            DType::F32 => String::new(),
            DType::F16 => [half, include_str!("encode_f16.wgsl")].concat(),
            _ => {
                let blocks = (self.spec.heads.head_dim / 32).to_string();
                let threads = self.threads.to_string();
                let text = [half, include_str!("encode_q8_0.wgsl")].concat();
                expand(&text, &[("blocks", &blocks), ("threads", &threads)])
            }
        }
    }

    /// The text of a part: `head` is its head.
    fn part(&self, part: &Part) -> String {
        let Part { name, heads, gamma, turn, .. } = *part;
        let (d, t) = (self.spec.heads.head_dim, self.threads);
        let each = format!("for (var d = thread; d < {d}u; d += {t}u)");
        let mut text = format!("        let at = (row * {heads}u + head) * {d}u;\n");
        match gamma {
            None => text += &format!("        {each} {{ head_values[d] = {name}[at + d]; }}\n"),
            Some((gamma, _)) => {
                text += &format!(
                    "        var squares = 0.0;\n        {each} {{\n            let x = {name}[at + d];\n            \
                     head_values[d] = x;\n            squares += x * x;\n        }}\n        \
                     let factor = 1.0 / sqrt(group_sum(squares) / {d}.0 + params.epsilon);\n        \
                     {each} {{ head_values[d] = head_values[d] * factor * {gamma}[d]; }}\n"
                );
            }
        }
        text += "        workgroupBarrier();\n";
        if let Some((rope, _)) = self.rope
            && turn
        {
            let (first, second) = first_and_second(rope, "i");
            text += &format!(
                "        for (var i = thread; i < {}u; i += {t}u) {{\n            \
                 let turn = turn_of(position, i);\n            let a = head_values[{first}];\n            \
                 let b = head_values[{second}];\n            \
                 head_values[{first}] = a * turn.x - b * turn.y;\n            \
                 head_values[{second}] = a * turn.y + b * turn.x;\n        }}\n        workgroupBarrier();\n",
                rope.n_rot / 2
            );
        }
        text + &match part.to {
            To::Rows(out) => {
                format!("        if (placed) {{ {each} {{ {out}[at + d] = head_values[d]; }} }}\n")
            }
            To::Cache(cache) => self.to_cache(cache, heads, &each),
        }
    }

    fn to_cache(&self, cache: &str, heads: u32, each: &str) -> String {
        let (d, t) = (self.spec.heads.head_dim, self.threads);
        let place = format!("((sequence * {heads}u + head) * params.capacity + position)");
        let Some(halves) = self.halves() else {
            return format!(
                "        if (placed && stays) {{\n            let to = {place} * {d}u;\n            \
                 {each} {{ {cache}[to + d] = bitcast<u32>(head_values[d]); }}\n        }}\n"
            );
        };
        let prepare = "        prepare(thread);\n";
        if self.whole_words() {
            let words = halves / 2;
            return format!(
                "{prepare}        if (placed && stays) {{\n            let to = {place} * {words}u;\n            \
                 for (var w = thread; w < {words}u; w += {t}u) {{\n                \
                 {cache}[to + w] = half_of(2u * w) | (half_of(2u * w + 1u) << 16u);\n            }}\n        }}\n"
            );
        }
        // Two workgroups may write the halves of one word.
        format!(
            "{prepare}        if (placed && stays) {{\n            let to = {place} * {halves}u;\n            \
             for (var i = thread; i < {halves}u; i += {t}u) {{\n                \
             let shift = ((to + i) & 1u) * 16u;\n                \
             atomicAnd(&{cache}[(to + i) >> 1u], 0xffff0000u >> shift);\n                \
             atomicOr(&{cache}[(to + i) >> 1u], half_of(i) << shift);\n            }}\n        }}\n"
        )
    }
}

/// The place of a row that a launch before has found.
const SLOT: &str = "    let slot = slots[row];\n    let position = slot.x;\n    let sequence = slot.y;\n    \
                    let placed = slot.y != 0xffffffffu;\n    let stays = slot.y != 0xfffffffeu;\n";
