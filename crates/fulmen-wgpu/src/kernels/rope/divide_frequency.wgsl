//! Helper function of `sin_cos.wgsl`, called by one thread: `divided(f, factor)`, a 64-bit fixed-point
//! frequency divided by an f32 factor. Long division by the 24-bit significand, byte by byte; exact
//! except for the last bit.
fn divided(f: vec2<u32>, factor: f32) -> vec2<u32> {
    let bits = bitcast<u32>(factor);
    if (bits == 0x3f800000u) { return f; }
    let by = (bits & 0x7fffffu) | 0x800000u;
    var rest = 0u;
    var q = vec2<u32>(0u, 0u);
    for (var i = 0u; i < 11u; i += 1u) {
        var byte = 0u;
        if (i < 4u) {
            byte = (f.y >> (24u - 8u * i)) & 255u;
        } else if (i < 8u) {
            byte = (f.x >> (56u - 8u * i)) & 255u;
        }
        let now = (rest << 8u) | byte;
        let digit = now / by;
        rest = now - digit * by;
        q = vec2<u32>((q.x << 8u) | digit, (q.y << 8u) | (q.x >> 24u));
    }
    // Undo the scaling: the quotient of a factor between 1 and 2 is shifted left by one bit.
    let shift = i32((bits >> 23u) & 255u) - 126;
    if (shift >= 64 || shift <= -64) { return vec2<u32>(0u, 0u); }
    if (shift >= 32) { return vec2<u32>(q.y >> u32(shift - 32), 0u); }
    if (shift > 0) {
        let by_right = u32(shift);
        return vec2<u32>((q.x >> by_right) | (q.y << (32u - by_right)), q.y >> by_right);
    }
    if (shift == 0) { return q; }
    if (shift > -32) {
        let by_left = u32(-shift);
        return vec2<u32>(q.x << by_left, (q.y << by_left) | (q.x >> (32u - by_left)));
    }
    return vec2<u32>(0u, q.x << u32(-shift - 32));
}
