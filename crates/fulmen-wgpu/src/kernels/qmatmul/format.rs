//! The formats: how long a packed row is, and the text that reads it.

use super::{QuantError, QuantWeight};
use fulmen_core::DType;

/// A format with kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Q4_0,
    Q4_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl Format {
    /// The format of a weight, which is checked.
    pub(super) fn of(weight: QuantWeight) -> Result<Self, QuantError> {
        let format = match weight.dtype {
            DType::Q4_0 => Self::Q4_0,
            DType::Q4_1 => Self::Q4_1,
            DType::Q8_0 => Self::Q8_0,
            DType::Q4_K => Self::Q4K,
            DType::Q5_K => Self::Q5K,
            DType::Q6_K => Self::Q6K,
            _ => return Err(QuantError::Format { weight }),
        };
        if weight.n == 0 || weight.k == 0 || !weight.k.is_multiple_of(weight.dtype.block_len() as u32) {
            return Err(QuantError::Sides { weight });
        }
        Ok(format)
    }

    /// Bytes of the planes of a row, each a multiple of 16.
    pub(super) fn planes(self, k: u32) -> Vec<u64> {
        let items = u64::from(k / 32);
        let planes = match self {
            Self::Q4_0 => vec![16 * items, 2 * items],
            Self::Q4_1 => vec![16 * items, 4 * items],
            Self::Q8_0 => vec![16 * items, 16 * items, 2 * items],
            Self::Q4K => vec![16 * items, 2 * items],
            Self::Q5K => vec![16 * items, 2 * items, 4 * items],
            Self::Q6K => vec![16 * items, 8 * items, 2 * items, items / 4],
        };
        planes.into_iter().map(|bytes| bytes.next_multiple_of(16)).collect()
    }

    pub(super) fn row_bytes(self, k: u32) -> u64 {
        self.planes(k).iter().sum()
    }

    /// `Item`, `Raw`, `row_length()`, `fetch(base, it)` and `decode(raw, it)` over the array `w`.
    pub(super) fn text(self) -> String {
        let (header, own) = match self {
            Self::Q4_0 => ("", include_str!("formats/q4_0.wgsl")),
            Self::Q4_1 => ("", include_str!("formats/q4_1.wgsl")),
            Self::Q8_0 => ("", include_str!("formats/q8_0.wgsl")),
            Self::Q4K => (include_str!("formats/k_header.wgsl"), include_str!("formats/q4_k.wgsl")),
            Self::Q5K => (include_str!("formats/k_header.wgsl"), include_str!("formats/q5_k.wgsl")),
            Self::Q6K => ("", include_str!("formats/q6_k.wgsl")),
        };
        format!("{}\n{header}\n{own}\n", include_str!("formats/item.wgsl"))
    }

    /// The function that makes numbers of a word of codes.
    pub(super) const fn unpack(self) -> &'static str {
        match self {
            Self::Q8_0 => "unpack4xI8",
            _ => "unpack4xU8",
        }
    }

    /// Whether the halves of an item have scales of their own, and no offset but that of the codes.
    pub(super) const fn halves_differ(self) -> bool {
        matches!(self, Self::Q6K)
    }

    /// `codes` as bytes that a product of codes may take for signed ones: where an offset belongs to the format, without it.
    pub(super) const fn signed(self) -> &'static str {
        match self {
            // Bytes of 0 to 63, less 32.
            Self::Q6K => {
                "((codes | vec4<u32>(0x80808080u)) - vec4<u32>(0x20202020u)) ^ vec4<u32>(0x80808080u)"
            }
            _ => "codes",
        }
    }

    /// The body of `add` for int8 values of A.
    pub(super) const fn add(self) -> &'static str {
        match self {
            Self::Q6K => {
                "let first = dot16(item.lo, v.lo) - 32 * bitcast<i32>(v.more.y);\n    \
                 let second = dot16(item.hi, v.hi) - 32 * bitcast<i32>(v.more.z);\n    \
                 let both = fma(item.s.x, f32(first), item.s.y * f32(second));\n    \
                 return fma(bitcast<f32>(v.more.x), both, sum);"
            }
            Self::Q8_0 => {
                "let both = f32(dot16(item.lo, v.lo) + dot16(item.hi, v.hi));\n    \
                 return fma(item.s.x * bitcast<f32>(v.more.x), both, sum);"
            }
            _ => {
                "let both = f32(dot16(item.lo, v.lo) + dot16(item.hi, v.hi));\n    \
                 let moved = fma(item.o.x, bitcast<f32>(v.more.w), sum);\n    \
                 return fma(item.s.x * bitcast<f32>(v.more.x), both, moved);"
            }
        }
    }
}
