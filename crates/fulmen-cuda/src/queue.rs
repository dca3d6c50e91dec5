//! The queue that kernels are launched through: a stream, scratch memory, and whether launches run, are
//! prepared or are captured.
//!
//! A queue remembers nothing of the calls that were launched through it: what a call needs to know of others
//! is part of its program's plan (`forward.rs`).
//!
//! # Programmatic dependent launch
//!
//! On compute capability 9.0 a kernel may start before the previous one has finished. Every kernel executes
//! `griddepcontrol.wait` before it reads what another kernel has written, so this is invisible, with three
//! exceptions: the decode attention, the step of a delta net and the down projection of experts read before
//! they wait.
//!
//! - Positions and sequences. A kernel that writes them must not let the next kernel start early: then no
//!   later kernel starts before its last block has exited. `advance.cu`, which writes positions, does not.
//! - With the fused store, the KV cache. A plan fuses the store only where no earlier call of the program may
//!   still be writing that cache, and the first call of a planned program does not overlap with what was
//!   launched before it. The same holds for the states of a delta net.
//! - The ids of experts, if gate-up has forwarded its result to the down projection. Gate-up lets the next
//!   kernel start only behind its own wait, so what was written before it is complete then.
//!
//! Kernels of other libraries (NCCL) neither wait nor let the next one start early, and may end in more than
//! one node of a captured graph; the kernel behind one is launched without the attribute.

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};
use fulmen_core::BackendError;

use crate::BACKEND;
use crate::device::{Caps, CudaDevice};
use crate::error::{CudaError, reason};
use crate::fault::FaultCell;
use crate::handles::{DeviceBlock, Graph, Stream};
use crate::tensor_map::TensorMap;

/// What happens to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs.
    Idle,
    /// Its kernel is loaded and its scratch memory allocated, so that it can be captured later.
    Loading,
    /// It is recorded into a graph.
    Capturing,
}

/// A kernel and its launch configuration.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel file without `.cu`.
    pub file: &'static str,
    /// The kernel.
    pub entry: &'a str,
    /// The number of blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Blocks per cluster, along x; 1 for no clusters.
    pub cluster: u32,
}

impl<'a> Launch<'a> {
    /// A launch over a one-dimensional grid, without dynamic shared memory.
    pub fn new(file: &'static str, entry: &'a str, blocks: u32, block: u32) -> Launch<'a> {
        Launch { file, entry, grid: [blocks, 1, 1], block, shared: 0, cluster: 1 }
    }

    /// With a second grid dimension.
    pub fn rows(self, rows: u32) -> Launch<'a> {
        Launch { grid: [self.grid[0], rows, 1], ..self }
    }

    /// With dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Launch<'a> {
        Launch { shared: bytes, ..self }
    }
}

/// A kernel argument.
#[derive(Clone, Copy)]
pub struct Arg<'a>(&'a [u8]);

impl<'a> Arg<'a> {
    /// The bytes that the kernel gets.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// A plain value or struct, laid out as the kernel declares it.
    pub fn new<P: Pod>(value: &'a P) -> Arg<'a> {
        Arg(bytemuck::bytes_of(value))
    }
}

/// The scratch memory that the launches of a graph use, kept alive with it.
pub(crate) type GraphScratch = Option<Arc<DeviceBlock>>;

/// Where launches go.
enum Target {
    Stream(StreamTarget),
    /// Into a list, without a device.
    #[cfg(test)]
    Recorder(crate::recorder::Recorder),
}

/// A stream of a device, and the record that kernels report faults to.
struct StreamTarget {
    device: Arc<CudaDevice>,
    stream: Arc<Stream>,
    fault: FaultCell,
}

impl Target {
    fn stream(&self) -> &StreamTarget {
        match self {
            Target::Stream(target) => target,
            #[cfg(test)]
            Target::Recorder(_) => panic!("a recorder has no device"),
        }
    }
}

/// A stream with the memory that launches need; see the [module](self).
pub struct Queue {
    target: Target,
    state: State,
    scratch: Option<Arc<DeviceBlock>>,
    /// Whether a kernel of another library was launched last.
    behind_foreign: bool,
    /// Whether kernels may use programmatic dependent launch, if the device has it.
    pub(crate) overlap: bool,
}

impl Queue {
    /// A queue over a stream of the device.
    pub(crate) fn new(device: &Arc<CudaDevice>, stream: &Arc<Stream>) -> Result<Queue, CudaError> {
        let fault = FaultCell::new(&device.context)?;
        let (device, stream) = (Arc::clone(device), Arc::clone(stream));
        Ok(Queue {
            target: Target::Stream(StreamTarget { device, stream, fault }),
            state: State::Idle,
            scratch: None,
            behind_foreign: false,
            overlap: true,
        })
    }

    /// A queue without a device, which records launches.
    #[cfg(test)]
    pub(crate) fn recording(caps: Caps) -> Queue {
        Queue {
            target: Target::Recorder(crate::recorder::Recorder::new(caps)),
            state: State::Idle,
            scratch: None,
            behind_foreign: false,
            overlap: true,
        }
    }

    /// What was launched, if the queue records it.
    #[cfg(test)]
    pub(crate) fn recorded(&self) -> &[crate::recorder::RecordedLaunch] {
        match &self.target {
            Target::Stream(_) => &[],
            Target::Recorder(recorder) => &recorder.launches,
        }
    }

    /// The capabilities of the device.
    pub fn caps(&self) -> Caps {
        match &self.target {
            Target::Stream(target) => target.device.caps(),
            #[cfg(test)]
            Target::Recorder(recorder) => recorder.caps,
        }
    }

    /// What kernels report faults to.
    pub(crate) fn fault_cell(&self) -> &FaultCell {
        &self.target.stream().fault
    }

    /// The address that kernels report faults to.
    pub fn fault(&self) -> u64 {
        match &self.target {
            Target::Stream(target) => target.fault.ptr(),
            #[cfg(test)]
            Target::Recorder(_) => crate::recorder::FAULT,
        }
    }

    /// A descriptor for TMA loads of 2D tiles; see [`TensorMap::of_bytes`].
    pub(crate) fn tensor_map(
        &self,
        ptr: u64,
        tensor: (u32, u32),
        tile: (u32, u32),
    ) -> Result<TensorMap, CudaError> {
        match &self.target {
            Target::Stream(target) => TensorMap::of_bytes(&target.device.context, ptr, tensor, tile),
            #[cfg(test)]
            Target::Recorder(_) => Ok(TensorMap::default()),
        }
    }

    /// Checks the number of blocks in the first grid dimension.
    pub fn blocks(&self, what: &str, count: u64) -> Result<u32, BackendError> {
        grid_dimension(what, count, i32::MAX as u32)
    }

    /// Checks the number of blocks in the second grid dimension.
    pub fn rows(&self, what: &str, count: u64) -> Result<u32, BackendError> {
        grid_dimension(what, count, u16::MAX.into())
    }

    /// Scratch memory for the launches of one call; the next call reuses it. It cannot grow while a program
    /// is captured.
    pub fn scratch(&mut self, bytes: usize) -> Result<u64, CudaError> {
        #[cfg(test)]
        if let Target::Recorder(_) = self.target {
            return Ok(crate::recorder::SCRATCH);
        }
        if let Some(block) = &self.scratch
            && block.bytes() >= bytes
        {
            return Ok(block.ptr());
        }
        self.wait_to_grow("growing scratch memory")?;
        self.scratch = None;
        Ok(self.scratch.insert(self.block(bytes)?).ptr())
    }

    /// Waits until buffers are no longer in use, so that they can be replaced by larger ones. An error while
    /// a program is captured. Captured programs keep their own buffers alive.
    fn wait_to_grow(&self, call: &'static str) -> Result<(), CudaError> {
        if self.state == State::Capturing {
            return Err(CudaError::Capturing { call });
        }
        self.target.stream().stream.synchronize()
    }

    fn block(&self, bytes: usize) -> Result<Arc<DeviceBlock>, CudaError> {
        let grown = bytes.checked_next_power_of_two().unwrap_or(bytes).max(1 << 20);
        Ok(Arc::new(DeviceBlock::new(&self.target.stream().device.context, grown, bytes as u64)?))
    }

    /// Launches a kernel that takes one struct.
    pub fn launch<P: Pod>(&mut self, launch: &Launch<'_>, params: &P) -> Result<(), CudaError> {
        self.launch_with(launch, &[Arg::new(params)])
    }

    /// Launches a kernel with arguments in the order in which it declares them.
    pub fn launch_with(&mut self, launch: &Launch<'_>, args: &[Arg<'_>]) -> Result<(), CudaError> {
        #[cfg(test)]
        if let Target::Recorder(recorder) = &mut self.target {
            return recorder.launch(launch, args);
        }
        if self.state == State::Loading {
            let StreamTarget { device, .. } = self.target.stream();
            return device.modules.function(launch.file, launch.entry, launch.shared).map(drop);
        }
        let behind_foreign = std::mem::take(&mut self.behind_foreign);
        let StreamTarget { device, stream, .. } = self.target.stream();
        let function = device.modules.function(launch.file, launch.entry, launch.shared)?;
        device.context.bind()?;
        let mut attributes = [NO_ATTRIBUTE; 2];
        let mut count = 0;
        if self.overlap && device.overlaps() && !behind_foreign {
            attributes[count].id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if launch.cluster > 1 {
            attributes[count].id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim.x = launch.cluster;
            attributes[count].value.clusterDim.y = 1;
            attributes[count].value.clusterDim.z = 1;
            count += 1;
        }
        let config = CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut pointers: Vec<*mut c_void> =
            args.iter().map(|arg| arg.0.as_ptr().cast_mut().cast()).collect();
        // SAFETY: function and stream are alive; the arguments point to values that outlive the call, which
        // copies them. `kernel_args!` checks that they are laid out as the kernel declares them.
        let status = unsafe {
            sys::cuLaunchKernelEx(&config, function.raw(), pointers.as_mut_ptr(), std::ptr::null_mut())
        };
        status.result().map_err(|error| match device.context.error("cuLaunchKernelEx", error) {
            CudaError::Driver { .. } => {
                CudaError::Launch { kernel: launch.entry.to_owned(), reason: reason(error) }
            }
            other => other,
        })
    }

    /// Whether launches are only prepared.
    pub(crate) fn is_loading(&self) -> bool {
        self.state == State::Loading
    }

    /// A kernel of another library was launched on the stream.
    pub(crate) fn behind_foreign_kernel(&mut self) {
        self.behind_foreign = true;
    }

    /// An error if a program is being loaded or captured.
    pub(crate) fn must_be_idle(&self, call: &'static str) -> Result<(), CudaError> {
        if self.state == State::Idle { Ok(()) } else { Err(CudaError::Capturing { call }) }
    }

    /// Waits for the device, and returns the fault that a kernel has reported.
    pub(crate) fn synchronize(&mut self) -> Result<(), BackendError> {
        self.must_be_idle("waiting for the device")?;
        self.target.stream().stream.synchronize()?;
        match &mut self.target {
            Target::Stream(target) => target.fault.take(),
            #[cfg(test)]
            Target::Recorder(_) => Ok(()),
        }
    }

    /// Waits until earlier launches are done, unless launches do not run.
    pub(crate) fn drain(&self) -> Result<(), CudaError> {
        if self.state == State::Idle { self.target.stream().stream.synchronize() } else { Ok(()) }
    }

    /// Starts loading: launches are prepared instead of run until [`end_loading`](Queue::end_loading).
    pub(crate) fn begin_loading(&mut self) -> Result<(), CudaError> {
        self.must_be_idle("loading a program")?;
        self.state = State::Loading;
        Ok(())
    }

    /// Ends loading: launches run again.
    pub(crate) fn end_loading(&mut self) {
        if self.state == State::Loading {
            self.state = State::Idle;
        }
    }

    /// Starts a capture: launches are recorded instead of run until [`end_capture`](Queue::end_capture).
    pub(crate) fn begin_capture(&mut self) -> Result<(), CudaError> {
        self.must_be_idle("starting another capture")?;
        self.target.stream().stream.begin_capture()?;
        self.state = State::Capturing;
        Ok(())
    }

    /// Ends the capture, and returns the graph with the scratch memory that it uses. Launches run again, even
    /// after an error.
    pub(crate) fn end_capture(&mut self) -> Result<(Graph, GraphScratch), CudaError> {
        if self.state != State::Capturing {
            let reason = "no capture was started".to_owned();
            return Err(CudaError::Capture { call: "ending a capture", reason });
        }
        self.state = State::Idle;
        Ok((self.target.stream().stream.end_capture()?, self.scratch.clone()))
    }

    /// Launches a captured graph.
    pub(crate) fn launch_graph(&mut self, graph: &Graph) -> Result<(), CudaError> {
        self.must_be_idle("a replay")?;
        self.target.stream().stream.launch(graph)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.state == State::Capturing {
            let _ = self.end_capture();
        }
        // Kernels may be using the scratch memory and the fault record.
        match &self.target {
            Target::Stream(target) => drop(target.stream.synchronize()),
            #[cfg(test)]
            Target::Recorder(_) => (),
        }
    }
}

fn grid_dimension(what: &str, count: u64, limit: u32) -> Result<u32, BackendError> {
    u32::try_from(count).ok().filter(|&count| count <= limit).ok_or_else(|| BackendError::Unsupported {
        backend: BACKEND,
        what: format!("{what} with {count} thread blocks (the limit is {limit})"),
    })
}

const NO_ATTRIBUTE: CUlaunchAttribute = CUlaunchAttribute {
    id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue { pad: [0; 64] },
};
