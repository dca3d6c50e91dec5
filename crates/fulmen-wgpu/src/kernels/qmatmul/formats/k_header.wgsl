//! Scale and minimum of a block of 32 in the 16-byte header of a Q4_K or Q5_K super-block of 256.
//!
//! Header: super-block scales d and dmin (f16), lower four bits of eight scales, of eight minima, upper
//! two bits of both.
//! Part of the GEMV and GEMM kernels; one thread decodes one block.
fn scale_min{{suffix}}(header: vec4<u32>, ib: u32) -> vec2<f32> {
    let at = ib & 7u;
    let low = (header.yz >> vec2<u32>(4u * at)) & vec2<u32>(15u);
    let high = (header.ww >> vec2<u32>(2u * at, 16u + 2u * at)) & vec2<u32>(3u);
    return unpack2x16float(header.x) * vec2<f32>(low | (high << vec2<u32>(4u)));
}
