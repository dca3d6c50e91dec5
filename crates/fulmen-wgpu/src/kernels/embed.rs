//! Token embedding: rows of a table.

use std::ops::Range;

use fulmen_core::DType;

use super::{
    KernelError, LaunchList, Role,
    bind::{KernelBindings, invalid},
    fault,
    launch_list::{product, threads},
    matmul::WeightType,
    preprocess::values,
    qmatmul::QuantWeight,
};
use crate::kernel::Caps;

const OP: &str = "embed";

/// A table, and the number of rows to look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Embed {
    /// The type of the table: F32, F16, BF16 or a block format of [`qmatmul`](super::qmatmul), repacked
    /// as there.
    pub dtype: DType,
    /// Rows of the whole table.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// The rows that are on this device; those of tokens of other rows are zeros.
    pub part: Range<u32>,
    /// The rows that input 0 holds: all of the part, or a slice where it is in several buffers.
    pub slice: Range<u32>,
    /// Tokens.
    pub m: u32,
}

/// Row `tokens[i]` of the table to row `i` of the output.
///
/// Input 0 is the table (those rows of it that `slice` says), input 1 the tokens; output 0 is `[m,
/// width]` in f32, output 1 the [record of faults](super::fault). Rows whose token lies in another
/// slice of the part are left alone. The launch of the first slice writes the zeros of tokens outside the
/// part, and reports tokens outside the table, whose rows are left alone.
///
/// # Errors
/// [`KernelError`] where there are no kernels for the type, or something is larger than a binding.
pub fn embed(spec: &Embed, caps: &Caps) -> Result<LaunchList, KernelError> {
    let Embed { dtype, rows, width, ref part, ref slice, m } = *spec;
    let inside = part.start <= slice.start && slice.start <= slice.end && slice.end <= part.end;
    if !inside || part.end > rows {
        let reason = format!("a slice of rows {slice:?} of rows {part:?} of a table of {rows}");
        return Err(invalid(OP, reason));
    }
    let mut list = LaunchList::default();
    if m == 0 || width == 0 || slice.is_empty() && slice.start > part.start {
        return Ok(list);
    }
    let held = u64::from(slice.end - slice.start);
    let mut bind = KernelBindings::new(OP, caps);
    let (element, bytes, lanes, reader, unpack) = match plain(dtype) {
        Some(kind) => {
            let lanes = if width.is_multiple_of(4) { 4 } else { 1 };
            let bytes = product(OP, "the table", &[held, width.into(), kind.bytes()])?;
            (kind.element(lanes, caps), bytes, lanes, kind.getter("w", lanes, caps), None)
        }
        None => {
            let weight = QuantWeight { dtype, n: rows, k: width };
            let (reader, unpack) = weight.reader().map_err(|error| invalid(OP, error.to_string()))?;
            let row = weight.packed_row_bytes().map_err(|error| invalid(OP, error.to_string()))?;
            ("vec4<u32>", product(OP, "the table", &[held, row])?, 4, reader, Some(unpack))
        }
    };
    let out = product(OP, "the output", &[m.into(), width.into(), 4])?;
    let elements = if lanes == 4 { "vec4<f32>" } else { "f32" };
    bind.read("w", Role::Input(0), element, bytes)?;
    bind.read("tokens", Role::Input(1), "u32", u64::from(m) * 4)?;
    bind.write("out", Role::Output(0), elements, out)?;
    bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
    let vecs = width / lanes;
    let threads = threads(128, caps);
    let across = vecs.div_ceil(threads);
    bind.launch(
        &mut list,
        "embed.wgsl",
        &values![
            threads,
            lanes,
            reader,
            f16: matches!(element, "f16" | "vec4<f16>"),
            values: elements,
            blocks: unpack.is_some(),
            unpack: unpack.unwrap_or_default(),
        ],
        vec![
            width,
            rows,
            part.start,
            part.end,
            slice.start,
            slice.end,
            vecs,
            across,
            across.saturating_mul(m),
        ],
        u64::from(across) * u64::from(m),
    )?;
    Ok(list)
}

/// The type of a table that is not in blocks.
pub(super) fn plain(dtype: DType) -> Option<WeightType> {
    match dtype {
        DType::F32 => Some(WeightType::F32),
        DType::F16 => Some(WeightType::F16),
        DType::BF16 => Some(WeightType::Bf16),
        _ => None,
    }
}
