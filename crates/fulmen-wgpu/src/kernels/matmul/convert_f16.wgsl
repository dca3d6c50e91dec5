//! A to f16 with a scale per row, for the cooperative-matrix GEMM (gemm_coop.wgsl).
//!
//! Family: row reduction (largest magnitude) and an elementwise conversion; a workgroup owns a row, one
//! thread every THREADS-th four values. A row is multiplied by the power of two that scales its largest
//! value to about 2^13, so its range does not matter to f16; the inverse of that power is the row's
//! scale. A row with a value that is not finite becomes zeros with a NaN as scale.
//!
//! Bindings: `src` [m, k] f32 (vectors of four where `k_width` is 4); `dst` [m, 4 stride] f16, zero past
//! k, with 4 stride = k rounded up to 64; `scales` [m] f32.
//! Needs: nothing.
//! Bound by memory bandwidth: a row is read twice, the second time from cache; not measured.
enable f16;
struct Params { m: u32, k: u32, stride: u32 }
const THREADS = {{threads}}u;
var<workgroup> largest: array<u32, {{threads}}>;

#include "matmul/element.wgsl"
#expand getter("src", "f32", k_width)
fn at(row: u32, v: u32) -> vec4<f32> {
#if k_width == 4
    let kv = params.k / 4u;
    return select(vec4<f32>(), get_src(row * kv + min(v, kv - 1u)), v < kv);
#else
    var values = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (4u * v + i < params.k) { values[i] = get_src(row * params.k + 4u * v + i); }
    }
    return values;
#endif
}

@compute @workgroup_size({{threads}})
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = wid.x + grid.x * (wid.y + grid.y * wid.z);
    if (row >= params.m) { return; }
    // The bits of magnitudes are in the order of the magnitudes, infinities and NaN last.
    var bits = vec4<u32>();
    for (var v = local; v < params.stride; v += THREADS) {
        bits = max(bits, bitcast<vec4<u32>>(at(row, v)) & vec4<u32>(0x7fffffffu));
    }
    largest[local] = max(max(bits.x, bits.y), max(bits.z, bits.w));
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (local < half) { largest[local] = max(largest[local], largest[local + half]); }
        workgroupBarrier();
    }
    let most = largest[0];
    let not_finite = most >= 0x7f800000u;
    // The biased exponent of the power: 13 less than that of the largest, and no power beyond 2^100.
    let exponent = clamp(127 + 13 - (i32(most >> 23u) - 127), 13, 227);
    let power = bitcast<f32>(u32(exponent) << 23u);
    for (var v = local; v < params.stride; v += THREADS) {
        dst[row * params.stride + v] = vec4<f16>(select(at(row, v) * power, vec4<f32>(), not_finite));
    }
    if (local == 0u) {
        scales[row] = select(bitcast<f32>(u32(254 - exponent) << 23u), bitcast<f32>(0x7fc00000u), not_finite);
    }
}
