// qmatmul/gemm_int8: qmatmul gemm_int8 32x64 by 4x4 depth=4 slices=1 Q4K
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
const BM = 32u;
const BN = 64u;
const TX = 16u;
const TY = 8u;
const DEPTH = 4u;
const THREADS = 128u;
// Padded by one: the blocks of a row lie in different banks.
const LDA = 33u;
const LDB = 65u;
var<workgroup> quants_a: array<vec4<u32>, 264>;
var<workgroup> quants_b: array<vec4<u32>, 520>;
var<workgroup> scales_a: array<vec2<f32>, 128>;
var<workgroup> scales_b: array<vec2<f32>, 256>;

fn dot16(x: vec4<u32>, y: vec4<u32>) -> i32 {
    return dot4I8Packed(x.x, y.x) + dot4I8Packed(x.y, y.y) + dot4I8Packed(x.z, y.z) + dot4I8Packed(x.w, y.w);
}

// Quants as bytes that count as signed.
fn signed(quants: vec4<u32>) -> vec4<u32> {
    return quants;
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let group = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (group >= params.count) { return; }
    let tiles_m = (params.m + BM - 1u) / BM;
    let tiles_n = (params.n + BN - 1u) / BN;
    let slice = group / (tiles_m * tiles_n);
    let tile = group % (tiles_m * tiles_n);
    let row0 = (tile % tiles_m) * BM;
    let col0 = (tile / tiles_m) * BN;
    let blocks = params.k / 32u;
    let a_row = ((blocks + 7u) / 8u) * 24u;
    let w_row = row_length();
    let tx = local % TX;
    let ty = local / TX;
    var sum0 = 0.0;
    var sum1 = 0.0;
    var sum2 = 0.0;
    var sum3 = 0.0;
    var sum4 = 0.0;
    var sum5 = 0.0;
    var sum6 = 0.0;
    var sum7 = 0.0;
    var sum8 = 0.0;
    var sum9 = 0.0;
    var sum10 = 0.0;
    var sum11 = 0.0;
    var sum12 = 0.0;
    var sum13 = 0.0;
    var sum14 = 0.0;
    var sum15 = 0.0;
    let begin = slice * params.span;
    let end = min(begin + params.span, blocks);
    for (var first = begin; first < end; first += DEPTH) {
        for (var p = local; p < BM * DEPTH; p += THREADS) {
            let t = p % DEPTH;
            let row = p / DEPTH;
            let ib = min(first + t, end - 1u);
            let at = min(row0 + row, params.m - 1u) * a_row + (ib >> 3u) * 24u + (ib & 7u);
            let sums = bitcast<vec4<f32>>(a[at + 16u]);
            quants_a[2u * t * LDA + row] = a[at];
            quants_a[(2u * t + 1u) * LDA + row] = a[at + 8u];
            // Zero past the end.
            scales_a[t * BM + row] = select(vec2<f32>(), sums.xw, first + t < end);
        }
        for (var p = local; p < BN * DEPTH; p += THREADS) {
            let t = p % DEPTH;
            let col = p / DEPTH;
            let ib = min(first + t, end - 1u);
            let block = decode(fetch(min(col0 + col, params.n - 1u) * w_row, ib), ib);
            quants_b[2u * t * LDB + col] = signed(block.lo);
            quants_b[(2u * t + 1u) * LDB + col] = signed(block.hi);
            scales_b[t * BN + col] = vec2<f32>(block.scale.x, block.offset.x);
        }
        workgroupBarrier();
        for (var t = 0u; t < DEPTH; t++) {
            let a0_0 = quants_a[(2u * t + 0u) * LDA + ty + 0u * TY];
            let a0_1 = quants_a[(2u * t + 0u) * LDA + ty + 1u * TY];
            let a0_2 = quants_a[(2u * t + 0u) * LDA + ty + 2u * TY];
            let a0_3 = quants_a[(2u * t + 0u) * LDA + ty + 3u * TY];
            let a1_0 = quants_a[(2u * t + 1u) * LDA + ty + 0u * TY];
            let a1_1 = quants_a[(2u * t + 1u) * LDA + ty + 1u * TY];
            let a1_2 = quants_a[(2u * t + 1u) * LDA + ty + 2u * TY];
            let a1_3 = quants_a[(2u * t + 1u) * LDA + ty + 3u * TY];
            let scale_a0 = scales_a[t * BM + ty + 0u * TY];
            let scale_a1 = scales_a[t * BM + ty + 1u * TY];
            let scale_a2 = scales_a[t * BM + ty + 2u * TY];
            let scale_a3 = scales_a[t * BM + ty + 3u * TY];
            {
            let b0 = quants_b[2u * t * LDB + tx + 0u * TX];
            let b1 = quants_b[(2u * t + 1u) * LDB + tx + 0u * TX];
            let scale_b = scales_b[t * BN + tx + 0u * TX];
            sum0 = fma(
                scale_a0.x * scale_b.x,
                f32(dot16(a0_0, b0) + dot16(a1_0, b1)),
                fma(scale_a0.y, scale_b.y, sum0),
            );
            sum4 = fma(
                scale_a1.x * scale_b.x,
                f32(dot16(a0_1, b0) + dot16(a1_1, b1)),
                fma(scale_a1.y, scale_b.y, sum4),
            );
            sum8 = fma(
                scale_a2.x * scale_b.x,
                f32(dot16(a0_2, b0) + dot16(a1_2, b1)),
                fma(scale_a2.y, scale_b.y, sum8),
            );
            sum12 = fma(
                scale_a3.x * scale_b.x,
                f32(dot16(a0_3, b0) + dot16(a1_3, b1)),
                fma(scale_a3.y, scale_b.y, sum12),
            );
            }
            {
            let b0 = quants_b[2u * t * LDB + tx + 1u * TX];
            let b1 = quants_b[(2u * t + 1u) * LDB + tx + 1u * TX];
            let scale_b = scales_b[t * BN + tx + 1u * TX];
            sum1 = fma(
                scale_a0.x * scale_b.x,
                f32(dot16(a0_0, b0) + dot16(a1_0, b1)),
                fma(scale_a0.y, scale_b.y, sum1),
            );
            sum5 = fma(
                scale_a1.x * scale_b.x,
                f32(dot16(a0_1, b0) + dot16(a1_1, b1)),
                fma(scale_a1.y, scale_b.y, sum5),
            );
            sum9 = fma(
                scale_a2.x * scale_b.x,
                f32(dot16(a0_2, b0) + dot16(a1_2, b1)),
                fma(scale_a2.y, scale_b.y, sum9),
            );
            sum13 = fma(
                scale_a3.x * scale_b.x,
                f32(dot16(a0_3, b0) + dot16(a1_3, b1)),
                fma(scale_a3.y, scale_b.y, sum13),
            );
            }
            {
            let b0 = quants_b[2u * t * LDB + tx + 2u * TX];
            let b1 = quants_b[(2u * t + 1u) * LDB + tx + 2u * TX];
            let scale_b = scales_b[t * BN + tx + 2u * TX];
            sum2 = fma(
                scale_a0.x * scale_b.x,
                f32(dot16(a0_0, b0) + dot16(a1_0, b1)),
                fma(scale_a0.y, scale_b.y, sum2),
            );
            sum6 = fma(
                scale_a1.x * scale_b.x,
                f32(dot16(a0_1, b0) + dot16(a1_1, b1)),
                fma(scale_a1.y, scale_b.y, sum6),
            );
            sum10 = fma(
                scale_a2.x * scale_b.x,
                f32(dot16(a0_2, b0) + dot16(a1_2, b1)),
                fma(scale_a2.y, scale_b.y, sum10),
            );
            sum14 = fma(
                scale_a3.x * scale_b.x,
                f32(dot16(a0_3, b0) + dot16(a1_3, b1)),
                fma(scale_a3.y, scale_b.y, sum14),
            );
            }
            {
            let b0 = quants_b[2u * t * LDB + tx + 3u * TX];
            let b1 = quants_b[(2u * t + 1u) * LDB + tx + 3u * TX];
            let scale_b = scales_b[t * BN + tx + 3u * TX];
            sum3 = fma(
                scale_a0.x * scale_b.x,
                f32(dot16(a0_0, b0) + dot16(a1_0, b1)),
                fma(scale_a0.y, scale_b.y, sum3),
            );
            sum7 = fma(
                scale_a1.x * scale_b.x,
                f32(dot16(a0_1, b0) + dot16(a1_1, b1)),
                fma(scale_a1.y, scale_b.y, sum7),
            );
            sum11 = fma(
                scale_a2.x * scale_b.x,
                f32(dot16(a0_2, b0) + dot16(a1_2, b1)),
                fma(scale_a2.y, scale_b.y, sum11),
            );
            sum15 = fma(
                scale_a3.x * scale_b.x,
                f32(dot16(a0_3, b0) + dot16(a1_3, b1)),
                fma(scale_a3.y, scale_b.y, sum15),
            );
            }
        }
        workgroupBarrier();
    }
    {
        let row = row0 + ty + 0u * TY;
        if (row < params.m) {
            if (col0 + tx + 0u * TX < params.n) {
                store1(sum0, slice, row, col0 + tx + 0u * TX);
            }
            if (col0 + tx + 1u * TX < params.n) {
                store1(sum1, slice, row, col0 + tx + 1u * TX);
            }
            if (col0 + tx + 2u * TX < params.n) {
                store1(sum2, slice, row, col0 + tx + 2u * TX);
            }
            if (col0 + tx + 3u * TX < params.n) {
                store1(sum3, slice, row, col0 + tx + 3u * TX);
            }
        }
    }
    {
        let row = row0 + ty + 1u * TY;
        if (row < params.m) {
            if (col0 + tx + 0u * TX < params.n) {
                store1(sum4, slice, row, col0 + tx + 0u * TX);
            }
            if (col0 + tx + 1u * TX < params.n) {
                store1(sum5, slice, row, col0 + tx + 1u * TX);
            }
            if (col0 + tx + 2u * TX < params.n) {
                store1(sum6, slice, row, col0 + tx + 2u * TX);
            }
            if (col0 + tx + 3u * TX < params.n) {
                store1(sum7, slice, row, col0 + tx + 3u * TX);
            }
        }
    }
    {
        let row = row0 + ty + 2u * TY;
        if (row < params.m) {
            if (col0 + tx + 0u * TX < params.n) {
                store1(sum8, slice, row, col0 + tx + 0u * TX);
            }
            if (col0 + tx + 1u * TX < params.n) {
                store1(sum9, slice, row, col0 + tx + 1u * TX);
            }
            if (col0 + tx + 2u * TX < params.n) {
                store1(sum10, slice, row, col0 + tx + 2u * TX);
            }
            if (col0 + tx + 3u * TX < params.n) {
                store1(sum11, slice, row, col0 + tx + 3u * TX);
            }
        }
    }
    {
        let row = row0 + ty + 3u * TY;
        if (row < params.m) {
            if (col0 + tx + 0u * TX < params.n) {
                store1(sum12, slice, row, col0 + tx + 0u * TX);
            }
            if (col0 + tx + 1u * TX < params.n) {
                store1(sum13, slice, row, col0 + tx + 1u * TX);
            }
            if (col0 + tx + 2u * TX < params.n) {
                store1(sum14, slice, row, col0 + tx + 2u * TX);
            }
            if (col0 + tx + 3u * TX < params.n) {
                store1(sum15, slice, row, col0 + tx + 3u * TX);
            }
        }
    }
}

@group(0) @binding(0) var<storage, read> a: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> dst: array<f32>;
@group(0) @binding(3) var<storage, read> x0: array<f32>;
var<immediate> params: Params;
override fulmen_translate_late: bool = true;
