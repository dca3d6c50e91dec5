//! What a kernel is to this crate: WGSL text, what it binds, and how it is launched. Kernels are plain data, made by
//! ordinary functions from the shape of the work and from what the device can do ([`Caps`]); the pipeline cache compiles
//! them and the encoder launches them.

use std::borrow::Cow;

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
    /// Bytes of memory that a workgroup shares.
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

/// How a kernel uses a buffer. One buffer must not be bound in both ways in one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

/// A compute kernel. Two kernels with equal contents are one pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Name in profiles and messages.
    pub label: Cow<'static, str>,
    /// The module, with the entry point `main`. Buffers are `@group(0) @binding(i)` in the order of `access`. If
    /// `param_words` is not 0 the text declares `struct Params` (that many 32-bit scalars) and uses `params` without
    /// declaring it: the pipeline puts it before the text, as immediate data or as a uniform.
    pub wgsl: String,
    /// The buffers it binds.
    pub access: Vec<Access>,
    /// 32-bit words in `Params`.
    pub param_words: u32,
}

impl Kernel {
    /// The same kernel with these bindings declared `read_write` instead of `read`, for a launch that writes to their
    /// buffer by another binding; `None` where the text does not declare one of them as expected.
    pub(crate) fn written_too(&self, bindings: &[usize]) -> Option<Kernel> {
        let mut kernel = self.clone();
        for &binding in bindings {
            let declared = format!("@binding({binding}) var<storage, read>");
            let wanted = format!("@binding({binding}) var<storage, read_write>");
            let access = kernel.access.get_mut(binding)?;
            if *access != Access::Read || kernel.wgsl.matches(&declared).count() != 1 {
                return None;
            }
            *access = Access::ReadWrite;
            kernel.wgsl = kernel.wgsl.replacen(&declared, &wanted, 1);
        }
        Some(kernel)
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
    // As few as cover the count: workgroups that find nothing to do cost time, too.
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
