// qmatmul/fused_gemv_gate_up: qmatmul fused Q4_K·Q4_K gemv Q8 threads=512 lanes=32 rows=1 unroll=2 Shuffle m=1 q8

struct Params {
    m: u32, k: u32, span: u32,
    n0: u32, end0: u32,
}
var<workgroup> made: array<f32, 32>;
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

// Quants as bytes, four in a word, elements 0 to 15 in `lo`, the others in `hi`; scale and offset of each
// half.
struct Block32_0_0 { lo: vec4<u32>, hi: vec4<u32>, scale: vec2<f32>, offset: vec2<f32> }

const LOW_0_0 = vec4<u32>(0x0f0f0f0fu);

fn word_0_0(at: u32) -> u32 { return w_0_0[at >> 2u][at & 3u]; }

// The f16 of number `ib & 1` in a word.
fn f16_of_0_0(pair: u32, ib: u32) -> f32 { return unpack2x16float(pair >> (16u * (ib & 1u))).x; }
fn scale_min_0_0(header: vec4<u32>, ib: u32) -> vec2<f32> {
    let at = ib & 7u;
    let low = (header.yz >> vec2<u32>(4u * at)) & vec2<u32>(15u);
    let high = (header.ww >> vec2<u32>(2u * at, 16u + 2u * at)) & vec2<u32>(3u);
    return unpack2x16float(header.x) * vec2<f32>(low | (high << vec2<u32>(4u)));
}

struct Raw_0_0 { quants: vec4<u32>, header: vec4<u32> }

fn row_length_0_0() -> u32 {
    let blocks = params.k / 32u;
    return blocks + blocks / 8u;
}

fn fetch_0_0(base: u32, ib: u32) -> Raw_0_0 {
    return Raw_0_0(w_0_0[base + ib], w_0_0[base + params.k / 32u + ib / 8u]);
}

fn decode_0_0(raw: Raw_0_0, ib: u32) -> Block32_0_0 {
    let pair = scale_min_0_0(raw.header, ib);
    return Block32_0_0(
        raw.quants & LOW_0_0,
        (raw.quants >> vec4<u32>(4u)) & LOW_0_0,
        pair.xx,
        -pair.yy,
    );
}
fn dot_block_0_0(sum: f32, block: Block32_0_0, v: Activations) -> f32 {
    let both = f32(dot16(block.lo, v.lo) + dot16(block.hi, v.hi));
    let with_offset = fma(block.offset.x, bitcast<f32>(v.sums.w), sum);
    return fma(block.scale.x * bitcast<f32>(v.sums.x), both, with_offset);
}

// Quants as bytes, four in a word, elements 0 to 15 in `lo`, the others in `hi`; scale and offset of each
// half.
struct Block32_0_1 { lo: vec4<u32>, hi: vec4<u32>, scale: vec2<f32>, offset: vec2<f32> }

const LOW_0_1 = vec4<u32>(0x0f0f0f0fu);

fn word_0_1(at: u32) -> u32 { return w_0_1[at >> 2u][at & 3u]; }

// The f16 of number `ib & 1` in a word.
fn f16_of_0_1(pair: u32, ib: u32) -> f32 { return unpack2x16float(pair >> (16u * (ib & 1u))).x; }
fn scale_min_0_1(header: vec4<u32>, ib: u32) -> vec2<f32> {
    let at = ib & 7u;
    let low = (header.yz >> vec2<u32>(4u * at)) & vec2<u32>(15u);
    let high = (header.ww >> vec2<u32>(2u * at, 16u + 2u * at)) & vec2<u32>(3u);
    return unpack2x16float(header.x) * vec2<f32>(low | (high << vec2<u32>(4u)));
}

struct Raw_0_1 { quants: vec4<u32>, header: vec4<u32> }

fn row_length_0_1() -> u32 {
    let blocks = params.k / 32u;
    return blocks + blocks / 8u;
}

fn fetch_0_1(base: u32, ib: u32) -> Raw_0_1 {
    return Raw_0_1(w_0_1[base + ib], w_0_1[base + params.k / 32u + ib / 8u]);
}

fn decode_0_1(raw: Raw_0_1, ib: u32) -> Block32_0_1 {
    let pair = scale_min_0_1(raw.header, ib);
    return Block32_0_1(
        raw.quants & LOW_0_1,
        (raw.quants >> vec4<u32>(4u)) & LOW_0_1,
        pair.xx,
        -pair.yy,
    );
}
fn dot_block_0_1(sum: f32, block: Block32_0_1, v: Activations) -> f32 {
    let both = f32(dot16(block.lo, v.lo) + dot16(block.hi, v.hi));
    let with_offset = fma(block.offset.x, bitcast<f32>(v.sums.w), sum);
    return fma(block.scale.x * bitcast<f32>(v.sums.x), both, with_offset);
}
fn magnitude4(v: vec4<f32>) -> f32 {
    let s = abs(v);
    return max(max(s.x, s.y), max(s.z, s.w));
}

fn not_finite4(v: vec4<f32>) -> bool {
    return any((bitcast<vec4<u32>>(v) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
}

fn sum4(v: vec4<i32>) -> i32 { return (v.x + v.y) + (v.z + v.w); }

fn quants4(v: vec4<f32>, inverse: f32) -> vec4<i32> {
    return vec4<i32>(clamp(round(v * inverse), vec4<f32>(-127.0), vec4<f32>(127.0)));
}

// Quantizes 32 values to vec4s `to`, `to + 8` and `to + 16` of `dst`.
fn put_q8_block(
    to: u32, v0: vec4<f32>, v1: vec4<f32>, v2: vec4<f32>, v3: vec4<f32>,
    v4: vec4<f32>, v5: vec4<f32>, v6: vec4<f32>, v7: vec4<f32>,
) {
    let most = max(max(max(magnitude4(v0), magnitude4(v1)), max(magnitude4(v2), magnitude4(v3))),
        max(max(magnitude4(v4), magnitude4(v5)), max(magnitude4(v6), magnitude4(v7))));
    let not_finite = not_finite4(v0) || not_finite4(v1) || not_finite4(v2) || not_finite4(v3)
        || not_finite4(v4) || not_finite4(v5) || not_finite4(v6) || not_finite4(v7);
    let zero = not_finite || most < 1e-35;
    let scale = select(most / 127.0, 0.0, zero);
    let inverse = select(127.0 / most, 0.0, zero);
    let q0 = quants4(select(v0, vec4<f32>(), zero), inverse);
    let q1 = quants4(select(v1, vec4<f32>(), zero), inverse);
    let q2 = quants4(select(v2, vec4<f32>(), zero), inverse);
    let q3 = quants4(select(v3, vec4<f32>(), zero), inverse);
    let q4 = quants4(select(v4, vec4<f32>(), zero), inverse);
    let q5 = quants4(select(v5, vec4<f32>(), zero), inverse);
    let q6 = quants4(select(v6, vec4<f32>(), zero), inverse);
    let q7 = quants4(select(v7, vec4<f32>(), zero), inverse);
    let sum_lo = sum4((q0 + q1) + (q2 + q3));
    let sum_hi = sum4((q4 + q5) + (q6 + q7));
    dst[to] = vec4<u32>(pack4xI8(q0), pack4xI8(q1), pack4xI8(q2), pack4xI8(q3));
    dst[to + 8u] = vec4<u32>(pack4xI8(q4), pack4xI8(q5), pack4xI8(q6), pack4xI8(q7));
    let scaled_sum = scale * f32(sum_lo + sum_hi);
    let sums = vec4<u32>(
        bitcast<u32>(scale), bitcast<u32>(sum_lo), bitcast<u32>(sum_hi), bitcast<u32>(scaled_sum),
    );
    dst[to + 16u] = select(sums, vec4<u32>(0x7fc00000u, 0u, 0u, 0x7fc00000u), not_finite);
}
@compute @workgroup_size(512)
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
    let lane = thread % 32u;
    let blocks = params.k / 32u;
    let a_row0 = min(0u, params.m - 1u) * params.span;
    if (group < params.end0) {
        for (var round = 0u; round < 32u; round += 16u) {
        let slot = round + thread / 32u;
        let row = group * 32u + slot;
        let clamped = min(row, params.n0 - 1u);
        let w_row0 = clamped * row_length_0_0();
        let w_row1 = clamped * row_length_0_1();
        var sum0_0 = 0.0;
        var sum1_0 = 0.0;
        var ib = lane;
        for (; ib + 32u < blocks; ib += 64u) {
            let raw0_0 = fetch_0_0(w_row0, ib + 0u);
            let raw1_0 = fetch_0_1(w_row1, ib + 0u);
            let raw0_1 = fetch_0_0(w_row0, ib + 32u);
            let raw1_1 = fetch_0_1(w_row1, ib + 32u);
            let block0_0 = decode_0_0(raw0_0, ib + 0u);
            let block1_0 = decode_0_1(raw1_0, ib + 0u);
            let a0_0 = activations(a_row0, ib + 0u);
            sum0_0 = dot_block_0_0(sum0_0, block0_0, a0_0);
            sum1_0 = dot_block_0_1(sum1_0, block1_0, a0_0);
            let block0_1 = decode_0_0(raw0_1, ib + 32u);
            let block1_1 = decode_0_1(raw1_1, ib + 32u);
            let a0_1 = activations(a_row0, ib + 32u);
            sum0_0 = dot_block_0_0(sum0_0, block0_1, a0_1);
            sum1_0 = dot_block_0_1(sum1_0, block1_1, a0_1);
        }
        for (; ib < blocks; ib += 32u) {
            let raw0_0 = fetch_0_0(w_row0, ib + 0u);
            let raw1_0 = fetch_0_1(w_row1, ib + 0u);
            let block0_0 = decode_0_0(raw0_0, ib + 0u);
            let block1_0 = decode_0_1(raw1_0, ib + 0u);
            let a0_0 = activations(a_row0, ib + 0u);
            sum0_0 = dot_block_0_0(sum0_0, block0_0, a0_0);
            sum1_0 = dot_block_0_1(sum1_0, block1_0, a0_0);
        }
    var t0 = sum0_0;
    t0 += subgroupShuffleXor(t0, 16u);
    t0 += subgroupShuffleXor(t0, 8u);
    t0 += subgroupShuffleXor(t0, 4u);
    t0 += subgroupShuffleXor(t0, 2u);
    t0 += subgroupShuffleXor(t0, 1u);
    var t1 = sum1_0;
    t1 += subgroupShuffleXor(t1, 16u);
    t1 += subgroupShuffleXor(t1, 8u);
    t1 += subgroupShuffleXor(t1, 4u);
    t1 += subgroupShuffleXor(t1, 2u);
    t1 += subgroupShuffleXor(t1, 1u);
        if (lane == 0u && 0u < params.m && slot < 32u) {
            let value = t0 / (1.0 + exp(-t0)) * t1;
            dst_0[0u * params.n0 + row] = value;
            made[0u + slot] = value;
        }
        }
        workgroupBarrier();
        if (local < params.m) {
            put_q8_block(
                local * 96u + (group >> 3u) * 24u + (group & 7u),
                vec4<f32>(
                    made[local * 32u + 0u],
                    made[local * 32u + 1u],
                    made[local * 32u + 2u],
                    made[local * 32u + 3u],
                ),
                vec4<f32>(
                    made[local * 32u + 4u],
                    made[local * 32u + 5u],
                    made[local * 32u + 6u],
                    made[local * 32u + 7u],
                ),
                vec4<f32>(
                    made[local * 32u + 8u],
                    made[local * 32u + 9u],
                    made[local * 32u + 10u],
                    made[local * 32u + 11u],
                ),
                vec4<f32>(
                    made[local * 32u + 12u],
                    made[local * 32u + 13u],
                    made[local * 32u + 14u],
                    made[local * 32u + 15u],
                ),
                vec4<f32>(
                    made[local * 32u + 16u],
                    made[local * 32u + 17u],
                    made[local * 32u + 18u],
                    made[local * 32u + 19u],
                ),
                vec4<f32>(
                    made[local * 32u + 20u],
                    made[local * 32u + 21u],
                    made[local * 32u + 22u],
                    made[local * 32u + 23u],
                ),
                vec4<f32>(
                    made[local * 32u + 24u],
                    made[local * 32u + 25u],
                    made[local * 32u + 26u],
                    made[local * 32u + 27u],
                ),
                vec4<f32>(
                    made[local * 32u + 28u],
                    made[local * 32u + 29u],
                    made[local * 32u + 30u],
                    made[local * 32u + 31u],
                ),
            );
        }
    }
}

@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_0_0: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> w_0_1: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> dst_0: array<f32>;
@group(0) @binding(4) var<storage, read_write> dst: array<vec4<u32>>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
