// The product of two numbers in 64 bits: low word, high word.
fn wide(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let one = al * bh;
    let two = ah * bl;
    let middle = (low >> 16u) + (one & 0xffffu) + (two & 0xffffu);
    let high = ah * bh + (one >> 16u) + (two >> 16u) + (middle >> 16u);
    return vec2<u32>((low & 0xffffu) | (middle << 16u), high);
}

// The upper 64 of the 128 bits of a product, but for the last of them.
fn upper_product(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let top = wide(a.y, b.y);
    let one = top.x + wide(a.y, b.x).y;
    let two = one + wide(a.x, b.y).y;
    return vec2<u32>(two, top.y + select(0u, 1u, one < top.x) + select(0u, 1u, two < one));
}

// The turns of pair `i` for each position, with 56 bits after the point.
fn frequency_of(i: u32) -> vec2<u32> {
    let low = i & 7u;
    let high = i >> 3u;
{{tables}}
    return upper_product(a, b);
}
{{divide}}
// Cosine and sine of pair `i` at `position`, times the magnitude. Angles are whole multiples of 2^-32 turns, so they are
// as exact at a position of a million as at 1.
fn turn_of(position: u32, i: u32) -> vec2<f32> {
    let f = {{frequency}};
    let product = wide(f.x, position) + vec2<u32>(0u, f.y * position);
    let part = (product.y << 8u) | (product.x >> 24u);
    // A quarter, and at most an eighth of a turn from it.
    let quarter = (part + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(part - (quarter << 30u))) * 1.4629180792671596e-9;
    let y = x * x;
    var s = fma(y, -1.9515295891e-4, 8.3321608736e-3);
    s = fma(s, y, -1.6666654611e-1);
    s = fma(s * y, x, x);
    var c = fma(y, 2.443315711809948e-5, -1.388731625493765e-3);
    c = fma(c, y, 4.166664568298827e-2);
    c = fma(c * y, y, fma(y, -0.5, 1.0));
    let both = select(vec2<f32>(c, s), vec2<f32>(-s, c), (quarter & 1u) == 1u);
    return select(both, -both, (quarter & 2u) == 2u) * {{magnitude}};
}
