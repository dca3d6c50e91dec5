//! The tiles of the GEMM kernels, and which one computes an output fastest.

use super::partition::SLICE_ROWS;
use crate::device::Caps;

/// Width and height of the tiles of `gemm.cu`.
pub(super) const MMA_TILE: u32 = 128;

/// Shared memory of `gemm.cu`: three stages of both operands.
pub(super) const MMA_SHARED: u32 = 3 * 2 * 128 * 128;

/// A tile of `gemm_hopper.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HopperTile {
    pub(super) block_m: u32,
    pub(super) block_n: u32,
    /// Its time on an H200 with k = 2560, in tenths of a microsecond.
    time: u64,
}

const HOPPER_TILES: [HopperTile; 5] = [
    HopperTile::new(128, 80, 145),
    HopperTile::new(128, 128, 170),
    HopperTile::new(128, 192, 235),
    HopperTile::new(128, 256, 310),
    HopperTile::new(256, 160, 390),
];

impl HopperTile {
    const fn new(block_m: u32, block_n: u32, time: u64) -> HopperTile {
        HopperTile { block_m, block_n, time }
    }

    /// Dynamic shared memory: as many stages as fit, up to 6, and room to align them to 1024.
    pub(super) fn shared(self) -> u32 {
        let stage = (self.block_m + self.block_n) * 128;
        (225 * 1024 / stage).min(6) * stage + 1024
    }

    /// The number of tiles of an output.
    pub(super) fn count(self, m: u32, n: u32) -> u64 {
        n_tiles(m, self.block_m, n, self.block_n)
    }

    /// The tile that computes an output fastest; `None` where the device has no wgmma. `sliced`: weights are
    /// sliced at multiples of [`SLICE_ROWS`], so the tile's width must divide it.
    pub(super) fn fastest(caps: Caps, m: u32, w_rows: u32, sliced: bool) -> Option<HopperTile> {
        let multiprocessors = u64::from(caps.multiprocessors.max(1));
        let time = |tile: &HopperTile| tile.time * tile.count(m, w_rows).div_ceil(multiprocessors);
        let fits = |tile: &HopperTile| {
            tile.shared() < caps.shared_bytes && (!sliced || SLICE_ROWS.is_multiple_of(tile.block_n))
        };
        let fastest = HOPPER_TILES.into_iter().filter(fits).min_by_key(time);
        fastest.filter(|_| caps.has_wgmma())
    }
}

pub(super) fn n_tiles(m: u32, block_m: u32, n: u32, block_n: u32) -> u64 {
    u64::from(m.div_ceil(block_m)) * u64::from(n.div_ceil(block_n))
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 62_914_560 };

    #[test]
    fn the_tiles_that_were_measured_as_fastest_are_chosen() {
        let cases = [
            (2048, 6144, (128, 256)),
            (2048, 2560, (256, 160)),
            (2048, 19456, (128, 192)),
            (1024, 6144, (128, 192)),
            (1024, 2560, (128, 192)),
            (1024, 19456, (128, 256)),
            (512, 6144, (128, 192)),
            (512, 2560, (128, 80)),
            (512, 19456, (256, 160)),
            (17, 2560, (128, 80)),
        ];
        for (m, n, expected) in cases {
            let chosen = HopperTile::fastest(H200, m, n, false).map(|tile| (tile.block_m, tile.block_n));
            assert_eq!(chosen, Some(expected), "{m} {n}");
            for capability in [89, 100] {
                assert_eq!(HopperTile::fastest(Caps { capability, ..H200 }, m, n, false), None);
            }
        }
    }

    #[test]
    fn tiles_end_at_slices_of_weights() {
        for m in [129, 512, 2048] {
            let tile = HopperTile::fastest(H200, m, 16 * SLICE_ROWS, true).unwrap();
            assert!(SLICE_ROWS.is_multiple_of(tile.block_n), "{tile:?}");
        }
    }
}
