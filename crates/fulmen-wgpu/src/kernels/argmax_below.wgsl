//! Helper functions, called by one thread: `is_below(a, b)`, whether a pair (order key, index) comes after
//! another one in the order of `larger`, and `value_of_key(key)`, the value of an order key.
fn is_below(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > 0u && (a.x < b.x || (a.x == b.x && a.y > b.y));
}

fn value_of_key(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, key > 0x7fffffffu));
}
