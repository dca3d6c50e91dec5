// matmul/gemm_coop: matmul coop 64x64x64 by 32x32 slices=1
enable wgpu_cooperative_matrix;
enable f16;
struct Params {
    m: u32, k: u32, n: u32, ldo: u32, col0: u32, count: u32, span: u32, slices: u32,
}

fn finish(v: f32, row: u32, col: u32) -> f32 {
    let e0 = x0[col];
    return v + e0;
}
fn store4(v: vec4<f32>, slice: u32, row: u32, col: u32) {
    if (col < params.n) {
        dst[(row * params.ldo + params.col0 + col) / 4u] = vec4<f32>(
            finish(v.x, row, params.col0 + col + 0u),
            finish(v.y, row, params.col0 + col + 1u),
            finish(v.z, row, params.col0 + col + 2u),
            finish(v.w, row, params.col0 + col + 3u),
        );
    }
}
const BM = 64u;
const BN = 64u;
const THREADS = 128u;
// vec4s between rows.
const LD = 18u;
var<workgroup> tile_a: array<vec4<f16>, 1152>;
var<workgroup> tile_b: array<vec4<f16>, 1152>;
var<workgroup> fragment: array<vec4<f32>, 256>;

fn fetch_b(base: u32, k: u32) -> vec4<f16> { return b[base + min(k, params.k - 4u) / 4u]; }
fn row_base(row: u32) -> u32 { return row * (params.k / 4u); }
// Zero past k: A is zero there, but B may be infinite.
fn decode_b(v: vec4<f16>, k: u32, part: u32) -> vec4<f16> {
    let inside = vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(params.k);
    return select(vec4<f16>(), v, inside);
}
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let tiles_m = (params.m + BM - 1u) / BM;
    let tiles_n = (params.n + BN - 1u) / BN;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    // Bands of 8 rows of tiles.
    let band = tile / (8u * tiles_n);
    let in_band = tile % (8u * tiles_n);
    let height = min(tiles_m - band * 8u, 8u);
    let row0 = (band * 8u + in_band % height) * BM;
    let col0 = (in_band / height) * BN;
    let my_row0 = (subgroup / 2u) * 32u;
    let my_col0 = (subgroup % 2u) * 32u;
    // Rows of A are padded to multiples of 64 elements.
    let a_row = (params.k + 63u) / 64u * 16u;
    let row_a0 = (local + 0u) / 16u;
    let k_a0 = (local + 0u) % 16u;
    let base_a0 = min(row0 + row_a0, params.m - 1u) * a_row;
    let row_a1 = (local + 128u) / 16u;
    let k_a1 = (local + 128u) % 16u;
    let base_a1 = min(row0 + row_a1, params.m - 1u) * a_row;
    let row_a2 = (local + 256u) / 16u;
    let k_a2 = (local + 256u) % 16u;
    let base_a2 = min(row0 + row_a2, params.m - 1u) * a_row;
    let row_a3 = (local + 384u) / 16u;
    let k_a3 = (local + 384u) % 16u;
    let base_a3 = min(row0 + row_a3, params.m - 1u) * a_row;
    let row_a4 = (local + 512u) / 16u;
    let k_a4 = (local + 512u) % 16u;
    let base_a4 = min(row0 + row_a4, params.m - 1u) * a_row;
    let row_a5 = (local + 640u) / 16u;
    let k_a5 = (local + 640u) % 16u;
    let base_a5 = min(row0 + row_a5, params.m - 1u) * a_row;
    let row_a6 = (local + 768u) / 16u;
    let k_a6 = (local + 768u) % 16u;
    let base_a6 = min(row0 + row_a6, params.m - 1u) * a_row;
    let row_a7 = (local + 896u) / 16u;
    let k_a7 = (local + 896u) % 16u;
    let base_a7 = min(row0 + row_a7, params.m - 1u) * a_row;
    let row_b0 = (local + 0u) / 16u;
    let k_b0 = (local + 0u) % 16u;
    let base_b0 = row_base(min(col0 + row_b0, params.n - 1u));
    let row_b1 = (local + 128u) / 16u;
    let k_b1 = (local + 128u) % 16u;
    let base_b1 = row_base(min(col0 + row_b1, params.n - 1u));
    let row_b2 = (local + 256u) / 16u;
    let k_b2 = (local + 256u) % 16u;
    let base_b2 = row_base(min(col0 + row_b2, params.n - 1u));
    let row_b3 = (local + 384u) / 16u;
    let k_b3 = (local + 384u) % 16u;
    let base_b3 = row_base(min(col0 + row_b3, params.n - 1u));
    let row_b4 = (local + 512u) / 16u;
    let k_b4 = (local + 512u) % 16u;
    let base_b4 = row_base(min(col0 + row_b4, params.n - 1u));
    let row_b5 = (local + 640u) / 16u;
    let k_b5 = (local + 640u) % 16u;
    let base_b5 = row_base(min(col0 + row_b5, params.n - 1u));
    let row_b6 = (local + 768u) / 16u;
    let k_b6 = (local + 768u) % 16u;
    let base_b6 = row_base(min(col0 + row_b6, params.n - 1u));
    let row_b7 = (local + 896u) / 16u;
    let k_b7 = (local + 896u) % 16u;
    let base_b7 = row_base(min(col0 + row_b7, params.n - 1u));
    var next_a0 = vec4<f16>();
    var next_a1 = vec4<f16>();
    var next_a2 = vec4<f16>();
    var next_a3 = vec4<f16>();
    var next_a4 = vec4<f16>();
    var next_a5 = vec4<f16>();
    var next_a6 = vec4<f16>();
    var next_a7 = vec4<f16>();
    var next_b0 = vec4<f16>();
    var next_b1 = vec4<f16>();
    var next_b2 = vec4<f16>();
    var next_b3 = vec4<f16>();
    var next_b4 = vec4<f16>();
    var next_b5 = vec4<f16>();
    var next_b6 = vec4<f16>();
    var next_b7 = vec4<f16>();
    var acc0 = coop_mat16x16<f32, C>();
    var acc1 = coop_mat16x16<f32, C>();
    var acc2 = coop_mat16x16<f32, C>();
    var acc3 = coop_mat16x16<f32, C>();
    let k_tiles = (params.k + 64u - 1u) / 64u;
    var k_tile = slice * params.span;
    let end = min(k_tile + params.span, k_tiles);
            next_a0 = a[base_a0 + (k_tile) * 16u + k_a0];
            next_a1 = a[base_a1 + (k_tile) * 16u + k_a1];
            next_a2 = a[base_a2 + (k_tile) * 16u + k_a2];
            next_a3 = a[base_a3 + (k_tile) * 16u + k_a3];
            next_a4 = a[base_a4 + (k_tile) * 16u + k_a4];
            next_a5 = a[base_a5 + (k_tile) * 16u + k_a5];
            next_a6 = a[base_a6 + (k_tile) * 16u + k_a6];
            next_a7 = a[base_a7 + (k_tile) * 16u + k_a7];
            next_b0 = fetch_b(base_b0, (k_tile) * 64u + k_b0 * 4u);
            next_b1 = fetch_b(base_b1, (k_tile) * 64u + k_b1 * 4u);
            next_b2 = fetch_b(base_b2, (k_tile) * 64u + k_b2 * 4u);
            next_b3 = fetch_b(base_b3, (k_tile) * 64u + k_b3 * 4u);
            next_b4 = fetch_b(base_b4, (k_tile) * 64u + k_b4 * 4u);
            next_b5 = fetch_b(base_b5, (k_tile) * 64u + k_b5 * 4u);
            next_b6 = fetch_b(base_b6, (k_tile) * 64u + k_b6 * 4u);
            next_b7 = fetch_b(base_b7, (k_tile) * 64u + k_b7 * 4u);
    for (; k_tile < end; k_tile++) {
        tile_a[row_a0 * LD + k_a0] = next_a0;
        tile_a[row_a1 * LD + k_a1] = next_a1;
        tile_a[row_a2 * LD + k_a2] = next_a2;
        tile_a[row_a3 * LD + k_a3] = next_a3;
        tile_a[row_a4 * LD + k_a4] = next_a4;
        tile_a[row_a5 * LD + k_a5] = next_a5;
        tile_a[row_a6 * LD + k_a6] = next_a6;
        tile_a[row_a7 * LD + k_a7] = next_a7;
        tile_b[row_b0 * LD + k_b0 * 1u + 0u]
            = decode_b(next_b0, k_tile * 64u + k_b0 * 4u, 0u);
        tile_b[row_b1 * LD + k_b1 * 1u + 0u]
            = decode_b(next_b1, k_tile * 64u + k_b1 * 4u, 0u);
        tile_b[row_b2 * LD + k_b2 * 1u + 0u]
            = decode_b(next_b2, k_tile * 64u + k_b2 * 4u, 0u);
        tile_b[row_b3 * LD + k_b3 * 1u + 0u]
            = decode_b(next_b3, k_tile * 64u + k_b3 * 4u, 0u);
        tile_b[row_b4 * LD + k_b4 * 1u + 0u]
            = decode_b(next_b4, k_tile * 64u + k_b4 * 4u, 0u);
        tile_b[row_b5 * LD + k_b5 * 1u + 0u]
            = decode_b(next_b5, k_tile * 64u + k_b5 * 4u, 0u);
        tile_b[row_b6 * LD + k_b6 * 1u + 0u]
            = decode_b(next_b6, k_tile * 64u + k_b6 * 4u, 0u);
        tile_b[row_b7 * LD + k_b7 * 1u + 0u]
            = decode_b(next_b7, k_tile * 64u + k_b7 * 4u, 0u);
        workgroupBarrier();
        if (k_tile + 1u < end) {
            next_a0 = a[base_a0 + (k_tile + 1u) * 16u + k_a0];
            next_a1 = a[base_a1 + (k_tile + 1u) * 16u + k_a1];
            next_a2 = a[base_a2 + (k_tile + 1u) * 16u + k_a2];
            next_a3 = a[base_a3 + (k_tile + 1u) * 16u + k_a3];
            next_a4 = a[base_a4 + (k_tile + 1u) * 16u + k_a4];
            next_a5 = a[base_a5 + (k_tile + 1u) * 16u + k_a5];
            next_a6 = a[base_a6 + (k_tile + 1u) * 16u + k_a6];
            next_a7 = a[base_a7 + (k_tile + 1u) * 16u + k_a7];
            next_b0 = fetch_b(base_b0, (k_tile + 1u) * 64u + k_b0 * 4u);
            next_b1 = fetch_b(base_b1, (k_tile + 1u) * 64u + k_b1 * 4u);
            next_b2 = fetch_b(base_b2, (k_tile + 1u) * 64u + k_b2 * 4u);
            next_b3 = fetch_b(base_b3, (k_tile + 1u) * 64u + k_b3 * 4u);
            next_b4 = fetch_b(base_b4, (k_tile + 1u) * 64u + k_b4 * 4u);
            next_b5 = fetch_b(base_b5, (k_tile + 1u) * 64u + k_b5 * 4u);
            next_b6 = fetch_b(base_b6, (k_tile + 1u) * 64u + k_b6 * 4u);
            next_b7 = fetch_b(base_b7, (k_tile + 1u) * 64u + k_b7 * 4u);
        }
        {
        let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 0u) * LD + 0u], LD);
        let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 16u) * LD + 0u], LD);
        let b0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 0u) * LD + 0u], LD);
        acc0 = coopMultiplyAdd(a0, b0, acc0);
        acc2 = coopMultiplyAdd(a1, b0, acc2);
        let b1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 16u) * LD + 0u], LD);
        acc1 = coopMultiplyAdd(a0, b1, acc1);
        acc3 = coopMultiplyAdd(a1, b1, acc3);
        }
        {
        let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 0u) * LD + 4u], LD);
        let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 16u) * LD + 4u], LD);
        let b0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 0u) * LD + 4u], LD);
        acc0 = coopMultiplyAdd(a0, b0, acc0);
        acc2 = coopMultiplyAdd(a1, b0, acc2);
        let b1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 16u) * LD + 4u], LD);
        acc1 = coopMultiplyAdd(a0, b1, acc1);
        acc3 = coopMultiplyAdd(a1, b1, acc3);
        }
        {
        let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 0u) * LD + 8u], LD);
        let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 16u) * LD + 8u], LD);
        let b0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 0u) * LD + 8u], LD);
        acc0 = coopMultiplyAdd(a0, b0, acc0);
        acc2 = coopMultiplyAdd(a1, b0, acc2);
        let b1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 16u) * LD + 8u], LD);
        acc1 = coopMultiplyAdd(a0, b1, acc1);
        acc3 = coopMultiplyAdd(a1, b1, acc3);
        }
        {
        let a0 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 0u) * LD + 12u], LD);
        let a1 = coopLoadT<coop_mat16x16<f16, A>>(&tile_a[(my_row0 + 16u) * LD + 12u], LD);
        let b0 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 0u) * LD + 12u], LD);
        acc0 = coopMultiplyAdd(a0, b0, acc0);
        acc2 = coopMultiplyAdd(a1, b0, acc2);
        let b1 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[(my_col0 + 16u) * LD + 12u], LD);
        acc1 = coopMultiplyAdd(a0, b1, acc1);
        acc3 = coopMultiplyAdd(a1, b1, acc3);
        }
        workgroupBarrier();
    }
    // A lane stores four columns of two rows of each fragment: neighboring lanes write whole cache lines.
    let at_row = lane / 4u;
    let at_col = (lane % 4u) * 4u;
    coopStoreT(acc0, &fragment[subgroup * 64u], 4u);
    workgroupBarrier();
    for (var half = 0u; half < 16u; half += 8u) {
        let row = row0 + my_row0 + 0u + at_row + half;
        if (row < params.m) {
            let values = fragment[subgroup * 64u + (at_row + half) * 4u + lane % 4u];
            store4(values * scales[row], slice, row, col0 + my_col0 + 0u + at_col);
        }
    }
    workgroupBarrier();
    coopStoreT(acc1, &fragment[subgroup * 64u], 4u);
    workgroupBarrier();
    for (var half = 0u; half < 16u; half += 8u) {
        let row = row0 + my_row0 + 0u + at_row + half;
        if (row < params.m) {
            let values = fragment[subgroup * 64u + (at_row + half) * 4u + lane % 4u];
            store4(values * scales[row], slice, row, col0 + my_col0 + 16u + at_col);
        }
    }
    workgroupBarrier();
    coopStoreT(acc2, &fragment[subgroup * 64u], 4u);
    workgroupBarrier();
    for (var half = 0u; half < 16u; half += 8u) {
        let row = row0 + my_row0 + 16u + at_row + half;
        if (row < params.m) {
            let values = fragment[subgroup * 64u + (at_row + half) * 4u + lane % 4u];
            store4(values * scales[row], slice, row, col0 + my_col0 + 0u + at_col);
        }
    }
    workgroupBarrier();
    coopStoreT(acc3, &fragment[subgroup * 64u], 4u);
    workgroupBarrier();
    for (var half = 0u; half < 16u; half += 8u) {
        let row = row0 + my_row0 + 16u + at_row + half;
        if (row < params.m) {
            let values = fragment[subgroup * 64u + (at_row + half) * 4u + lane % 4u];
            store4(values * scales[row], slice, row, col0 + my_col0 + 16u + at_col);
        }
    }
    workgroupBarrier();
}

@group(0) @binding(0) var<storage, read> a: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> dst: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> x0: array<f32>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
