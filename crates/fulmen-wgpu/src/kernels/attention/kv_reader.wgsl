//! Helper functions for attention kernels: `load_k(row, vec)` and `load_v(row, vec)` return vector
//! `vec` of a key or value, dequantized. One thread loads one `Val`: `vec4<f32>`, or `f32` where
//! `head_dim` is not a multiple of 4.
//!
//! Expects the bindings `k` and `v`. Layouts by `kv_type`:
//! - `f32`, `f16`: `head_dim` elements per row; f16 as packed pairs in `u32` or `vec2<u32>`;
//! - `q8_0`: ggml blocks of 34 bytes per 32 elements, an f16 scale and 32 int8 quants. Blocks are not
//!   word-aligned, so they are addressed in 16-bit units: 17 per block.
#macro loader(name)
  #if kv_type == "q8_0"
// The 32 bits that start at 16-bit unit `at`.
fn unaligned_word_of_{{name}}(at: u32) -> u32 {
    let w = {{name}}[at >> 1u];
    if ((at & 1u) == 0u) { return w; }
    return (w >> 16u) | ({{name}}[(at >> 1u) + 1u] << 16u);
}
  #endif
fn load_{{name}}(row: u32, vec: u32) -> Val {
  #if kv_type == "f32"
    return {{name}}[row * {{vecs}}u + vec];
  #elif kv_type == "f16" && width == 4
    let w = {{name}}[row * {{vecs}}u + vec];
    return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
  #elif kv_type == "f16"
    let at = row * {{vecs}}u + vec;
    let w = unpack2x16float({{name}}[at >> 1u]);
    return select(w.x, w.y, (at & 1u) == 1u);
  #else
    let block = (row * {{head_dim / 32}}u + vec / 8u) * 17u;
    let scale = unpack2x16float({{name}}[block >> 1u] >> (16u * (block & 1u))).x;
    return scale * vec4<f32>(unpack4xI8(unaligned_word_of_{{name}}(block + 1u + 2u * (vec % 8u))));
  #endif
}
#endmacro
#expand loader("k")
#expand loader("v")
