//! What every block format has in common: 32 weights of a row, dequantized as `scale * quant + offset`.
//!
//! Part of the GEMV, tiled GEMM and cooperative-matrix GEMM kernels with block-quantized weights. A
//! format's file (q4_k.wgsl, …) has the layout of a packed row of W (`repack.rs` writes it) and, over the
//! array `w` of vec4<u32>:
//! - `row_length()`: vec4s of a row;
//! - `fetch(base, ib)`: the loads for block `ib` of the row at `base`, without arithmetic, as `Raw`;
//! - `decode(raw, ib)`: its quants as bytes, scales and offsets, as `Block32`.
//! `suffix` is appended to all names, so that a kernel can have several weights (fused_gemv.wgsl); else
//! it is empty.

// Quants as bytes, four in a word, elements 0 to 15 in `lo`, the others in `hi`; scale and offset of each
// half.
struct Block32{{suffix}} { lo: vec4<u32>, hi: vec4<u32>, scale: vec2<f32>, offset: vec2<f32> }

const LOW{{suffix}} = vec4<u32>(0x0f0f0f0fu);

fn word{{suffix}}(at: u32) -> u32 { return w{{suffix}}[at >> 2u][at & 3u]; }

// The f16 of number `ib & 1` in a word.
fn f16_of{{suffix}}(pair: u32, ib: u32) -> f32 { return unpack2x16float(pair >> (16u * (ib & 1u))).x; }
