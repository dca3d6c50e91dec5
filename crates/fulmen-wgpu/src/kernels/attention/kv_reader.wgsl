//! Helper functions for attention kernels: `load_k(row, vec)` and `load_v(row, vec)` return vector
//! `vec` of a key or value, dequantized. One thread loads one `Val`: `vec4<f32>`, or `f32` where
//! `head_dim` is not a multiple of 4.
//!
//! Expects the bindings `k` and `v`. Layouts by `kv_type`:
//! - `f32`, `f16`: `head_dim` elements per row; f16 as packed pairs in `u32` or `vec2<u32>`;
//! - `q8_0`: for the page rows of a page and head, page · `head_dim` int8 quants, then an f16 scale
//!   for each 32 of them.
#macro loader(name)
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
    let head = row / {{page}}u * {{page * head_dim / 32 * 34 / 4}}u;
    let at = row % {{page}}u;
    let block = at * {{head_dim / 32}}u + vec / 8u;
    let scales = {{name}}[head + {{page * head_dim / 4}}u + block / 2u];
    let scale = unpack2x16float(scales >> (16u * (block & 1u))).x;
    return scale * vec4<f32>(unpack4xI8({{name}}[head + at * {{vecs}}u + vec]));
  #endif
}
#endmacro
#expand loader("k")
#expand loader("v")
