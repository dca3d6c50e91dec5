//! One block of the f32 dot product, `sum + Σ w · a` over 32 elements: f32 activations by dequantized
//! weights.
//!
//! Part of the GEMV kernel (gemv.wgsl): one thread multiplies one block. `unpack` makes numbers of a word
//! of quants.
struct Activations { v: array<vec4<f32>, 8> }

fn activations(base: u32, ib: u32) -> Activations {
    let at = base + ib * 8u;
    return Activations(array<vec4<f32>, 8>(
        a[at], a[at + 1u], a[at + 2u], a[at + 3u], a[at + 4u], a[at + 5u], a[at + 6u], a[at + 7u],
    ));
}

fn bytes(quants: u32) -> vec4<f32> { return vec4<f32>({{unpack}}(quants)); }

fn dot_half(
    quants: vec4<u32>, scale: f32, offset: f32, x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, t: vec4<f32>,
) -> f32 {
    let sum = dot(bytes(quants.x), x) + dot(bytes(quants.y), y)
        + dot(bytes(quants.z), z) + dot(bytes(quants.w), t);
    return scale * sum + offset * dot((x + y) + (z + t), vec4<f32>(1.0));
}

fn dot_block(sum: f32, block: Block32, v: Activations) -> f32 {
    return sum + dot_half(block.lo, block.scale.x, block.offset.x, v.v[0], v.v[1], v.v[2], v.v[3])
        + dot_half(block.hi, block.scale.y, block.offset.y, v.v[4], v.v[5], v.v[6], v.v[7]);
}
