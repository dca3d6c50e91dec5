//! Quantizes a block of 32 f32 activations to q8: int8 quants, scale and sums, in three vec4<u32> of
//! `dst`.
//!
//! Part of the kernels that quantize activations; one thread owns one block. Eight blocks lie together in 24
//! vec4s: of each the first 16 quants, then of each the other 16, then of each the scale (f32), the sums of
//! the first and the last 16 quants (i32), and the scaled sum of all (f32), which offsets of weights are
//! multiplied by. The largest magnitude becomes 127. A value that is not finite makes scale and scaled sum
//! NaN.
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
