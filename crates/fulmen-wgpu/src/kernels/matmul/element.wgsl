//! `get_NAME(i)`: the i-th value, or the i-th four values, of the array NAME as f32.
//!
//! Family: elementwise load, shared by the GEMV and GEMM kernels. Forms: `f32`; `f16` where the device
//! has the type; `packed_f16`, two in a word, where it has not; `bf16`, two in a word (the upper 16 bits
//! of an f32).
#macro getter(name, form, width)
#if form == "f32" && width == 4
fn get_{{name}}(i: u32) -> vec4<f32> { return {{name}}[i]; }
#elif form == "f32"
fn get_{{name}}(i: u32) -> f32 { return {{name}}[i]; }
#elif form == "f16" && width == 4
fn get_{{name}}(i: u32) -> vec4<f32> { return vec4<f32>({{name}}[i]); }
#elif form == "f16"
fn get_{{name}}(i: u32) -> f32 { return f32({{name}}[i]); }
#elif form == "packed_f16" && width == 4
fn get_{{name}}(i: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float({{name}}[i].x), unpack2x16float({{name}}[i].y));
}
#elif form == "packed_f16"
fn get_{{name}}(i: u32) -> f32 { return unpack2x16float({{name}}[i / 2u])[i & 1u]; }
#elif width == 4
fn get_{{name}}(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(({{name}}[i].xxyy << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u));
}
#else
fn get_{{name}}(i: u32) -> f32 {
    return bitcast<f32>(({{name}}[i / 2u] << (16u - 16u * (i & 1u))) & 0xffff0000u);
}
#endif
#endmacro
