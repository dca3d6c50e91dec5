//! Quantizes a model: read, convert on all threads, write in order.

use std::{
    io::Write,
    ops::{ControlFlow, Range},
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use fulmen_core::{DType, DTypeError, quant};

use super::plan::{QuantizePlan, matrices};
use crate::gguf::{GgufWriteError, GgufWriter};
use crate::source::{self, ModelSource, SourceError, TensorInfo};
use crate::tokenizer::TokenizerError;

/// Elements that one thread converts at a time: 4 MiB as F32.
const TASK: usize = 1 << 20;
/// Tasks per thread between two writes, so that threads rarely wait for each other.
const TASKS_PER_THREAD: usize = 4;

/// Why a model could not be quantized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The model could not be read.
    #[error(transparent)]
    Read(#[from] SourceError),
    /// The new file could not be written.
    #[error(transparent)]
    Write(#[from] GgufWriteError),
    /// The tokenizer next to the model is not supported.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A text that was given a type is in no matrix's name.
    #[error("no matrix has {text:?} in its name")]
    NoMatch {
        /// The text.
        text: String,
    },
    /// An entry of the importance matrix that does not fit its tensor.
    #[error(
        "tensor {tensor}: the importance matrix has {values} values, expected {}",
        expected(*width, *matrices)
    )]
    Importance {
        /// The tensor.
        tensor: String,
        /// The number of values.
        values: usize,
        /// The width of its rows.
        width: usize,
        /// The number of its matrices.
        matrices: usize,
    },
    /// The progress callback asked to stop.
    #[error("stopped; nothing was written")]
    Stopped,
    /// A tensor cannot be converted to the requested type.
    #[error("tensor {tensor}: {error}")]
    Tensor {
        /// The source tensor.
        tensor: String,
        /// What is wrong.
        error: DTypeError,
    },
}

/// One value per column, or per column of each matrix.
fn expected(width: usize, matrices: usize) -> String {
    match matrices {
        1 => width.to_string(),
        _ => format!("{width} or {matrices} x {width}"),
    }
}

impl QuantizeError {
    pub(super) fn tensor(tensor: &TensorInfo, error: DTypeError) -> QuantizeError {
        QuantizeError::Tensor { tensor: tensor.to_string(), error }
    }
}

/// Writes the model to `out` with the types of the plan. The file appears only when it is complete.
/// `progress` gets the number of elements converted since the last call and may stop the conversion, which
/// leaves nothing behind.
pub fn quantize(
    source: &dyn ModelSource,
    plan: &QuantizePlan,
    out: &Path,
    replace: bool,
    threads: usize,
    progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let writer = GgufWriter::create(out, replace, &plan.metadata, &plan.tensors)?;
    write_tensors(source, plan, writer, threads, progress)?.keep()?;
    Ok(())
}

/// Writes the model to any writer, which it returns, flushed.
pub fn quantize_to<W: Write>(
    source: &dyn ModelSource,
    plan: &QuantizePlan,
    out: W,
    threads: usize,
    progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<W, QuantizeError> {
    let writer = GgufWriter::new(out, &plan.metadata, &plan.tensors)?;
    write_tensors(source, plan, writer, threads, progress)
}

fn write_tensors<W: Write>(
    source: &dyn ModelSource,
    plan: &QuantizePlan,
    mut writer: GgufWriter<W>,
    threads: usize,
    mut progress: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<W, QuantizeError> {
    for after in &plan.tensors {
        check_stop(progress(0))?;
        // A page that vanishes from a mapped file also fails as a write from it, so the file's state decides.
        let written = write_tensor(source, plan, after, &mut writer, threads, &mut progress);
        source::unless_changed(source, written)?;
    }
    Ok(writer.finish()?)
}

/// Reads, converts and writes one tensor.
fn write_tensor<W: Write>(
    source: &dyn ModelSource,
    plan: &QuantizePlan,
    after: &TensorInfo,
    writer: &mut GgufWriter<W>,
    threads: usize,
    progress: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), QuantizeError> {
    let name = after.name();
    let data = source.data(name)?;
    let bytes = (*data).as_ref();
    let missing = || GgufWriteError::Order { expected: None, got: name.to_owned() };
    let before = source.tensor(name).ok_or_else(missing)?;
    if before.dtype() == after.dtype() {
        writer.write(name, bytes)?;
        return Ok(());
    }
    let ranges = tasks(before, after.dtype());
    let conversion = Conversion { before, dtype: after.dtype(), bytes, importance: plan.importance(name) };
    for batch in ranges.chunks(threads.max(1) * TASKS_PER_THREAD) {
        for (range, converted) in batch.iter().zip(convert(&conversion, batch, threads)) {
            writer.write(name, &converted?)?;
            check_stop(progress(u64::try_from(range.len()).unwrap_or(u64::MAX)))?;
        }
    }
    Ok(())
}

fn check_stop(asked: ControlFlow<()>) -> Result<(), QuantizeError> {
    if asked.is_break() { Err(QuantizeError::Stopped) } else { Ok(()) }
}

/// Splits the elements of a tensor into ranges that are whole blocks of both types.
fn tasks(tensor: &TensorInfo, dtype: DType) -> Vec<Range<usize>> {
    // Blocks have 1, 32 or 256 elements, so the larger block is a multiple of the smaller one.
    let block = tensor.dtype().block_len().max(dtype.block_len());
    let step = (TASK / block).max(1) * block;
    let elements = tensor.elements();
    (0..elements).step_by(step).map(|start| start..elements.min(start.saturating_add(step))).collect()
}

/// The converted bytes of one range.
type Converted = Result<Vec<u8>, QuantizeError>;

/// What one tensor is converted from and to.
struct Conversion<'a> {
    before: &'a TensorInfo,
    dtype: DType,
    /// All of its data.
    bytes: &'a [u8],
    /// A value for each column, or for each column of each matrix.
    importance: Option<&'a [f32]>,
}

/// Converts ranges on several threads; the results are in the order of the ranges.
fn convert(conversion: &Conversion, ranges: &[Range<usize>], threads: usize) -> Vec<Converted> {
    let results: Vec<OnceLock<Converted>> = ranges.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < ranges.len()) {
            let converted = conversion.range(ranges[at].clone());
            results[at].get_or_init(|| converted);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(ranges.len()) {
            // If a thread cannot be started, the others do its work.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    results.into_iter().filter_map(OnceLock::into_inner).collect()
}

impl Conversion<'_> {
    fn range(&self, range: Range<usize>) -> Converted {
        let wrong = |error| QuantizeError::tensor(self.before, error);
        let from = self.before.dtype();
        let part = from.bytes(range.start).map_err(wrong)?..from.bytes(range.end).map_err(wrong)?;
        let values = quant::dequantize_to_vec(from, &self.bytes[part], range.len()).map_err(wrong)?;
        let converted = match self.importance {
            None => quant::quantize_to_vec(self.dtype, &values).map_err(|error| at(error, range.start)),
            Some(importance) => self.weighted(importance, range.start, &values),
        };
        converted.map_err(wrong)
    }

    /// Converts values from element `start` on, row by row: each row begins again with the first column.
    fn weighted(&self, importance: &[f32], start: usize, values: &[f32]) -> Result<Vec<u8>, DTypeError> {
        let width = self.before.width();
        // The elements of one matrix that has values of its own; all of them if there is one set of values.
        let matrix = self.before.elements() / matrices(self.before).max(1);
        let shared = importance.len() == width;
        let mut out = vec![0; self.dtype.bytes(values.len())?];
        let mut done = 0;
        while done < values.len() {
            let element = start + done;
            let (column, first) = (element % width, if shared { 0 } else { element / matrix * width });
            // Rows and ranges are whole blocks, and so is a part of a row.
            let piece = done..values.len().min(done + width - column);
            let importance = &importance[first + column..][..piece.len()];
            let bytes = self.dtype.bytes(piece.start)?..self.dtype.bytes(piece.end)?;
            quant::quantize_weighted(self.dtype, &values[piece.clone()], importance, &mut out[bytes])
                .map_err(|error| at(error, element))?;
            done = piece.end;
        }
        Ok(out)
    }
}

/// An error with the index in the tensor, of one with that in a part that begins at `start`.
fn at(error: DTypeError, start: usize) -> DTypeError {
    match error {
        DTypeError::NotFinite { call, dtype, index } => {
            DTypeError::NotFinite { call, dtype, index: start.saturating_add(index) }
        }
        other => other,
    }
}
