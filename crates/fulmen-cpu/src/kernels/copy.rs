//! Parallel memcpy in chunks of `GRAIN` bytes; bound by memory bandwidth.

use super::parallel::{SharedPtr, ranges};
use crate::threads::Pool;

/// Bytes per task; smaller copies stay on one thread.
const GRAIN: usize = 256 * 1024;

/// Copies `from` to `to`, which must be as long.
pub fn copy(pool: &Pool, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "the lengths of a copy");
    let shared = SharedPtr::new(to.as_mut_ptr());
    ranges(pool, from.len(), GRAIN, &|r| {
        // SAFETY: the ranges lie within both and do not overlap each other.
        unsafe { from.as_ptr().add(r.start).copy_to_nonoverlapping(shared.at(r.start), r.len()) };
    });
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    #[test]
    fn every_byte_arrives() {
        let mut rng = rng();
        for n in LENGTHS.into_iter().chain([GRAIN, GRAIN + 1, 5 * GRAIN - 3]) {
            let from: Vec<u8> = (0..n).map(|_| rng.u8(..)).collect();
            for threads in [1, 4] {
                let mut to = vec![0xaa; n + 64];
                copy(&Pool::new(threads), &from, &mut to[..n]);
                assert!(to[..n] == from && to[n..].iter().all(|&b| b == 0xaa), "{n}");
            }
        }
    }
}
