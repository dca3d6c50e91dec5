//! Embedding lookup: dequantizes the rows of a table that the tokens select, in parallel over rows. Bound by
//! memory latency and bandwidth of the selected rows.

use super::parallel::{SharedPtr, rows};
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
    /// The rows of the table.
    pub rows: usize,
}

/// Row `tokens[i]` of `table`, dequantized by `dequant`, to row `i` of `out`, which is `width` wide.
///
/// The table has as many rows of `row_bytes` as fit. If a token is out of range nothing is written, and the
/// error names the first such token.
pub fn embed(
    pool: &Pool,
    table: &[u8],
    row_bytes: usize,
    tokens: &[u32],
    width: usize,
    dequant: impl Fn(&[u8], &mut [f32]) + Sync,
    out: &mut [f32],
) -> Result<(), TokenOutOfRange> {
    assert_eq!(out.len(), tokens.len() * width, "the rows of embed");
    let n_rows = table.len().checked_div(row_bytes).unwrap_or(0);
    if let Some(position) = tokens.iter().position(|&t| t as usize >= n_rows) {
        return Err(TokenOutOfRange { position, token: tokens[position], rows: n_rows });
    }
    let shared = SharedPtr::new(out.as_mut_ptr());
    rows(pool, tokens.len(), width, GRAIN, &|r| {
        for i in r {
            let row = &table[tokens[i] as usize * row_bytes..][..row_bytes];
            // SAFETY: row `i` lies in `out` and belongs to this call alone.
            dequant(row, unsafe { shared.slice(i * width, width) });
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
                    let mut out = vec![POISON; count * width];
                    embed(&Pool::new(threads), &table, width, &tokens, width, widen, &mut out).unwrap();
                    assert_same(&out, &want, "embed");
                }
            }
        }
    }

    #[test]
    fn a_token_out_of_range_is_named_and_nothing_written() {
        let (table, mut out) = ([1; 12], [POISON; 16]);
        let pool = Pool::new(1);
        for (tokens, position) in [([0, 1, 2, 3], 3), ([0, u32::MAX, 3, 1], 1)] {
            let error = embed(&pool, &table, 4, &tokens, 4, widen, &mut out).unwrap_err();
            assert_eq!(error, TokenOutOfRange { position, token: tokens[position], rows: 3 });
            assert_eq!(out, [POISON; 16]);
        }
        assert!(embed(&pool, &[], 0, &[0; 4], 4, widen, &mut out).is_err());
        assert_eq!(embed(&pool, &table, 4, &[], 4, widen, &mut []), Ok(()));
    }
}
