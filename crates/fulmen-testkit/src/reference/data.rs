//! Values of tensors in the reference.

use std::sync::Arc;

use fulmen_core::{DType, DTypeError, quant};

/// Values that an op computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// The elements, row by row.
    pub data: Vec<f64>,
    /// For matmuls: the size of the terms of each element, `sqrt(Σ (w x)²)`. Errors are relative to this, not
    /// to an element that is small because its terms cancel.
    pub sizes: Option<Vec<f64>>,
    /// Indices of the elements that were computed, if not all of them were.
    pub known: Option<Vec<usize>>,
}

impl Values {
    /// Values whose errors are relative to themselves.
    pub fn plain(data: Vec<f64>) -> Values {
        Values { data, sizes: None, known: None }
    }
}

/// The data of a tensor.
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
    /// Values that an op computed.
    Floats(Values),
    /// Integers that an op computed.
    Ints {
        /// One per row.
        values: Vec<u32>,
        /// Rows whose sample falls on a threshold of the algorithm, so that rounding decides, with the
        /// alternatives.
        undecided: Vec<(usize, Vec<u32>)>,
    },
}

impl Data {
    /// All elements as f64; `None` for integers.
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

    /// The elements of some consecutive rows as f64; `None` for integers.
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

    /// All elements as integers; `None` for floating-point data.
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
