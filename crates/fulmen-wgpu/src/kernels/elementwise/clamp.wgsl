// x between the bounds, and NaN for NaN.
fn ew_clamp(x: EwF, lo: EwF, hi: EwF) -> EwF {
    let raised = select(x, lo, x < lo);
    return ew_keep_nan(x, select(raised, hi, raised > hi));
}
