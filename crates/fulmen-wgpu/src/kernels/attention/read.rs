//! Text that reads keys, values and places.

use fulmen_core::DType;

use super::{OP, Shape, Source};
use crate::kernels::{
    KernelError, Role,
    bind::{Bind, invalid},
    fault,
};

/// Elements that are loaded at once: four where heads allow it, else one.
pub(super) fn width(shape: &Shape) -> u32 {
    if shape.heads.head_dim.is_multiple_of(4) { 4 } else { 1 }
}

/// The type of that many elements.
pub(super) fn values(shape: &Shape) -> &'static str {
    if width(shape) == 4 { "vec4<f32>" } else { "f32" }
}

/// The type of the keys or values.
fn dtype(shape: &Shape) -> DType {
    match shape.source {
        Source::Rows => DType::F32,
        Source::Cache { cache, .. } => cache.dtype,
    }
}

/// Binds queries, keys and values.
pub(super) fn bind_data(shape: &Shape, bind: &mut Bind<'_>) -> Result<(), KernelError> {
    let element = match (dtype(shape), width(shape)) {
        (DType::F32, 4) => "vec4<f32>",
        (DType::F32, _) => "f32",
        (DType::F16, 4) => "vec2<u32>",
        _ => "u32",
    };
    bind.read("q", Role::Input(0), values(shape), shape.q_bytes)?;
    bind.read("k", Role::Input(1), element, shape.kv_bytes)?;
    bind.read("v", Role::Input(2), element, shape.kv_bytes)
}

/// Binds what says which keys a row sees.
pub(super) fn bind_places(shape: &Shape, bind: &mut Bind<'_>, faults: bool) -> Result<(), KernelError> {
    if shape.source == Source::Rows {
        return Ok(());
    }
    let bytes = u64::from(shape.m) * 4;
    bind.read("positions", Role::Input(3), "u32", bytes)?;
    if shape.sequences() {
        bind.read("sequences", Role::Input(4), "u32", bytes)?;
    }
    if faults {
        bind.write("fault", Role::Output(1), fault::ELEMENT, fault::FAULT_BYTES)?;
    }
    Ok(())
}

/// `seen_by(row)`, how many keys a row sees, 0 where it has no place; `sequence_of(row)`; `tell(row)`, which reports a
/// row without a place; `key_row(sequence, head, position)`, the number of a head's keys at a position.
pub(super) fn places(shape: &Shape, faults: bool) -> String {
    let n_kv = shape.heads.n_kv_heads;
    if shape.source == Source::Rows {
        return format!(
            "fn seen_by(row: u32) -> u32 {{ return row + 1u; }}\n\
             fn sequence_of(row: u32) -> u32 {{ return 0u; }}\n\
             fn tell(row: u32) {{}}\n\
             fn key_row(sequence: u32, head: u32, position: u32) -> u32 {{ return position * {n_kv}u + head; }}\n"
        );
    }
    let sequence = if shape.sequences() { "sequences[row]" } else { "0u" };
    let (report, tell) = if faults {
        (
            fault::REPORT,
            "fn tell(row: u32) {\n    \
             if (positions[row] >= params.capacity) {\n        \
             report(FAULT_POSITION, row, positions[row], params.capacity);\n    \
             } else if (sequence_of(row) >= params.n_seqs) {\n        \
             report(FAULT_SEQUENCE, row, sequence_of(row), params.n_seqs);\n    }\n}\n",
        )
    } else {
        ("", "")
    };
    format!(
        "{report}fn sequence_of(row: u32) -> u32 {{ return {sequence}; }}\n{tell}\
         fn seen_by(row: u32) -> u32 {{\n    let position = positions[row];\n    \
         return select(0u, position + 1u, position < params.capacity && sequence_of(row) < params.n_seqs);\n}}\n\
         fn key_row(sequence: u32, head: u32, position: u32) -> u32 {{\n    \
         return (sequence * {n_kv}u + head) * params.capacity + position;\n}}\n"
    )
}

/// Numbers from one position's keys to the next one's.
pub(super) fn row_stride(shape: &Shape) -> u32 {
    if shape.source == Source::Rows { shape.heads.n_kv_heads } else { 1 }
}

/// `load_k(row, unit)` and `load_v(row, unit)`: the `Val` of that number.
pub(super) fn loads(shape: &Shape) -> String {
    let units = shape.heads.head_dim / width(shape);
    ["k", "v"].map(|name| load(shape, name, units)).concat()
}

fn load(shape: &Shape, name: &str, units: u32) -> String {
    let at = format!("row * {units}u + unit");
    let (before, body) = match (dtype(shape), width(shape)) {
        (DType::F32, _) => (String::new(), format!("return {name}[{at}];")),
        (DType::F16, 4) => (
            String::new(),
            format!("let w = {name}[{at}]; return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));"),
        ),
        (DType::F16, _) => (
            String::new(),
            format!(
                "let at = {at}; let w = unpack2x16float({name}[at >> 1u]); return select(w.x, w.y, (at & 1u) == 1u);"
            ),
        ),
        // Blocks of 17 halves: a scale, then codes.
        _ => (
            format!(
                "fn halves_of_{name}(at: u32) -> u32 {{\n    let w = {name}[at >> 1u];\n    \
                 if ((at & 1u) == 0u) {{ return w; }}\n    return (w >> 16u) | ({name}[(at >> 1u) + 1u] << 16u);\n}}\n"
            ),
            format!(
                "let block = (row * {}u + unit / 8u) * 17u; \
                 let scale = unpack2x16float({name}[block >> 1u] >> (16u * (block & 1u))).x; \
                 return scale * vec4<f32>(unpack4xI8(halves_of_{name}(block + 1u + 2u * (unit % 8u))));",
                shape.heads.head_dim / 32
            ),
        ),
    };
    format!("{before}fn load_{name}(row: u32, unit: u32) -> Val {{ {body} }}\n")
}

/// The parameters that the functions here read.
pub(super) fn params(shape: &Shape) -> [u32; 2] {
    match shape.source {
        Source::Rows => [shape.m, 1],
        Source::Cache { cache, .. } => [cache.capacity, cache.n_seqs],
    }
}

/// Refuses heads that no kernel takes.
pub(super) fn too_wide(shape: &Shape) -> KernelError {
    invalid(OP, format!("heads of {} elements are too wide", shape.heads.head_dim))
}
