//! Q8_0 rows as planes: the first 16 quants of every block of 32, then the others, then scales (f16).
//!
//! Part of the GEMV and GEMM kernels; one thread fetches and decodes one block.
#include "qmatmul/formats/block32.wgsl"

struct Raw{{suffix}} { lo: vec4<u32>, hi: vec4<u32>, scale: u32 }

fn row_length{{suffix}}() -> u32 {
    let blocks = params.k / 32u;
    return 2u * blocks + (blocks + 7u) / 8u;
}

fn fetch{{suffix}}(base: u32, ib: u32) -> Raw{{suffix}} {
    let blocks = params.k / 32u;
    return Raw{{suffix}}(
        w{{suffix}}[base + ib],
        w{{suffix}}[base + blocks + ib],
        word{{suffix}}((base + 2u * blocks) * 4u + ib / 2u),
    );
}

fn decode{{suffix}}(raw: Raw{{suffix}}, ib: u32) -> Block32{{suffix}} {
    return Block32{{suffix}}(raw.lo, raw.hi, vec2<f32>(f16_of{{suffix}}(raw.scale, ib)), vec2<f32>());
}
