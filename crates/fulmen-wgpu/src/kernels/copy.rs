//! Copies: of elements, with conversion, and of bytes at any offset.

use super::{
    Elem, KernelError, LaunchList, Role,
    elementwise::{ElementwiseProgram, Input, Node, Output, fused},
    launch_list::{alignment, kernel, kernel_launch, threads, window},
    preprocess::{render, values},
};
use crate::kernel::{Caps, StorageBinding};

/// Copies `len` elements from input 0 to output 0, of the same or another type.
///
/// # Errors
/// As [`fused`].
pub fn copy(len: u64, from: Elem, to: Elem, caps: &Caps) -> Result<LaunchList, KernelError> {
    let program = ElementwiseProgram {
        inputs: vec![Input { elem: from, ..Input::default() }],
        nodes: vec![Node::Input(0)],
        outputs: vec![Output { elem: to, ..Output::default() }],
        ..ElementwiseProgram::default()
    };
    fused(&program, len, &[], caps)
}

/// Copies `len` f32 from input 0 to output 0 for a kernel that edits them there; nothing where they are the
/// same memory.
///
/// # Errors
/// As [`fused`].
pub(super) fn copy_to_edit(len: u64, in_place: bool, caps: &Caps) -> Result<LaunchList, KernelError> {
    if in_place { Ok(LaunchList::default()) } else { copy(len, Elem::F32, Elem::F32, caps) }
}

/// Copies `bytes` bytes from byte `shifts[0]` of input 0 on to byte `shifts[1]` of output 0 on; both
/// are below [`Caps::binding_alignment`], or below 16 where that is less. Bytes beside them keep their
/// values.
///
/// # Errors
/// [`KernelError`] where the numbers are more than the device takes.
pub fn copy_bytes(bytes: u64, shifts: [u64; 2], caps: &Caps) -> Result<LaunchList, KernelError> {
    const OP: &str = "copy_bytes";
    let align = alignment(caps);
    let mut list = LaunchList::default();
    if bytes > u64::MAX / 64 || shifts.iter().any(|&shift| shift >= align) {
        let what = "the number of bytes";
        return Err(KernelError::TooMany { op: OP.to_owned(), what });
    }
    let threads = threads(256, caps);
    // Whole vectors where both ranges are aligned.
    let vectors = shifts == [0, 0] && bytes.is_multiple_of(16);
    let file = if vectors { "copy_vectors.wgsl" } else { "copy_bytes.wgsl" };
    let wgsl = render(file, &values![threads]);
    let element = if vectors { "vec4<u32>" } else { "u32" };
    let declared = vec![StorageBinding::read("src", element), StorageBinding::read_write("dst", element)];
    let copy = kernel(OP, wgsl, declared, if vectors { 1 } else { 4 });
    // A multiple of the alignment, so that every part has the same shifts.
    let most = caps.max_binding.min(1 << 31).saturating_sub(2 * align) / align * align;
    if most == 0 {
        let limit = caps.max_binding;
        return Err(KernelError::TooLarge { op: OP.to_owned(), what: "a copy", bytes: 3 * align, limit });
    }
    let mut start = 0;
    while start < bytes {
        let count = most.min(bytes - start);
        let bound = |role, shift| window(role, start, shift + count, 1, caps).0;
        let bindings = vec![bound(Role::Input(0), shifts[0]), bound(Role::Output(0), shifts[1])];
        // All are below 2^31.
        let [from, to] = shifts.map(|shift| shift as u32);
        let end = to + count as u32;
        let words = u64::from(end.div_ceil(4) - to / 4);
        let (params, items) = match vectors {
            true => (vec![count as u32 / 16], count / 16),
            false => (vec![from, to, end, bindings[0].bytes as u32 / 4], words),
        };
        list.launches.push(kernel_launch(
            copy.clone(),
            params,
            items.div_ceil(threads.into()),
            bindings,
            caps,
        )?);
        start += count;
    }
    Ok(list)
}
