{{enable}}// transpose: each workgroup turns a tile of 32 by 32 through workgroup memory, whose rows are one longer so
// that the elements of a column lie in different banks.
struct Params {
    // The matrix, and the part of it that is turned.
    rows: u32,
    columns: u32,
    part_rows: u32,
    part_columns: u32,
    // Where the part begins: its first element in the input's binding, and in the output's.
    x_at: u32,
    out_at: u32,
    // Tiles in a row of tiles, and all of them.
    tiles_across: u32,
    tiles: u32,
}

var<workgroup> tile: array<array<{{type}}, 33>, 32>;

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let number = group.x + grid.x * (group.y + grid.y * group.z);
    if (number >= params.tiles) {
        return;
    }
    let top = number / params.tiles_across * 32u;
    let left = number % params.tiles_across * 32u;
    let across = thread % 32u;
    for (var down = thread / 32u; down < 32u; down += {{step}}u) {
        if (top + down < params.part_rows && left + across < params.part_columns) {
            tile[down][across] = x[params.x_at + (top + down) * params.columns + left + across];
        }
    }
    workgroupBarrier();
    for (var down = thread / 32u; down < 32u; down += {{step}}u) {
        if (left + down < params.part_columns && top + across < params.part_rows) {
            out[params.out_at + (left + down) * params.rows + top + across] = tile[across][down];
        }
    }
}
