//! Helper function on `EwF` (element-wise): `ew_clamp(x, lo, hi)`, x between the bounds; NaN stays NaN.
//! Expects `nan.wgsl`.
fn ew_clamp(x: EwF, lo: EwF, hi: EwF) -> EwF {
    let raised = select(x, lo, x < lo);
    return ew_keep_nan(x, select(raised, hi, raised > hi));
}
