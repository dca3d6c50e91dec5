//! Helper function on `EwF` (element-wise): `ew_tanh(x)`, the hyperbolic tangent. An odd polynomial
//! near 0, where the exponential form would cancel; 1 from 10 on. Expects `nan.wgsl` and `exp.wgsl`.
fn ew_tanh(x: EwF) -> EwF {
    let z = x * x;
    var p = fma(z, EwF(-5.7049785e-3), EwF(2.0639079e-2));
    p = fma(p, z, EwF(-5.373971e-2));
    p = fma(p, z, EwF(0.13331442));
    p = fma(p, z, EwF(-0.3333328));
    let near = fma(z * p, x, x);
    let a = abs(x);
    let far = EwF(1.0) - EwF(2.0) / (ew_exp(EwF(2.0) * select(a, EwF(10.0), a > EwF(10.0))) + EwF(1.0));
    return ew_keep_nan(x, select(select(far, -far, x < EwF(0.0)), near, a < EwF(0.625)));
}
