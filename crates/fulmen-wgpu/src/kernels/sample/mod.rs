//! A token from each row of logits, drawn by the rule of [`fulmen_core::sampling`].
//!
//! No row is sorted. Three launches: the largest logit of each part of a row; a histogram of the row's weights over the
//! distance from the largest; and one workgroup a row that finds places in the sorted order by their rank or by the
//! weight before them.

use super::{
    KernelError, Plan, Role, argmax,
    bind::{Bind, invalid},
    elementwise::Helper,
    fault,
    plan::{product, threads},
    template::expand,
};
use crate::kernel::Caps;

const OP: &str = "sample";

/// Bins of the histogram.
const BINS: u32 = 1024;

/// Logits that are worth a workgroup: to find the largest, and for the histogram.
const PART: u32 = 1024;
const HISTOGRAM_PART: u32 = 4096;

/// Bytes of workgroup memory for each thread that draws.
const BYTES: u32 = 40;

/// A token from each of `m` rows of `n` logits.
///
/// Input 0 is the logits, `[m, n]`; output 0 the `m` tokens, output 1 one
/// [`SampleState`](fulmen_core::sampling::SampleState) for each row, whose step is counted up, output 2 the
/// [record of faults](super::fault). A row whose state makes no sense is reported; it gets no token.
///
/// # Errors
/// [`KernelError`] where something is larger than a binding, or rows have no logits.
pub fn sample(m: u32, n: u32, caps: &Caps) -> Result<Plan, KernelError> {
    let mut plan = Plan::default();
    if m == 0 {
        return Ok(plan);
    }
    if n == 0 {
        return Err(invalid(OP, "rows without logits"));
    }
    let logits = product(OP, "the logits", &[m.into(), n.into(), 4])?;
    let parts = n.div_ceil(PART).min(argmax::MOST_PARTS);
    let keys = u64::from(m) * u64::from(parts) * 8;
    let bins = u64::from(m) * u64::from(BINS) * 12;
    let states = u64::from(m) * 32;
    plan.scratch = vec![keys, bins];

    let own = threads(256, caps).to_string();
    let (bins_text, aliased) = (BINS.to_string(), argmax::functions(&own));
    let mut bind = Bind::new("sample largest", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    bind.write("keys", Role::Scratch(0), "vec2<u32>", keys)?;
    bind.write("bins", Role::Scratch(1), "u32", bins)?;
    let groups = word(u64::from(m) * u64::from(parts))?;
    bind.launch(
        &mut plan,
        include_str!("largest.wgsl"),
        &[("functions", &aliased), ("bins", &bins_text), ("threads", &own)],
        vec![n, n.div_ceil(parts), parts, groups],
        groups.into(),
    )?;

    let weigh = [
        Helper::Nan.text(),
        Helper::Exp.text(),
        &expand(include_str!("weigh.wgsl"), &[("bins", &bins_text)]),
        &aliased,
    ]
    .concat();
    let cuts = n.div_ceil(HISTOGRAM_PART).min(argmax::MOST_PARTS);
    let mut bind = Bind::new("sample histogram", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    bind.read("states", Role::Output(1), "u32", states)?;
    bind.read("keys", Role::Scratch(0), "vec2<u32>", keys)?;
    bind.write("bins", Role::Scratch(1), "atomic<u32>", bins)?;
    let groups = word(u64::from(m) * u64::from(cuts))?;
    bind.launch(
        &mut plan,
        include_str!("histogram.wgsl"),
        &[("functions", &weigh), ("bins", &bins_text), ("threads", &own)],
        vec![n, n.div_ceil(cuts), cuts, groups, parts],
        groups.into(),
    )?;

    let mut bind = Bind::new("sample draw", caps);
    bind.read("logits", Role::Input(0), "f32", logits)?;
    bind.write("states", Role::Output(1), "u32", states)?;
    bind.read("keys", Role::Scratch(0), "vec2<u32>", keys)?;
    bind.write("bins", Role::Scratch(1), "u32", bins)?;
    bind.write("out", Role::Output(0), "u32", u64::from(m) * 4)?;
    bind.write("fault", Role::Output(2), fault::ELEMENT, fault::FAULT_BYTES)?;
    let room = (caps.workgroup_memory.saturating_sub(64) / BYTES).max(1);
    let drawing = threads(1 << room.min(BINS).ilog2(), caps);
    let own = drawing.to_string();
    let weigh = [
        Helper::Nan.text(),
        Helper::Exp.text(),
        &expand(include_str!("weigh.wgsl"), &[("bins", &bins_text)]),
        include_str!("../key.wgsl"),
    ]
    .concat();
    bind.launch(
        &mut plan,
        include_str!("draw.wgsl"),
        &[
            ("functions", &weigh),
            ("report", fault::REPORT),
            ("each_gather", &each(GATHER)),
            ("each_bounds", &each(BOUNDS)),
            ("each_count", &each(COUNT)),
            ("each_above", &each(ABOVE)),
            ("own", &(BINS / drawing).to_string()),
            ("bins", &bins_text),
            ("threads", &own),
        ],
        vec![n, m, parts],
        m.into(),
    )?;
    Ok(plan)
}

fn word(count: u64) -> Result<u32, KernelError> {
    u32::try_from(count).map_err(|_| invalid(OP, "more than 2^32 parts of rows"))
}

/// A loop over the row's candidates `c` in the range, with several logits on their way at a time.
fn each(body: &str) -> String {
    const AT_ONCE: u32 = 8;
    let loads: String =
        (0..AT_ONCE).map(|j| format!("        let x{j} = logit(i + {j}u * THREADS);\n")).collect();
    let uses: String = (0..AT_ONCE)
        .map(|j| format!("        {{\n            let c = candidate(x{j}, i + {j}u * THREADS);\n            if (c.there) {{ {body} }}\n        }}\n"))
        .collect();
    format!("for (var i = me; i < params.n; i += {AT_ONCE}u * THREADS) {{\n{loads}{uses}    }}")
}

const GATHER: &str = "let to = atomicAdd(&taken, 1u); if (to < THREADS) { window[to] = c.number; }";
const BOUNDS: &str = "if (less64(large, c.number)) { large = c.number; } \
                      if (less64(small, ~c.number)) { small = ~c.number; }";
const COUNT: &str = "let bin = shifted_right(sub64(from_top, c.number), shift).x; let mass = mass_at(c.bin, c.distance); \
                     atomicAdd(&fine_count[bin], 1u); let before = atomicAdd(&fine_low[bin], mass.x); \
                     atomicAdd(&fine_high[bin], mass.y + select(0u, 1u, before + mass.x < before));";
const ABOVE: &str = "if (ew_exp(-c.distance) >= least) { mass = add64(mass, mass_at(c.bin, c.distance)); }";
