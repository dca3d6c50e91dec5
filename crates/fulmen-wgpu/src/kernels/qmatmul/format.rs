//! The formats: how long a packed row is, and the file that reads it.

use super::{QuantError, QuantWeight};
use crate::kernels::preprocess::{render, values};
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
    Mxfp4,
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
            DType::MXFP4 => Self::Mxfp4,
            _ => return Err(QuantError::Format { weight }),
        };
        if weight.n == 0 || weight.k == 0 || !weight.k.is_multiple_of(weight.dtype.block_len() as u32) {
            return Err(QuantError::Sides { weight });
        }
        Ok(format)
    }

    /// Bytes of the planes of a row, each a multiple of 16.
    pub(super) fn planes(self, k: u32) -> Vec<u64> {
        let blocks = u64::from(k / 32);
        let planes = match self {
            Self::Q4_0 => vec![16 * blocks, 2 * blocks],
            Self::Q4_1 => vec![16 * blocks, 4 * blocks],
            Self::Q8_0 => vec![16 * blocks, 16 * blocks, 2 * blocks],
            Self::Q4K => vec![16 * blocks, 2 * blocks],
            Self::Q5K => vec![16 * blocks, 2 * blocks, 4 * blocks],
            Self::Q6K => vec![16 * blocks, 8 * blocks, 2 * blocks, blocks / 4],
            Self::Mxfp4 => vec![16 * blocks, blocks],
        };
        planes.into_iter().map(|bytes| bytes.next_multiple_of(16)).collect()
    }

    pub(super) fn row_bytes(self, k: u32) -> u64 {
        self.planes(k).iter().sum()
    }

    /// The name of its file in `formats/`, which has `Block32`, `Raw`, `row_length()`, `fetch(base, ib)` and
    /// `decode(raw, ib)` over the array `w`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// The text of that file alone.
    pub(super) fn text(self) -> String {
        render(&format!("qmatmul/formats/{}.wgsl", self.name()), &values![suffix: ""])
    }

    /// The function that makes numbers of a word of quants.
    pub(super) const fn unpack(self) -> &'static str {
        match self {
            Self::Q8_0 | Self::Mxfp4 => "unpack4xI8",
            _ => "unpack4xU8",
        }
    }

    /// Whether each 16 elements of a block have a scale of their own, and no offset but that of the quants.
    pub(super) const fn half_scales(self) -> bool {
        matches!(self, Self::Q6K)
    }

    /// How `dot_q8.wgsl` multiplies a block.
    pub(super) const fn dot(self) -> &'static str {
        match self {
            Self::Q6K => "half_scales",
            Self::Q8_0 | Self::Mxfp4 => "scale",
            _ => "offset",
        }
    }
}
