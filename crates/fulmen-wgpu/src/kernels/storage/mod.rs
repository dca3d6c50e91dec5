//! Element types in storage buffers, and the WGSL functions that load and store them.
//!
//! Kernels compute in f32, on `EwF`: four elements at a time (`vec4<f32>`), or one (`f32`) where rows are not
//! vector-aligned.

use super::preprocess::{render, values};
use crate::kernel::{Access, Caps, StorageBinding};

/// The type of stored elements. Kernels compute in f32 whatever the type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Elem {
    /// f32.
    #[default]
    F32,
    /// f16. On devices without f16 in kernels it is unpacked from 32-bit words.
    F16,
}

impl Elem {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }

    /// The type of `width` elements in WGSL, where the device has it.
    pub(crate) const fn wgsl(self, width: u32) -> &'static str {
        match (self, width) {
            (Self::F32, 4) => "vec4<f32>",
            (Self::F32, _) => "f32",
            (Self::F16, 4) => "vec4<f16>",
            (Self::F16, _) => "f16",
        }
    }

    pub(crate) fn form(self, caps: &Caps) -> Form {
        match self {
            Self::F32 => Form::F32,
            Self::F16 if caps.f16 => Form::F16,
            Self::F16 => Form::PackedF16,
        }
    }
}

/// How a kernel sees the elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    F32,
    F16,
    /// Two in each `u32`.
    PackedF16,
}

impl Form {
    /// The name in `storage/accessors.wgsl`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::PackedF16 => "packed_f16",
        }
    }
}

/// Elements in an `EwF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes {
    One,
    Four,
}

impl Lanes {
    pub(crate) const fn count(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Four => 4,
        }
    }
}

/// The type of an array's elements where each holds `lanes`.
pub(crate) const fn element(form: Form, lanes: Lanes) -> &'static str {
    match (form, lanes) {
        (Form::F32, Lanes::Four) => "vec4<f32>",
        (Form::F16, Lanes::Four) => "vec4<f16>",
        (Form::PackedF16, Lanes::Four) => "vec2<u32>",
        (Form::F32, Lanes::One) => "f32",
        (Form::F16, Lanes::One) => "f16",
        (Form::PackedF16, Lanes::One) => "u32",
    }
}

/// Adds a buffer to the bindings, and returns the functions of `storage/accessors.wgsl` for it.
pub(crate) fn declare(
    bindings: &mut Vec<StorageBinding>,
    name: &str,
    form: Form,
    lanes: Lanes,
    access: Access,
) -> String {
    bindings.push(StorageBinding::new(name.to_owned(), element(form, lanes), access));
    let values = values![
        name: name.to_owned(),
        form: form.name(),
        lanes: lanes.count() as u32,
        writable: access == Access::ReadWrite,
    ];
    render("storage/accessors.wgsl", &values)
}
