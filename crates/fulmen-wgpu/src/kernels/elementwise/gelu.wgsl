//! Helper function on `EwF` (element-wise): `ew_gelu(x)`, x times the cumulative normal distribution.
//! Expects `nan.wgsl` and `exp.wgsl`.
//!
//! The tail of |x| is e^(-x^2/2) times a smooth function, a polynomial in t. For negative x the tail
//! itself is the factor, so it keeps its relative precision.
fn ew_gelu(x: EwF) -> EwF {
    let abs_x = abs(x);
    let a = select(abs_x, EwF(20.0), abs_x > EwF(20.0));
    let t = EwF(1.0) / fma(a, EwF(0.265), EwF(1.0));
    var p = fma(t, EwF(0.0306244884), EwF(-0.143300742));
    p = fma(p, t, EwF(0.215950608));
    p = fma(p, t, EwF(-0.114286654));
    p = fma(p, t, EwF(0.136555061));
    p = fma(p, t, EwF(0.0608949773));
    p = fma(p, t, EwF(0.102555096));
    p = fma(p, t, EwF(0.105266772));
    p = fma(p, t, EwF(0.105740391));
    // a² = h² + rest, where h has so few bits that its square is exact: the exponential feels each bit of a².
    let h = bitcast<EwF>(bitcast<EwU>(a) & EwU(0xfffff000u));
    let d = (a - h) * (a + h) * -0.5;
    var e = fma(d, EwF(0.041666668), EwF(0.16666667));
    e = fma(e, d, EwF(0.5));
    e = fma(e, d, EwF(1.0));
    e = fma(e, d, EwF(1.0)) * ew_exp(h * h * -0.5);
    // On the left x is taken in before e, which may be so small that the product without x is
    // subnormal. -inf gives 0.
    let tp = t * p;
    let left = select(x * tp, EwF(0.0), x < EwF(-3.4028234e38)) * e;
    return ew_keep_nan(x, select(left, x * (EwF(1.0) - tp * e), x > EwF(0.0)));
}
