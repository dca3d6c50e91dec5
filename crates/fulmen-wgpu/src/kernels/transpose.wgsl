//! Matrix transpose through workgroup memory. One workgroup per 32 x 32 tile; `threads / 32` rows of a
//! tile at a time, so that both loads and stores are coalesced. Tile rows are padded by one element to
//! avoid bank conflicts.
//!
//! **Bindings.** `x`: [rows][columns]; `out`: [columns][rows]; f32 or f16. A launch handles a part of
//! the matrix that fits the bindings.
//!
//! **Preconditions.** `threads` is a multiple of 32.
//!
//! **Bound** by memory bandwidth: 8192 x 8192 in f32 takes 200 µs on an H200, 2.68 TB/s of 4.35
//! (docs/lab/wgpu-kernels.md).
#if f16
enable f16;
#endif
struct Params {
    // Size of the matrix, and of the part of this launch.
    rows: u32,
    columns: u32,
    part_rows: u32,
    part_columns: u32,
    // First element of the part in the input's binding, and in the output's.
    x_at: u32,
    out_at: u32,
    // Tiles per row of tiles, and in total.
    tiles_across: u32,
    tiles: u32,
}

var<workgroup> tile: array<array<{{element}}, 33>, 32>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let workgroup_index = group.x + grid.x * (group.y + grid.y * group.z);
    if (workgroup_index >= params.tiles) {
        return;
    }
    let top = workgroup_index / params.tiles_across * 32u;
    let left = workgroup_index % params.tiles_across * 32u;
    let across = thread % 32u;
    for (var down = thread / 32u; down < 32u; down += {{threads / 32}}u) {
        if (top + down < params.part_rows && left + across < params.part_columns) {
            tile[down][across] = x[params.x_at + (top + down) * params.columns + left + across];
        }
    }
    workgroupBarrier();
    for (var down = thread / 32u; down < 32u; down += {{threads / 32}}u) {
        if (left + down < params.part_columns && top + across < params.part_rows) {
            out[params.out_at + (left + down) * params.rows + top + across] = tile[across][down];
        }
    }
}
