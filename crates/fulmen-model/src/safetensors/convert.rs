//! What the values of a folder's tensor go through to be those of a GGUF file: another order of heads, and
//! for vectors also other values.

use std::collections::TryReserveError;

use super::config::Config;
use super::error::SafetensorsProblem;

/// The conversion of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Conversion {
    pub(super) order: Order,
    pub(super) values: Values,
}

/// The order of heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As it is.
    Same,
    /// The rows of each head from NeoX-style RoPE order to interleaved order.
    Interleaved { heads: usize },
    /// Value heads of a delta net from an order in which neighbors share a key head to one in which every
    /// `keys`-th shares it.
    Tiled(Tiles),
}

/// Where the value heads of a delta net are in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    keys: usize,
    /// Value heads of a key head.
    group: usize,
    /// Rows, or columns, of a value head.
    head: usize,
    /// Rows in front of those of the value heads.
    skipped: usize,
    by_columns: bool,
}

/// What happens to the values of vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Values {
    Same,
    Plus(f32),
    /// `-exp(x)`, a rate of decay from its logarithm.
    NegativeExp,
}

impl Config {
    /// The conversion of the tensor with this GGUF name.
    pub(super) fn conversion(&self, name: &str) -> Result<Conversion, SafetensorsProblem> {
        let part = name.strip_suffix(".weight").or(name.strip_suffix(".bias")).unwrap_or(name);
        let part = part.rsplit('.').next().unwrap_or(part);
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let order = match part {
            "attn_q" if self.interleaves()? => Order::Interleaved { heads: size(self.heads()) },
            "attn_k" if self.interleaves()? => Order::Interleaved { heads: size(self.kv_heads()) },
            _ => match self.tiles()?.and_then(|tiles| tiles.of(part)) {
                Some(tiles) => Order::Tiled(tiles),
                None => Order::Same,
            },
        };
        let values = match part {
            "ssm_a" => Values::NegativeExp,
            "ssm_norm" => Values::Same,
            _ if name.ends_with("norm.weight") => Values::Plus(self.norm_offset()?),
            _ => Values::Same,
        };
        Ok(Conversion { order, values })
    }

    /// The value heads of a delta net, where GGUF files have another order of them.
    fn tiles(&self) -> Result<Option<Tiles>, SafetensorsProblem> {
        if !matches!(self.architecture()?, "qwen35" | "qwen35moe") {
            return Ok(None);
        }
        let [keys, values, head] = self.delta_net()?.heads.map(|size| usize::try_from(size).unwrap_or(0));
        let group = values.checked_div(keys).unwrap_or(0);
        Ok(Some(Tiles { keys, group, head, skipped: 0, by_columns: false }))
    }
}

impl Tiles {
    /// Those in a part of a layer, if it has some.
    fn of(self, part: &str) -> Option<Tiles> {
        match part {
            "attn_qkv" | "ssm_conv1d" => {
                Some(Tiles { skipped: self.keys.saturating_mul(2).saturating_mul(self.head), ..self })
            }
            "attn_gate" => Some(self),
            "ssm_alpha" | "ssm_beta" | "ssm_dt" | "ssm_a" => Some(Tiles { head: 1, ..self }),
            "ssm_out" => Some(Tiles { by_columns: true, ..self }),
            _ => None,
        }
    }

    /// Rows, or columns, of all value heads.
    fn width(&self) -> usize {
        self.keys.saturating_mul(self.group).saturating_mul(self.head)
    }
}

impl Order {
    /// Fails if a tensor with these dimensions, row width first, does not have these heads.
    pub(super) fn check(self, tensor: &str, dims: &[usize]) -> Result<(), SafetensorsProblem> {
        let rows = if dims.len() == 1 { dims[0] } else { dims[1..].iter().product() };
        match self {
            Order::Same => Ok(()),
            Order::Interleaved { heads } => {
                match heads > 0 && rows.is_multiple_of(heads) && (rows / heads).is_multiple_of(2) {
                    true => Ok(()),
                    false => {
                        let tensor = tensor.to_owned();
                        Err(SafetensorsProblem::Heads { tensor, found: rows, heads })
                    }
                }
            }
            Order::Tiled(tiles) => {
                let (what, found) = if tiles.by_columns { ("columns", dims[0]) } else { ("rows", rows) };
                let expected = tiles.skipped.saturating_add(tiles.width());
                match found == expected && found > 0 {
                    true => Ok(()),
                    false => {
                        let tensor = tensor.to_owned();
                        Err(SafetensorsProblem::ValueHeads { tensor, what, found, expected })
                    }
                }
            }
        }
    }

    /// The values, or the bytes of them, in GGUF order. `row` is the number of them in a row, and `one` that
    /// of an element. The tensor was checked.
    pub(super) fn apply<T: Copy>(
        self,
        values: &[T],
        row: usize,
        one: usize,
    ) -> Result<Vec<T>, TryReserveError> {
        match self {
            Order::Same => copied(values),
            Order::Interleaved { heads } => neox_to_interleaved(values, heads, row),
            Order::Tiled(tiles) => {
                let unit = if tiles.by_columns { one } else { row };
                tiled(values, tiles, unit)
            }
        }
    }
}

impl Values {
    pub(super) fn apply(self, values: &mut [f32]) {
        match self {
            Values::Same => {}
            Values::Plus(offset) => values.iter_mut().for_each(|value| *value += offset),
            Values::NegativeExp => {
                values.iter_mut().for_each(|value| *value = -f64::from(*value).exp() as f32);
            }
        }
    }
}

/// The dimensions of a tensor in a GGUF file, which leaves out some of a single element.
pub(super) fn dims_of(name: &str, dims: &[usize]) -> Vec<usize> {
    match *dims {
        [taps, 1, channels] if name.ends_with(".ssm_conv1d.weight") => vec![taps, channels],
        [width, 1] if name.ends_with(".ffn_gate_inp_shexp.weight") => vec![width],
        _ => dims.to_vec(),
    }
}

/// Whether a tensor is F32 in GGUF files whatever their type: vectors, the routers of experts, biases of
/// experts, and convolutions.
pub(super) fn is_single(name: &str, dims: &[usize]) -> bool {
    let ends = [".ffn_gate_inp.weight", "_exps.bias", ".ssm_conv1d.weight"];
    dims.len() == 1 || ends.iter().any(|end| name.ends_with(end))
}

fn copied<T: Copy>(values: &[T]) -> Result<Vec<T>, TryReserveError> {
    let mut out = Vec::new();
    out.try_reserve_exact(values.len())?;
    out.extend_from_slice(values);
    Ok(out)
}

/// Permutes the rows of each head from NeoX-style RoPE order (`0, 1, …, h, h+1, …`, row `i` paired with `i +
/// h`) to interleaved order (`0, h, 1, h+1, …`, adjacent rows paired).
fn neox_to_interleaved<T: Copy>(rows: &[T], heads: usize, row: usize) -> Result<Vec<T>, TryReserveError> {
    let mut out = Vec::new();
    out.try_reserve_exact(rows.len())?;
    for head in rows.chunks(rows.len() / heads) {
        let (first, second) = head.split_at(head.len() / 2);
        for (a, b) in first.chunks(row).zip(second.chunks(row)) {
            out.extend_from_slice(a);
            out.extend_from_slice(b);
        }
    }
    Ok(out)
}

/// Moves value head `key · group + member` to `member · keys + key`. `unit` is the size of a row or a column.
fn tiled<T: Copy>(values: &[T], tiles: Tiles, unit: usize) -> Result<Vec<T>, TryReserveError> {
    let (before, heads) = values.split_at(tiles.skipped * unit);
    let mut out = Vec::new();
    out.try_reserve_exact(values.len())?;
    out.extend_from_slice(before);
    let head = tiles.head * unit;
    for heads in heads.chunks(tiles.width() * unit) {
        for member in 0..tiles.group {
            for key in 0..tiles.keys {
                out.extend_from_slice(&heads[(key * tiles.group + member) * head..][..head]);
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RoPE of one head; `pair` returns the two elements that are rotated together.
    fn rope(head: &mut [f64], position: f64, pair: impl Fn(usize) -> (usize, usize)) {
        let half = head.len() / 2;
        for i in 0..half {
            let angle = position * 10_000f64.powf(-(i as f64) / half as f64);
            let (a, b) = pair(i);
            let (x, y) = (head[a], head[b]);
            (head[a], head[b]) = (x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos());
        }
    }

    #[test]
    fn interleaved_rope_after_the_permutation_matches_neox_rope_before() {
        let (heads, size) = (3, 8);
        let values: Vec<f64> = (0..heads * size).map(|i| ((i * 7 + 3) % 11) as f64 - 5.0).collect();
        let mut neox = values.clone();
        neox.chunks_mut(size).for_each(|head| rope(head, 5.0, |i| (i, i + size / 2)));
        let mut interleaved = neox_to_interleaved(&values, heads, 1).unwrap();
        interleaved.chunks_mut(size).for_each(|head| rope(head, 5.0, |i| (2 * i, 2 * i + 1)));
        assert_eq!(interleaved, neox_to_interleaved(&neox, heads, 1).unwrap());
    }

    #[test]
    fn rows_move_as_a_whole() {
        let rows = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
        assert_eq!(
            neox_to_interleaved(&rows, 2, 2).unwrap(),
            [0, 0, 2, 2, 1, 1, 3, 3, 4, 4, 6, 6, 5, 5, 7, 7]
        );
    }

    #[test]
    fn value_heads_move_as_a_whole() {
        let rows = Tiles { keys: 2, group: 3, head: 1, skipped: 2, by_columns: false };
        // Two rows in front, then key head 0 with its value heads 0, 1, 2 and key head 1 with 3, 4, 5.
        let values = [90, 91, 92, 93, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
        let order = Order::Tiled(rows);
        order.check("", &[2, 8]).unwrap();
        let expected = [90, 91, 92, 93, 0, 0, 3, 3, 1, 1, 4, 4, 2, 2, 5, 5];
        assert_eq!(order.apply(&values, 2, 1).unwrap(), expected);
        // Columns of two rows, two of each head.
        let order = Order::Tiled(Tiles { head: 2, skipped: 0, by_columns: true, ..rows });
        order.check("", &[12, 2]).unwrap();
        let row = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
        let moved = [0, 0, 3, 3, 1, 1, 4, 4, 2, 2, 5, 5];
        assert_eq!(order.apply(&[row, row].concat(), 12, 1).unwrap(), [moved, moved].concat());
        for dims in [&[12, 2][..], &[11, 2], &[12]] {
            let tiles = Tiles { skipped: 1, ..rows };
            assert!(Order::Tiled(tiles).check("", dims).is_err(), "{dims:?}");
        }
    }
}
