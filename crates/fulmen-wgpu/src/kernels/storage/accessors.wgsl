//! Helper functions for one buffer `name`, called by one thread: `load_<name>(i)` returns its i-th
//! `EwF`; with `writable` also `store_<name>(i, v)` and, for 4 lanes, `store_part_<name>(i, v, count)`,
//! which stores the first 1 to 3 lanes.
//!
//! `form` is how the kernel sees the elements: `f32`, `f16`, or `packed_f16` (two f16 per `u32`, for
//! devices without f16 in kernels). Single packed elements cannot be stored: two threads would write
//! one word. Expects `storage/lanes.wgsl`.
#if form == "packed_f16" && lanes == 4
fn load_{{name}}(i: u32) -> EwF {
    let w = {{name}}[i];
    return EwF(unpack2x16float(w.x), unpack2x16float(w.y));
}
#elif form == "packed_f16"
fn load_{{name}}(i: u32) -> EwF {
    let w = unpack2x16float({{name}}[i >> 1u]);
    return select(w.x, w.y, (i & 1u) == 1u);
}
#else
fn load_{{name}}(i: u32) -> EwF { return EwF({{name}}[i]); }
#endif
#if writable && (lanes == 4 || form != "packed_f16")
  #if form == "packed_f16"
fn store_{{name}}(i: u32, v: EwF) { {{name}}[i] = vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw)); }
fn store_part_{{name}}(i: u32, v: EwF, count: u32) {
    {{name}}[i].x = pack2x16float(vec2<f32>(v.x, select(0.0, v.y, count > 1u)));
    if (count > 2u) { {{name}}[i].y = pack2x16float(vec2<f32>(v.z, 0.0)); }
}
  #else
    #define cast form == "f16" ? "f16" : ""
    #if lanes == 1
fn store_{{name}}(i: u32, v: EwF) { {{name}}[i] = {{cast}}(v); }
    #else
fn store_{{name}}(i: u32, v: EwF) { {{name}}[i] = {{form == "f16" ? "vec4<f16>" : ""}}(v); }
fn store_part_{{name}}(i: u32, v: EwF, count: u32) {
    {{name}}[i].x = {{cast}}(v.x);
    if (count > 1u) { {{name}}[i].y = {{cast}}(v.y); }
    if (count > 2u) { {{name}}[i].z = {{cast}}(v.z); }
}
    #endif
  #endif
#endif
