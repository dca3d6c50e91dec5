//! Embedding lookup: dequantizes the rows of a table that the tokens select, in parallel over rows. Bound by
//! memory latency and bandwidth of the selected rows.

use super::parallel::{self, SharedPtr};
use crate::threads::Pool;

/// Elements per task.
const GRAIN: usize = 16 * 1024;

/// A token that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} at position {position} is not among the table's {rows} rows")]
pub struct TokenOutOfRange {
    /// The row of the batch.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// The rows of the whole table.
    pub rows: u32,
}

/// The rows of a table that are here: as many of `row_bytes` as fit.
#[derive(Clone, Copy, Debug)]
pub struct TableRows<'a> {
    /// The rows.
    pub bytes: &'a [u8],
    /// Bytes of each.
    pub row_bytes: usize,
    /// The token of the first.
    pub first: u32,
    /// Rows of the whole table.
    pub of: u32,
}

/// Row `tokens[i]` of a table, dequantized by `dequant`, to row `i` of `out`, which is `width` wide; zeros if
/// the row is not here.
///
/// If a token is not in the whole table nothing is written, and the error names the first such token.
pub fn embed(
    pool: &Pool,
    table: TableRows<'_>,
    tokens: &[u32],
    width: usize,
    dequant: impl Fn(&[u8], &mut [f32]) + Sync,
    out: &mut [f32],
) -> Result<(), TokenOutOfRange> {
    assert_eq!(out.len(), tokens.len() * width, "the rows of embed");
    let TableRows { bytes, row_bytes, first, of } = table;
    if let Some(position) = tokens.iter().position(|&token| token >= of) {
        return Err(TokenOutOfRange { position, token: tokens[position], rows: of });
    }
    let row_of = |token: u32| {
        let at = (token.checked_sub(first)? as usize).checked_mul(row_bytes)?;
        bytes.get(at..at.checked_add(row_bytes)?)
    };
    let shared = SharedPtr::new(out.as_mut_ptr());
    parallel::rows(pool, tokens.len(), width, GRAIN, &|r| {
        for i in r {
            // SAFETY: row `i` lies in `out` and belongs to this call alone.
            let out = unsafe { shared.slice(i * width, width) };
            match row_of(tokens[i]) {
                Some(row) => dequant(row, out),
                None => out.fill(0.0),
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::testing::*, *};

    fn widen(row: &[u8], out: &mut [f32]) {
        for (out, &b) in out.iter_mut().zip(row) {
            *out = f32::from(b);
        }
    }

    fn rows(bytes: &[u8], row_bytes: usize, of: u32) -> TableRows<'_> {
        TableRows { bytes, row_bytes, first: 0, of }
    }

    #[test]
    fn rows_arrive_in_order() {
        let mut rng = rng();
        for width in LENGTHS.into_iter().filter(|&w| w > 0) {
            let table: Vec<u8> = (0..19 * width).map(|_| rng.u8(..)).collect();
            for count in [0, 1, 7, 100] {
                let tokens: Vec<u32> = (0..count).map(|_| rng.u32(0..19)).collect();
                let want: Vec<f32> = tokens
                    .iter()
                    .flat_map(|&t| table[t as usize * width..][..width].iter().map(|&b| f32::from(b)))
                    .collect();
                for threads in [1, 4] {
                    let pool = Pool::new(threads);
                    let mut out = vec![POISON; count * width];
                    embed(&pool, rows(&table, width, 19), &tokens, width, widen, &mut out).unwrap();
                    assert_same(&out, &want, "embed");
                    // The parts of the table add up to the whole.
                    let mut sum = vec![0.0; count * width];
                    for (first, end) in [(0, 5), (5, 18), (18, 19)] {
                        let bytes = &table[first * width..end * width];
                        let part = TableRows { first: first as u32, ..rows(bytes, width, 19) };
                        embed(&pool, part, &tokens, width, widen, &mut out).unwrap();
                        sum.iter_mut().zip(&out).for_each(|(sum, x)| *sum += x);
                    }
                    assert_same(&sum, &want, "parts");
                }
            }
        }
    }

    #[test]
    fn a_token_out_of_range_is_named_and_nothing_written() {
        let (table, mut out) = ([1; 12], [POISON; 16]);
        let pool = Pool::new(1);
        for (tokens, position) in [([0, 1, 2, 3], 3), ([0, u32::MAX, 3, 1], 1)] {
            let error = embed(&pool, rows(&table, 4, 3), &tokens, 4, widen, &mut out).unwrap_err();
            assert_eq!(error, TokenOutOfRange { position, token: tokens[position], rows: 3 });
            assert_eq!(out, [POISON; 16]);
        }
        assert!(embed(&pool, rows(&[], 0, 0), &[0; 4], 4, widen, &mut out).is_err());
        assert_eq!(embed(&pool, rows(&table, 4, 3), &[], 4, widen, &mut []), Ok(()));
    }
}
