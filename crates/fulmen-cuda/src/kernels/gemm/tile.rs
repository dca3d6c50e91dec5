//! Which kernel multiplies, by the times of its tiles.

use crate::device::Caps;

// As in `gemm.cu`.
pub(super) const PLAIN_SIDE: u32 = 128;
pub(super) const PLAIN_SHARED: u32 = 3 * 2 * 128 * 128;

// As in `gemm_hopper.cu`.
pub(super) const HOPPER_ROWS: u32 = 256;

/// Stages that fill the shared memory, and room to start them at a multiple of 1024.
pub(super) fn hopper_shared(columns: u32) -> u32 {
    let stage = (128 + columns) * 128;
    (220 * 1024 / stage).min(6) * stage + 1024
}

/// The capability whose matrix instructions the kernels of `gemm_hopper` use.
pub(super) const HOPPER: u32 = 90;

/// Columns of the tiles of `gemm_hopper`, and microseconds of such a tile on an H200, with rows of 2560.
pub(super) const HOPPER_TILES: [(u32, u64); 3] = [(128, 38), (160, 40), (256, 50)];

/// The same for `gemm`: where tiles have a multiprocessor each, and where two share one.
pub(super) const PLAIN_ALONE: u64 = 36;
pub(super) const PLAIN_SHARING: u64 = 59;

pub(super) fn tiles(m: u32, rows: u32, n: u32, columns: u32) -> u64 {
    u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns))
}

/// Pairs of blocks that run at once.
pub(super) fn clusters(caps: Caps) -> u64 {
    u64::from(caps.multiprocessors / 2).max(1)
}

/// The columns of the tiles of `gemm_hopper` that make the output soonest; `None` where `gemm` does.
pub(super) fn tile(caps: Caps, m: u32, w_rows: u32) -> Option<u32> {
    if caps.capability != HOPPER || m <= PLAIN_SIDE {
        return None;
    }
    let plain = tiles(m, PLAIN_SIDE, w_rows, PLAIN_SIDE);
    let (full, rest) = (plain / (4 * clusters(caps)), plain % (4 * clusters(caps)));
    let last = match rest {
        0 => 0,
        rest if rest <= clusters(caps) => PLAIN_ALONE,
        _ => PLAIN_SHARING,
    };
    let mut best = (full * PLAIN_SHARING + last, None);
    for (columns, time) in HOPPER_TILES {
        let time = time * tiles(m, HOPPER_ROWS, w_rows, columns).div_ceil(clusters(caps));
        if time < best.0 && hopper_shared(columns) < caps.shared_bytes {
            best = (time, Some(columns));
        }
    }
    best.1
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
            (2048, 6144, Some(256)),
            (2048, 2560, Some(160)),
            (2048, 19456, Some(256)),
            (2048, 1024, Some(128)),
            (1024, 2560, Some(160)),
            (1024, 19456, Some(256)),
            (512, 6144, Some(256)),
            (512, 2560, Some(128)),
            (512, 19456, Some(256)),
            (128, 6144, None),
            (33, 19456, None),
        ];
        for (m, n, expected) in cases {
            assert_eq!(tile(H200, m, n), expected, "{m} {n}");
            assert_eq!(tile(Caps { capability: 89, ..H200 }, m, n), None);
            assert_eq!(tile(Caps { capability: 100, ..H200 }, m, n), None);
        }
        assert!(HOPPER_TILES.iter().all(|(columns, _)| CUT.is_multiple_of(*columns)));
    }
}
