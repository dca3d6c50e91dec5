//! Helper functions on `EwF` (element-wise) that handle NaN by its bits: `ew_is_nan(x)`, `ew_keep_nan(x, y)`,
//! `ew_or_nan(y, nan)`. Compilers may assume that float comparisons see no NaN.
// Whether each lane is NaN.
fn ew_is_nan(x: EwF) -> EwB {
    return (bitcast<EwU>(x) & EwU(0x7fffffffu)) > EwU(0x7f800000u);
}

// y, but x where x is a NaN: compilers may turn comparisons into a minimum or a maximum, which drop it.
fn ew_keep_nan(x: EwF, y: EwF) -> EwF {
    return select(y, x, ew_is_nan(x));
}

// y, but NaN where `nan` says so.
fn ew_or_nan(y: EwF, nan: EwB) -> EwF {
    return bitcast<EwF>(select(bitcast<EwU>(y), EwU(0x7fc00000u), nan));
}
