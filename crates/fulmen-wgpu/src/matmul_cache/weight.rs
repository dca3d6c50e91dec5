//! Weights: from the host's bytes to buffers, in parts where one buffer does not hold them.

use std::ops::Range;

use fulmen_core::DType;

use super::{GpuMatmulCache, WeightInfo};
use crate::{
    buffer::GpuBuffer,
    device::GpuDevice,
    error::GpuError,
    kernels::{
        matmul::{self, Layout, MatmulShape, WeightType},
        qmatmul::{self, QuantWeight},
    },
};

/// A weight on the device.
#[derive(Debug)]
pub(super) struct Weight {
    /// No other weight has or had it.
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) dtype: DType,
    pub(super) n: u32,
    pub(super) k: u32,
    pub(super) parts: Vec<Part>,
    pub(super) bytes: u64,
    /// Its values and the products of matrix units fit 16-bit floats.
    pub(super) half: bool,
    /// The call that used it last.
    pub(super) used: u64,
}

/// Some rows of a weight, in a buffer of their own.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) rows: Range<u32>,
    pub(super) buffer: GpuBuffer,
}

/// Which kernels multiply by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain(WeightType),
    Blocks(QuantWeight),
}

/// Bytes that are put in the kernels' order at once.
const PIECE: u64 = 16 << 20;

impl Weight {
    pub(super) fn info(&self) -> WeightInfo {
        WeightInfo {
            dtype: self.dtype,
            rows: self.n as usize,
            cols: self.k as usize,
            bytes: self.bytes,
            parts: self.parts.len(),
        }
    }
}

/// A weight that was checked and is not uploaded yet.
struct New<'a> {
    call: &'static str,
    name: &'a str,
    dtype: DType,
    kind: Kind,
    n: u32,
    k: u32,
    bytes: &'a [u8],
    /// Bytes of a row, on the host and on the device.
    host_row: u64,
    row: u64,
    /// The rows of each part.
    parts: Vec<Range<u32>>,
}

impl GpuMatmulCache {
    /// Uploads a weight of f32: `rows` (n) rows of `cols` (k) elements.
    ///
    /// # Errors
    /// [`GpuError::WeightExists`], [`GpuError::Argument`] where the sizes do not fit each other or are 0,
    /// [`GpuError::TooLarge`], [`GpuError::OutOfMemory`] with what is needed and what there is, [`GpuError::DeviceLost`].
    /// The cache is as it was before then.
    pub fn upload_weight(
        &mut self,
        name: &str,
        data: &[f32],
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        self.insert("upload_weight", name, DType::F32, bytemuck::cast_slice(data), rows, cols, false)
    }

    /// Uploads a weight as it is stored: F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K.
    ///
    /// # Errors
    /// As [`upload_weight`](Self::upload_weight), and [`GpuError::Argument`] for other types and for rows that are not
    /// whole blocks.
    pub fn upload_weight_as(
        &mut self,
        name: &str,
        dtype: DType,
        bytes: &[u8],
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        self.insert("upload_weight_as", name, dtype, bytes, rows, cols, false)
    }

    /// Puts another weight, of any type and size, in the place of one.
    ///
    /// # Errors
    /// As [`upload_weight_as`](Self::upload_weight_as), and [`GpuError::UnknownWeight`]. The old weight stays then.
    pub fn replace_weight(
        &mut self,
        name: &str,
        dtype: DType,
        bytes: &[u8],
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        if !self.weights.contains_key(name) {
            return Err(self.unknown("replace_weight", name));
        }
        self.insert("replace_weight", name, dtype, bytes, rows, cols, true)
    }

    /// Takes a weight off the device.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`].
    pub fn remove_weight(&mut self, name: &str) -> Result<(), GpuError> {
        let weight = self.weights.remove(name).ok_or_else(|| self.unknown("remove_weight", name))?;
        self.forced.retain(|(number, _), _| *number != weight.number);
        self.runs.forget(weight.number);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn insert(
        &mut self,
        call: &'static str,
        name: &str,
        dtype: DType,
        bytes: &[u8],
        rows: usize,
        cols: usize,
        replace: bool,
    ) -> Result<(), GpuError> {
        self.gpu.check_alive()?;
        if !replace && self.weights.contains_key(name) {
            return Err(GpuError::WeightExists { call, name: name.to_owned() });
        }
        let new = New::check(&self.gpu, call, name, dtype, bytes, rows, cols)?;
        let needed = u64::from(new.n) * new.row;
        self.make_room(call, name, needed)?;
        let parts = new.upload(&self.gpu)?;
        let bytes = parts.iter().map(|part| part.buffer.size()).sum();
        self.uploaded += 1;
        let New { dtype, kind, n, k, .. } = new;
        let (number, half, used) = (self.uploaded, fits_half(dtype, new.bytes), self.clock);
        let weight = Weight { number, kind, dtype, n, k, parts, bytes, half, used };
        self.evicted.remove(name);
        if let Some(old) = self.weights.insert(name.to_owned(), weight) {
            self.runs.forget(old.number);
        }
        Ok(())
    }

    /// Makes the budget hold `needed` more bytes, beside all weights but `name`.
    fn make_room(&mut self, call: &'static str, name: &str, needed: u64) -> Result<(), GpuError> {
        let Some(budget) = self.options.budget else { return Ok(()) };
        let others: u64 = self.weights.iter().filter(|(other, _)| *other != name).map(|(_, w)| w.bytes).sum();
        let free = budget.bytes.saturating_sub(others);
        let most = if budget.evict { budget.bytes } else { free };
        if needed > most {
            return Err(GpuError::OutOfMemory { call, needed: Some(needed), available: Some(most) });
        }
        let mut missing = needed.saturating_sub(free);
        let mut by_age: Vec<(u64, u64, String)> = self
            .weights
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(name, weight)| (weight.used, weight.number, name.clone()))
            .collect();
        by_age.sort();
        for (_, _, oldest) in by_age {
            if missing == 0 {
                break;
            }
            if let Some(weight) = self.weights.remove(&oldest) {
                missing = missing.saturating_sub(weight.bytes);
                self.runs.forget(weight.number);
                self.evicted.insert(oldest);
            }
        }
        Ok(())
    }
}

impl<'a> New<'a> {
    /// Everything that can be wrong with a weight, before anything is made.
    fn check(
        gpu: &GpuDevice,
        call: &'static str,
        name: &'a str,
        dtype: DType,
        bytes: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<New<'a>, GpuError> {
        let wrong = |what: &str, expected: String, got: String| GpuError::Argument {
            call,
            what: format!("{what} of weight {name:?}"),
            expected,
            got,
        };
        let side = |what: &str, size: usize| match u32::try_from(size) {
            Ok(size) if size > 0 => Ok(size),
            _ => Err(wrong(what, format!("from 1 to {}", u32::MAX), size.to_string())),
        };
        let (n, k) = (side("the number of rows", rows)?, side("the number of columns", cols)?);
        let (kind, row, unit) = match dtype {
            DType::F32 => (Kind::Plain(WeightType::F32), u64::from(k) * 4, (1, 4)),
            DType::F16 => (Kind::Plain(WeightType::F16), u64::from(k) * 2, (1, 2)),
            DType::BF16 => (Kind::Plain(WeightType::Bf16), u64::from(k) * 2, (1, 2)),
            _ => {
                let weight = QuantWeight { dtype, n, k };
                let row = weight.packed_row_bytes().map_err(|error| match error {
                    qmatmul::QuantError::Format { .. } => {
                        let types = "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K or Q6_K";
                        wrong("the type", types.to_owned(), dtype.name().to_owned())
                    }
                    _ => {
                        let block = dtype.block_len();
                        wrong("the number of columns", format!("a multiple of {block}"), k.to_string())
                    }
                })?;
                (Kind::Blocks(weight), row, (dtype.block_len() as u64, dtype.block_bytes() as u64))
            }
        };
        let host_row = u64::from(k) / unit.0 * unit.1;
        let expected = host_row.checked_mul(n.into()).filter(|&bytes| bytes <= u64::MAX / 64);
        if expected != Some(bytes.len() as u64) {
            let expected = match expected {
                Some(bytes) => format!("{bytes} bytes, for {n} rows of {k}"),
                None => format!("more than there can be, for {n} rows of {k}"),
            };
            return Err(wrong("the data", expected, format!("{} bytes", bytes.len())));
        }
        let parts = parts(gpu, kind, n, k).map_err(|(needed, limit)| GpuError::TooLarge {
            call,
            what: format!("a few rows of weight {name:?}, in bytes,"),
            needed,
            limit,
        })?;
        Ok(New { call, name, dtype, kind, n, k, bytes, host_row, row, parts })
    }

    /// All parts, or none of them.
    fn upload(&self, gpu: &GpuDevice) -> Result<Vec<Part>, GpuError> {
        let sizes = |rows: &Range<u32>| u64::from(rows.end - rows.start) * self.row;
        let mut made = Vec::with_capacity(self.parts.len());
        for rows in &self.parts {
            let buffer = gpu.create_buffer(self.call, sizes(rows)).map_err(|error| match error {
                // What is missing is for the whole weight, not for the part that failed.
                GpuError::OutOfMemory { call, available, .. } => {
                    let needed = Some(u64::from(self.n) * self.row);
                    let had: u64 = made.iter().map(|part: &Part| part.buffer.size()).sum();
                    GpuError::OutOfMemory { call, needed, available: available.map(|free| free + had) }
                }
                error => error,
            })?;
            made.push(Part { rows: rows.clone(), buffer });
        }
        for part in &made {
            self.fill(gpu, part)?;
        }
        Ok(made)
    }

    fn fill(&self, gpu: &GpuDevice, part: &Part) -> Result<(), GpuError> {
        let host = |rows: &Range<u32>| {
            // Within the data, whose length was checked.
            let at = |row: u32| (u64::from(row) * self.host_row) as usize;
            &self.bytes[at(rows.start)..at(rows.end)]
        };
        let Kind::Blocks(weight) = self.kind else {
            return gpu.upload(self.call, &part.buffer, 0, host(&part.rows));
        };
        let step = (PIECE / self.row).clamp(1, u64::from(self.n)) as u32;
        let mut packed = Vec::new();
        let mut start = part.rows.start;
        while start < part.rows.end {
            let rows = start..part.rows.end.min(start.saturating_add(step));
            let piece = QuantWeight { n: rows.end - rows.start, ..weight };
            packed.resize((u64::from(piece.n) * self.row) as usize, 0);
            piece.repack_into(host(&rows), &mut packed).map_err(|error| GpuError::Argument {
                call: self.call,
                what: format!("weight {:?}", self.name),
                expected: "one that can be put in the kernels' order".to_owned(),
                got: error.to_string(),
            })?;
            gpu.upload(self.call, &part.buffer, u64::from(start - part.rows.start) * self.row, &packed)?;
            start = rows.end;
        }
        Ok(())
    }
}

/// Whether 16-bit floats hold the values: those that are 16-bit floats, and blocks whose scales let no value become too
/// large, nor all of them so small that digits are lost.
fn fits_half(dtype: DType, blocks: &[u8]) -> bool {
    // Where the 16-bit scales and minima stand in a block, and the largest factor of each.
    let scales: &[(usize, f32)] = match dtype {
        DType::F16 => return true,
        DType::Q4_0 => &[(0, 8.0)],
        DType::Q4_1 => &[(0, 15.0), (2, 1.0)],
        DType::Q8_0 => &[(0, 128.0)],
        DType::Q4_K => &[(0, 63.0 * 15.0), (2, 63.0)],
        DType::Q5_K => &[(0, 63.0 * 31.0), (2, 63.0)],
        DType::Q6_K => &[(208, 128.0 * 32.0)],
        _ => return false,
    };
    let largest = blocks.chunks_exact(dtype.block_bytes()).try_fold(0.0f32, |largest, block| {
        let bound: f32 = scales
            .iter()
            .map(|&(at, factor)| half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32().abs() * factor)
            .sum();
        // NaN and infinities are no bound.
        bound.is_finite().then(|| largest.max(bound))
    });
    largest.is_some_and(|largest| (1e-3..6e4).contains(&largest))
}

/// The rows of each part, so that each can be a buffer and be bound. What is needed and allowed where a few rows are too
/// large.
fn parts(gpu: &GpuDevice, kind: Kind, n: u32, k: u32) -> Result<Vec<Range<u32>>, (u64, u64)> {
    let mut caps = gpu.caps();
    caps.max_binding = caps.max_binding.min(caps.max_buffer);
    let ranges = match kind {
        Kind::Plain(elem) => {
            let shape = MatmulShape { m: 1, k, n, b: Layout::Nk, elem };
            matmul::split_columns(shape, &caps).map_err(|_| 4 * u64::from(k) * elem.bytes())
        }
        Kind::Blocks(weight) => {
            let row = weight.packed_row_bytes().unwrap_or(0);
            qmatmul::split_columns(weight, &caps).map_err(|_| 4 * row)
        }
    };
    ranges.map_err(|needed| (needed, caps.max_binding))
}
