//! Q6_K rows as planes: lower four bits (16 bytes a block of 32), then the upper two bits of the first 16
//! elements (4 bytes a block: bits `8b + 2w` for byte `b` of word `w`), of the others, then two scales a
//! block (i8), then the super-block scale of eight blocks (f16).
//!
//! Part of the GEMV and GEMM kernels; one thread fetches and decodes one block.
#include "qmatmul/formats/block32.wgsl"

struct Raw{{suffix}} { quants: vec4<u32>, high: vec2<u32>, scales: u32, super_scale: u32 }

fn row_length{{suffix}}() -> u32 {
    let super_blocks = params.k / 256u;
    return 13u * super_blocks + (super_blocks + 7u) / 8u;
}

fn fetch{{suffix}}(base: u32, ib: u32) -> Raw{{suffix}} {
    let blocks = params.k / 32u;
    let first = (base + blocks) * 4u;
    let scales = first + 2u * blocks;
    let high = vec2<u32>(word{{suffix}}(first + ib), word{{suffix}}(first + blocks + ib));
    return Raw{{suffix}}(
        w{{suffix}}[base + ib],
        high,
        word{{suffix}}(scales + ib / 2u),
        word{{suffix}}(scales + blocks / 2u + ib / 16u),
    );
}

fn decode{{suffix}}(raw: Raw{{suffix}}, ib: u32) -> Block32{{suffix}} {
    let lo = (raw.quants & LOW{{suffix}}) | upper_bits{{suffix}}(raw.high.x);
    let hi = ((raw.quants >> vec4<u32>(4u)) & LOW{{suffix}}) | upper_bits{{suffix}}(raw.high.y);
    let pair = bitcast<i32>(raw.scales >> (16u * (ib & 1u)));
    let scales = vec2<f32>(f32(extractBits(pair, 0u, 8u)), f32(extractBits(pair, 8u, 8u)));
    let scale = f16_of{{suffix}}(raw.super_scale, ib / 8u) * scales;
    return Block32{{suffix}}(lo, hi, scale, -32.0 * scale);
}

fn upper_bits{{suffix}}(bits: u32) -> vec4<u32> {
    let moved = vec4<u32>(bits << 4u, bits << 2u, bits, bits >> 2u);
    return moved & vec4<u32>(0x30303030u);
}
