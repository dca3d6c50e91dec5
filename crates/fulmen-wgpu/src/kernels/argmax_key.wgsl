//! Helper function, called by one thread: `key_of(value, index)` returns (order key, index). Keys are
//! integers in the order of the values; NaN and -inf, which are never chosen, have key 0.
fn key_of(value: f32, index: u32) -> vec2<u32> {
    var bits = bitcast<u32>(value);
    // -0 equals 0.
    if (bits == 0x80000000u) { bits = 0u; }
    let key = bits ^ select(0x80000000u, 0xffffffffu, bits > 0x7fffffffu);
    let chosen = (bits & 0x7fffffffu) <= 0x7f800000u && bits != 0xff800000u;
    return vec2<u32>(select(0u, key, chosen), index);
}
