//! The queue that kernels are launched through: a stream, scratch memory, and whether launches run, are
//! planned or are captured.
//!
//! # Programmatic dependent launch
//!
//! On compute capability 9.0 a kernel may start before the previous one has finished. Every kernel executes
//! `griddepcontrol.wait` before it reads what another kernel has written, so this is invisible, with one
//! exception: the decode attention reads before it waits.
//!
//! - Positions and sequences. A kernel that writes them must not let the next kernel start early: then no
//!   later kernel starts before its last block has exited. `advance.cu`, which writes positions, does not.
//! - With the fused store, the KV cache. [`Queue::note_kv_store`] records which caches were written since the
//!   last point at which all previous kernels were known to be done ([`Queue::mark_drained`]), and the fused
//!   kernel is not used for a cache in that list ([`Queue::kv_store_may_be_running`]).
//!
//! # Forwarding
//!
//! A kernel may write its result a second time, in the format in which the next matmul reads its input (q8 or
//! f16 instead of f32). The matmul then skips its own conversion. The two calls know nothing of each other:
//! they communicate through the queue, and correctness never depends on it, as the f32 result is always
//! written too.
//!
//! 1. Before a matmul that is followed by an RMS norm, `dispatch_pair` sees both calls. It returns `None`,
//!    but leaves a request (`request_forward`): the output of the matmul, times the gamma of the
//!    norm, would be of use.
//! 2. A producer (attention, gate-up, or a matmul with a matching request) reserves a slot of the forward
//!    buffer (`reserve_forward_buffer`), writes to it, and describes what it wrote
//!    (`set_forwarded`).
//! 3. The next call asks for its input in the form it needs (`forwarded`). It gets the buffer only
//!    if the description matches in address, shape and format; otherwise it converts the f32 values itself.
//!
//! A request is valid for one call: it names addresses that were checked for that call. Forwarded data is
//! valid until the next launch, write, free, replay or synchronization, because any of them may change the
//! f32 values that it was made from. The two slots of the buffer alternate: a kernel reads one and writes
//! the other. The L2 prefetch (`set_l2_prefetch`) is a request of the same kind, also valid for one
//! call.

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
use crate::l2_prefetch::L2Prefetch;
use crate::tensor_map::TensorMap;

/// What happens to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs.
    Idle,
    /// Its kernel is loaded and its scratch memory allocated, so that it can be captured later.
    Planning,
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
pub struct Arg<'a>(*const c_void, std::marker::PhantomData<&'a ()>);

impl<'a> Arg<'a> {
    /// A plain value or struct, laid out as the kernel declares it.
    pub fn new<P: Pod>(value: &'a P) -> Arg<'a> {
        Arg(std::ptr::from_ref(value).cast(), std::marker::PhantomData)
    }
}

/// The scratch memory and forward buffer that the launches of a graph use, kept alive with it.
pub(crate) type GraphBuffers = [Option<Arc<DeviceBlock>>; 2];

/// The format of forwarded activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardFormat {
    /// One row quantized to q8.
    Q8,
    /// Rows in f16, each scaled by a factor of its own.
    ScaledF16,
    /// Rows in f16 as a matmul has computed them, not scaled.
    MatmulF16 {
        /// The address of the gamma of an RMS norm that they are multiplied with.
        gamma: Option<u64>,
    },
}

/// A description of forwarded activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forwarded {
    pub(crate) format: ForwardFormat,
    /// The address of the f32 activations that they were made from.
    pub(crate) source: u64,
    pub(crate) rows: u32,
    pub(crate) width: u32,
}

/// A stream with the memory that launches need; see the [module](self).
pub struct Queue {
    device: Arc<CudaDevice>,
    stream: Arc<Stream>,
    state: State,
    scratch: Option<Arc<DeviceBlock>>,
    /// Two slots: the next launch may read one and write the other.
    forward_buffer: Option<Arc<DeviceBlock>>,
    /// What the last launch has forwarded, and the slot that it is in.
    forwarded: Option<(Forwarded, usize)>,
    /// What the call after the next one would read if the next one forwards it.
    requested: Option<Forwarded>,
    /// What the next call may prefetch into L2 for the call after it.
    l2_prefetch: Option<L2Prefetch>,
    /// Forward buffers that became too small, but that launches may still use.
    retired_buffers: Vec<Arc<DeviceBlock>>,
    fault: FaultCell,
    /// KV caches that running launches may still write to, by the address of their keys.
    pending_kv_stores: Vec<u64>,
    /// Whether kernels may use programmatic dependent launch, if the device has it.
    pub(crate) overlap: bool,
}

impl Queue {
    /// A queue over a stream of the device.
    pub(crate) fn new(device: &Arc<CudaDevice>, stream: &Arc<Stream>) -> Result<Queue, CudaError> {
        let fault = FaultCell::new(&device.context)?;
        let (device, stream) = (Arc::clone(device), Arc::clone(stream));
        Ok(Queue {
            device,
            stream,
            state: State::Idle,
            scratch: None,
            forward_buffer: None,
            forwarded: None,
            requested: None,
            l2_prefetch: None,
            retired_buffers: Vec::new(),
            fault,
            pending_kv_stores: Vec::new(),
            overlap: true,
        })
    }

    /// The capabilities of the device.
    pub fn caps(&self) -> Caps {
        self.device.caps()
    }

    /// What kernels report faults to.
    pub(crate) fn fault_cell(&self) -> &FaultCell {
        &self.fault
    }

    /// The address that kernels report faults to.
    pub fn fault(&self) -> u64 {
        self.fault.ptr()
    }

    /// Notes that a launch writes to the KV cache with these keys.
    pub fn note_kv_store(&mut self, keys: u64) {
        if !self.pending_kv_stores.contains(&keys) {
            self.pending_kv_stores.push(keys);
        }
    }

    /// Whether a launch that writes to this KV cache may still be running when the next launch starts.
    pub fn kv_store_may_be_running(&self, keys: u64) -> bool {
        self.pending_kv_stores.contains(&keys)
    }

    /// Notes that all previous launches will be done when the next one starts.
    pub fn mark_drained(&mut self) {
        self.pending_kv_stores.clear();
        self.clear_forwarded();
    }

    /// The address of these activations, if the last launch has forwarded them.
    pub(crate) fn forwarded(&self, what: Forwarded) -> Option<u64> {
        let (_, slot) = self.forwarded.filter(|(forwarded, _)| *forwarded == what)?;
        Some(slot_address(self.forward_buffer.as_ref()?, slot))
    }

    /// Where a launch may write `bytes` of activations for the next one. After the launch, the caller
    /// describes them with [`set_forwarded`](Queue::set_forwarded). `None` if there is no memory for it;
    /// forwarding is optional.
    pub(crate) fn reserve_forward_buffer(&mut self, bytes: usize) -> Option<u64> {
        if self.forward_buffer.as_ref().is_none_or(|block| block.bytes() / 2 < bytes) {
            self.wait_to_grow("growing the forward buffer").ok()?;
            let grown = self.block(2 * bytes).ok()?;
            // The next launch may read what was forwarded to it.
            let outgrown = self.forward_buffer.replace(grown);
            if self.forwarded.take().is_some() {
                self.retired_buffers.extend(outgrown);
            }
        }
        self.forward_buffer.as_ref().map(|block| slot_address(block, self.unused_slot()))
    }

    /// Notes what the last launch has forwarded, at an address from
    /// [`reserve_forward_buffer`](Queue::reserve_forward_buffer).
    pub(crate) fn set_forwarded(&mut self, what: Forwarded, at: u64) {
        self.forwarded = self.forward_buffer.as_ref().map(|block| (what, usize::from(at != block.ptr())));
    }

    /// Invalidates what was forwarded and requested.
    pub(crate) fn clear_forwarded(&mut self) {
        self.forwarded = None;
        self.requested = None;
    }

    /// Sets what the call after the next one would read if the next one forwards it. Valid for one call.
    pub(crate) fn request_forward(&mut self, what: Option<Forwarded>) {
        self.requested = what;
    }

    /// A descriptor for TMA loads of 2D tiles; see [`TensorMap::of_bytes`].
    pub(crate) fn tensor_map(
        &self,
        ptr: u64,
        tensor: (u32, u32),
        tile: (u32, u32),
    ) -> Result<TensorMap, CudaError> {
        TensorMap::of_bytes(&self.device.context, ptr, tensor, tile)
    }

    /// Sets what the next call may prefetch into L2. Valid for one call.
    pub(crate) fn set_l2_prefetch(&mut self, prefetch: Option<L2Prefetch>) {
        self.l2_prefetch = prefetch;
    }

    /// What this call may prefetch into L2.
    pub(crate) fn l2_prefetch(&self) -> Option<L2Prefetch> {
        self.l2_prefetch
    }

    /// The gamma that a requested output is to be multiplied with.
    pub(crate) fn requested_gamma(&self, source: u64, rows: u32, width: u32) -> Option<u64> {
        let requested = self.requested?;
        let ForwardFormat::MatmulF16 { gamma } = requested.format else { return None };
        gamma.filter(|_| requested == Forwarded { format: requested.format, source, rows, width })
    }

    fn unused_slot(&self) -> usize {
        self.forwarded.map_or(0, |(_, slot)| 1 - slot)
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
        self.stream.synchronize()
    }

    fn block(&self, bytes: usize) -> Result<Arc<DeviceBlock>, CudaError> {
        let grown = bytes.checked_next_power_of_two().unwrap_or(bytes).max(1 << 20);
        Ok(Arc::new(DeviceBlock::new(&self.device.context, grown, bytes as u64)?))
    }

    /// Launches a kernel that takes one struct.
    pub fn launch<P: Pod>(&mut self, launch: &Launch<'_>, params: &P) -> Result<(), CudaError> {
        self.launch_with(launch, &[Arg::new(params)])
    }

    /// Launches a kernel with arguments in the order in which it declares them.
    pub fn launch_with(&mut self, launch: &Launch<'_>, args: &[Arg<'_>]) -> Result<(), CudaError> {
        let function = self.device.modules.function(launch.file, launch.entry, launch.shared)?;
        self.clear_forwarded();
        if self.state == State::Planning {
            return Ok(());
        }
        self.device.context.bind()?;
        let mut attributes = [NO_ATTRIBUTE; 2];
        let mut count = 0;
        if self.overlap && self.device.overlaps() {
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
            hStream: self.stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| arg.0.cast_mut()).collect();
        // SAFETY: function and stream are alive; the arguments point to values that outlive the call, which
        // copies them. `kernel_args!` checks that they are laid out as the kernel declares them.
        let status = unsafe {
            sys::cuLaunchKernelEx(&config, function.raw(), pointers.as_mut_ptr(), std::ptr::null_mut())
        };
        status.result().map_err(|error| match self.device.context.error("cuLaunchKernelEx", error) {
            CudaError::Driver { .. } => {
                CudaError::Launch { kernel: launch.entry.to_owned(), reason: reason(error) }
            }
            other => other,
        })
    }

    /// An error if a program is being planned or captured.
    pub(crate) fn must_be_idle(&self, call: &'static str) -> Result<(), CudaError> {
        if self.state == State::Idle { Ok(()) } else { Err(CudaError::Capturing { call }) }
    }

    /// Waits for the device, and returns the fault that a kernel has reported.
    pub(crate) fn synchronize(&mut self) -> Result<(), BackendError> {
        self.must_be_idle("waiting for the device")?;
        self.stream.synchronize()?;
        self.mark_drained();
        self.retired_buffers.clear();
        self.fault.take()
    }

    /// Starts planning: launches are prepared instead of run until [`end_planning`](Queue::end_planning).
    pub(crate) fn begin_planning(&mut self) -> Result<(), CudaError> {
        self.must_be_idle("planning a program")?;
        self.mark_drained();
        self.state = State::Planning;
        Ok(())
    }

    /// Ends planning: launches run again.
    pub(crate) fn end_planning(&mut self) {
        self.mark_drained();
        if self.state == State::Planning {
            self.state = State::Idle;
        }
    }

    /// Starts a capture: launches are recorded instead of run until [`end_capture`](Queue::end_capture).
    pub(crate) fn begin_capture(&mut self) -> Result<(), CudaError> {
        self.must_be_idle("starting another capture")?;
        self.mark_drained();
        self.stream.begin_capture()?;
        self.state = State::Capturing;
        Ok(())
    }

    /// Ends the capture, and returns the graph with the buffers that it uses. Launches run again, even after
    /// an error.
    pub(crate) fn end_capture(&mut self) -> Result<(Graph, GraphBuffers), CudaError> {
        self.mark_drained();
        if self.state != State::Capturing {
            let reason = "no capture was started".to_owned();
            return Err(CudaError::Capture { call: "ending a capture", reason });
        }
        self.state = State::Idle;
        Ok((self.stream.end_capture()?, [self.scratch.clone(), self.forward_buffer.clone()]))
    }

    /// Launches a captured graph.
    pub(crate) fn launch_graph(&mut self, graph: &Graph) -> Result<(), CudaError> {
        self.must_be_idle("a replay")?;
        self.clear_forwarded();
        self.stream.launch(graph)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.state == State::Capturing {
            let _ = self.end_capture();
        }
        // Kernels may be using the scratch memory and the fault record.
        let _ = self.stream.synchronize();
    }
}

/// The address of a slot of the forward buffer.
fn slot_address(block: &DeviceBlock, slot: usize) -> u64 {
    block.ptr() + (slot * (block.bytes() / 2)) as u64
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
