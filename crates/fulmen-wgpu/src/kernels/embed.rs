//! Rows of a table by token.

use std::ops::Range;

use fulmen_core::DType;

use super::{
    KernelError, Plan, Role,
    bind::{Bind, invalid},
    fault,
    matmul::WeightType,
    plan::{product, threads},
    qmatmul::QuantWeight,
};
use crate::kernel::Caps;

const OP: &str = "embed";

/// A table and how many rows are taken from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Embed {
    /// The type of the table: F32, F16, BF16 or a block format of [`qmatmul`](super::qmatmul), repacked as there.
    pub dtype: DType,
    /// Rows of the whole table.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// The rows that input 0 holds: all, or a part where the table is in several buffers.
    pub piece: Range<u32>,
    /// Tokens.
    pub m: u32,
}

/// Row `tokens[i]` of the table to row `i` of the output.
///
/// Input 0 is the table (those rows of it that `piece` says), input 1 the tokens; output 0 is `[m, width]` in f32,
/// output 1 the [record of faults](super::fault). Rows whose token lies in another piece are left alone, and so are
/// those whose token is out of range, which the launch of the first piece reports.
///
/// # Errors
/// [`KernelError`] where there are no kernels for the type, or something is larger than a binding.
pub fn embed(spec: &Embed, caps: &Caps) -> Result<Plan, KernelError> {
    let Embed { dtype, rows, width, ref piece, m } = *spec;
    if piece.start > piece.end || piece.end > rows {
        return Err(invalid(OP, format!("a piece of rows {piece:?} of a table of {rows}")));
    }
    let mut plan = Plan::default();
    if m == 0 || width == 0 || piece.is_empty() && piece.start > 0 {
        return Ok(plan);
    }
    let held = u64::from(piece.end - piece.start);
    let mut bind = Bind::new(OP, caps);
    let (element, bytes, lanes, functions) = match plain(dtype) {
        Some(kind) => {
            let lanes = if width.is_multiple_of(4) { 4 } else { 1 };
            let bytes = product(OP, "the table", &[held, width.into(), kind.bytes()])?;
            let value = format!(
                "{}fn value(row: u32, unit: u32) -> Values {{ return get_w(row * (params.k / {lanes}u) + unit); }}\n",
                kind.getter("w", lanes, caps)
            );
            (kind.element(lanes, caps), bytes, lanes, value)
        }
        None => {
            let weight = QuantWeight { dtype, n: rows, k: width };
            let (text, unpack) = weight.reader().map_err(|error| invalid(OP, error.to_string()))?;
            let row = weight.packed_row_bytes().map_err(|error| invalid(OP, error.to_string()))?;
            let value =
                format!("{text}\n{}", include_str!("embed_blocks.wgsl")).replace("{{unpack}}", unpack);
            ("vec4<u32>", product(OP, "the table", &[held, row])?, 4, value)
        }
    };
    let out = product(OP, "the output", &[m.into(), width.into(), 4])?;
    let values = if lanes == 4 { "vec4<f32>" } else { "f32" };
    bind.read("w", Role::Input(0), element, bytes)?;
    bind.read("tokens", Role::Input(1), "u32", u64::from(m) * 4)?;
    bind.write("out", Role::Output(0), values, out)?;
    bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
    let units = width / lanes;
    let threads = threads(128, caps);
    let across = units.div_ceil(threads);
    let enable = if element.contains("f16") { "enable f16;\n" } else { "" };
    bind.launch(
        &mut plan,
        include_str!("embed.wgsl"),
        &[
            ("enable", enable),
            ("functions", &functions),
            ("report", fault::REPORT),
            ("values", values),
            ("threads", &threads.to_string()),
        ],
        vec![width, rows, piece.start, piece.end, units, across, across.saturating_mul(m)],
        u64::from(across) * u64::from(m),
    )?;
    Ok(plan)
}

/// The type of a table that is not in blocks.
fn plain(dtype: DType) -> Option<WeightType> {
    match dtype {
        DType::F32 => Some(WeightType::F32),
        DType::F16 => Some(WeightType::F16),
        DType::BF16 => Some(WeightType::Bf16),
        _ => None,
    }
}
