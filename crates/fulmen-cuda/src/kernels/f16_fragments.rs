//! Rows of activations in 16 bits, as products of few rows take them (`f16_fragments.cuh`, `forwarding.cuh`).

use crate::queue::{ForwardFormat, Forwarded, Queue};

// As in `f16_fragments.cuh`.
pub(super) const CHUNK: u32 = 256;
pub(super) const ORDERS: usize = 2;

/// Rows of an image: those that there are kernels for.
pub(super) const ROWS: [u32; 2] = [8, 16];

/// Bytes of a chunk of so many rows.
pub(super) const fn chunk_bytes(rows: u32) -> u32 {
    18 * 32 * rows
}

/// Columns that a product hands on at once.
const RUN: u32 = 16;

/// Where rows are: in each order, then the factors that undo their scales, or what products say of the runs that they hand on: a word for
/// 8 rows, and the sums of squares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) orders: [u64; ORDERS],
    pub(super) factors: u64,
    pub(super) words: u64,
    pub(super) squares: u64,
}

impl Image {
    /// Bytes of `rows` rows of `k`.
    pub(super) fn bytes(rows: u32, k: u32) -> usize {
        let image = Image::at(0, rows, k);
        image.squares as usize + k.div_ceil(RUN) as usize * rows as usize * 4
    }

    /// The image at an address.
    pub(super) fn at(address: u64, rows: u32, k: u32) -> Image {
        let ordered = |order: usize| address + (order * Self::order_bytes(rows, k)) as u64;
        let factors = ordered(ORDERS);
        let words = factors + u64::from(rows) * 4;
        let squares = words + u64::from(k.div_ceil(RUN)) * u64::from(rows / 8) * 4;
        Image { orders: [ordered(0), ordered(1)], factors, words, squares }
    }

    fn order_bytes(rows: u32, k: u32) -> usize {
        k.div_ceil(CHUNK) as usize * chunk_bytes(rows) as usize
    }

    /// The halves of rows of floats, scaled.
    pub(super) fn of(x: u64, rows: u32, width: u32) -> Forwarded {
        Forwarded { format: ForwardFormat::ScaledF16, source: x, rows, width }
    }

    /// The halves of rows of floats as a product hands them on, times the gain of a norm if there is one.
    pub(super) fn of_product(x: u64, rows: u32, width: u32, gain: Option<u64>) -> Forwarded {
        Forwarded { format: ForwardFormat::MatmulF16 { gain }, source: x, rows, width }
    }

    /// Where a launch may put its result for the product behind it: whole images of whole chunks only, as nobody else writes the rest.
    pub(super) fn room(queue: &mut Queue, rows: u32, width: u32) -> Option<Image> {
        let whole = ROWS.contains(&rows) && width > 0 && width.is_multiple_of(CHUNK);
        let at = whole.then(|| queue.reserve_forward_buffer(Self::bytes(rows, width))).flatten()?;
        Some(Image::at(at, rows, width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_an_image_is_apart_and_aligned() {
        for rows in ROWS {
            for width in [256, 2560, 9728] {
                let image = Image::at(1 << 20, rows, width);
                let bytes = u64::from(width / CHUNK * chunk_bytes(rows));
                assert_eq!(image.orders, [1 << 20, (1 << 20) + bytes]);
                let (rows_64, runs) = (u64::from(rows), u64::from(width / RUN));
                assert_eq!(image.factors, image.orders[1] + bytes);
                assert_eq!(image.words, image.factors + rows_64 * 4);
                assert_eq!(image.squares, image.words + runs * rows_64 / 8 * 4);
                let end = image.squares + runs * rows_64 * 4;
                assert_eq!(Image::bytes(rows, width) as u64, end - (1 << 20));
                // Both are read by 16 bytes, and the sums of squares of each row begin anew.
                assert!(image.words.is_multiple_of(16));
                assert!(image.squares.is_multiple_of(16) && (runs * 4).is_multiple_of(16));
            }
        }
    }
}
