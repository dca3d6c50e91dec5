//! B of the cooperative-matrix GEMM (gemm_coop.wgsl) as f16 rows, [n, k]: a fetch is four elements of a
//! tile's row.
#if k_width == 4
fn fetch_b(base: u32, k: u32) -> vec4<f16> { return b[base + min(k, params.k - 4u) / 4u]; }
fn row_base(row: u32) -> u32 { return row * (params.k / 4u); }
#else
fn one_b(base: u32, k: u32) -> f16 { return b[base + min(k, params.k - 1u)]; }
fn fetch_b(base: u32, k: u32) -> vec4<f16> {
    return vec4<f16>(one_b(base, k), one_b(base, k + 1u), one_b(base, k + 2u), one_b(base, k + 3u));
}
fn row_base(row: u32) -> u32 { return row * params.k; }
#endif
// Zero past k: A is zero there, but B may be infinite.
fn decode_b(v: vec4<f16>, k: u32, part: u32) -> vec4<f16> {
    let inside = vec4<u32>(k, k + 1u, k + 2u, k + 3u) < vec4<u32>(params.k);
    return select(vec4<f16>(), v, inside);
}
