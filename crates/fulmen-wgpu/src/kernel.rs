//! A kernel as data: WGSL text, the buffers it binds, and how it is launched. Functions make kernels from the
//! shape of the work and from what the device can do ([`Caps`]); the pipeline cache compiles them and the
//! encoder launches them.

use std::{borrow::Cow, fmt::Write as _};

/// What a device offers to kernels. Every optional feature can be switched off, to test the plain paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caps {
    /// Smallest and largest subgroup, where subgroup operations may be used.
    pub subgroups: Option<(u32, u32)>,
    /// `enable f16;` may be used.
    pub f16: bool,
    /// Bytes of immediate data; 0 where there is none and parameters go through a uniform buffer.
    pub immediate_bytes: u32,
    /// Cooperative matrices (16 × 16, f16 in, f32 out) may be used.
    pub cooperative_matrix: bool,
    /// Workgroups per dimension of a launch.
    pub max_workgroups: u32,
    /// Threads per workgroup.
    pub max_invocations: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Bytes of one storage binding.
    pub max_binding: u64,
    /// Bytes of one buffer.
    pub max_buffer: u64,
    /// Storage buffers that a kernel may bind.
    pub max_storage_buffers: u32,
    /// Bytes to which the offset of a binding is aligned.
    pub binding_alignment: u32,
}

impl Caps {
    /// A large device with every feature, as an H200 is, for tests that need no device.
    #[doc(hidden)]
    pub const fn large_device() -> Caps {
        Caps {
            subgroups: Some((32, 32)),
            f16: true,
            immediate_bytes: 256,
            cooperative_matrix: true,
            max_workgroups: 65_535,
            max_invocations: 1024,
            workgroup_memory: 48 << 10,
            max_binding: (2 << 30) - 4,
            max_buffer: 1 << 40,
            max_storage_buffers: 64,
            binding_alignment: 32,
        }
    }
}

/// How a kernel uses a buffer. One buffer must not be bound in both ways in one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

/// A storage buffer that a kernel binds, `var<storage> name: array<element>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StorageBinding {
    /// Its name in the text.
    pub name: Cow<'static, str>,
    /// The WGSL type of its elements.
    pub element: Cow<'static, str>,
    /// How it is used.
    pub access: Access,
}

impl StorageBinding {
    /// A buffer that is used in this way.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        element: impl Into<Cow<'static, str>>,
        access: Access,
    ) -> Self {
        Self { name: name.into(), element: element.into(), access }
    }

    /// A buffer that is only read.
    pub fn read(name: impl Into<Cow<'static, str>>, element: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, element, Access::Read)
    }

    /// A buffer that is written, and may be read.
    pub fn read_write(name: impl Into<Cow<'static, str>>, element: impl Into<Cow<'static, str>>) -> Self {
        Self::new(name, element, Access::ReadWrite)
    }
}

/// A compute kernel. Two kernels with equal contents are one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Name in profiles and messages.
    pub label: Cow<'static, str>,
    /// The module, with the entry point `main`, but for the declarations of buffers and parameters: the text
    /// uses the names of `bindings`, and if `param_words` is not 0 it declares `struct Params` (that many
    /// 32-bit scalars) and uses `params`. [`module`](Self::module) adds the declarations.
    pub wgsl: String,
    /// The buffers it binds: `@group(0) @binding(i)` in this order.
    pub bindings: Vec<StorageBinding>,
    /// 32-bit words in `Params`.
    pub param_words: u32,
}

impl Kernel {
    /// The whole module: the text and the declarations of its buffers. WGSL lets declarations follow their
    /// use, so they stand at the end, after the `enable` directives that must be first.
    pub fn module(&self) -> String {
        let mut text = String::with_capacity(self.wgsl.len() + 128 * self.bindings.len());
        text.push_str(&self.wgsl);
        text.push('\n');
        for (number, StorageBinding { name, element, access }) in self.bindings.iter().enumerate() {
            let access = match access {
                Access::Read => "read",
                Access::ReadWrite => "read_write",
            };
            // Written to a string, which cannot fail.
            let _ = writeln!(
                text,
                "@group(0) @binding({number}) var<storage, {access}> {name}: array<{element}>;"
            );
        }
        text
    }

    /// How each buffer is used.
    pub fn access(&self) -> impl Iterator<Item = Access> {
        self.bindings.iter().map(|binding| binding.access)
    }

    /// The same kernel with these bindings declared `read_write`, for a launch that writes to their buffer by
    /// another binding: WebGPU allows one use of a buffer in a launch.
    pub(crate) fn with_read_write(mut self, bindings: &[usize]) -> Self {
        for &number in bindings {
            self.bindings[number].access = Access::ReadWrite;
        }
        self
    }
}

/// One launch of a kernel, but for the buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Its parameters, as the words of `Params`.
    pub params: Vec<u32>,
    /// Workgroups in x, y and z, each within [`Caps::max_workgroups`].
    pub workgroups: [u32; 3],
}

/// A grid of at least `count` workgroups within the limit per dimension. A kernel that uses it takes
/// `id.x + grid.x * (id.y + grid.y * id.z)` as its number and stops where that is not below its count.
///
/// Gives `None` where even three dimensions do not suffice.
pub fn fold_grid(count: u64, max_workgroups: u32) -> Option<[u32; 3]> {
    let max = u64::from(max_workgroups.max(1));
    let rows = count.div_ceil(max);
    let y = rows.clamp(1, max);
    let z = rows.div_ceil(y);
    if count == 0 || z > max {
        return None;
    }
    // As few as cover the count: idle workgroups cost time, too.
    let x = count.div_ceil(y * z);
    // Each is at most `max_workgroups`.
    Some([x as u32, y as u32, z as u32])
}

#[cfg(test)]
mod tests {
    use super::fold_grid;

    #[test]
    fn grids_cover_the_count_and_keep_the_limit() {
        for count in [1u64, 2, 65_535, 65_536, 65_537, 1 << 31, (1 << 32) + 1, 65_535 * 65_535 + 1] {
            let [x, y, z] = fold_grid(count, 65_535).unwrap();
            assert!([x, y, z].iter().all(|&n| (1..=65_535).contains(&n)), "{count}: {x} {y} {z}");
            let all = u64::from(x) * u64::from(y) * u64::from(z);
            assert!(all >= count && all - count < u64::from(y) * u64::from(z), "{count}: {x} {y} {z}");
        }
        assert_eq!(fold_grid(0, 65_535), None);
        assert_eq!(fold_grid(u64::MAX, 65_535), None);
        assert_eq!(fold_grid(9, 2), None);
    }
}
