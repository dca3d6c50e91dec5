//! Helper functions on `EwU`/`EwF` (element-wise): `order_key(x)`, integers in the order of the values,
//! with NaN above all; `of_order_key(key)`, the inverse.
fn order_key(x: EwF) -> EwU {
    let bits = bitcast<EwU>(x);
    let key = bits ^ select(EwU(0x80000000u), EwU(0xffffffffu), bits > EwU(0x7fffffffu));
    return select(key, EwU(0xffffffffu), (bits & EwU(0x7fffffffu)) > EwU(0x7f800000u));
}

fn of_order_key(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, key > 0x7fffffffu));
}
