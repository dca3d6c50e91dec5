//! Weights on the device: from the host's bytes to buffers in the layout of the kernels, in slices of rows
//! where one buffer or binding does not hold them. The matmul cache and the graph dispatcher keep theirs in
//! this form.

mod upcast;

use std::ops::Range;

use fulmen_core::DType;

pub(crate) use self::upcast::{stored_as, upcast};
use crate::{
    buffer::{BufferSlice, GpuBuffer},
    device::GpuDevice,
    error::GpuError,
    kernels::{
        matmul::{self, Layout, MatmulShape, WeightType},
        qmatmul::{self, QuantWeight},
    },
};

/// A weight on the device: `n` rows of `k` elements.
#[derive(Debug)]
pub(crate) struct DeviceWeight {
    pub(crate) kind: WeightKind,
    pub(crate) dtype: DType,
    pub(crate) n: u32,
    pub(crate) k: u32,
    pub(crate) slices: Vec<WeightSlice>,
    /// Bytes on the device.
    pub(crate) bytes: u64,
    /// Its values fit f16, as cooperative matrices need.
    pub(crate) fits_f16: bool,
}

impl DeviceWeight {
    /// Plain memory of f32, f16 or bf16 as a weight; `None` for blocks, and where the offset of a binding
    /// would not be aligned.
    pub(crate) fn view(
        gpu: &GpuDevice,
        call: &'static str,
        dtype: DType,
        n: u32,
        k: u32,
        slice: &BufferSlice,
    ) -> Result<Option<DeviceWeight>, GpuError> {
        let elem = match dtype {
            DType::F32 => WeightType::F32,
            DType::F16 => WeightType::F16,
            DType::BF16 => WeightType::Bf16,
            _ => return Ok(None),
        };
        let align = u64::from(gpu.caps().binding_alignment.max(16));
        if !slice.offset.is_multiple_of(align) {
            return Ok(None);
        }
        let kind = WeightKind::Plain(elem);
        let ranges = slice_rows(gpu, kind, n, k).map_err(|(needed, limit)| {
            let what = "a few rows of the weight, in bytes,".to_owned();
            GpuError::TooLarge { call, what, needed, limit }
        })?;
        let row = u64::from(k) * elem.bytes();
        let slice_of = |rows: Range<u32>| {
            let at = |number: u32| slice.offset + u64::from(number) * row;
            WeightSlice { slice: slice.buffer.slice(at(rows.start)..at(rows.end)), rows }
        };
        let (slices, fits_f16) = (ranges.into_iter().map(slice_of).collect(), dtype == DType::F16);
        Ok(Some(DeviceWeight { kind, dtype, n, k, slices, bytes: slice.size, fits_f16 }))
    }
}

/// Some rows of a weight, where a kernel can bind them.
#[derive(Debug)]
pub(crate) struct WeightSlice {
    pub(crate) rows: Range<u32>,
    pub(crate) slice: BufferSlice,
}

impl WeightSlice {
    fn whole(rows: Range<u32>, buffer: &GpuBuffer) -> WeightSlice {
        WeightSlice { rows, slice: buffer.whole() }
    }
}

/// Which kernels multiply by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightKind {
    Plain(WeightType),
    Blocks(QuantWeight),
}

/// Bytes that are repacked at once.
const CHUNK: u64 = 16 << 20;

/// A weight that was checked and is not uploaded yet.
pub(crate) struct NewWeight<'a> {
    call: &'static str,
    name: &'a str,
    dtype: DType,
    kind: WeightKind,
    n: u32,
    k: u32,
    bytes: &'a [u8],
    /// Bytes of a row, on the host and on the device.
    host_row: u64,
    row: u64,
    /// The rows of each slice.
    slices: Vec<Range<u32>>,
}

impl<'a> NewWeight<'a> {
    /// Everything that can be wrong with a weight, before anything is made.
    pub(crate) fn check(
        gpu: &GpuDevice,
        call: &'static str,
        name: &'a str,
        dtype: DType,
        bytes: &'a [u8],
        rows: usize,
        cols: usize,
    ) -> Result<NewWeight<'a>, GpuError> {
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
            DType::F32 => (WeightKind::Plain(WeightType::F32), u64::from(k) * 4, (1, 4)),
            DType::F16 => (WeightKind::Plain(WeightType::F16), u64::from(k) * 2, (1, 2)),
            DType::BF16 => (WeightKind::Plain(WeightType::Bf16), u64::from(k) * 2, (1, 2)),
            _ => {
                let weight = QuantWeight { dtype, n, k };
                let row = weight.packed_row_bytes().map_err(|error| match error {
                    qmatmul::QuantError::Format { .. } => {
                        let types = "F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4";
                        wrong("the type", types.to_owned(), dtype.name().to_owned())
                    }
                    _ => {
                        let block = dtype.block_len();
                        wrong("the number of columns", format!("a multiple of {block}"), k.to_string())
                    }
                })?;
                (WeightKind::Blocks(weight), row, (dtype.block_len() as u64, dtype.block_bytes() as u64))
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
        let slices = slice_rows(gpu, kind, n, k).map_err(|(needed, limit)| GpuError::TooLarge {
            call,
            what: format!("a few rows of weight {name:?}, in bytes,"),
            needed,
            limit,
        })?;
        Ok(NewWeight { call, name, dtype, kind, n, k, bytes, host_row, row, slices })
    }

    /// Bytes that it takes on the device.
    pub(crate) fn needed(&self) -> u64 {
        u64::from(self.n) * self.row
    }

    /// The weight, or nothing of it.
    pub(crate) fn upload(&self, gpu: &GpuDevice) -> Result<DeviceWeight, GpuError> {
        let mut slices: Vec<WeightSlice> = Vec::with_capacity(self.slices.len());
        for rows in &self.slices {
            let size = u64::from(rows.end - rows.start) * self.row;
            let buffer = gpu.create_buffer(self.call, size).map_err(|error| match error {
                // The message is about the whole weight, not about the slice that failed.
                GpuError::OutOfMemory { call, available, .. } => {
                    let needed = Some(self.needed());
                    let had: u64 = slices.iter().map(|part| part.slice.size).sum();
                    GpuError::OutOfMemory { call, needed, available: available.map(|free| free + had) }
                }
                error => error,
            })?;
            slices.push(WeightSlice::whole(rows.clone(), &buffer));
        }
        for part in &slices {
            self.fill(gpu, part)?;
        }
        let bytes = slices.iter().map(|part| part.slice.size).sum();
        let &NewWeight { dtype, kind, n, k, .. } = self;
        Ok(DeviceWeight { kind, dtype, n, k, slices, bytes, fits_f16: fits_f16(dtype, self.bytes) })
    }

    fn fill(&self, gpu: &GpuDevice, part: &WeightSlice) -> Result<(), GpuError> {
        let host = |rows: &Range<u32>| {
            // Within the data, whose length was checked.
            let at = |row: u32| (u64::from(row) * self.host_row) as usize;
            &self.bytes[at(rows.start)..at(rows.end)]
        };
        let WeightKind::Blocks(weight) = self.kind else {
            return gpu.upload(self.call, &part.slice.buffer, 0, host(&part.rows));
        };
        let step = (CHUNK / self.row).clamp(1, u64::from(self.n)) as u32;
        let mut packed = Vec::new();
        let mut start = part.rows.start;
        while start < part.rows.end {
            let rows = start..part.rows.end.min(start.saturating_add(step));
            packed.resize((u64::from(rows.end - rows.start) * self.row) as usize, 0);
            repack(weight, host(&rows), &mut packed).map_err(|error| GpuError::Argument {
                call: self.call,
                what: format!("weight {:?}", self.name),
                expected: "one that can be repacked".to_owned(),
                got: error.to_string(),
            })?;
            gpu.upload(
                self.call,
                &part.slice.buffer,
                u64::from(start - part.rows.start) * self.row,
                &packed,
            )?;
            start = rows.end;
        }
        Ok(())
    }
}

/// Bytes whose repacking is worth a thread of its own.
const WORTH_A_THREAD: usize = 1 << 20;

/// Rows of blocks in the layout of the kernels, by several threads where there are many.
fn repack(weight: QuantWeight, blocks: &[u8], packed: &mut [u8]) -> Result<(), qmatmul::QuantError> {
    let row = weight.packed_row_bytes()? as usize;
    let (rows, threads) = (packed.len() / row, std::thread::available_parallelism().map_or(1, |n| n.get()));
    let each = rows.div_ceil(threads.min(8).min(packed.len() / WORTH_A_THREAD).max(1)).max(1);
    let host_row = blocks.len() / rows.max(1);
    let mut parts = blocks.chunks(each * host_row.max(1)).zip(packed.chunks_mut(each * row));
    let one = |(blocks, packed): (&[u8], &mut [u8])| {
        // Rows of a weight, whose number is a u32.
        QuantWeight { n: (packed.len() / row) as u32, ..weight }.repack_into(blocks, packed)
    };
    if each >= rows {
        return parts.try_for_each(one);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || one(part))).collect();
        // A thread that panicked has its panic go on here.
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().try_for_each(join)
    })
}

/// Whether f16 holds the values: those that are f16, and blocks whose scales let no value become too large,
/// nor all of them so small that digits are lost.
fn fits_f16(dtype: DType, blocks: &[u8]) -> bool {
    // Offsets of the f16 scales and minima in a block, and the largest factor of each.
    let scales: &[(usize, f32)] = match dtype {
        DType::F16 => return true,
        DType::Q4_0 => &[(0, 8.0)],
        DType::Q4_1 => &[(0, 15.0), (2, 1.0)],
        DType::Q8_0 => &[(0, 128.0)],
        DType::Q4_K => &[(0, 63.0 * 15.0), (2, 63.0)],
        DType::Q5_K => &[(0, 63.0 * 31.0), (2, 63.0)],
        DType::Q6_K => &[(208, 128.0 * 32.0)],
        // Twelve times 2^(e - 128) at most.
        DType::MXFP4 => {
            let largest = blocks.chunks_exact(dtype.block_bytes()).map(|block| block[0]).max();
            return largest.is_some_and(|e| (115..=140).contains(&e));
        }
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

/// Whether blocks are one slice.
pub(crate) fn fits_one_slice(gpu: &GpuDevice, weight: QuantWeight) -> bool {
    slice_rows(gpu, WeightKind::Blocks(weight), weight.n, weight.k).is_ok_and(|slices| slices.len() == 1)
}

/// The rows of each slice, so that each can be a buffer and be bound; what is needed and allowed where a few
/// rows are too large.
fn slice_rows(gpu: &GpuDevice, kind: WeightKind, n: u32, k: u32) -> Result<Vec<Range<u32>>, (u64, u64)> {
    let mut caps = gpu.caps();
    caps.max_binding = caps.max_binding.min(caps.max_buffer);
    let ranges = match kind {
        WeightKind::Plain(elem) => {
            let shape = MatmulShape { m: 1, k, n, b: Layout::Nk, elem };
            matmul::split_columns(shape, &caps).map_err(|_| 4 * u64::from(k) * elem.bytes())
        }
        WeightKind::Blocks(weight) => {
            let row = weight.packed_row_bytes().unwrap_or(0);
            qmatmul::split_columns(weight, &caps).map_err(|_| 4 * row)
        }
    };
    ranges.map_err(|needed| (needed, caps.max_binding))
}
