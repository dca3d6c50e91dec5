//! Few rows: the context is cut into parts, as many as the shape asks for, however long it is.

use super::{OP, Shape, fresh::Fresh, read};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    elementwise::Helper,
    matmul::text::lines,
    plan::{product, threads},
    qmatmul::q8_bytes,
};

/// Positions whose weights are in workgroup memory.
const BLOCK: u32 = 256;

/// Positions that are worth a workgroup.
pub(super) const LEAST: u32 = 32;

/// Workgroups that fill a large device.
const GROUPS: u64 = 256;

/// The most parts of a context.
pub(super) const MOST_CHUNKS: u32 = 64;

/// Positions that a team takes at once.
const UNROLL: u32 = 4;

pub(super) struct Layout<'a> {
    pub(super) shape: &'a Shape,
    threads: u32,
    /// Query heads of a workgroup, and workgroups for the query heads that share keys.
    heads: u32,
    head_blocks: u32,
    /// `Val`s of a head, and the power of two of threads that take them.
    pub(super) units: u32,
    pub(super) across: u32,
    /// Threads of a team, and whether they add up by shuffles.
    lanes: u32,
    shuffle: bool,
    pub(super) chunks: u32,
    /// What comes first.
    pub(super) fresh: Option<Fresh<'a>>,
}

pub(super) fn plan(shape: &Shape, caps: &Caps) -> Result<Plan, KernelError> {
    launches(&Layout::new(shape, caps)?, false, caps)
}

/// The first launch also turns and stores, where it can; the second makes codes where heads are whole items.
pub(super) fn plan_fresh(shape: &Shape, fresh: Fresh<'_>, caps: &Caps) -> Result<Option<Plan>, KernelError> {
    let mut layout = Layout::new(shape, caps)?;
    if layout.chunks == 1 || !fresh.fits(shape, layout.heads, layout.threads)? {
        return Ok(None);
    }
    layout.fresh = Some(fresh);
    let codes = shape.heads.head_dim.is_multiple_of(32);
    match launches(&layout, codes, caps) {
        Err(KernelError::TooManyBuffers { .. }) => Ok(None),
        plan => plan.map(Some),
    }
}

/// The second launch makes codes, too, where there is one and heads are whole items.
pub(super) fn plan_with_codes(shape: &Shape, caps: &Caps) -> Result<Option<Plan>, KernelError> {
    let layout = Layout::new(shape, caps)?;
    if layout.chunks == 1 || !shape.heads.head_dim.is_multiple_of(32) {
        return Ok(None);
    }
    launches(&layout, true, caps).map(Some)
}

fn launches(layout: &Layout<'_>, codes: bool, caps: &Caps) -> Result<Plan, KernelError> {
    let shape = layout.shape;
    let mut plan = Plan::default();
    let split = layout.chunks > 1;
    let heads = u64::from(shape.m) * u64::from(shape.heads.n_heads);
    let parts = product(OP, "the parts", &[shape.q_bytes, layout.chunks.into()])?;
    let stats = heads * u64::from(layout.chunks) * 8;
    let fresh = layout.fresh.as_ref();
    let turned = fresh.is_some_and(|fresh| fresh.turned);
    let label = if fresh.is_some() { "rope_store attention step" } else { "attention step" };
    let mut bind = Bind::new(label, caps);
    match fresh {
        Some(fresh) => fresh.bind(shape, &mut bind)?,
        None => read::bind_data(shape, &mut bind)?,
    }
    read::bind_places(shape, &mut bind, true)?;
    if split {
        bind.write("parts", Role::Scratch(0), read::values(shape), parts)?;
        bind.write("stats", Role::Scratch(1), "vec2<f32>", stats)?;
        plan.scratch = vec![parts, stats];
        if turned {
            plan.scratch.push(shape.q_bytes);
        }
    } else {
        bind.write("out", Role::Output(0), read::values(shape), shape.q_bytes)?;
    }
    layout.launch(&mut plan, bind, caps)?;
    if split {
        let mut bind = Bind::new("attention combine", caps);
        read::bind_places(shape, &mut bind, false)?;
        bind.read("parts", Role::Scratch(0), read::values(shape), parts)?;
        bind.read("stats", Role::Scratch(1), "vec2<f32>", stats)?;
        bind.write("out", Role::Output(0), read::values(shape), shape.q_bytes)?;
        if codes {
            let bytes = q8_bytes(shape.m, shape.heads.q_width());
            bind.write("dst", Role::Output(2), "vec4<u32>", bytes)?;
        }
        if turned {
            bind.read("turned", Role::Scratch(2), read::values(shape), shape.q_bytes)?;
            bind.write("q_out", Role::Output(5), read::values(shape), shape.q_bytes)?;
        }
        layout.combine(&mut plan, bind, heads, codes, caps)?;
    }
    Ok(plan)
}

impl<'a> Layout<'a> {
    fn new(shape: &'a Shape, caps: &Caps) -> Result<Self, KernelError> {
        let threads = threads(256, caps);
        let head_blocks = shape.group.div_ceil(4);
        let heads = shape.group.div_ceil(head_blocks);
        let head_blocks = shape.group.div_ceil(heads);
        let units = shape.heads.head_dim / read::width(shape);
        let across = units.next_power_of_two();
        if across > threads {
            return Err(read::too_wide(shape));
        }
        // Teams that add up by shuffles lie within a subgroup.
        let (lanes, shuffle) = match caps.subgroups {
            Some((min, max)) if min >= 4 && threads.is_multiple_of(max) => (across.min(min).min(32), true),
            _ => (across.min(8), false),
        };
        let sets = u64::from(shape.m) * u64::from(shape.heads.n_kv_heads) * u64::from(head_blocks);
        let most = u64::from(shape.capacity.div_ceil(LEAST)).clamp(1, MOST_CHUNKS.into());
        // At most 64.
        let chunks = GROUPS.div_ceil(sets.max(1)).min(most) as u32;
        let fresh = None;
        Ok(Self { shape, threads, heads, head_blocks, units, across, lanes, shuffle, chunks, fresh })
    }

    fn launch(&self, plan: &mut Plan, bind: Bind<'_>, caps: &Caps) -> Result<(), KernelError> {
        let Self { shape, threads, heads, head_blocks, units, across, lanes, .. } = *self;
        let (teams, splits) = (threads / lanes, threads / across);
        let sets = shape.heads.n_kv_heads * head_blocks;
        let groups = u64::from(shape.m) * u64::from(sets) * u64::from(self.chunks);
        let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 parts"))?;
        let mut functions = [
            &*read::places(shape, true),
            &read::loads(shape),
            Helper::Nan.text(),
            Helper::Exp.text(),
            match read::width(shape) {
                4 => "fn product_of(a: Val, b: Val) -> f32 { return dot(a, b); }\n",
                _ => "fn product_of(a: Val, b: Val) -> f32 { return a * b; }\n",
            },
        ]
        .concat();
        let aliases = ["f32", "i32", "u32", "bool"].map(|of| match heads {
            1 => of.to_owned(),
            _ => format!("vec{heads}<{of}>"),
        });
        let arguments = if self.shuffle {
            "    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,\n    @builtin(subgroup_id) subgroup: u32,\n    \
             @builtin(subgroup_size) subgroup_width: u32,\n"
        } else {
            ""
        };
        let mut params = read::params(shape).to_vec();
        params.extend([self.chunks, groups_word, shape.scale.to_bits()]);
        let (mut before, mut more_params) = (String::new(), "");
        if let Some(fresh) = &self.fresh {
            functions += &fresh.functions(shape, heads, threads, caps);
            before = fresh.before(shape, heads, threads);
            params.push(fresh.spec.epsilon.to_bits());
            more_params = "    epsilon: f32,\n";
        }
        bind.launch(
            plan,
            include_str!("step.wgsl"),
            &[
                ("val", read::values(shape)),
                ("float", &aliases[0]),
                ("int", &aliases[1]),
                ("uint", &aliases[2]),
                ("bool", &aliases[3]),
                ("more_params", more_params),
                ("functions", &functions),
                ("before", &before),
                ("arguments", arguments),
                (
                    "thread",
                    if self.shuffle { "subgroup * subgroup_width + lane_in_subgroup" } else { "local" },
                ),
                ("shared", if self.shuffle { "" } else { "var<workgroup> dots: array<EwF, {{threads}}>;\n" }),
                ("queries", &self.queries()),
                ("accumulators", &lines(heads, |h| format!("    var acc{h} = Val(0.0);"))),
                ("scores", &self.scores()),
                ("shrinks", &lines(heads, |h| format!("        acc{h} *= shrink{};", self.of_head(h)))),
                ("early", &self.early_values()),
                ("first_four", &self.add_early()),
                ("four", &self.add_values(4)),
                ("one", &self.add_values(1)),
                ("results", &self.results()),
                ("heads", &heads.to_string()),
                ("head_blocks", &head_blocks.to_string()),
                ("group", &shape.group.to_string()),
                ("sets", &sets.to_string()),
                ("lanes", &lanes.to_string()),
                ("teams", &teams.to_string()),
                ("step", &(teams * UNROLL).to_string()),
                ("across", &across.to_string()),
                ("units", &units.to_string()),
                ("splits", &splits.to_string()),
                ("last", &(3 * splits).to_string()),
                ("stride4", &(4 * splits).to_string()),
                ("stride", &read::row_stride(shape).to_string()),
                ("block", &BLOCK.to_string()),
                ("least", &LEAST.to_string()),
                ("threads", &threads.to_string()),
            ],
            params,
            groups,
        )
    }

    /// The component of a vector over the heads.
    fn of_head(&self, head: u32) -> String {
        if self.heads == 1 { String::new() } else { format!("[{head}]") }
    }

    /// `Val`s of a head that a lane takes.
    fn per_lane(&self) -> u32 {
        self.units.div_ceil(self.lanes)
    }

    /// A vector over the heads.
    fn vector(&self, of: impl Fn(u32) -> String) -> String {
        format!("EwF({})", (0..self.heads).map(of).collect::<Vec<_>>().join(", "))
    }

    /// Loads the lane's part of the queries, times the scale: zeros where there is none.
    fn queries(&self) -> String {
        let Self { shape, units, lanes, .. } = *self;
        let (n_heads, last) = (shape.heads.n_heads, units - 1);
        let mut text = lines(self.heads, |h| {
            // Heads of another group are computed for nothing, where the blocks of heads are not full.
            format!(
                "    let q{h}_at = (row * {n_heads}u + min(first_head + {h}u, {}u)) * {units}u;",
                n_heads - 1
            )
        });
        for k in 0..self.per_lane() {
            let (at, whole) = (k * lanes, (k + 1) * lanes <= units);
            let unit = if whole { format!("lane + {at}u") } else { format!("min(lane + {at}u, {last}u)") };
            text += &format!("    let unit{k} = {unit};\n");
            text += &lines(self.heads, |h| {
                let query = match self.fresh {
                    Some(_) => format!("turned_query({h}u, unit{k})"),
                    None => format!("q[q{h}_at + unit{k}]"),
                };
                let value = format!("{query} * params.scale");
                match whole {
                    true => format!("    let q{h}_{k} = {value};"),
                    false => {
                        format!("    let q{h}_{k} = select(Val(0.0), {value}, lane + {at}u < {units}u);")
                    }
                }
            });
        }
        text
    }

    /// The scores of some positions for each team.
    fn scores(&self) -> String {
        let teams = self.threads / self.lanes;
        let stride = read::row_stride(self.shape);
        let mut text = lines(UNROLL, |u| {
            format!(
                "            let p{u} = first + team + {}u;\n            let r{u} = block_row + min(p{u}, count - 1u) * {stride}u;",
                u * teams
            )
        });
        for u in 0..UNROLL {
            text += &lines(self.per_lane(), |k| format!("            let k{u}_{k} = load_k(r{u}, unit{k});"));
        }
        for u in 0..UNROLL {
            let dot = |h: u32| {
                (0..self.per_lane())
                    .map(|k| format!("product_of(q{h}_{k}, k{u}_{k})"))
                    .collect::<Vec<_>>()
                    .join(" + ")
            };
            text += &format!("            var s{u} = {};\n", self.vector(dot));
            if self.shuffle {
                let halves =
                    std::iter::successors(Some(self.lanes / 2), |h| Some(h / 2)).take_while(|h| *h > 0);
                for half in halves {
                    text += &format!("            s{u} += subgroupShuffleXor(s{u}, {half}u);\n");
                }
            } else {
                text += &format!(
                    "            dots[thread] = s{u};\n            workgroupBarrier();\n            s{u} = EwF(0.0);\n            \
                     for (var i = 0u; i < {}u; i += 1u) {{ s{u} += dots[team * {}u + i]; }}\n            workgroupBarrier();\n",
                    self.lanes, self.lanes
                );
            }
            text += &format!(
                "            if (p{u} < count) {{\n                highest = max(highest, s{u});\n                \
                 if (lane == 0u) {{ weights[p{u}] = s{u}; }}\n            }}\n"
            );
        }
        text
    }

    /// Loads the values of the split's first four positions, or of the last one instead.
    fn early_values(&self) -> String {
        let splits = self.threads / self.across;
        let stride = read::row_stride(self.shape);
        lines(4, |u| {
            let at = format!("min(split + {}u, count - 1u)", u * splits);
            format!("        let early{u} = load_v(block_row + {at} * {stride}u, unit);")
        })
    }

    fn add_early(&self) -> String {
        let splits = self.threads / self.across;
        let mut text = String::new();
        for u in 0..4 {
            text += &format!(
                "        if (split + {0}u < count) {{\n            let w = weights[split + {0}u];\n            sum += w;\n",
                u * splits
            );
            text += &lines(self.heads, |h| format!("            acc{h} += w{} * early{u};", self.of_head(h)));
            text += "        }\n";
        }
        text
    }

    /// The values of `count` positions from `p` on.
    fn add_values(&self, count: u32) -> String {
        let splits = self.threads / self.across;
        let stride = read::row_stride(self.shape);
        let mut text = lines(count, |u| {
            format!("            let v{u} = load_v(block_row + (p + {}u) * {stride}u, unit);", u * splits)
        });
        for u in 0..count {
            text +=
                &format!("            let w{u} = weights[p + {}u];\n            sum += w{u};\n", u * splits);
            text += &lines(self.heads, |h| format!("            acc{h} += w{u}{} * v{u};", self.of_head(h)));
        }
        text
    }

    /// Adds up the splits and stores, head by head.
    fn results(&self) -> String {
        let Self { shape, units, across, .. } = *self;
        let (splits, group, n_heads) = (self.threads / across, shape.group, shape.heads.n_heads);
        let mut text = String::new();
        for h in 0..self.heads {
            let here = format!("first_head + {h}u < (kv_head + 1u) * {group}u");
            let of = self.of_head(h);
            let store = if self.chunks > 1 {
                format!(
                    "let at = (row * {n_heads}u + first_head + {h}u) * params.chunks + chunk;\n        \
                     parts[at * {units}u + thread] = result;\n        \
                     if (thread == 0u) {{ stats[at] = vec2<f32>(top{of}, total{of}); }}"
                )
            } else {
                format!(
                    "out[(row * {n_heads}u + first_head + {h}u) * {units}u + thread] = \
                     select(result / total{of}, Val(0.0), total{of} == 0.0);"
                )
            };
            // A part without positions is not read.
            let used = if self.chunks > 1 { " && begin < end" } else { "" };
            text += &format!(
                "    values[thread] = acc{h};\n    workgroupBarrier();\n    if (mine && {here}{used}) {{\n        \
                 var result = acc{h};\n        \
                 for (var s = 1u; s < {splits}u; s += 1u) {{ result += values[s * {across}u + thread]; }}\n        \
                 {store}\n    }}\n    workgroupBarrier();\n"
            );
        }
        text
    }
}
