//! One block of the int8 dot product, `sum + Σ w · a` over 32 elements: q8 activations by quantized
//! weights.
//!
//! Part of the GEMV kernels (gemv.wgsl, fused_gemv.wgsl): one thread multiplies one block with
//! `dot4I8Packed`, four products an instruction, and applies scales and offset once for 32 elements.
//! `a` is as quantize_q8.wgsl makes it. `dot` is "half_scales" for formats with a scale for each half and
//! quants of 0 to 63 that stand for -32 to 31 (Q6_K), "scale" for scales without offset (Q8_0, MXFP4), else
//! "offset".
#macro dot_q8_functions()
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
#endmacro
#macro dot_q8_block(suffix, dot)
fn dot_block{{suffix}}(sum: f32, block: Block32{{suffix}}, v: Activations) -> f32 {
  #if dot == "half_scales"
    let first = dot16(block.lo, v.lo) - 32 * bitcast<i32>(v.sums.y);
    let second = dot16(block.hi, v.hi) - 32 * bitcast<i32>(v.sums.z);
    let both = fma(block.scale.x, f32(first), block.scale.y * f32(second));
    return fma(bitcast<f32>(v.sums.x), both, sum);
  #elif dot == "scale"
    let both = f32(dot16(block.lo, v.lo) + dot16(block.hi, v.hi));
    return fma(block.scale.x * bitcast<f32>(v.sums.x), both, sum);
  #else
    let both = f32(dot16(block.lo, v.lo) + dot16(block.hi, v.hi));
    let with_offset = fma(block.offset.x, bitcast<f32>(v.sums.w), sum);
    return fma(block.scale.x * bitcast<f32>(v.sums.x), both, with_offset);
  #endif
}
#endmacro
