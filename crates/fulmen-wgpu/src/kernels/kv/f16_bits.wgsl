//! Helper function, called by one thread: `f16_bits(x)`, the bits of the nearest f16, ties to even; too
//! large values become infinite. WGSL conversions may truncate instead of rounding.
fn f16_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let size = bits & 0x7fffffffu;
    var half = (size + 0xfffu + ((size >> 13u) & 1u) - 0x38000000u) >> 13u;
    if (size < 0x38800000u) { half = u32(round(bitcast<f32>(size) * 16777216.0)); }
    if (size >= 0x477ff000u) { half = select(0x7c00u, 0x7e00u, size > 0x7f800000u); }
    return half | ((bits >> 16u) & 0x8000u);
}
