//! What B is stored as, and how kernels read it.

use crate::kernel::Caps;
use crate::kernels::Elem;
use crate::kernels::preprocess::{render, values};

/// The type of B's elements. Sums are f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// f32.
    #[default]
    F32,
    /// f16. Where the device has none in kernels they are unpacked from 32-bit words.
    F16,
    /// bf16: the upper 16 bits of an f32.
    Bf16,
}

impl From<Elem> for WeightType {
    fn from(elem: Elem) -> Self {
        match elem {
            Elem::F32 => Self::F32,
            Elem::F16 => Self::F16,
        }
    }
}

impl WeightType {
    /// Bytes of an element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The type in WGSL of an array's elements that hold `width` values, 4 or 1. One value of a packed type
    /// is found in the word that holds two.
    pub(in crate::kernels) const fn element(self, width: u32, caps: &Caps) -> &'static str {
        match (self, caps.f16, width) {
            (Self::F32, _, 4) => "vec4<f32>",
            (Self::F32, ..) => "f32",
            (Self::F16, true, 4) => "vec4<f16>",
            (Self::F16, true, _) => "f16",
            (Self::F16 | Self::Bf16, _, 4) => "vec2<u32>",
            (Self::F16 | Self::Bf16, ..) => "u32",
        }
    }

    /// How `element.wgsl` reads the type.
    pub(in crate::kernels) const fn form(self, caps: &Caps) -> &'static str {
        match (self, caps.f16) {
            (Self::F32, _) => "f32",
            (Self::F16, true) => "f16",
            (Self::F16, false) => "packed_f16",
            (Self::Bf16, _) => "bf16",
        }
    }

    /// `get_<name>(i)`: the i-th four values (or the i-th one) of the array `name`, in f32.
    pub(in crate::kernels) fn getter(self, name: &'static str, width: u32, caps: &Caps) -> String {
        render("matmul/getter.wgsl", &values![name, form: self.form(caps), width])
    }
}
