// Whether each lane is a NaN, from its bits: compilers may take comparisons of floats for free of NaNs.
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
