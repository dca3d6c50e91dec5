//! Stores rows of keys and values into a KV cache, converted to its element type: one task per KV head of
//! each of K and V. Bound by memory bandwidth. Cache layout: [`KvLayout`]; pages of sequences: [`PageTable`].

use fulmen_core::DType;
use half::{f16, slice::HalfFloatSliceExt};

use super::parallel::SharedPtr;
use crate::{
    kv_view::{KvError, KvLayout, KvViewMut, PageTable, Q8_BLOCK, RowPages, check_strided},
    threads::Pool,
};

/// With fewer elements than this, single-threaded.
const SERIAL: usize = 1 << 15;

/// The rows to store: row `r` goes to position `positions[r]` of sequence `sequences[r]`.
#[derive(Clone, Copy, Debug)]
pub struct KvStore<'a> {
    /// Keys, `n_kv_heads * head_dim` per row.
    pub k: &'a [f32],
    /// Elements from one row of `k` to the next.
    pub k_stride: usize,
    /// Values, `n_kv_heads * head_dim` per row.
    pub v: &'a [f32],
    /// Elements from one row of `v` to the next.
    pub v_stride: usize,
    /// The pages of each sequence.
    pub table: PageTable<'a>,
    /// A position for each row.
    pub positions: &'a [u32],
    /// A sequence for each row; sequence 0 for all if `None`.
    pub sequences: Option<&'a [u32]>,
}

/// Stores every row of `rows` in both caches. Of rows with the same slot the last one is kept.
///
/// `f16` is rounded to the nearest, ties to even, and overflows to infinity. `Q8_0` takes `amax / 127` as
/// scale and rounds ties away from zero. Nothing is written if an error is returned.
pub fn kv_store(
    pool: &Pool,
    rows: &KvStore<'_>,
    k_cache: &mut KvViewMut<'_>,
    v_cache: &mut KvViewMut<'_>,
) -> Result<(), KvError> {
    let (kl, vl) = (*k_cache.layout(), *v_cache.layout());
    if kl.n_kv_heads != vl.n_kv_heads {
        return Err(KvError::Shape { what: "value heads", expected: kl.n_kv_heads, got: vl.n_kv_heads });
    }
    if kl.head_dim != vl.head_dim {
        return Err(KvError::Shape { what: "value head size", expected: kl.head_dim, got: vl.head_dim });
    }
    let m = rows.table.check_rows(&kl, rows.positions, rows.sequences, RowPages::Own)?;
    rows.table.check_rows(&vl, rows.positions, rows.sequences, RowPages::Own)?;
    let width = kl.n_kv_heads * kl.head_dim;
    check_strided("k rows", m, width, rows.k_stride, rows.k.len())?;
    check_strided("v rows", m, width, rows.v_stride, rows.v.len())?;
    if m * width == 0 {
        return Ok(());
    }

    let k_bytes = SharedPtr::new(k_cache.bytes_mut().as_mut_ptr());
    let v_bytes = SharedPtr::new(v_cache.bytes_mut().as_mut_ptr());
    let one_head = |task: usize| {
        let (head, is_value) = (task / 2, task % 2);
        let (layout, bytes, data, stride) = match is_value {
            0 => (&kl, &k_bytes, rows.k, rows.k_stride),
            _ => (&vl, &v_bytes, rows.v, rows.v_stride),
        };
        for (r, &position) in rows.positions.iter().enumerate() {
            let (sequence, position) = (rows.sequences.map_or(0, |s| s[r]) as usize, position as usize);
            let page = rows.table.page(sequence, position / layout.page_len);
            let at = position % layout.page_len;
            // SAFETY: the view contains every row of its layout, the row's page was checked, and rows do not
            // overlap; only this task writes this head of this cache.
            let (row, scales) = unsafe {
                let row = bytes.slice(layout.offset(page, head, at), layout.row_bytes());
                match layout.scale_bytes() {
                    0 => (row, &mut [][..]),
                    n => (row, bytes.slice(layout.scales_offset(page, head, at), n)),
                }
            };
            let from = r * stride + head * layout.head_dim;
            store_row(layout, &data[from..from + layout.head_dim], row, scales);
        }
    };
    if m * width < SERIAL {
        (0..2 * kl.n_kv_heads).for_each(one_head);
    } else {
        pool.run(2 * kl.n_kv_heads, &one_head);
    }
    Ok(())
}

fn store_row(layout: &KvLayout, x: &[f32], row: &mut [u8], scales: &mut [u8]) {
    match layout.dtype {
        DType::F32 => row.copy_from_slice(bytemuck::cast_slice(x)),
        DType::F16 => match bytemuck::try_cast_slice_mut::<u8, f16>(row) {
            Ok(row) => row.convert_from_f32_slice(x),
            Err(_) => {
                for (y, &x) in row.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    *y = f16::from_f32(x).to_ne_bytes();
                }
            }
        },
        _ => {
            let blocks = row.as_chunks_mut().0.iter_mut().zip(scales.as_chunks_mut().0);
            blocks.zip(x.as_chunks().0).for_each(|((y, scale), x)| quantize_q8(x, y, scale));
        }
    }
}

/// One `Q8_0` block. The quants follow the scale before it is rounded to `f16`, as in GGML.
fn quantize_q8(x: &[f32; Q8_BLOCK], y: &mut [u8; Q8_BLOCK], scale: &mut [u8; 2]) {
    /// The largest `f32` below 0.5: adding it and truncating rounds ties away from zero.
    const HALF: f32 = 0.499_999_97;
    let amax = x.iter().fold(0f32, |a, x| a.max(x.abs()));
    let d = amax / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    *scale = f16::from_f32(d).to_le_bytes();
    for (y, x) in y.iter_mut().zip(x) {
        let scaled = x * inverse;
        *y = (scaled + HALF.copysign(scaled)) as i8 as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes the row of one head for the tests, by another way than the kernels.
    fn decode(layout: &KvLayout, bytes: &[u8], at: (usize, usize, usize)) -> Vec<f32> {
        let row = &bytes[layout.offset(at.0, at.1, at.2)..][..layout.row_bytes()];
        let scales = &bytes[layout.scales_offset(at.0, at.1, at.2)..];
        match layout.dtype {
            DType::F32 => row.chunks(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect(),
            DType::F16 => row.chunks(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => (row.chunks(32).zip(scales.chunks(2)))
                .flat_map(|(row, d)| {
                    let d = f16::from_le_bytes([d[0], d[1]]).to_f32();
                    row.iter().map(move |&q| d * f32::from(q as i8))
                })
                .collect(),
        }
    }

    #[test]
    fn rows_land_in_their_places_and_nowhere_else() {
        let pool = Pool::new(3);
        let mut rng = fastrand::Rng::with_seed(1);
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            for (n_kv, hd, m) in [(1, 32, 1), (3, 64, 5), (2, 96, 0), (8, 128, 40)] {
                let (capacity, n_seqs, pages) = (256, 3, [5, 1, 4, 0, 7, 2]);
                let layout = KvLayout::pages(dtype, 8, n_kv, hd).unwrap();
                let table = PageTable::new(&pages, n_seqs, 2).unwrap();
                // Keys and values are parts of wider rows.
                let width = n_kv * hd;
                let stride = 2 * width + 5;
                let data: Vec<f32> = (0..m * stride).map(|_| rng.f32() * 8.0 - 4.0).collect();
                let positions: Vec<u32> = (0..m).map(|r| ((r * 97) % capacity) as u32).collect();
                let sequences: Vec<u32> = (0..m).map(|r| ((r + 1) % n_seqs) as u32).collect();
                // One byte in front of the cache puts the rows at odd addresses.
                let mut k = vec![0xA5u8; layout.bytes().unwrap() + 1];
                let mut v = k.clone();
                let rows = KvStore {
                    k: &data,
                    k_stride: stride,
                    v: data.get(width..).unwrap_or(&[]),
                    v_stride: stride,
                    table,
                    positions: &positions,
                    sequences: Some(&sequences),
                };
                let mut kv = KvViewMut::new(layout, &mut k[1..]).unwrap();
                kv_store(&pool, &rows, &mut kv, &mut KvViewMut::new(layout, &mut v[1..]).unwrap()).unwrap();

                for (bytes, from) in [(&mut k, 0), (&mut v, width)] {
                    for r in 0..m {
                        for head in 0..n_kv {
                            let position = positions[r] as usize;
                            let page = table.page(sequences[r] as usize, position / 128);
                            let at = (page, head, position % 128);
                            let got = decode(&layout, &bytes[1..], at);
                            let want = &data[r * stride + from + head * hd..][..hd];
                            for (block, (got, want)) in got.chunks(32).zip(want.chunks(32)).enumerate() {
                                let amax = want.iter().fold(0f32, |a, x| a.max(x.abs()));
                                for (got, want) in got.iter().zip(want) {
                                    let bound = match dtype {
                                        DType::F32 => 0.0,
                                        DType::F16 => want.abs() / 2048.0,
                                        _ => amax / 127.0 * 0.57,
                                    };
                                    assert!((got - want).abs() <= bound, "{dtype} {at:?} block {block}");
                                }
                            }
                            let offset = 1 + layout.offset(at.0, at.1, at.2);
                            bytes[offset..offset + layout.row_bytes()].fill(0xA5);
                            let offset = 1 + layout.scales_offset(at.0, at.1, at.2);
                            bytes[offset..][..layout.scale_bytes()].fill(0xA5);
                        }
                    }
                    assert!(bytes.iter().all(|&b| b == 0xA5), "{dtype}: a write outside the rows");
                }
            }
        }
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        let cases: [(f32, u16); 13] = [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3C00),
            (1.000_488_3, 0x3C00),    // 1 + half a step: to even, down
            (1.001_464_8, 0x3C02),    // 1 + one step and a half: to even, up
            (65504.0, 0x7BFF),        // the largest finite value
            (65519.9, 0x7BFF),        // below halfway to the next step
            (65520.0, 0x7C00),        // halfway: infinity
            (-1e30, 0xFC00),          // overflow
            (5.960_464_5e-8, 0x0001), // the smallest subnormal
            (2.980_232_2e-8, 0x0000), // half of it: to even
            (2.980_232_6e-8, 0x0001), // a little more
            (f32::INFINITY, 0x7C00),
        ];
        for odd in [0, 1] {
            let layout = KvLayout::pages(DType::F16, 1, 1, cases.len()).unwrap();
            let x = cases.map(|c| c.0);
            let mut bytes = vec![0u8; 2 * cases.len() + 2];
            store_row(&layout, &x, &mut bytes[odd..odd + 2 * cases.len()], &mut []);
            for (case, y) in cases.iter().zip(bytes[odd..].chunks(2)) {
                assert_eq!(u16::from_ne_bytes([y[0], y[1]]), case.1, "{}", case.0);
            }
        }
        assert!(f16::from_f32(f32::NAN).is_nan());
    }

    #[test]
    fn blocks_follow_ggml() {
        let mut x = [0f32; 32];
        let (mut y, mut scale) = ([1u8; 32], [1; 2]);
        quantize_q8(&x, &mut y, &mut scale);
        assert_eq!((y, scale), ([0; 32], [0; 2]));
        // Scale 1: the quants are the values, ties rounded away from zero.
        x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 1.499, -2.5]);
        quantize_q8(&x, &mut y, &mut scale);
        assert_eq!(f16::from_le_bytes(scale).to_f32(), 1.0);
        assert_eq!(y[..6].iter().map(|&q| q as i8).collect::<Vec<_>>(), [127, -127, 1, -1, 1, -3]);
        assert!(y[6..].iter().all(|&q| q == 0));
    }

    #[test]
    fn the_last_of_equal_places_stays() {
        let layout = KvLayout::pages(DType::F32, 1, 1, 1).unwrap();
        let (mut k, mut v) = ([0u8; 512], [0u8; 512]);
        let data = [1.0, 2.0, 3.0];
        let rows = KvStore {
            k: &data,
            k_stride: 1,
            v: &data,
            v_stride: 1,
            table: PageTable::ONE,
            positions: &[1, 0, 1],
            sequences: None,
        };
        let (mut kv, mut vv) =
            (KvViewMut::new(layout, &mut k).unwrap(), KvViewMut::new(layout, &mut v).unwrap());
        kv_store(&Pool::new(2), &rows, &mut kv, &mut vv).unwrap();
        assert_eq!(k[..8], *bytemuck::bytes_of(&[2f32, 3.0]));
        assert_eq!(k, v);
    }

    #[test]
    fn errors_write_nothing() {
        let layout = KvLayout::pages(DType::F16, 2, 2, 8).unwrap();
        let data = [1f32; 64];
        let good = KvStore {
            k: &data,
            k_stride: 16,
            v: &data,
            v_stride: 16,
            table: PageTable::new(&[1, 0], 2, 1).unwrap(),
            positions: &[0, 3, 1],
            sequences: Some(&[0, 1, 1]),
        };
        let narrow = KvLayout { page_len: 3, ..layout };
        let holes = PageTable::new(&[1, u32::MAX], 2, 1).unwrap();
        let cases = [
            (
                KvStore { positions: &[0, 1, 128], ..good },
                layout,
                KvError::Position { row: 2, position: 128, capacity: 128 },
            ),
            (KvStore { table: holes, ..good }, layout, KvError::Page { row: 1, page: u32::MAX, n_pages: 2 }),
            (good, narrow, KvError::Position { row: 1, position: 3, capacity: 3 }),
            (
                KvStore { sequences: Some(&[0, 2, 0]), ..good },
                layout,
                KvError::Sequence { row: 1, sequence: 2, n_seqs: 2 },
            ),
            (
                KvStore { sequences: Some(&[0]), ..good },
                layout,
                KvError::Shape { what: "sequences", expected: 3, got: 1 },
            ),
            (
                KvStore { k_stride: 15, ..good },
                layout,
                KvError::Shape { what: "k rows", expected: 16, got: 15 },
            ),
            (
                KvStore { v: &data[..47], ..good },
                layout,
                KvError::Length { what: "v rows", unit: "elements", need: 48, got: 47 },
            ),
            (
                good,
                KvLayout { n_kv_heads: 1, ..layout },
                KvError::Shape { what: "value heads", expected: 2, got: 1 },
            ),
            (
                good,
                KvLayout { head_dim: 4, ..layout },
                KvError::Shape { what: "value head size", expected: 8, got: 4 },
            ),
        ];
        for (rows, v_layout, error) in cases {
            let (mut k, mut v) = ([0u8; 8192], [0u8; 8192]);
            let mut kv = KvViewMut::new(layout, &mut k).unwrap();
            let mut vv = KvViewMut::new(v_layout, &mut v).unwrap();
            assert_eq!(kv_store(&Pool::new(1), &rows, &mut kv, &mut vv), Err(error));
            assert!(k.iter().chain(&v).all(|&b| b == 0));
        }
    }
}
