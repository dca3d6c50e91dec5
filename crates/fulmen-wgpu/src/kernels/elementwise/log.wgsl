//! Helper function on `EwF` (element-wise): `ew_log(x)`, the natural logarithm; -inf for 0, NaN below 0.
//!
//! x = 2^n m with m between sqrt(1/2) and sqrt(2), and ln m as a series in s = (m - 1) / (m + 1), exact
//! in the first term.
fn ew_log(x: EwF) -> EwF {
    let tiny = x < EwF(1.17549435e-38);
    let shifted = bitcast<EwU>(select(x, x * 8388608.0, tiny)) - EwU(0x3f3504f3u);
    let m = bitcast<EwF>((shifted & EwU(0x007fffffu)) + EwU(0x3f3504f3u));
    let n = EwF(bitcast<EwI>(shifted) >> EwU(23u)) - select(EwF(0.0), EwF(23.0), tiny);
    let f = m - EwF(1.0);
    let s = f / (EwF(2.0) + f);
    let z = s * s;
    var q = fma(z, EwF(0.22222222), EwF(0.2857143));
    q = fma(q, z, EwF(0.4));
    q = fma(q, z, EwF(0.6666667));
    let near = f - s * (f - z * q);
    let y = fma(n, EwF(0.693359375), fma(n, EwF(-2.12194440e-4), near));
    // -inf for 0, itself for inf and NaN, NaN below 0.
    let bits = bitcast<EwU>(x);
    var r = select(bitcast<EwU>(y), EwU(0xff800000u), x == EwF(0.0));
    r = select(r, bits, (bits & EwU(0x7fffffffu)) > EwU(0x7f7fffffu));
    r = select(r, EwU(0x7fc00000u), x < EwF(0.0));
    return bitcast<EwF>(r);
}
