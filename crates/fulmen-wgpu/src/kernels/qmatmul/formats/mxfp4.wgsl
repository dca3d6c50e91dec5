//! MXFP4 rows as planes: quants (16 bytes a block of 32), then exponents of the scales (a byte each).
//!
//! Part of the GEMV and GEMM kernels; one thread fetches and decodes one block. Quants are E2M1 numbers:
//! they become twice their value as signed bytes, by arithmetic on four of them at once.
#include "qmatmul/formats/block32.wgsl"

struct Raw{{suffix}} { quants: vec4<u32>, scales: u32 }

fn row_length{{suffix}}() -> u32 {
    let blocks = params.k / 32u;
    return blocks + (blocks + 15u) / 16u;
}

fn fetch{{suffix}}(base: u32, ib: u32) -> Raw{{suffix}} {
    return Raw{{suffix}}(w{{suffix}}[base + ib], word{{suffix}}((base + params.k / 32u) * 4u + ib / 4u));
}

// Four E2M1 numbers in the low nibbles of the bytes of a word, times 2.
fn e2m1{{suffix}}(quants: vec4<u32>) -> vec4<u32> {
    let ones = vec4<u32>(0x01010101u);
    // 0 to 3 are themselves; 4 to 7 are 4, 6, 8 and 12.
    let low = quants & vec4<u32>(0x03030303u);
    let three = low & (low >> vec4<u32>(1u)) & ones;
    let upper = ((quants >> vec4<u32>(2u)) & ones) * 255u;
    let magnitude = low + (upper & (vec4<u32>(0x04040404u) + low + 2u * three));
    // In two's complement, without carries from byte to byte.
    let flip = vec4<u32>(0x80808080u);
    let negative = ((quants >> vec4<u32>(3u)) & ones) * 255u;
    return (magnitude & ~negative) | (((flip - magnitude) ^ flip) & negative);
}

fn decode{{suffix}}(raw: Raw{{suffix}}, ib: u32) -> Block32{{suffix}} {
    // Half the scale, 2^(e - 128). The two least ones are subnormal: 0 on most devices.
    let e = (raw.scales >> (8u * (ib & 3u))) & 255u;
    let scale = bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u));
    return Block32{{suffix}}(
        e2m1{{suffix}}(raw.quants & LOW{{suffix}}),
        e2m1{{suffix}}((raw.quants >> vec4<u32>(4u)) & LOW{{suffix}}),
        vec2<f32>(scale),
        vec2<f32>(),
    );
}
