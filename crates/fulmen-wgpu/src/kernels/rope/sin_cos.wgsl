//! Helper function of the RoPE kernels: `cos_sin(position, i)` returns (cos, sin) of pair `i` at
//! `position`, times the magnitude. Called by one thread per pair.
//!
//! The frequency base^(-2i/n_rot) / 2 pi is a 64-bit fixed-point number of revolutions per position,
//! with 56 bits after the point, so position x frequency is exact modulo whole revolutions: the angle
//! is as accurate at position one million as at position 1. It is the product of two short tables:
//! every 8th pair (`high_table`), and the 8 pairs after it (`low_table`); entries are (low word, high
//! word).
//!
//! With `factors`, expects the binding `factors` (one divisor of the frequency per pair).
#if pairs == 0
fn cos_sin(position: u32, i: u32) -> vec2<f32> { return vec2<f32>(1.0, 0.0); }
#else
// a x b as 64 bits: (low word, high word).
fn mul32(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let one = al * bh;
    let two = ah * bl;
    let middle = (low >> 16u) + (one & 0xffffu) + (two & 0xffffu);
    let high = ah * bh + (one >> 16u) + (two >> 16u) + (middle >> 16u);
    return vec2<u32>((low & 0xffffu) | (middle << 16u), high);
}

// The upper 64 bits of the 128-bit product, except for a possible carry into the last bit.
fn mul64_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let top = mul32(a.y, b.y);
    let one = top.x + mul32(a.y, b.x).y;
    let two = one + mul32(a.x, b.y).y;
    return vec2<u32>(two, top.y + select(0u, 1u, one < top.x) + select(0u, 1u, two < one));
}

// Revolutions per position of pair `i`, with 56 bits after the point.
fn frequency_of(i: u32) -> vec2<u32> {
    let low = i & 7u;
    let high = i >> 3u;
    var a = vec2<u32>({{high_table[0][0]}}u, {{high_table[0][1]}}u);
  #for n in 1..len(high_table)
    a = select(a, vec2<u32>({{high_table[n][0]}}u, {{high_table[n][1]}}u), high == {{n}}u);
  #endfor
    var b = vec2<u32>({{low_table[0][0]}}u, {{low_table[0][1]}}u);
  #for n in 1..len(low_table)
    b = select(b, vec2<u32>({{low_table[n][0]}}u, {{low_table[n][1]}}u), low == {{n}}u);
  #endfor
    return mul64_high(a, b);
}
  #if factors
#include "rope/divide_frequency.wgsl"
  #endif
fn cos_sin(position: u32, i: u32) -> vec2<f32> {
  #if factors
    let f = divided(frequency_of(i), factors[i]);
  #else
    let f = frequency_of(i);
  #endif
    let product = mul32(f.x, position) + vec2<u32>(0u, f.y * position);
    // The fraction of a revolution, as 32 bits.
    let part = (product.y << 8u) | (product.x >> 24u);
    // The nearest quarter of a revolution, and the angle in radians from it: at most an eighth of a
    // revolution.
    let quarter = (part + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(part - (quarter << 30u))) * 1.4629180792671596e-9;
    let y = x * x;
    var s = fma(y, -1.9515295891e-4, 8.3321608736e-3);
    s = fma(s, y, -1.6666654611e-1);
    s = fma(s * y, x, x);
    var c = fma(y, 2.443315711809948e-5, -1.388731625493765e-3);
    c = fma(c, y, 4.166664568298827e-2);
    c = fma(c * y, y, fma(y, -0.5, 1.0));
    let both = select(vec2<f32>(c, s), vec2<f32>(-s, c), (quarter & 1u) == 1u);
    return select(both, -both, (quarter & 2u) == 2u) * {{magnitude}};
}
#endif
