//! The result of a kernel function: a list of launches with their bindings, or an error.

use crate::kernel::{Caps, Kernel, Launch, StorageBinding, fold_grid};

/// Which buffer of an operation a binding takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The operation's input of this number.
    Input(usize),
    /// The operation's output of this number.
    Output(usize),
    /// The scratch buffer of this number in the list.
    Scratch(usize),
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The buffer.
    pub role: Role,
    /// Its offset in bytes; a multiple of [`Caps::binding_alignment`].
    pub offset: u64,
    /// Its bytes, rounded up to 16 as the buffers are.
    pub bytes: u64,
}

/// A launch and its bindings, in the order of [`Kernel::bindings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelLaunch {
    /// What is launched.
    pub launch: Launch,
    /// What it binds.
    pub bindings: Vec<Binding>,
}

/// Launches that run one after the other, each seeing what those before it wrote. Empty where there is
/// nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchList {
    /// The launches.
    pub launches: Vec<KernelLaunch>,
    /// Bytes of each scratch buffer.
    pub scratch: Vec<u64>,
}

/// Why there is no kernel for an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// It would bind more storage buffers than the device allows.
    #[error("{op} binds {needed} storage buffers, the device allows {limit}: cut it into smaller parts")]
    TooManyBuffers {
        /// The operation.
        op: String,
        /// Buffers that it needs.
        needed: usize,
        /// Buffers that the device allows.
        limit: u32,
    },
    /// Something that cannot be split is larger than a binding.
    #[error("{op}: {what} takes {bytes} bytes, and a binding of this device holds {limit}")]
    TooLarge {
        /// The operation.
        op: String,
        /// What is too large.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the largest binding.
        limit: u64,
    },
    /// The number of elements or bytes does not fit 64 bits, or the grid does not fit the device.
    #[error("{op}: {what} is too many for this device")]
    TooMany {
        /// The operation.
        op: String,
        /// What is counted.
        what: &'static str,
    },
    /// The operation is malformed.
    #[error("{op}: {reason}")]
    Invalid {
        /// The operation.
        op: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Bytes rounded up to whole `vec4<f32>`s.
pub(crate) const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(16)
}

/// `count` elements of `size` bytes from element `start` on, as a binding with an aligned offset, and the
/// number of elements that lie before them in the binding.
pub(crate) fn window(role: Role, start: u64, count: u64, size: u64, caps: &Caps) -> (Binding, u64) {
    let align = alignment(caps);
    let offset = start * size / align * align;
    let bytes = padded(start * size + count * size - offset);
    (Binding { role, offset, bytes }, start - offset / size)
}

/// The alignment of offsets, at least that of a `vec4<f32>`.
pub(crate) fn alignment(caps: &Caps) -> u64 {
    u64::from(caps.binding_alignment).max(16)
}

/// The largest power of two of threads within the limits and `wanted`.
pub(crate) fn threads(wanted: u32, caps: &Caps) -> u32 {
    let most = wanted.min(caps.max_invocations).max(1);
    1 << most.ilog2()
}

/// A launch of `groups` workgroups.
pub(crate) fn kernel_launch(
    kernel: Kernel,
    params: Vec<u32>,
    groups: u64,
    bindings: Vec<Binding>,
    caps: &Caps,
) -> Result<KernelLaunch, KernelError> {
    let op = || kernel.label.to_string();
    if bindings.len() > caps.max_storage_buffers as usize {
        let (needed, limit) = (bindings.len(), caps.max_storage_buffers);
        return Err(KernelError::TooManyBuffers { op: op(), needed, limit });
    }
    debug_assert_eq!(kernel.bindings.len(), bindings.len());
    debug_assert_eq!(kernel.param_words as usize, params.len());
    let workgroups = fold_grid(groups, caps.max_workgroups)
        .ok_or_else(|| KernelError::TooMany { op: op(), what: "the number of workgroups" })?;
    Ok(KernelLaunch { launch: Launch { kernel, params, workgroups }, bindings })
}

/// A kernel whose label is a constant.
pub(crate) fn kernel(
    label: &'static str,
    wgsl: String,
    bindings: Vec<StorageBinding>,
    param_words: u32,
) -> Kernel {
    Kernel { label: label.into(), wgsl, bindings, param_words }
}

/// A product of sizes, or the error.
pub(crate) fn product(op: &str, what: &'static str, factors: &[u64]) -> Result<u64, KernelError> {
    factors
        .iter()
        .try_fold(1u64, |product, &factor| product.checked_mul(factor))
        // Room to round up.
        .filter(|&product| product <= u64::MAX / 32)
        .ok_or_else(|| KernelError::TooMany { op: op.to_owned(), what })
}
