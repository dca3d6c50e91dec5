//! Checks every dispatch before it is compiled, so that errors name the dispatch and not a wgpu object.

use super::{COMPILE, Dispatch};
use crate::{
    buffer::BufferSlice,
    device::GpuDevice,
    error::GpuError,
    kernel::{Access, Caps},
};

pub(super) fn dispatch(gpu: &GpuDevice, index: usize, dispatch: &Dispatch) -> Result<(), GpuError> {
    let pipeline = &dispatch.pipeline;
    let name = || format!("dispatch {index} ({})", dispatch.label);
    let wrong = |what: &str, expected: String, got: String| {
        Err(GpuError::Argument { call: COMPILE, what: format!("{what} of {}", name()), expected, got })
    };
    if pipeline.device != gpu.id() {
        return Err(GpuError::ForeignDevice { call: COMPILE, what: format!("the pipeline of {}", name()) });
    }
    let (words, buffers) = (pipeline.param_words as usize, pipeline.access.len());
    if dispatch.params.len() != words {
        return wrong("the number of parameter words", words.to_string(), dispatch.params.len().to_string());
    }
    if dispatch.bindings.len() != buffers {
        return wrong("the number of bindings", buffers.to_string(), dispatch.bindings.len().to_string());
    }
    let caps = gpu.caps();
    for (axis, &count) in ["x", "y", "z"].iter().zip(&dispatch.workgroups) {
        if count > caps.max_workgroups {
            return Err(GpuError::TooLarge {
                call: COMPILE,
                what: format!("the number of workgroups in {axis} of {}", name()),
                needed: count.into(),
                limit: caps.max_workgroups.into(),
            });
        }
    }
    // An empty dispatch may have invalid bindings.
    if dispatch.workgroups.contains(&0) {
        return Ok(());
    }
    for (position, slice) in dispatch.bindings.iter().enumerate() {
        if slice.buffer.check_device(gpu, COMPILE).is_err() {
            let what = format!("the buffer of binding {position} of {}", name());
            return Err(GpuError::ForeignDevice { call: COMPILE, what });
        }
        binding(&caps, slice)
            .map_err(|problem| problem.named(&format!("binding {position} of {}", name())))?;
    }
    aliases(dispatch, name)
}

/// What is wrong with a binding.
enum Problem {
    Argument { what: &'static str, expected: String, got: String },
    TooLarge { needed: u64, limit: u64 },
}

impl Problem {
    fn named(self, binding: &str) -> GpuError {
        match self {
            Self::Argument { what, expected, got } => {
                GpuError::Argument { call: COMPILE, what: format!("the {what} of {binding}"), expected, got }
            }
            Self::TooLarge { needed, limit } => {
                let what = format!("the size in bytes of {binding}");
                GpuError::TooLarge { call: COMPILE, what, needed, limit }
            }
        }
    }
}

fn binding(caps: &Caps, slice: &BufferSlice) -> Result<(), Problem> {
    let BufferSlice { buffer, offset, size } = slice;
    let wrong = |what, expected: String, got: String| Err(Problem::Argument { what, expected, got });
    let align = u64::from(caps.binding_alignment);
    if !offset.is_multiple_of(align) {
        return wrong("offset", format!("a multiple of {align}"), offset.to_string());
    }
    if *size == 0 || !size.is_multiple_of(4) {
        return wrong("size", "a multiple of 4 and not 0".to_owned(), size.to_string());
    }
    if offset.checked_add(*size).is_none_or(|end| end > buffer.size()) {
        let within = format!("within the buffer's {} bytes", buffer.size());
        return wrong("range", within, format!("{size} bytes at {offset}"));
    }
    if *size > caps.max_binding {
        return Err(Problem::TooLarge { needed: *size, limit: caps.max_binding });
    }
    let usage = buffer.raw().usage();
    if !usage.contains(wgpu::BufferUsages::STORAGE) {
        return wrong("buffer", "made for STORAGE".to_owned(), format!("{usage:?}"));
    }
    Ok(())
}

/// wgpu tracks whole buffers: a buffer that a kernel writes must not also be bound read-only, whatever
/// the ranges. It may be bound twice as `read_write`, with disjoint ranges or with exactly the same
/// range (kernels that work in place).
fn aliases(dispatch: &Dispatch, name: impl Fn() -> String) -> Result<(), GpuError> {
    let bound: Vec<_> = dispatch.bindings.iter().zip(&dispatch.pipeline.access).collect();
    for (second, (slice, access)) in bound.iter().enumerate() {
        for (first, (other, other_access)) in bound[..second].iter().enumerate() {
            let both_read = **access == Access::Read && **other_access == Access::Read;
            if slice.buffer != other.buffer || both_read {
                continue;
            }
            if access != other_access || (slice.overlaps(other) && slice != other) {
                return Err(GpuError::Aliased { call: COMPILE, dispatch: name(), first, second });
            }
        }
    }
    Ok(())
}
