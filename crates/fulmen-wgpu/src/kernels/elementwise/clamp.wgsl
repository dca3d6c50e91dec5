// x between the bounds. A NaN passes both comparisons, as the built-in clamp's need not.
fn ew_clamp(x: EwF, lo: EwF, hi: EwF) -> EwF {
    let raised = select(x, lo, x < lo);
    return select(raised, hi, raised > hi);
}
