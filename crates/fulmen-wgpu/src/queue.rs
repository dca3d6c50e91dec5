//! What launches go through: steps that wait to be submitted together, scratch memory, and how kernels bind ranges of one
//! buffer both to read and to write.
//!
//! - **Waiting.** A call appends steps. They are compiled into one program and submitted when somebody waits, reads or writes,
//!   or when there are many. A replay waits in the same way, so that reading its result is one submission with it.
//! - **One buffer, both ways.** wgpu tracks whole buffers: within a launch a buffer is read or written, not both. All tensors
//!   of a graph lie in one buffer. So where a launch writes to the buffer that it also reads, the readers are declared
//!   `read_write`, too, in a variant of the kernel that is a pipeline of its own. Weights are never written and stay `read`.
//! - **In place.** Where an op may write over its input, kernels that know how bind the range once. For the others it is bound
//!   twice, as the same range: each thread reads what it replaces before it writes, and no other thread reads it.
//! - **Offsets** that a binding cannot have are copied to scratch memory and back: right, and slower.
//! - **Codes.** Products by blocks take their input as 8-bit codes. They are made once for as long as the input stays as it
//!   is, for all weights of a call and for the calls after it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fulmen_core::BackendError;
use wgpu::SubmissionIndex;

use crate::{
    BACKEND,
    buffer::{BufferSlice, GpuBuffer},
    device::GpuDevice,
    encode::{Program, Step},
    error::GpuError,
    kernel::{Access, Caps, Kernel, Launch},
    kernels::{self, KernelError, Plan, Role},
    pipeline::{Pipeline, PipelineCache},
};

/// Steps after which they are submitted although nobody waits.
const MOST_PENDING: usize = 512;

/// Multiplications after which steps are submitted, too: a driver ends a submission that takes seconds, and a slow GPU does 10¹²
/// multiplications a second.
const MOST_MULTIPLICATIONS: u64 = 100_000_000_000;

/// Rows up to which what is recorded is a step of sequences, which is read from memory once and not cut.
const STEP_ROWS: u32 = 32;

/// Submissions that may be on their way at once: enough that a device never waits for the host.
const MOST_IN_FLIGHT: usize = 16;

/// A piece of scratch memory. Each is the caller's until its last launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    /// An input as codes.
    Codes,
    /// What a launch that reads codes makes codes of.
    NextCodes,
    /// The first of two products that end together.
    First,
    /// Scratch of a plan, by its number.
    Plan(usize),
    /// An operand whose offset cannot be bound, by its number.
    Moved(usize),
    /// What is copied to a place close by.
    Between,
}

/// An operand that was moved to scratch memory, and where it belongs.
struct Moved {
    from: BufferSlice,
    to: BufferSlice,
    written: bool,
}

/// Steps that wait, and what they need.
pub(crate) struct Queue {
    gpu: GpuDevice,
    pending: Vec<Step>,
    /// Multiplications of the products and of attention among them.
    multiplications: u64,
    /// Multiplications after which steps are submitted, or a program that is recorded is cut.
    submit_after: u64,
    /// Where the program that is recorded is cut.
    cuts: Vec<usize>,
    replay: Option<Arc<Program>>,
    scratch: HashMap<Slot, GpuBuffer>,
    /// What the codes in scratch memory were made from.
    codes: Option<BufferSlice>,
    /// What kernels report to.
    fault: GpuBuffer,
    /// Whether anything that may report was submitted since it was last looked at.
    may_report: bool,
    recording: bool,
    /// Submissions that nobody has waited for, the oldest first.
    in_flight: VecDeque<SubmissionIndex>,
}

impl Queue {
    pub(crate) fn new(gpu: &GpuDevice) -> Result<Queue, GpuError> {
        Ok(Queue {
            gpu: gpu.clone(),
            pending: Vec::new(),
            multiplications: 0,
            submit_after: MOST_MULTIPLICATIONS,
            cuts: Vec::new(),
            replay: None,
            scratch: HashMap::new(),
            codes: None,
            fault: gpu.create_buffer("dispatcher", kernels::fault::FAULT_BYTES)?,
            may_report: false,
            recording: false,
            in_flight: VecDeque::new(),
        })
    }

    pub(crate) fn caps(&self) -> Caps {
        self.gpu.caps()
    }

    /// The record that kernels report to, as an output of theirs.
    pub(crate) fn fault(&self) -> BufferSlice {
        self.fault.whole()
    }

    /// Launches so far that wait.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// At least so many bytes of scratch memory. Steps that wait and captured programs keep what they bound.
    pub(crate) fn scratch(&mut self, slot: Slot, bytes: u64) -> Result<BufferSlice, GpuError> {
        let buffer = match self.scratch.get(&slot) {
            Some(buffer) if buffer.size() >= bytes => buffer.clone(),
            _ => {
                let size = bytes.max(4096).checked_next_power_of_two().unwrap_or(bytes);
                let size = size.min(self.gpu.caps().max_buffer).max(bytes);
                let buffer = self.gpu.create_buffer("scratch memory", size)?;
                if slot == Slot::Codes {
                    self.codes = None;
                }
                self.scratch.insert(slot, buffer.clone());
                buffer
            }
        };
        Ok(BufferSlice { buffer, offset: 0, size: bytes.next_multiple_of(16) })
    }

    /// Whether the codes in scratch memory are those of `input`.
    pub(crate) fn has_codes(&self, input: &BufferSlice) -> bool {
        self.codes.as_ref() == Some(input)
    }

    /// Says that a launch has just made the codes of `input`.
    pub(crate) fn made_codes(&mut self, input: &BufferSlice) {
        self.codes = Some(input.clone());
    }

    /// Says that a launch has just made the codes of `input` in [`Slot::NextCodes`], which are the codes from here on.
    pub(crate) fn made_next_codes(&mut self, input: &BufferSlice) {
        let (old, new) = (self.scratch.remove(&Slot::Codes), self.scratch.remove(&Slot::NextCodes));
        self.scratch.extend(new.map(|buffer| (Slot::Codes, buffer)));
        self.scratch.extend(old.map(|buffer| (Slot::NextCodes, buffer)));
        self.made_codes(input);
    }

    /// Appends a launch that binds these ranges.
    pub(crate) fn launch(
        &mut self,
        launch: Launch,
        mut bindings: Vec<BufferSlice>,
    ) -> Result<(), BackendError> {
        let Launch { kernel, params, workgroups } = launch;
        for slice in &mut bindings {
            // Kernels bind whole vectors where the buffer has them.
            slice.size = slice.size.next_multiple_of(16).min(slice.buffer.size() - slice.offset);
        }
        let written = |slice: &BufferSlice| {
            let mut all = bindings.iter().zip(kernel.access());
            all.any(|(other, access)| access == Access::ReadWrite && other.buffer == slice.buffer)
        };
        let both: Vec<usize> = (0..bindings.len())
            .filter(|&at| kernel.bindings[at].access == Access::Read && written(&bindings[at]))
            .collect();
        if let Some(codes) = &self.codes {
            let mut all = bindings.iter().zip(kernel.access());
            if all.any(|(slice, access)| access == Access::ReadWrite && slice.overlaps(codes)) {
                self.codes = None;
            }
        }
        self.may_report |= bindings.iter().any(|slice| slice.buffer == self.fault);
        let label = kernel.label.to_string();
        let pipeline = self.pipeline(&kernel.with_read_write(&both))?;
        if self.replay.is_some() {
            self.flush()?;
        }
        self.pending.push(Step { pipeline, bindings, params, workgroups, label });
        Ok(())
    }

    fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>, GpuError> {
        // SAFETY: the kernels of this crate clamp their indices or keep to the lengths that they are given, and the
        // tests run them with checks as well.
        unsafe { PipelineCache::global().get_trusted(&self.gpu, kernel) }
    }

    /// Appends the launches of a plan over these inputs and outputs, and gives their number.
    pub(crate) fn run(
        &mut self,
        plan: Result<Plan, KernelError>,
        inputs: &[BufferSlice],
        outputs: &[BufferSlice],
    ) -> Result<usize, BackendError> {
        let inputs = inputs.iter().enumerate().map(|(number, slice)| (Role::Input(number), slice));
        let outputs = outputs.iter().enumerate().map(|(number, slice)| (Role::Output(number), slice));
        self.run_over(plan, inputs.chain(outputs).map(|(role, slice)| (role, slice.clone())))
    }

    /// As [`run`](Queue::run), with inputs and outputs by their numbers: some may be left out.
    pub(crate) fn run_over(
        &mut self,
        plan: Result<Plan, KernelError>,
        operands: impl IntoIterator<Item = (Role, BufferSlice)>,
    ) -> Result<usize, BackendError> {
        let Plan { steps, scratch } = plan.map_err(unsupported)?;
        if steps.is_empty() {
            return Ok(0);
        }
        let before = self.pending.len();
        let mut moved = Vec::new();
        // A kernel that works in place writes to what it calls its input.
        let mut uses: HashMap<Role, bool> = HashMap::new();
        for step in &steps {
            for (binding, access) in step.bindings.iter().zip(step.launch.kernel.access()) {
                *uses.entry(binding.role).or_default() |= access == Access::ReadWrite;
            }
        }
        let mut places: HashMap<Role, BufferSlice> = HashMap::new();
        for (role, slice) in operands {
            if let Some(&written) = uses.get(&role) {
                places.insert(role, self.bindable(&slice, written, &mut moved)?);
            }
        }
        for (number, &bytes) in scratch.iter().enumerate() {
            places.insert(Role::Scratch(number), self.scratch(Slot::Plan(number), bytes)?);
        }
        for step in steps {
            let mut bindings = Vec::with_capacity(step.bindings.len());
            for binding in &step.bindings {
                let place = places.get(&binding.role).ok_or_else(|| GpuError::Internal {
                    call: "dispatch",
                    message: format!(
                        "{} binds {:?}, which it was not given",
                        step.launch.kernel.label, binding.role
                    ),
                })?;
                let (offset, size) = (place.offset + binding.offset, binding.bytes);
                bindings.push(BufferSlice { buffer: place.buffer.clone(), offset, size });
            }
            self.launch(step.launch, bindings)?;
        }
        self.move_back(moved)?;
        Ok(self.pending.len() - before)
    }

    /// Whether all ranges begin where a binding can.
    pub(crate) fn can_bind(&self, slices: &[&BufferSlice]) -> bool {
        let align = u64::from(self.gpu.caps().binding_alignment.max(16));
        slices.iter().all(|slice| slice.offset.is_multiple_of(align))
    }

    /// The range itself, or, where it begins where no binding can, a copy in scratch memory.
    fn bindable(
        &mut self,
        slice: &BufferSlice,
        written: bool,
        moved: &mut Vec<Moved>,
    ) -> Result<BufferSlice, BackendError> {
        if self.can_bind(&[slice]) {
            return Ok(slice.clone());
        }
        if let Some(known) = moved.iter_mut().find(|known| known.from == *slice) {
            known.written |= written;
            return Ok(known.to.clone());
        }
        let to = self.scratch(Slot::Moved(moved.len()), slice.size)?;
        let to = BufferSlice { size: slice.size, ..to };
        self.copy(slice, &to)?;
        moved.push(Moved { from: slice.clone(), to: to.clone(), written });
        Ok(to)
    }

    /// As [`bindable`](Queue::bindable), for launches that are bound by hand; `done` has to be called after them.
    pub(crate) fn place(
        &mut self,
        slice: &BufferSlice,
        written: bool,
        places: &mut Places,
    ) -> Result<BufferSlice, BackendError> {
        self.bindable(slice, written, &mut places.0)
    }

    /// Brings back what was moved.
    pub(crate) fn done(&mut self, places: Places) -> Result<(), BackendError> {
        self.move_back(places.0)
    }

    fn move_back(&mut self, moved: Vec<Moved>) -> Result<(), BackendError> {
        for Moved { from, to, .. } in moved.into_iter().filter(|moved| moved.written) {
            self.copy(&to, &from)?;
        }
        Ok(())
    }

    /// Appends a copy between ranges of one length that do not overlap, at any byte.
    pub(crate) fn copy(&mut self, from: &BufferSlice, to: &BufferSlice) -> Result<(), BackendError> {
        let align = u64::from(self.gpu.caps().binding_alignment.max(16));
        let start = |slice: &BufferSlice| slice.offset / align * align;
        let (source, target) = (start(from), start(to));
        let bytes = from.size;
        let whole = |slice: &BufferSlice| {
            slice.buffer.slice(start(slice)..(slice.offset + slice.size).next_multiple_of(16))
        };
        if whole(from).overlaps(&whole(to)) {
            // The ranges are apart, but what has to be bound for them is not.
            let between = BufferSlice { size: bytes, ..self.scratch(Slot::Between, bytes)? };
            self.copy(from, &between)?;
            return self.copy(&between, to);
        }
        let shifts = [from.offset - source, to.offset - target];
        let plan = kernels::copy::copy_bytes(bytes, shifts, &self.gpu.caps()).map_err(unsupported)?;
        for step in plan.steps {
            let bound = |role: Role, offset: u64, size: u64| match role {
                Role::Input(_) => from.buffer.slice(source + offset..source + offset + size),
                _ => to.buffer.slice(target + offset..target + offset + size),
            };
            let bindings = step.bindings.iter().map(|b| bound(b.role, b.offset, b.bytes)).collect();
            self.launch(step.launch, bindings)?;
        }
        Ok(())
    }

    /// Submits what waits.
    pub(crate) fn flush(&mut self) -> Result<(), BackendError> {
        if self.recording {
            let what = "waiting for the device while a program is captured".to_owned();
            return Err(BackendError::Unsupported { backend: BACKEND, what });
        }
        if let Some(program) = self.replay.take() {
            self.submitted(program.submit())?;
        }
        self.codes = None;
        if !self.pending.is_empty() {
            let program = self.take_pending()?;
            self.submitted(program.submit())?;
        }
        Ok(())
    }

    /// Submits what waits; what is being recorded has not run, and waits for nobody.
    pub(crate) fn flush_unless_recording(&mut self) -> Result<(), BackendError> {
        if self.recording { Ok(()) } else { self.flush() }
    }

    /// Keeps a submission; waits for the oldest where there are many, so that a caller who never reads fills no memory.
    fn submitted(&mut self, index: Result<Option<SubmissionIndex>, GpuError>) -> Result<(), GpuError> {
        self.in_flight.extend(index?);
        if self.in_flight.len() <= MOST_IN_FLIGHT {
            return Ok(());
        }
        self.in_flight.pop_front().map_or(Ok(()), |oldest| self.gpu.wait(&oldest))
    }

    /// Says that something runs by other ways which kernels may report from.
    pub(crate) fn may_report(&mut self) {
        self.may_report = true;
    }

    /// Notes a product, or attention, among the steps that wait.
    pub(crate) fn will_multiply(&mut self, m: u32, n: u32, k: u32) {
        if self.recording && m <= STEP_ROWS {
            return;
        }
        let product = u64::from(m).saturating_mul(n.into()).saturating_mul(k.into());
        self.multiplications = self.multiplications.saturating_add(product);
    }

    /// The steps that wait, as a program.
    fn take_pending(&mut self) -> Result<Program, GpuError> {
        self.codes = None;
        self.multiplications = 0;
        Program::compile(&self.gpu, std::mem::take(&mut self.pending))
    }

    /// Sets after how many multiplications something is submitted.
    pub(crate) fn submit_after(&mut self, multiplications: u64) {
        self.submit_after = multiplications;
    }

    /// Submits what waits if it is much; what is recorded is cut there if it takes long.
    pub(crate) fn flush_if_full(&mut self) -> Result<(), BackendError> {
        let long = self.multiplications >= self.submit_after;
        if self.recording {
            if long {
                self.cuts.push(self.pending.len());
                self.multiplications = 0;
            }
            return Ok(());
        }
        if long || self.pending.len() >= MOST_PENDING { self.flush() } else { Ok(()) }
    }

    /// Submits what waits and reads a range with it, in one submission; gives what kernels reported.
    pub(crate) fn read(
        &mut self,
        words: &BufferSlice,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        if self.replay.is_some() && !self.pending.is_empty() {
            self.flush()?;
        }
        let mut slices = vec![words.clone()];
        if self.may_report {
            slices.push(self.fault.whole());
        }
        let program = match self.replay.take() {
            Some(program) => Some(program),
            None if self.pending.is_empty() => None,
            None => Some(Arc::new(self.take_pending()?)),
        };
        let readback = match program {
            Some(program) => program.submit_and_read(&slices)?,
            None => self.gpu.start_reads("read", &slices)?,
        };
        let mut record = [0u32; 4];
        readback.wait_with(|index, bytes| match index {
            0 => each(bytes),
            _ => record = bytemuck::pod_read_unaligned(&bytes[..16]),
        })?;
        self.in_flight.clear();
        self.may_report = false;
        self.reported(record)
    }

    /// What kernels have reported, as an error; the record is empty again.
    fn reported(&mut self, record: [u32; 4]) -> Result<(), BackendError> {
        let Some(error) = fulmen_core::fault(record) else { return Ok(()) };
        self.gpu.upload("dispatcher", &self.fault, 0, &[0; kernels::fault::FAULT_BYTES as usize])?;
        Err(error)
    }

    /// Waits for all work, and gives what kernels reported.
    pub(crate) fn synchronize(&mut self) -> Result<(), BackendError> {
        if self.may_report {
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

    /// From here on launches are recorded and not run, until [`end_recording`](Queue::end_recording).
    pub(crate) fn begin_recording(&mut self) -> Result<(), BackendError> {
        self.flush()?;
        self.recording = true;
        self.multiplications = 0;
        Ok(())
    }

    /// The launches that were recorded, as a program for each submission. Launches run again, whatever comes of it.
    pub(crate) fn end_recording(&mut self) -> Result<Vec<Program>, GpuError> {
        self.recording = false;
        let mut rest = std::mem::take(&mut self.pending);
        let mut parts = Vec::new();
        for cut in std::mem::take(&mut self.cuts).into_iter().rev() {
            parts.push(rest.split_off(cut));
        }
        parts.push(rest);
        (self.codes, self.multiplications) = (None, 0);
        let parts = parts.into_iter().rev().filter(|part| !part.is_empty());
        parts.map(|part| Program::compile(&self.gpu, part)).collect()
    }

    /// Runs a program after what waits. It is submitted with whatever is read next, or before the next launch.
    pub(crate) fn replay(&mut self, program: &Arc<Program>) -> Result<(), BackendError> {
        self.flush()?;
        self.may_report = true;
        self.replay = Some(Arc::clone(program));
        Ok(())
    }
}

/// Operands that were moved for launches that are bound by hand.
#[derive(Default)]
pub(crate) struct Places(Vec<Moved>);

/// A kernel that does not exist for this work or this device.
pub(crate) fn unsupported(error: impl std::fmt::Display) -> BackendError {
    BackendError::Unsupported { backend: BACKEND, what: error.to_string() }
}
