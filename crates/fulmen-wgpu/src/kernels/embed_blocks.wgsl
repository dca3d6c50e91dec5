//! Helper function of `embed.wgsl` for block-quantized tables, called by one thread: `value(row,
//! vec)`, the 4 elements `vec` of a row. Expects `fetch`, `decode` and `row_length` of the block
//! format, and its `unpack` function.
fn value(row: u32, vec: u32) -> Values {
    let it = vec / 8u;
    let at = vec & 3u;
    let item = decode(fetch(row * row_length(), it), it);
    if ((vec & 4u) == 0u) {
        return vec4<f32>({{unpack}}(item.lo[at])) * item.scale.x + item.offset.x;
    }
    return vec4<f32>({{unpack}}(item.hi[at])) * item.scale.y + item.offset.y;
}
