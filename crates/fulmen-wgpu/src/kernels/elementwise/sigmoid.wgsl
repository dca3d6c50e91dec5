// 1 / (1 + e^-x). The exponential of the negative magnitude never overflows, so neither side loses precision.
fn ew_sigmoid(x: EwF) -> EwF {
    let e = ew_exp(-abs(x));
    return select(EwF(1.0), e, x < EwF(0.0)) / (EwF(1.0) + e);
}

// x g, but 0 for -inf, where g is 0.
fn ew_gated(x: EwF, g: EwF) -> EwF {
    return ew_keep_nan(x, select(x * g, EwF(0.0), x < EwF(-3.4028234e38)));
}

// x / (1 + e^-x). On the left x e^x / (1 + e^x), with the root of e^x twice: e^x itself may be subnormal where the product is
// not, and devices may make it 0.
fn ew_swish(x: EwF) -> EwF {
    let h = ew_exp(-0.5 * abs(x));
    let y = select(x, x * h * h, x < EwF(0.0)) / fma(h, h, EwF(1.0));
    return ew_keep_nan(x, select(y, EwF(0.0), x < EwF(-3.4028234e38)));
}
