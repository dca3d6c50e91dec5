//! What B is stored as, and the text that reads it.

use crate::kernel::Caps;
use crate::kernels::Elem;

/// The type of B's elements. Products are made in f32 whatever it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats. Where the device lacks them in kernels they are unpacked from 32-bit words.
    F16,
    /// The upper halves of 32-bit floats.
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

    /// The type in WGSL of an array's elements that hold `width` values, 4 or 1. One value of a packed type is found in
    /// the word that holds two.
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

    /// `get_<name>(i)`: the i-th four values (or the i-th one) of the array `name`, in f32.
    pub(in crate::kernels) fn getter(self, name: &str, width: u32, caps: &Caps) -> String {
        let value = match (self, caps.f16, width) {
            (Self::F32, ..) => format!("{name}[i]"),
            (Self::F16, true, 4) => format!("vec4<f32>({name}[i])"),
            (Self::F16, true, _) => format!("f32({name}[i])"),
            (Self::F16, false, 4) => {
                format!("vec4<f32>(unpack2x16float({name}[i].x), unpack2x16float({name}[i].y))")
            }
            (Self::F16, false, _) => format!("unpack2x16float({name}[i / 2u])[i & 1u]"),
            (Self::Bf16, _, 4) => format!(
                "bitcast<vec4<f32>>(({name}[i].xxyy << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u))"
            ),
            (Self::Bf16, ..) => {
                format!("bitcast<f32>(({name}[i / 2u] << (16u - 16u * (i & 1u))) & 0xffff0000u)")
            }
        };
        let ty = if width == 4 { "vec4<f32>" } else { "f32" };
        format!("fn get_{name}(i: u32) -> {ty} {{ return {value}; }}\n")
    }
}
