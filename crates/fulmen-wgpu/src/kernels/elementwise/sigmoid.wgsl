// 1 / (1 + e^-x). The exponential of the negative magnitude never overflows, so neither side loses precision.
fn ew_sigmoid(x: EwF) -> EwF {
    let e = ew_exp(-abs(x));
    return select(EwF(1.0), e, x < EwF(0.0)) / (EwF(1.0) + e);
}

// x g, but 0 for -inf, where g is 0.
fn ew_gated(x: EwF, g: EwF) -> EwF {
    return select(x * g, EwF(0.0), x < EwF(-3.4028234e38));
}
