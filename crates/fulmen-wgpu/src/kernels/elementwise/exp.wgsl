//! Helper function on `EwF` (element-wise): `ew_exp(x)`, e^x with a relative error below 1e-6; NaN
//! stays NaN. Expects `nan.wgsl`.
//!
//! Range reduction x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, and 2^n as two normal
//! factors. Arguments past the bounds give 0 or infinity anyway.
fn ew_exp(x: EwF) -> EwF {
    let low = select(x, EwF(-105.0), x < EwF(-105.0));
    let c = select(low, EwF(89.0), low > EwF(89.0));
    let n = round(c * 1.44269504);
    // ln 2 in two parts: the product of the first, of 16 bits, with n is exact; the second is small
    // enough for e^d = 1 + d. Taking off both would be clearer, but compilers join them again.
    let r = fma(n, EwF(-0.693145751953125), c);
    var p = fma(r, EwF(1.3814465e-3), EwF(8.368781e-3));
    p = fma(p, r, EwF(4.1668393e-2));
    p = fma(p, r, EwF(0.1666652));
    p = fma(p, r, EwF(0.49999994));
    let near = fma(r * r, p, r) + EwF(1.0);
    let y = fma(near, n * -1.42860677e-6, near);
    let i = EwI(n);
    let half = i >> EwU(1u);
    let first = bitcast<EwF>((half + EwI(127)) << EwU(23u));
    let second = bitcast<EwF>((i - half + EwI(127)) << EwU(23u));
    return ew_keep_nan(x, y * first * second);
}
