//! Q4_1 rows as planes: quants (16 bytes a block of 32), then pairs of scale and minimum (f16).
//!
//! Part of the GEMV and GEMM kernels; one thread fetches and decodes one block.
#include "qmatmul/formats/block32.wgsl"

struct Raw{{suffix}} { quants: vec4<u32>, scale: u32 }

fn row_length{{suffix}}() -> u32 {
    let blocks = params.k / 32u;
    return blocks + (blocks + 3u) / 4u;
}

fn fetch{{suffix}}(base: u32, ib: u32) -> Raw{{suffix}} {
    return Raw{{suffix}}(w{{suffix}}[base + ib], word{{suffix}}((base + params.k / 32u) * 4u + ib));
}

fn decode{{suffix}}(raw: Raw{{suffix}}, ib: u32) -> Block32{{suffix}} {
    let pair = unpack2x16float(raw.scale);
    return Block32{{suffix}}(
        raw.quants & LOW{{suffix}},
        (raw.quants >> vec4<u32>(4u)) & LOW{{suffix}},
        pair.xx,
        pair.yy,
    );
}
