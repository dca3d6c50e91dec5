// 32 elements of a row of W: codes as bytes (four in a word, elements 0 to 15 in `lo`, the others in `hi`),
// and for each half scale and offset: an element is `s * code + o`.
struct Item { lo: vec4<u32>, hi: vec4<u32>, s: vec2<f32>, o: vec2<f32> }

const LOW = vec4<u32>(0x0f0f0f0fu);

fn word(at: u32) -> u32 { return w[at >> 2u][at & 3u]; }

// The 16-bit float of number `it & 1` in a word.
fn half_of(pair: u32, it: u32) -> f32 { return unpack2x16float(pair >> (16u * (it & 1u))).x; }
