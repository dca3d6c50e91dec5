// Four elements of a row.
fn value(row: u32, unit: u32) -> Values {
    let it = unit / 8u;
    let at = unit & 3u;
    let item = decode(fetch(row * row_length(), it), it);
    if ((unit & 4u) == 0u) {
        return vec4<f32>({{unpack}}(item.lo[at])) * item.scale.x + item.offset.x;
    }
    return vec4<f32>({{unpack}}(item.hi[at])) * item.scale.y + item.offset.y;
}
