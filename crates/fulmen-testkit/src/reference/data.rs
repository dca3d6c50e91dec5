//! What a tensor holds while the reference runs.

use std::sync::Arc;

use fulmen_core::{DType, DTypeError, quant};

/// Floats that an op computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// The elements, row by row.
    pub data: Vec<f64>,
    /// For products: the size of the terms of each element, `sqrt(Σ (w x)²)`. An error is small or large beside
    /// this, not beside an element that came out small because its terms cancelled.
    pub sizes: Option<Vec<f64>>,
    /// Which elements were computed, where not all of them were.
    pub known: Option<Vec<usize>>,
}

impl Values {
    /// Elements that are as large as their terms.
    pub fn plain(data: Vec<f64>) -> Values {
        Values { data, sizes: None, known: None }
    }
}

/// What a tensor holds.
#[derive(Clone, Debug)]
pub enum Data {
    /// Bytes of an input, a weight or a state.
    Stored {
        /// Element type.
        dtype: DType,
        /// Elements per row.
        width: usize,
        /// The bytes.
        bytes: Arc<Vec<u8>>,
    },
    /// Floats that an op computed.
    Floats(Values),
    /// Integers that an op computed.
    Ints {
        /// One per row.
        values: Vec<u32>,
        /// Rows whose draw falls on a bound of the sampling rule, so that rounding decides, with what it may choose.
        undecided: Vec<(usize, Vec<u32>)>,
    },
}

impl Data {
    /// All elements as floats; `None` for integers.
    pub(super) fn floats(&self) -> Result<Option<Vec<f64>>, DTypeError> {
        match self {
            Data::Stored { dtype: DType::U32, .. } | Data::Ints { .. } => Ok(None),
            Data::Stored { dtype, bytes, .. } => {
                let elements = bytes.len() / dtype.block_bytes() * dtype.block_len();
                decode(*dtype, bytes, elements).map(Some)
            }
            Data::Floats(values) => Ok(Some(values.data.clone())),
        }
    }

    /// The elements of some consecutive rows as floats; `None` for integers.
    pub(super) fn rows(
        &self,
        rows: std::ops::Range<usize>,
        row_width: usize,
    ) -> Result<Option<Vec<f64>>, DTypeError> {
        match self {
            Data::Stored { dtype: DType::U32, .. } | Data::Ints { .. } => Ok(None),
            Data::Stored { dtype, width, bytes } => {
                let row = dtype.bytes(*width)?;
                decode(*dtype, &bytes[rows.start * row..rows.end * row], width * rows.len()).map(Some)
            }
            Data::Floats(values) => {
                Ok(Some(values.data[rows.start * row_width..rows.end * row_width].to_vec()))
            }
        }
    }

    /// All elements as integers; `None` for floats.
    pub(super) fn ints(&self) -> Option<Vec<u32>> {
        match self {
            Data::Stored { dtype: DType::U32, bytes, .. } => {
                Some(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
            }
            Data::Ints { values, .. } => Some(values.clone()),
            _ => None,
        }
    }
}

fn decode(dtype: DType, bytes: &[u8], elements: usize) -> Result<Vec<f64>, DTypeError> {
    Ok(quant::dequantize_to_vec(dtype, bytes, elements)?.into_iter().map(f64::from).collect())
}
