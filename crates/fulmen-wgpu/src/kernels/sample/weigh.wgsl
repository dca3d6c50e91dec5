//! Helper functions of the sampling kernels, called by one thread: 64-bit arithmetic (low word, high
//! word), the distance of a logit from the largest, its histogram bin and its weight. Expects `ew_exp`.
fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// Distance of a logit from the largest, in units of the temperature. Monotonic in the logit.
fn distance_of(key: u32, value: f32, top_key: u32, top: f32, inverse: f32) -> f32 {
    // inf - inf would be NaN.
    return select((top - value) * inverse, 0.0, key == top_key);
}

// 32 bins per factor of e. The last bin has no weight.
fn bin_of(distance: f32) -> u32 {
    if (distance < 31.96875) { return u32(distance * 32.0); }
    return {{bins}}u - 1u;
}

// e^-distance as a fixed-point number, a multiple of 2^-40: sums do not depend on their order.
fn mass_of(distance: f32) -> vec2<u32> {
    let scaled = ew_exp(-distance) * 256.0;
    let high = floor(scaled);
    return vec2<u32>(u32((scaled - high) * 4294967296.0), u32(high));
}

// The value of an order key.
fn value_of(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, key > 0x7fffffffu));
}

// Whether a row with this temperature is sampled, rather than greedy.
fn draws(temperature: u32) -> bool { return temperature > 0u && temperature < 0x7f800000u; }
