//! Helper functions on `EwF` (element-wise): `ew_sigmoid(x)`, `ew_gated(x, g)` and `ew_swish(x)`.
//! Expects `nan.wgsl` and `exp.wgsl`.
// 1 / (1 + e^-x). e^-|x| never overflows, so neither side loses precision.
fn ew_sigmoid(x: EwF) -> EwF {
    let e = ew_exp(-abs(x));
    return select(EwF(1.0), e, x < EwF(0.0)) / (EwF(1.0) + e);
}

// x g, but 0 for x = -inf, where g is 0.
fn ew_gated(x: EwF, g: EwF) -> EwF {
    return ew_keep_nan(x, select(x * g, EwF(0.0), x < EwF(-3.4028234e38)));
}

// x / (1 + e^-x). Far left e^x may be subnormal where x e^x is not, and devices may flush it to 0.
// There the exponential is computed 2^64 times as large, and the exponent of the product is corrected
// in its bits, because compilers may reorder factors.
fn ew_swish(x: EwF) -> EwF {
    let far = clamp(x, EwF(-150.0), EwF(-80.0));
    let bits = bitcast<EwU>(far * ew_exp(far + 44.3614196));
    let exponent = (bits >> EwU(23u)) & EwU(255u);
    let tail = select(EwF(0.0), bitcast<EwF>(bits - EwU(64u << 23u)), exponent > EwU(64u));
    return ew_keep_nan(x, select(ew_gated(x, ew_sigmoid(x)), tail, x < EwF(-80.0)));
}
