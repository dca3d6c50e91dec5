//! Eager, interrupted and replayed runs of random graphs give the same bits.

use fulmen_testkit::runs::assert_runs_agree;
use fulmen_testkit::{sample::some_of, seed};

use crate::dispatcher;

#[test]
fn runs_agree() {
    let (mut wgpu, seed) = (dispatcher(), seed());
    // Up to 8 rows forward activations; most other sizes have no kernels of their own.
    let mut rows = some_of("small numbers of rows", 2, 1..=8);
    rows.extend(some_of("numbers of rows", 1, 9..=33));
    assert_runs_agree(&mut wgpu, rows, seed);
}
