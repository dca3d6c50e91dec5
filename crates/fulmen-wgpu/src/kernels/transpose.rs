//! The transpose of a matrix.

use super::{
    Elem, KernelError, LaunchList, Role,
    launch_list::{alignment, kernel, kernel_launch, padded, product, threads, window},
    preprocess::{render, values},
    storage::{Form, Lanes, element},
};
use crate::kernel::{Caps, StorageBinding};

/// Transposes input 0, `[rows, columns]`, to output 0, `[columns, rows]`.
///
/// # Errors
/// [`KernelError`] where a row or a column is larger than a binding or the sizes overflow, and for f16 on a
/// device without f16 in kernels.
pub fn transpose(rows: u64, columns: u64, elem: Elem, caps: &Caps) -> Result<LaunchList, KernelError> {
    let op = || "transpose".to_owned();
    let size = elem.bytes();
    let bytes = product("transpose", "the number of bytes", &[rows, columns, size])?;
    let form = elem.form(caps);
    if form == Form::PackedF16 {
        let reason = "this device has no f16 in kernels".to_owned();
        return Err(KernelError::Invalid { op: op(), reason });
    }
    let mut list = LaunchList::default();
    if bytes == 0 {
        return Ok(list);
    }
    let threads = threads(256, caps);
    if threads < 32 {
        return Err(KernelError::TooMany { op: op(), what: "a workgroup of 32 threads" });
    }
    let of = element(form, Lanes::One);
    let values = values![threads, f16: form == Form::F16, element: of];
    let wgsl = render("transpose.wgsl", &values);
    let bindings = vec![StorageBinding::read("x", of), StorageBinding::read_write("out", of)];
    let kernel = kernel("transpose", wgsl, bindings, 8);

    // Whole rows of each side that fit a binding.
    let fitting = |count: u64, width: u64| {
        if padded(bytes) <= caps.max_binding {
            return Ok(count);
        }
        let most = caps.max_binding.saturating_sub(alignment(caps) + 16) / (width * size);
        let (bytes, limit) = (width * size + alignment(caps) + 16, caps.max_binding);
        if most == 0 {
            return Err(KernelError::TooLarge { op: op(), what: "a row or a column", bytes, limit });
        }
        Ok(most.min(count))
    };
    let (most_rows, most_columns) = (fitting(rows, columns)?, fitting(columns, rows)?);
    for top in (0..rows).step_by(most_rows as usize) {
        for left in (0..columns).step_by(most_columns as usize) {
            let part_rows = most_rows.min(rows - top);
            let part_columns = most_columns.min(columns - left);
            let (x, x_early) = window(Role::Input(0), top * columns, part_rows * columns, size, caps);
            let (out, out_early) = window(Role::Output(0), left * rows, part_columns * rows, size, caps);
            let across = part_columns.div_ceil(32);
            let tiles = part_rows.div_ceil(32) * across;
            // A binding has less than 2^32 elements.
            let params =
                [rows, columns, part_rows, part_columns, x_early + left, out_early + top, across, tiles]
                    .map(|word| word as u32);
            list.launches.push(kernel_launch(kernel.clone(), params.to_vec(), tiles, vec![x, out], caps)?);
        }
    }
    Ok(list)
}
