// Whether each lane is a NaN, from its bits: compilers may take comparisons of floats for free of NaNs.
fn ew_is_nan(x: EwF) -> EwB {
    return (bitcast<EwU>(x) & EwU(0x7fffffffu)) > EwU(0x7f800000u);
}
