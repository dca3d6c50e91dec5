//! What the tests of several kernels share.

use crate::{isa::Isa, threads::Pool};

/// Lengths around the vectors' and a model's.
pub(super) const LENGTHS: [usize; 12] = [0, 1, 3, 7, 8, 15, 16, 17, 255, 256, 257, 2560];

/// Values that are easily got wrong.
pub(super) const SPECIAL: [f32; 11] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    1e-45,
    -1e-40,
    f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    -1.0,
];

/// What outputs hold before a kernel runs, and must hold past their end when it has.
pub(super) const POISON: f32 = -7.654_321e33;

/// A generator of `FULMEN_TEST_SEED` or of a fresh seed, which is printed for the case that the test fails.
pub(super) fn rng() -> fastrand::Rng {
    let seed = fulmen_testkit::seed();
    println!("FULMEN_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// `n` numbers, of normal distribution (nearly) and of the given spread.
pub(super) fn normal(rng: &mut fastrand::Rng, n: usize, spread: f32) -> Vec<f32> {
    (0..n)
        .map(|_| ((0..6).map(|_| rng.f32()).sum::<f32>() - 3.0) * std::f32::consts::SQRT_2 * spread)
        .collect()
}

/// Every instruction set of this processor, on one thread and on several.
pub(super) fn machines() -> Vec<(Pool, Isa)> {
    Isa::available().into_iter().flat_map(|isa| [1, 4].map(|threads| (Pool::new(threads), isa))).collect()
}

/// Runs `f` on a poisoned output of length `n` and checks that nothing past the end is written.
pub(super) fn poisoned(n: usize, f: impl FnOnce(*mut f32)) -> Vec<f32> {
    let mut out = vec![POISON; n + 64];
    f(out.as_mut_ptr());
    assert!(out[n..].iter().all(|&x| x == POISON), "written past the end");
    out.truncate(n);
    out
}

/// The squared error over the squared magnitude.
pub(super) fn nmse(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let error: f64 = got.iter().zip(want).map(|(&g, &w)| (f64::from(g) - w).powi(2)).sum();
    let power: f64 = want.iter().map(|w| w * w).sum();
    if error == 0.0 { 0.0 } else { error / power }
}

/// Panics unless both hold the same bits, any NaN being as good as another.
#[track_caller]
pub(super) fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(), "{what}: {g} not {w} at {i}");
    }
}
