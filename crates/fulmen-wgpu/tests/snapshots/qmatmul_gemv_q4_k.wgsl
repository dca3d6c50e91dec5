// qmatmul/gemv_q4_k: qmatmul Q4K gemv Q8 threads=128 lanes=16 rows=1 unroll=2 Shuffle m=1
struct Params {
    m: u32, k: u32, n: u32, ldo: u32, col0: u32, count: u32, span: u32, slices: u32,
}

fn finish(v: f32, row: u32, col: u32) -> f32 {
    let e0 = x0[col];
    return v + e0;
}
fn store1(v: f32, slice: u32, row: u32, col: u32) {
    dst[row * params.ldo + params.col0 + col] = finish(v, row, params.col0 + col + 0u);
}
fn store4(v: vec4<f32>, slice: u32, row: u32, col: u32) {
    if (col + 0u < params.n) {
        store1(v.x, slice, row, col + 0u);
    }
    if (col + 1u < params.n) {
        store1(v.y, slice, row, col + 1u);
    }
    if (col + 2u < params.n) {
        store1(v.z, slice, row, col + 2u);
    }
    if (col + 3u < params.n) {
        store1(v.w, slice, row, col + 3u);
    }
}


// Quants as bytes, four in a word, elements 0 to 15 in `lo`, the others in `hi`; scale and offset of each
// half.
struct Block32 { lo: vec4<u32>, hi: vec4<u32>, scale: vec2<f32>, offset: vec2<f32> }

const LOW = vec4<u32>(0x0f0f0f0fu);

fn word(at: u32) -> u32 { return w[at >> 2u][at & 3u]; }

// The f16 of number `ib & 1` in a word.
fn f16_of(pair: u32, ib: u32) -> f32 { return unpack2x16float(pair >> (16u * (ib & 1u))).x; }
fn scale_min(header: vec4<u32>, ib: u32) -> vec2<f32> {
    let at = ib & 7u;
    let low = (header.yz >> vec2<u32>(4u * at)) & vec2<u32>(15u);
    let high = (header.ww >> vec2<u32>(2u * at, 16u + 2u * at)) & vec2<u32>(3u);
    return unpack2x16float(header.x) * vec2<f32>(low | (high << vec2<u32>(4u)));
}

struct Raw { quants: vec4<u32>, header: vec4<u32> }

fn row_length() -> u32 {
    let blocks = params.k / 32u;
    return blocks + blocks / 8u;
}

fn fetch(base: u32, ib: u32) -> Raw {
    return Raw(w[base + ib], w[base + params.k / 32u + ib / 8u]);
}

fn decode(raw: Raw, ib: u32) -> Block32 {
    let pair = scale_min(raw.header, ib);
    return Block32(
        raw.quants & LOW,
        (raw.quants >> vec4<u32>(4u)) & LOW,
        pair.xx,
        -pair.yy,
    );
}
fn q8_place(base: u32, ib: u32) -> u32 { return base + (ib >> 3u) * 24u + (ib & 7u); }

fn dot16(x: vec4<u32>, y: vec4<u32>) -> i32 {
    return dot4I8Packed(x.x, y.x) + dot4I8Packed(x.y, y.y) + dot4I8Packed(x.z, y.z) + dot4I8Packed(x.w, y.w);
}

// Quants of elements 0 to 15 and 16 to 31, and as bits: scale, sums of these quants, scaled sum of all.
struct Activations { lo: vec4<u32>, hi: vec4<u32>, sums: vec4<u32> }

fn activations(base: u32, ib: u32) -> Activations {
    let at = q8_place(base, ib);
    return Activations(a[at], a[at + 8u], a[at + 16u]);
}
fn dot_block(sum: f32, block: Block32, v: Activations) -> f32 {
    let both = f32(dot16(block.lo, v.lo) + dot16(block.hi, v.hi));
    let with_offset = fma(block.offset.x, bitcast<f32>(v.sums.w), sum);
    return fma(block.scale.x * bitcast<f32>(v.sums.x), both, with_offset);
}
@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_invocation_id) lane_in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_width: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    let thread = subgroup * subgroup_width + lane_in_subgroup;
    let lane = thread % 16u;
    let blocks = params.k / 32u;
    let a_row0 = min(0u, params.m - 1u) * params.span;
    if (group >= params.count) { return; }
    let row0 = (group * 8u + thread / 16u) * 1u;
    let w_row = row_length();
    let w_row0 = min(row0 + 0u, params.n - 1u) * w_row;
    var sum0 = 0.0;
    var ib = lane;
    for (; ib + 16u < blocks; ib += 32u) {
        let raw0_0 = fetch(w_row0, ib + 0u);
        let raw0_1 = fetch(w_row0, ib + 16u);
        let block0_0 = decode(raw0_0, ib + 0u);
        let a0_0 = activations(a_row0, ib + 0u);
        sum0 = dot_block(sum0, block0_0, a0_0);
        let block0_1 = decode(raw0_1, ib + 16u);
        let a0_1 = activations(a_row0, ib + 16u);
        sum0 = dot_block(sum0, block0_1, a0_1);
    }
    for (; ib < blocks; ib += 16u) {
        let raw0_0 = fetch(w_row0, ib + 0u);
        let block0_0 = decode(raw0_0, ib + 0u);
        let a0_0 = activations(a_row0, ib + 0u);
        sum0 = dot_block(sum0, block0_0, a0_0);
    }
    var t0 = sum0;
    t0 += subgroupShuffleXor(t0, 8u);
    t0 += subgroupShuffleXor(t0, 4u);
    t0 += subgroupShuffleXor(t0, 2u);
    t0 += subgroupShuffleXor(t0, 1u);
    // Every lane has every total: each stores its own outputs.
    {
        var v = t0;
        let row = (lane + 0u) / 1u;
        let col = row0 + (lane + 0u) % 1u;
        if (lane < 1u && row < params.m && col < params.n) { store1(v, 0u, row, col); }
    }
}

@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;
@group(0) @binding(3) var<storage, read> x0: array<f32>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
