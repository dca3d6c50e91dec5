// Numbers whose order as unsigned integers is that of the floats, with NaN above all.
fn order_key(x: EwF) -> EwU {
    let bits = bitcast<EwU>(x);
    let key = bits ^ select(EwU(0x80000000u), EwU(0xffffffffu), bits > EwU(0x7fffffffu));
    return select(key, EwU(0xffffffffu), (bits & EwU(0x7fffffffu)) > EwU(0x7f800000u));
}

// The float of a number that `order_key` made.
fn of_order_key(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, key > 0x7fffffffu));
}
