//! Element types: floating-point types, `u32` indices and the GGML block formats.

use std::fmt;

/// How the elements of a tensor are stored.
///
/// The names are those of GGUF files. Block formats store a fixed number of elements (a *block*) in a fixed
/// number of bytes, so a row must be a whole number of blocks.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// Unsigned 32-bit integers: token ids, positions, sequence numbers.
    U32,
    /// 32 elements, 4 bits each, one scale.
    Q4_0,
    /// 32 elements, 4 bits each, scale and minimum.
    Q4_1,
    /// 32 elements, 5 bits each, one scale.
    Q5_0,
    /// 32 elements, 5 bits each, scale and minimum.
    Q5_1,
    /// 32 elements, 8 bits each, one scale.
    Q8_0,
    /// 256 elements, 2 bits each, 4-bit scales and minima per 16.
    Q2_K,
    /// 256 elements, 3 bits each, 6-bit scales per 16.
    Q3_K,
    /// 256 elements, 4 bits each, 6-bit scales and minima per 32.
    Q4_K,
    /// 256 elements, 5 bits each, 6-bit scales and minima per 32.
    Q5_K,
    /// 256 elements, 6 bits each, 8-bit scales per 16.
    Q6_K,
    /// 256 elements, 8 bits each, one `f32` scale and sums per 16: ggml's format of quantized activations.
    Q8_K,
    /// 32 elements of a 4-bit floating-point type (E2M1), one power of two as scale (E8M0).
    MXFP4,
    /// 32 elements, 4 bits each, indices of a table of values, one scale.
    IQ4_NL,
    /// 256 elements, 4 bits each, indices of the same table, 6-bit scales per 32.
    IQ4_XS,
    /// 256 elements, 8-bit indices of 8 elements of a grid and signs, 4-bit scales per 32.
    IQ2_XXS,
    /// 256 elements, 9-bit indices of 8 elements of a grid and signs, 4-bit scales per 16.
    IQ2_XS,
    /// 256 elements, 10-bit indices of 8 elements of a grid and signs, 4-bit scales per 16.
    IQ2_S,
    /// 256 elements, 8-bit indices of 4 elements of a grid and signs, 4-bit scales per 32.
    IQ3_XXS,
    /// 256 elements, 9-bit indices of 4 elements of a grid and signs, 4-bit scales per 32.
    IQ3_S,
}

/// One row per type: the type, its name, its GGML number (if GGUF has one), elements and bytes per block.
const TABLE: [(DType, &str, Option<u32>, usize, usize); 23] = [
    (DType::F32, "F32", Some(0), 1, 4),
    (DType::F16, "F16", Some(1), 1, 2),
    (DType::BF16, "BF16", Some(30), 1, 2),
    (DType::U32, "U32", None, 1, 4),
    (DType::Q4_0, "Q4_0", Some(2), 32, 18),
    (DType::Q4_1, "Q4_1", Some(3), 32, 20),
    (DType::Q5_0, "Q5_0", Some(6), 32, 22),
    (DType::Q5_1, "Q5_1", Some(7), 32, 24),
    (DType::Q8_0, "Q8_0", Some(8), 32, 34),
    (DType::Q2_K, "Q2_K", Some(10), 256, 84),
    (DType::Q3_K, "Q3_K", Some(11), 256, 110),
    (DType::Q4_K, "Q4_K", Some(12), 256, 144),
    (DType::Q5_K, "Q5_K", Some(13), 256, 176),
    (DType::Q6_K, "Q6_K", Some(14), 256, 210),
    (DType::Q8_K, "Q8_K", Some(15), 256, 292),
    (DType::MXFP4, "MXFP4", Some(39), 32, 17),
    (DType::IQ4_NL, "IQ4_NL", Some(20), 32, 18),
    (DType::IQ4_XS, "IQ4_XS", Some(23), 256, 136),
    (DType::IQ2_XXS, "IQ2_XXS", Some(16), 256, 66),
    (DType::IQ2_XS, "IQ2_XS", Some(17), 256, 74),
    (DType::IQ2_S, "IQ2_S", Some(22), 256, 82),
    (DType::IQ3_XXS, "IQ3_XXS", Some(18), 256, 98),
    (DType::IQ3_S, "IQ3_S", Some(21), 256, 110),
];

/// Why a type or a size was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DTypeError {
    /// A GGML type number that this library does not know.
    #[error("unknown GGML type {0}; known are {known}", known = known_ids())]
    UnknownGgmlType(u32),
    /// A type name that this library does not know.
    #[error("unknown type name {0:?}; known are {known}", known = known_names())]
    UnknownName(String),
    /// A number of elements that is not a whole number of blocks.
    #[error("{dtype}: {elements} elements are not a multiple of the block of {block}")]
    PartialBlock {
        /// The type.
        dtype: DType,
        /// Elements asked for.
        elements: usize,
        /// Elements per block.
        block: usize,
    },
    /// A size that does not fit the address space.
    #[error("{dtype}: the size of {elements} elements overflows")]
    Overflow {
        /// The type.
        dtype: DType,
        /// Elements asked for.
        elements: usize,
    },
    /// Data whose length does not match the number of elements.
    #[error("{call}: {elements} elements of {dtype} need {expected} bytes, got {got}")]
    Length {
        /// The function that was called.
        call: &'static str,
        /// The type.
        dtype: DType,
        /// Elements asked for.
        elements: usize,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// There is not enough memory for the result.
    #[error("{call}: not enough memory for {bytes} bytes of {dtype}")]
    Memory {
        /// The function that was called.
        call: &'static str,
        /// The type.
        dtype: DType,
        /// Bytes needed.
        bytes: usize,
    },
    /// An operation that is not defined for this type.
    #[error("{call}: not defined for {dtype}")]
    Unsupported {
        /// The function that was called.
        call: &'static str,
        /// The type.
        dtype: DType,
    },
    /// A value that is NaN or infinite where only finite values can be stored.
    #[error("{call}: the value at index {index} is not finite and cannot be stored as {dtype}")]
    NotFinite {
        /// The function that was called.
        call: &'static str,
        /// The type.
        dtype: DType,
        /// The index of the first such value.
        index: usize,
    },
    /// An importance by which no error can be weighted.
    #[error("quantize: the importance at index {index} is negative or not finite ({dtype})")]
    Importance {
        /// The type to quantize to.
        dtype: DType,
        /// The index of the first such importance.
        index: usize,
    },
}

fn known_ids() -> String {
    let ids: Vec<String> = TABLE.iter().filter_map(|row| Some(format!("{} ({})", row.2?, row.1))).collect();
    ids.join(", ")
}

fn known_names() -> String {
    TABLE.map(|row| row.1).join(", ")
}

impl DType {
    /// Every type, in the order of the table.
    pub const ALL: [DType; TABLE.len()] = {
        let mut all = [DType::F32; TABLE.len()];
        let mut i = 0;
        while i < TABLE.len() {
            // Lookups index the table by discriminant, so the order must be that of the enum.
            assert!(TABLE[i].0 as usize == i);
            all[i] = TABLE[i].0;
            i += 1;
        }
        all
    };

    /// The name, as GGUF tools print it.
    pub const fn name(self) -> &'static str {
        TABLE[self as usize].1
    }

    /// The number of this type in a GGUF file; `None` for [`DType::U32`], which GGUF does not have.
    pub const fn ggml_type(self) -> Option<u32> {
        TABLE[self as usize].2
    }

    /// The type with this number in a GGUF file.
    pub fn from_ggml_type(id: u32) -> Result<DType, DTypeError> {
        let row = TABLE.iter().find(|row| row.2 == Some(id));
        row.map(|row| row.0).ok_or(DTypeError::UnknownGgmlType(id))
    }

    /// Elements per block; 1 for plain types.
    pub const fn block_len(self) -> usize {
        TABLE[self as usize].3
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        TABLE[self as usize].4
    }

    /// Whether elements are stored in blocks with shared scales.
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Whether [`quantize`](crate::quant::quantize) can write this type. The others have no values
    /// ([`DType::U32`]) or are only read.
    pub const fn can_encode(self) -> bool {
        use DType::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, U32};
        !matches!(self, U32 | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S)
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Bytes that `elements` elements take.
    ///
    /// ```
    /// use fulmen_core::DType;
    /// assert_eq!(DType::Q4_K.bytes(2560).unwrap(), 1440);
    /// assert!(DType::Q4_K.bytes(2561).is_err());
    /// ```
    pub fn bytes(self, elements: usize) -> Result<usize, DTypeError> {
        let block = self.block_len();
        if !elements.is_multiple_of(block) {
            return Err(DTypeError::PartialBlock { dtype: self, elements, block });
        }
        (elements / block)
            .checked_mul(self.block_bytes())
            .ok_or(DTypeError::Overflow { dtype: self, elements })
    }

    /// Bits per element, scales included.
    pub const fn bits_per_element(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block_len() as f64
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = DTypeError;

    /// Reads a name in any case.
    fn from_str(name: &str) -> Result<DType, DTypeError> {
        let row = TABLE.iter().find(|row| row.1.eq_ignore_ascii_case(name));
        row.map(|row| row.0).ok_or_else(|| DTypeError::UnknownName(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>(), Ok(dtype));
            assert_eq!(dtype.name().to_lowercase().parse::<DType>(), Ok(dtype));
            if let Some(id) = dtype.ggml_type() {
                assert_eq!(DType::from_ggml_type(id), Ok(dtype));
            }
        }
        assert_eq!(DType::from_ggml_type(4), Err(DTypeError::UnknownGgmlType(4)));
        let message = DType::from_ggml_type(99).unwrap_err().to_string();
        assert!(message.contains("99") && message.contains("12 (Q4_K)"), "{message}");
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(DType::F16.bytes(3), Ok(6));
        assert_eq!(DType::Q6_K.bytes(0), Ok(0));
        assert!(matches!(DType::Q8_0.bytes(31), Err(DTypeError::PartialBlock { block: 32, .. })));
        assert!(matches!(DType::F32.bytes(usize::MAX), Err(DTypeError::Overflow { .. })));
    }
}
