//! Helper of `decode.wgsl` with fused RoPE and KV store: module-scope declarations.
//!
//! Defines `new_heads` (the row's query heads of this workgroup, then its key, then its value,
//! `head_dim` f32 elements each; filled by `fused_rope_store.wgsl`, one thread team per head),
//! `rotated_query(head, vec)` and `encoded(vec4<f32>)`, which converts to the cache type (`kv_type`:
//! f32 or f16).
#include "workgroup/reduce.wgsl"
#include "rope/sin_cos.wgsl"
var<workgroup> new_heads: array<f32, {{(heads + 2) * head_dim}}>;
fn new_heads4(at: u32) -> vec4<f32> {
    return vec4<f32>(new_heads[at], new_heads[at + 1u], new_heads[at + 2u], new_heads[at + 3u]);
}
fn rotated_query(head: u32, vec: u32) -> vec4<f32> { return new_heads4(head * {{head_dim}}u + vec * 4u); }
#if kv_type == "f32"
fn encoded(v: vec4<f32>) -> vec4<f32> { return v; }
#else
#include "kv/f16_bits.wgsl"
fn encoded(v: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(f16_bits(v.x) | (f16_bits(v.y) << 16u), f16_bits(v.z) | (f16_bits(v.w) << 16u));
}
#endif
