//! The launch queue: dispatches that wait to be submitted together, scratch memory, and how kernels
//! bind ranges of one buffer for both reading and writing.
//!
//! - **Pending dispatches.** A call appends dispatches. They are compiled into one [`DispatchList`] and
//!   submitted when the caller synchronizes, reads or writes, or when there are many. A replay is
//!   deferred in the same way, so that reading its result takes one submission for both.
//! - **One buffer, read and written.** wgpu tracks whole buffers: within a dispatch a buffer is either
//!   read-only or read-write. All tensors of a graph live in one buffer, so where a dispatch writes to
//!   a buffer that it also reads, the read-only bindings are declared `read_write` as well, in a kernel
//!   variant that is a pipeline of its own. Weights are never written and stay `read`.
//! - **In place.** Where an op may overwrite its input, kernels that support it bind the range once.
//!   For the others it is bound twice, as the same range: each thread reads an element before it writes
//!   it, and no other thread reads that element.
//! - **Unaligned offsets** are copied to scratch memory and back: correct, but slower.
//! - **q8 activations.** Matmuls with block-quantized weights take their input quantized to 8 bits. It
//!   is quantized once for all weights of a call, and for the following calls as long as the input does
//!   not change.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fulmen_core::{BackendError, ReadTicket};
use wgpu::SubmissionIndex;

use crate::{
    BACKEND,
    buffer::{BufferSlice, GpuBuffer},
    device::GpuDevice,
    encode::{Dispatch, DispatchList},
    error::GpuError,
    kernel::{Access, Caps, Kernel, Launch},
    kernels::{self, KernelError, LaunchList, Role},
    pending_read::{PendingBuffer, report},
    pipeline::{Pipeline, PipelineCache},
    transfer::Readback,
};

/// Pending dispatches that trigger a submission.
const MAX_PENDING: usize = 512;

/// Pending multiplications that trigger a submission: drivers kill a submission that takes seconds, and
/// a slow GPU does 10¹² multiplications a second.
const MAX_MULTIPLICATIONS: u64 = 100_000_000_000;

/// Up to this many rows a captured program is a decode step, whose weights are read once, and is never split.
const DECODE_ROWS: u32 = 32;

/// Submissions in flight: enough that the device never waits for the host.
const MAX_IN_FLIGHT: usize = 16;

/// A scratch buffer. Its contents belong to a caller until that caller's last launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScratchSlot {
    /// The current q8 activations.
    Q8,
    /// The q8 activations that a launch writes while it reads those in [`Q8`](ScratchSlot::Q8).
    NextQ8,
    /// The result of the first of two matmuls that share an epilogue.
    FirstMatmul,
    /// A launch list's scratch buffer of this number.
    LaunchList(usize),
    /// A copy of an operand whose offset cannot be bound, by number.
    Relocated(usize),
    /// The intermediate copy where source and destination share an aligned window.
    Bounce,
}

/// An operand that was copied to scratch memory, and where it belongs.
struct Relocated {
    from: BufferSlice,
    to: BufferSlice,
    written: bool,
}

/// Pending dispatches, and what they need.
pub(crate) struct LaunchQueue {
    gpu: GpuDevice,
    pending: Vec<Dispatch>,
    /// Multiplications of the pending matmuls and attention.
    multiplications: u64,
    /// Multiplications after which dispatches are submitted, or a captured program is split.
    submit_after: u64,
    /// Indices into `pending` at which the captured program is split.
    cuts: Vec<usize>,
    replay: Option<Arc<DispatchList>>,
    scratch: HashMap<ScratchSlot, GpuBuffer>,
    /// The input that the q8 activations in scratch memory were quantized from.
    q8_source: Option<BufferSlice>,
    /// The fault record that kernels write to.
    fault: GpuBuffer,
    /// Whether kernels that may report a fault were submitted since the record was last read.
    may_fault: bool,
    recording: bool,
    /// Submissions that were not waited for, oldest first.
    in_flight: VecDeque<SubmissionIndex>,
}

impl LaunchQueue {
    pub(crate) fn new(gpu: &GpuDevice) -> Result<LaunchQueue, GpuError> {
        Ok(LaunchQueue {
            gpu: gpu.clone(),
            pending: Vec::new(),
            multiplications: 0,
            submit_after: MAX_MULTIPLICATIONS,
            cuts: Vec::new(),
            replay: None,
            scratch: HashMap::new(),
            q8_source: None,
            fault: gpu.create_buffer("dispatcher", kernels::fault::FAULT_BYTES)?,
            may_fault: false,
            recording: false,
            in_flight: VecDeque::new(),
        })
    }

    pub(crate) fn caps(&self) -> Caps {
        self.gpu.caps()
    }

    /// The fault record, to be bound as an output.
    pub(crate) fn fault(&self) -> BufferSlice {
        self.fault.whole()
    }

    /// The number of pending dispatches.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// At least `bytes` bytes of scratch memory. Pending dispatches and captured programs keep the
    /// buffers they bound.
    pub(crate) fn scratch(&mut self, slot: ScratchSlot, bytes: u64) -> Result<BufferSlice, GpuError> {
        let buffer = match self.scratch.get(&slot) {
            Some(buffer) if buffer.size() >= bytes => buffer.clone(),
            _ => {
                let size = bytes.max(4096).checked_next_power_of_two().unwrap_or(bytes);
                let size = size.min(self.gpu.caps().max_buffer).max(bytes);
                let buffer = self.gpu.create_buffer("scratch memory", size)?;
                if slot == ScratchSlot::Q8 {
                    self.q8_source = None;
                }
                self.scratch.insert(slot, buffer.clone());
                buffer
            }
        };
        Ok(BufferSlice { buffer, offset: 0, size: bytes.next_multiple_of(16) })
    }

    /// Whether the q8 activations in scratch memory are those of `input`.
    pub(crate) fn has_q8(&self, input: &BufferSlice) -> bool {
        self.q8_source.as_ref() == Some(input)
    }

    /// Notes that the last launch quantized `input` into [`ScratchSlot::Q8`].
    pub(crate) fn set_q8(&mut self, input: &BufferSlice) {
        self.q8_source = Some(input.clone());
    }

    /// Notes that the last launch quantized `input` into [`ScratchSlot::NextQ8`], and makes that the current
    /// [`ScratchSlot::Q8`].
    pub(crate) fn set_next_q8(&mut self, input: &BufferSlice) {
        let (old, new) = (self.scratch.remove(&ScratchSlot::Q8), self.scratch.remove(&ScratchSlot::NextQ8));
        self.scratch.extend(new.map(|buffer| (ScratchSlot::Q8, buffer)));
        self.scratch.extend(old.map(|buffer| (ScratchSlot::NextQ8, buffer)));
        self.set_q8(input);
    }

    /// Appends a launch with these ranges bound.
    pub(crate) fn launch(
        &mut self,
        launch: Launch,
        mut bindings: Vec<BufferSlice>,
    ) -> Result<(), BackendError> {
        let Launch { kernel, params, workgroups } = launch;
        for slice in &mut bindings {
            // Kernels bind whole 16-byte vectors where the buffer has them.
            slice.size = slice.size.next_multiple_of(16).min(slice.buffer.size() - slice.offset);
        }
        let written = |slice: &BufferSlice| {
            let mut all = bindings.iter().zip(kernel.access());
            all.any(|(other, access)| access == Access::ReadWrite && other.buffer == slice.buffer)
        };
        let both: Vec<usize> = (0..bindings.len())
            .filter(|&at| kernel.bindings[at].access == Access::Read && written(&bindings[at]))
            .collect();
        if let Some(source) = &self.q8_source {
            let mut all = bindings.iter().zip(kernel.access());
            if all.any(|(slice, access)| access == Access::ReadWrite && slice.overlaps(source)) {
                self.q8_source = None;
            }
        }
        self.may_fault |= bindings.iter().any(|slice| slice.buffer == self.fault);
        let label = kernel.label.to_string();
        let pipeline = self.pipeline(&kernel.with_read_write(&both))?;
        if self.replay.is_some() {
            self.flush()?;
        }
        self.pending.push(Dispatch { pipeline, bindings, params, workgroups, label });
        Ok(())
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>, GpuError> {
        // SAFETY: the kernels of this crate clamp their indices or keep to the lengths that they are
        // given, and the tests run them with checks as well.
        unsafe { PipelineCache::global().get_trusted(&self.gpu, kernel) }
    }

    /// Appends launches with these inputs and outputs; returns how many there are.
    pub(crate) fn run_launches(
        &mut self,
        launches: Result<LaunchList, KernelError>,
        inputs: &[BufferSlice],
        outputs: &[BufferSlice],
    ) -> Result<usize, BackendError> {
        let inputs = inputs.iter().enumerate().map(|(number, slice)| (Role::Input(number), slice));
        let outputs = outputs.iter().enumerate().map(|(number, slice)| (Role::Output(number), slice));
        self.run_launches_with(launches, inputs.chain(outputs).map(|(role, slice)| (role, slice.clone())))
    }

    /// As [`run_launches`](LaunchQueue::run_launches), with explicit roles: optional inputs and outputs may
    /// be missing.
    pub(crate) fn run_launches_with(
        &mut self,
        launches: Result<LaunchList, KernelError>,
        operands: impl IntoIterator<Item = (Role, BufferSlice)>,
    ) -> Result<usize, BackendError> {
        let LaunchList { launches, scratch } = launches.map_err(unsupported)?;
        if launches.is_empty() {
            return Ok(0);
        }
        let before = self.pending.len();
        let mut relocated = Vec::new();
        // A kernel that works in place writes to its input binding.
        let mut uses: HashMap<Role, bool> = HashMap::new();
        for launch in &launches {
            for (binding, access) in launch.bindings.iter().zip(launch.launch.kernel.access()) {
                *uses.entry(binding.role).or_default() |= access == Access::ReadWrite;
            }
        }
        let mut places: HashMap<Role, BufferSlice> = HashMap::new();
        for (role, slice) in operands {
            if let Some(&written) = uses.get(&role) {
                places.insert(role, self.bindable(&slice, written, &mut relocated)?);
            }
        }
        for (number, &bytes) in scratch.iter().enumerate() {
            places.insert(Role::Scratch(number), self.scratch(ScratchSlot::LaunchList(number), bytes)?);
        }
        for launch in launches {
            let mut bindings = Vec::with_capacity(launch.bindings.len());
            for binding in &launch.bindings {
                let place = places.get(&binding.role).ok_or_else(|| GpuError::Internal {
                    call: "dispatch",
                    message: format!(
                        "{} binds {:?}, which it was not given",
                        launch.launch.kernel.label, binding.role
                    ),
                })?;
                let (offset, size) = (place.offset + binding.offset, binding.bytes);
                bindings.push(BufferSlice { buffer: place.buffer.clone(), offset, size });
            }
            self.launch(launch.launch, bindings)?;
        }
        self.copy_relocated_back(relocated)?;
        Ok(self.pending.len() - before)
    }

    /// Whether all ranges start at a bindable offset.
    pub(crate) fn can_bind(&self, slices: &[&BufferSlice]) -> bool {
        let align = u64::from(self.gpu.caps().binding_alignment.max(16));
        slices.iter().all(|slice| slice.offset.is_multiple_of(align))
    }

    /// The range itself, or a copy in scratch memory where its offset cannot be bound.
    fn bindable(
        &mut self,
        slice: &BufferSlice,
        written: bool,
        relocated: &mut Vec<Relocated>,
    ) -> Result<BufferSlice, BackendError> {
        if self.can_bind(&[slice]) {
            return Ok(slice.clone());
        }
        if let Some(known) = relocated.iter_mut().find(|known| known.from == *slice) {
            known.written |= written;
            return Ok(known.to.clone());
        }
        let to = self.scratch(ScratchSlot::Relocated(relocated.len()), slice.size)?;
        let to = BufferSlice { size: slice.size, ..to };
        self.copy(slice, &to)?;
        relocated.push(Relocated { from: slice.clone(), to: to.clone(), written });
        Ok(to)
    }

    /// As [`bindable`](LaunchQueue::bindable), for callers that bind launches themselves; they call
    /// [`copy_back`](LaunchQueue::copy_back) after them.
    pub(crate) fn bind_or_copy(
        &mut self,
        slice: &BufferSlice,
        written: bool,
        relocations: &mut Relocations,
    ) -> Result<BufferSlice, BackendError> {
        self.bindable(slice, written, &mut relocations.0)
    }

    /// Copies relocated operands that were written back to where they belong.
    pub(crate) fn copy_back(&mut self, relocations: Relocations) -> Result<(), BackendError> {
        self.copy_relocated_back(relocations.0)
    }

    fn copy_relocated_back(&mut self, relocated: Vec<Relocated>) -> Result<(), BackendError> {
        for Relocated { from, to, .. } in relocated.into_iter().filter(|operand| operand.written) {
            self.copy(&to, &from)?;
        }
        Ok(())
    }

    /// Appends a copy between two ranges of equal length that do not overlap, at any byte offset.
    pub(crate) fn copy(&mut self, from: &BufferSlice, to: &BufferSlice) -> Result<(), BackendError> {
        let align = u64::from(self.gpu.caps().binding_alignment.max(16));
        let start = |slice: &BufferSlice| slice.offset / align * align;
        let (source, target) = (start(from), start(to));
        let bytes = from.size;
        let whole = |slice: &BufferSlice| {
            slice.buffer.slice(start(slice)..(slice.offset + slice.size).next_multiple_of(16))
        };
        if whole(from).overlaps(&whole(to)) {
            // The ranges are disjoint, but the aligned windows that have to be bound for them are not.
            let between = BufferSlice { size: bytes, ..self.scratch(ScratchSlot::Bounce, bytes)? };
            self.copy(from, &between)?;
            return self.copy(&between, to);
        }
        let shifts = [from.offset - source, to.offset - target];
        let list = kernels::copy::copy_bytes(bytes, shifts, &self.gpu.caps()).map_err(unsupported)?;
        for launch in list.launches {
            let bound = |role: Role, offset: u64, size: u64| match role {
                Role::Input(_) => from.buffer.slice(source + offset..source + offset + size),
                _ => to.buffer.slice(target + offset..target + offset + size),
            };
            let bindings = launch.bindings.iter().map(|b| bound(b.role, b.offset, b.bytes)).collect();
            self.launch(launch.launch, bindings)?;
        }
        Ok(())
    }

    /// Submits everything pending.
    pub(crate) fn flush(&mut self) -> Result<(), BackendError> {
        if self.recording {
            let what = "waiting for the device while a program is captured".to_owned();
            return Err(BackendError::Unsupported { backend: BACKEND, what });
        }
        if let Some(list) = self.replay.take() {
            self.submitted(list.submit())?;
        }
        self.q8_source = None;
        if !self.pending.is_empty() {
            let list = self.take_pending()?;
            self.submitted(list.submit())?;
        }
        Ok(())
    }

    /// Submits everything pending, unless a program is being recorded: recorded dispatches have not run.
    pub(crate) fn flush_unless_recording(&mut self) -> Result<(), BackendError> {
        if self.recording { Ok(()) } else { self.flush() }
    }

    /// Tracks a submission, and waits for the oldest where there are many, so that a caller that never
    /// reads does not pile up submissions in memory.
    fn submitted(&mut self, index: Result<Option<SubmissionIndex>, GpuError>) -> Result<(), GpuError> {
        self.in_flight.extend(index?);
        if self.in_flight.len() <= MAX_IN_FLIGHT {
            return Ok(());
        }
        self.in_flight.pop_front().map_or(Ok(()), |oldest| self.gpu.wait(&oldest))
    }

    /// Notes that kernels that may report a fault run outside this queue.
    pub(crate) fn may_fault(&mut self) {
        self.may_fault = true;
    }

    /// Counts the work of a pending matmul or attention.
    pub(crate) fn count_multiplications(&mut self, m: u32, n: u32, k: u32) {
        if self.recording && m <= DECODE_ROWS {
            return;
        }
        let product = u64::from(m).saturating_mul(n.into()).saturating_mul(k.into());
        self.multiplications = self.multiplications.saturating_add(product);
    }

    /// Compiles the pending dispatches.
    fn take_pending(&mut self) -> Result<DispatchList, GpuError> {
        self.q8_source = None;
        self.multiplications = 0;
        DispatchList::compile(&self.gpu, std::mem::take(&mut self.pending))
    }

    /// Sets the number of multiplications that triggers a submission.
    pub(crate) fn submit_after(&mut self, multiplications: u64) {
        self.submit_after = multiplications;
    }

    /// Submits the pending dispatches if they are many; splits the program being recorded if it is long.
    pub(crate) fn flush_if_full(&mut self) -> Result<(), BackendError> {
        let long = self.multiplications >= self.submit_after;
        if self.recording {
            if long {
                self.cuts.push(self.pending.len());
                self.multiplications = 0;
            }
            return Ok(());
        }
        if long || self.pending.len() >= MAX_PENDING { self.flush() } else { Ok(()) }
    }

    /// Submits everything pending and reads a range, in one submission; returns a reported fault as an error.
    pub(crate) fn read(
        &mut self,
        words: &BufferSlice,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        let readback = self.start_read(words)?;
        let mut record = [0u32; 4];
        readback.wait_with(|index, bytes| match index {
            0 => each(bytes),
            _ => record = bytemuck::pod_read_unaligned(&bytes[..16]),
        })?;
        self.in_flight.clear();
        self.may_fault = false;
        report(&self.gpu, &self.fault, record)
    }

    /// Submits everything pending and starts to read a range, in one submission. The second range of the
    /// result, if there is one, is the fault record.
    fn start_read(&mut self, words: &BufferSlice) -> Result<Readback, BackendError> {
        if self.replay.is_some() && !self.pending.is_empty() {
            self.flush()?;
        }
        let mut slices = vec![words.clone()];
        if self.may_fault {
            slices.push(self.fault.whole());
        }
        let list = match self.replay.take() {
            Some(list) => Some(list),
            None if self.pending.is_empty() => None,
            None => Some(Arc::new(self.take_pending()?)),
        };
        Ok(match list {
            Some(list) => list.submit_and_read(&slices)?,
            None => self.gpu.start_reads("read", &slices)?,
        })
    }

    /// Submits everything pending and starts to read `bytes` bytes from `skip` on in a range. A fault that
    /// the work reports is an error of the read, and stays for the next call that waits if nobody takes it.
    pub(crate) fn read_later(
        &mut self,
        words: &BufferSlice,
        skip: usize,
        bytes: usize,
    ) -> Result<ReadTicket, BackendError> {
        let readback = Some(self.start_read(words)?);
        let (gpu, fault) = (self.gpu.clone(), self.fault.clone());
        Ok(ReadTicket::pending(PendingBuffer { readback, watched: false, skip, gpu, fault }, bytes))
    }

    /// Waits for all work; returns a reported fault as an error.
    pub(crate) fn synchronize(&mut self) -> Result<(), BackendError> {
        if self.may_fault {
            let fault = self.fault.whole();
            return self.read(&BufferSlice { size: 4, ..fault }, |_| {});
        }
        self.flush()?;
        let last = self.in_flight.pop_back();
        self.in_flight.clear();
        match last {
            Some(index) => Ok(self.gpu.wait(&index)?),
            None => Ok(self.gpu.check_alive()?),
        }
    }

    /// From here on launches are recorded instead of run, until
    /// [`end_recording`](LaunchQueue::end_recording).
    pub(crate) fn begin_recording(&mut self) -> Result<(), BackendError> {
        self.flush()?;
        self.recording = true;
        self.multiplications = 0;
        Ok(())
    }

    /// Ends the recording, also on errors. Returns one dispatch list per submission.
    pub(crate) fn end_recording(&mut self) -> Result<Vec<DispatchList>, GpuError> {
        self.recording = false;
        let mut rest = std::mem::take(&mut self.pending);
        let mut parts = Vec::new();
        for cut in std::mem::take(&mut self.cuts).into_iter().rev() {
            parts.push(rest.split_off(cut));
        }
        parts.push(rest);
        (self.q8_source, self.multiplications) = (None, 0);
        let parts = parts.into_iter().rev().filter(|part| !part.is_empty());
        parts.map(|part| DispatchList::compile(&self.gpu, part)).collect()
    }

    /// Submits everything pending and defers a run of `list`: it is submitted with the next read or
    /// before the next launch.
    pub(crate) fn replay(&mut self, list: &Arc<DispatchList>) -> Result<(), BackendError> {
        self.flush()?;
        self.may_fault = true;
        self.replay = Some(Arc::clone(list));
        Ok(())
    }
}

/// Operands that were copied to scratch memory, for callers that bind launches themselves.
#[derive(Default)]
pub(crate) struct Relocations(Vec<Relocated>);

/// The error for work that no kernel supports on this device.
pub(crate) fn unsupported(error: impl std::fmt::Display) -> BackendError {
    BackendError::Unsupported { backend: BACKEND, what: error.to_string() }
}
