//! Eager, interrupted and replayed runs of random graphs give the same bits.

use fulmen_testkit::runs::assert_runs_agree;
use fulmen_testkit::seed;

use crate::gpu;

#[test]
fn runs_agree() {
    let Some(gpu) = gpu() else { return };
    let (mut cuda, seed) = (gpu.dispatcher(), seed());
    for round in 0..8 {
        assert_runs_agree(&mut cuda, 1..=33, seed + 100 * round);
    }
    // Sizes with kernels that forward activations.
    for round in 0..100 {
        assert_runs_agree(&mut cuda, [1, 8, 16], seed + 1000 + 100 * round);
    }
}
