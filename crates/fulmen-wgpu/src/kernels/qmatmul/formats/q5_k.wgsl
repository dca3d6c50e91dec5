//! Q5_K rows as planes: lower four bits (16 bytes a block of 32), then headers (16 bytes for eight
//! blocks, k_header.wgsl), then fifth bits (4 bytes a block: bit `8b + w` for byte `b` of word `w`).
//!
//! Part of the GEMV and GEMM kernels; one thread fetches and decodes one block.
#include "qmatmul/formats/block32.wgsl"
#include "qmatmul/formats/k_header.wgsl"

struct Raw{{suffix}} { quants: vec4<u32>, header: vec4<u32>, high: u32 }

fn row_length{{suffix}}() -> u32 {
    let blocks = params.k / 32u;
    return blocks + blocks / 8u + blocks / 4u;
}

fn fetch{{suffix}}(base: u32, ib: u32) -> Raw{{suffix}} {
    let blocks = params.k / 32u;
    let headers = base + blocks;
    return Raw{{suffix}}(
        w{{suffix}}[base + ib],
        w{{suffix}}[headers + ib / 8u],
        word{{suffix}}((headers + blocks / 8u) * 4u + ib),
    );
}

fn decode{{suffix}}(raw: Raw{{suffix}}, ib: u32) -> Block32{{suffix}} {
    let pair = scale_min{{suffix}}(raw.header, ib);
    let high = vec4<u32>(raw.high);
    let lo = (raw.quants & LOW{{suffix}}) | ((high << vec4<u32>(4u, 3u, 2u, 1u)) & vec4<u32>(0x10101010u));
    let hi = ((raw.quants >> vec4<u32>(4u)) & LOW{{suffix}})
        | ((high >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x10101010u));
    return Block32{{suffix}}(lo, hi, pair.xx, -pair.yy);
}
