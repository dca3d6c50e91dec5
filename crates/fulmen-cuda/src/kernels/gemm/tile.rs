//! Tiles of products: those that make the output soonest.

use crate::device::Caps;

// As in `gemm.cu`.
pub(super) const PLAIN_SIDE: u32 = 128;
pub(super) const PLAIN_SHARED: u32 = 3 * 2 * 128 * 128;

/// A tile of `gemm_hopper`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: u32,
    pub(super) columns: u32,
    /// Its time on an H200 with rows of 2560, in tenths of a microsecond.
    time: u64,
}

const HOPPER_TILES: [Tile; 5] = [
    Tile::new(128, 80, 145),
    Tile::new(128, 128, 170),
    Tile::new(128, 192, 235),
    Tile::new(128, 256, 310),
    Tile::new(256, 160, 390),
];

impl Tile {
    const fn new(rows: u32, columns: u32, time: u64) -> Tile {
        Tile { rows, columns, time }
    }

    /// Stages that fill the shared memory, and room to start them at a multiple of 1024.
    pub(super) fn shared(self) -> u32 {
        let stage = (self.rows + self.columns) * 128;
        (225 * 1024 / stage).min(6) * stage + 1024
    }

    /// How many make the output.
    pub(super) fn count(self, m: u32, n: u32) -> u64 {
        tiles(m, self.rows, n, self.columns)
    }
}

pub(super) fn tiles(m: u32, rows: u32, n: u32, columns: u32) -> u64 {
    u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns))
}

/// The tiles of `gemm_hopper` that make the output soonest; `None` where only `gemm` can. Where weights are cut at multiples of
/// `cut`, tiles end there, too.
pub(super) fn tile(caps: Caps, m: u32, w_rows: u32, cut: Option<u32>) -> Option<Tile> {
    let time = |tile: &Tile| tile.time * tile.count(m, w_rows).div_ceil(caps.multiprocessors.max(1).into());
    let fits = |tile: &Tile| {
        tile.shared() < caps.shared_bytes && cut.is_none_or(|cut| cut.is_multiple_of(tile.columns))
    };
    let tiles = HOPPER_TILES.into_iter().filter(fits).min_by_key(time);
    tiles.filter(|_| caps.has_wgmma())
}

#[cfg(test)]
mod tests {
    use super::super::plan::CUT;
    use super::*;

    const H200: Caps =
        Caps { capability: 90, multiprocessors: 132, shared_bytes: 232_448, l2_bytes: 62_914_560 };

    #[test]
    fn the_tiles_that_were_measured_as_fastest_are_taken() {
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
            let taken = tile(H200, m, n, None).map(|tile| (tile.rows, tile.columns));
            assert_eq!(taken, Some(expected), "{m} {n}");
            assert_eq!(tile(Caps { capability: 89, ..H200 }, m, n, None), None);
            assert_eq!(tile(Caps { capability: 100, ..H200 }, m, n, None), None);
        }
    }

    #[test]
    fn tiles_end_where_weights_are_cut() {
        for m in [129, 512, 2048] {
            let taken = tile(H200, m, 16 * CUT, Some(CUT)).unwrap();
            assert!(CUT.is_multiple_of(taken.columns), "{taken:?}");
        }
    }
}
