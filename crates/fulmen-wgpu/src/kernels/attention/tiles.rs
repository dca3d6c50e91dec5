//! Many rows: tiles of rows and keys in workgroup memory.
//!
//! A row that is masked for a key still multiplies its value by 0, so a NaN among the values reaches all rows of a tile
//! in which any row sees it.

use super::{OP, Shape, Source, read};
use crate::kernel::Caps;
use crate::kernels::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    elementwise::Helper,
    matmul::text::lines,
};

/// Rows and keys of a tile, and threads: four rows by four keys each.
pub(super) const ROWS: u32 = 64;
const KEYS: u32 = 32;
const THREADS: u32 = ROWS / 4 * KEYS / 4;

/// Vectors of a row of the tiles; one more than needed keeps stores in different banks.
const Q_STRIDE: u32 = ROWS / 4 + 1;
const K_STRIDE: u32 = KEYS / 4 + 1;

struct Layout {
    /// Four elements of a head, and those in a chunk of queries and keys.
    units: u32,
    chunk_units: u32,
    /// The queries stay in workgroup memory.
    q_whole: bool,
    /// Keys whose values are there at a time.
    value_keys: u32,
}

impl Layout {
    fn new(shape: &Shape, caps: &Caps) -> Option<Self> {
        let head_dim = shape.heads.head_dim;
        if !head_dim.is_multiple_of(32) || head_dim > 256 || caps.max_invocations < THREADS {
            return None;
        }
        let units = head_dim / 4;
        let layouts = [(true, 8, 16), (true, 4, 8), (false, 4, 8), (false, 4, 4), (false, 2, 2)];
        let mut layouts = layouts.into_iter().map(|(q_whole, chunk_units, value_keys)| Self {
            units,
            chunk_units,
            q_whole,
            value_keys,
        });
        layouts.find(|layout| layout.bytes() <= caps.workgroup_memory)
    }

    fn q_units(&self) -> u32 {
        if self.q_whole { self.units } else { self.chunk_units }
    }

    fn q_vectors(&self) -> u32 {
        self.q_units() * 4 * Q_STRIDE
    }

    fn vectors(&self) -> u32 {
        (self.chunk_units * 4 * K_STRIDE).max(self.value_keys * self.units).max(8 * ROWS / 4)
    }

    fn bytes(&self) -> u32 {
        (self.q_vectors() + self.vectors() + KEYS * ROWS / 4) * 16 + 2 * ROWS * 4
    }
}

/// Whether the kernel takes such heads on such a device.
pub(super) fn fits(shape: &Shape, caps: &Caps) -> bool {
    Layout::new(shape, caps).is_some()
}

pub(super) fn plan(shape: &Shape, caps: &Caps) -> Result<Plan, KernelError> {
    let layout = Layout::new(shape, caps).ok_or_else(|| read::too_wide(shape))?;
    let mut bind = Bind::new("attention tiles", caps);
    read::bind_data(shape, &mut bind)?;
    read::bind_places(shape, &mut bind, true)?;
    bind.write("out", Role::Output(0), "vec4<f32>", shape.q_bytes)?;
    let n_heads = shape.heads.n_heads;
    let tiles = shape.m.div_ceil(ROWS);
    let groups = u64::from(tiles) * u64::from(n_heads);
    let groups_word = u32::try_from(groups).map_err(|_| invalid(OP, "more than 2^32 tiles"))?;
    let functions =
        [&*read::places(shape, true), &read::loads(shape), Helper::Nan.text(), Helper::Exp.text()].concat();
    let mut params = read::params(shape).to_vec();
    params.extend([shape.m, tiles, groups_word, shape.scale.to_bits()]);
    let own = layout.units / 8;
    let (load_all, load_chunk, q_first) = if layout.q_whole {
        ("    load_queries(thread, row0, head, 0u);\n", "", "first * 4u + ")
    } else {
        ("", "load_queries(thread, row0, head, first);", "")
    };
    let several = shape.sequences();
    let mut plan = Plan::default();
    bind.launch(
        &mut plan,
        include_str!("tiles.wgsl"),
        &[
            ("functions", &functions),
            ("load_all", load_all),
            ("load_chunk", load_chunk),
            ("q_first", q_first),
            ("sequence_array", if several { SEQUENCE_ARRAY } else { "" }),
            ("keep_sequence", if several { KEEP_SEQUENCE } else { "" }),
            ("sequences_begin", if several { SEVERAL } else { ONE }),
            ("sequences_end", if several { "    }\n" } else { "" }),
            ("seen", &seen(several)),
            (
                "accumulators",
                &lines(4 * own, |i| format!("    var acc{}_{} = vec4<f32>(0.0);", i / own, i % own)),
            ),
            (
                "shrinks",
                &lines(4 * own, |i| format!("        acc{}_{} *= shrink[{}];", i / own, i % own, i / own)),
            ),
            ("adds", &adds(own, layout.units)),
            ("results", &results(own, layout.units, n_heads)),
            ("own", &own.to_string()),
            ("n_heads", &n_heads.to_string()),
            ("group", &shape.group.to_string()),
            ("units", &layout.units.to_string()),
            ("chunk_units", &layout.chunk_units.to_string()),
            ("q_units", &layout.q_units().to_string()),
            ("q_vectors", &layout.q_vectors().to_string()),
            ("vectors", &layout.vectors().to_string()),
            ("value_keys", &layout.value_keys.to_string()),
            ("weights", &(KEYS * ROWS / 4).to_string()),
            ("row_groups", &(ROWS / 4).to_string()),
            ("q_stride", &Q_STRIDE.to_string()),
            ("k_stride", &K_STRIDE.to_string()),
            ("stride", &read::row_stride(shape).to_string()),
            ("rows", &ROWS.to_string()),
            ("keys", &KEYS.to_string()),
            ("threads", &THREADS.to_string()),
        ],
        params,
        groups,
    )?;
    Ok(plan)
}

/// The sequences of the tile's rows, where there are several.
pub(super) const SEQUENCE_ARRAY: &str = "var<workgroup> row_sequence: array<u32, {{rows}}>;\n";
pub(super) const KEEP_SEQUENCE: &str = "row_sequence[r] = sequence_of(row);";

/// All rows are of one sequence.
pub(super) const ONE: &str = "    let sequence = 0u;\n    var limit = 0u;\n    \
                   for (var r = 0u; r < {{rows}}u; r += 1u) { limit = max(limit, row_seen[r]); }\n";

/// One sequence of the tile's rows after the other.
pub(super) const SEVERAL: &str = "    for (var tile_row = 0u; tile_row < {{rows}}u; tile_row += 1u) {\n    \
                       let sequence = row_sequence[tile_row];\n    var limit = 0u;\n    \
                       for (var r = 0u; r < {{rows}}u; r += 1u) {\n        \
                       if (row_sequence[r] == sequence) {\n            \
                       limit = select(max(limit, row_seen[r]), 0u, r < tile_row);\n            \
                       if (r < tile_row) { break; }\n        }\n    }\n";

/// What the thread's four rows see of this sequence.
fn seen(several: bool) -> String {
    let of = |r: u32| match several {
        true => format!("select(0u, row_seen[mine * 4u + {r}u], row_sequence[mine * 4u + {r}u] == sequence)"),
        false => format!("row_seen[mine * 4u + {r}u]"),
    };
    (0..4).map(of).collect::<Vec<_>>().join(", ")
}

/// The values of key `k`, times the weights.
fn adds(own: u32, units: u32) -> String {
    let mut text =
        lines(own, |j| format!("                let v{j} = tile[k * {units}u + across + {}u];", 8 * j));
    text += &lines(4 * own, |i| {
        let (r, j) = (i / own, i % own);
        format!("                acc{r}_{j} = fma(vec4<f32>(w[{r}]), v{j}, acc{r}_{j});")
    });
    text
}

fn results(own: u32, units: u32, n_heads: u32) -> String {
    let mut text = String::new();
    for r in 0..4 {
        text += &format!(
            "    if (row0 + mine * 4u + {r}u < params.m) {{\n        \
             let share = select(1.0 / sum[{r}], 0.0, sum[{r}] == 0.0);\n        \
             let at = ((row0 + mine * 4u + {r}u) * {n_heads}u + head) * {units}u + across;\n{}    }}\n",
            lines(own, |j| format!("        out[at + {}u] = acc{r}_{j} * share;", 8 * j))
        );
    }
    text
}

/// Workgroups without which most of a device would have nothing to do.
const ENOUGH: u64 = 64;

/// Whether so many rows are worth tiles. Rows that have sequence numbers may all be of different ones, and then each would
/// need the tile for itself.
pub(super) fn worth(shape: &Shape) -> bool {
    let few = match shape.source {
        Source::Cache { sequences: true, .. } => 256,
        _ => ROWS / 2,
    };
    let groups = u64::from(shape.m.div_ceil(ROWS)) * u64::from(shape.heads.n_heads);
    shape.m > few && groups >= ENOUGH
}
