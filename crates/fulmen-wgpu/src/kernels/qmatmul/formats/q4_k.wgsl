//! Q4_K rows as planes: quants (16 bytes a block of 32), then headers (16 bytes for eight blocks,
//! k_header.wgsl).
//!
//! Part of the GEMV and GEMM kernels; one thread fetches and decodes one block.
#include "qmatmul/formats/block32.wgsl"
#include "qmatmul/formats/k_header.wgsl"

struct Raw{{suffix}} { quants: vec4<u32>, header: vec4<u32> }

fn row_length{{suffix}}() -> u32 {
    let blocks = params.k / 32u;
    return blocks + blocks / 8u;
}

fn fetch{{suffix}}(base: u32, ib: u32) -> Raw{{suffix}} {
    return Raw{{suffix}}(w{{suffix}}[base + ib], w{{suffix}}[base + params.k / 32u + ib / 8u]);
}

fn decode{{suffix}}(raw: Raw{{suffix}}, ib: u32) -> Block32{{suffix}} {
    let pair = scale_min{{suffix}}(raw.header, ib);
    return Block32{{suffix}}(
        raw.quants & LOW{{suffix}},
        (raw.quants >> vec4<u32>(4u)) & LOW{{suffix}},
        pair.xx,
        -pair.yy,
    );
}
