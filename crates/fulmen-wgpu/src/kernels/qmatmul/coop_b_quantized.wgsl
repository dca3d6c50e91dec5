//! B of the cooperative-matrix GEMM (matmul/gemm_coop.wgsl) as packed rows of a block-quantized weight,
//! dequantized to f16 on the way into workgroup memory: a fetch is half a block, 16 elements of a tile's
//! row.
#define suffix ""
#include "qmatmul/formats/{{format}}.wgsl"
fn row_base(row: u32) -> u32 { return row * row_length(); }
fn fetch_b(base: u32, k: u32) -> Raw { return fetch(base, min(k, params.k - 32u) / 32u); }
fn decode_b(raw: Raw, k: u32, part: u32) -> vec4<f16> {
    let block = decode(raw, min(k, params.k - 32u) / 32u);
    let half = (k / 16u) & 1u;
    let quants = select(block.lo, block.hi, half == 1u)[part];
    return vec4<f16>(
        fma(vec4<f32>({{unpack}}(quants)), vec4<f32>(block.scale[half]), vec4<f32>(block.offset[half])),
    );
}
