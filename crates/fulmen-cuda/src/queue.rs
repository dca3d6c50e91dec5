//! What kernels are launched through: a stream, scratch memory, and whether launches run, are planned or are
//! captured.

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::{self, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchConfig};
use fulmen_core::BackendError;

use crate::BACKEND;
use crate::ahead::Ahead;
use crate::device::{Caps, CudaDevice};
use crate::error::{CudaError, reason};
use crate::fault::FaultCell;
use crate::handles::{DeviceBlock, Graph, Stream};
use crate::tensor_map::TensorMap;

/// What becomes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs.
    Idle,
    /// It is prepared, so that it can be captured: kernels are loaded, scratch memory is there.
    Planning,
    /// It is recorded.
    Capturing,
}

/// Which kernel, and over which grid.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The file of kernels, without its ending.
    pub file: &'static str,
    /// The kernel in it.
    pub entry: &'a str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Blocks of a cluster, along x; 1 for none.
    pub cluster: u32,
}

impl<'a> Launch<'a> {
    /// A launch over a one-dimensional grid, without dynamic shared memory.
    pub fn new(file: &'static str, entry: &'a str, blocks: u32, block: u32) -> Launch<'a> {
        Launch { file, entry, grid: [blocks, 1, 1], block, shared: 0, cluster: 1 }
    }

    /// With a second dimension of the grid.
    pub fn rows(self, rows: u32) -> Launch<'a> {
        Launch { grid: [self.grid[0], rows, 1], ..self }
    }

    /// With dynamic shared memory.
    pub fn shared(self, bytes: u32) -> Launch<'a> {
        Launch { shared: bytes, ..self }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub struct Arg<'a>(*const c_void, std::marker::PhantomData<&'a ()>);

impl<'a> Arg<'a> {
    /// A plain value or struct, laid out as the kernel declares it.
    pub fn new<P: Pod>(value: &'a P) -> Arg<'a> {
        Arg(std::ptr::from_ref(value).cast(), std::marker::PhantomData)
    }
}

/// Memory that recorded launches use, and that must be there as long as they are.
pub(crate) type Kept = [Option<Arc<DeviceBlock>>; 2];

/// How a launch hands its result on to the product behind it, besides as floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One row as codes of 8 bits.
    Codes,
    /// Rows in 16 bits, scaled.
    Halves,
    /// Rows in 16 bits as they are, or times the gain of a norm.
    Product {
        /// The address of the gain.
        gain: Option<u64>,
    },
}

/// Rows that are there in another form as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handed {
    pub(crate) form: Form,
    /// The address of the floats.
    pub(crate) of: u64,
    pub(crate) rows: u32,
    pub(crate) width: u32,
}

/// A stream with what launches need.
pub struct Queue {
    device: Arc<CudaDevice>,
    stream: Arc<Stream>,
    state: State,
    scratch: Option<Arc<DeviceBlock>>,
    /// Room for what launches hand on, twice: what the next one may read, and what it may make.
    handing: Option<Arc<DeviceBlock>>,
    /// What the last launch has handed on, and in which half of the room it is.
    handed: Option<(Handed, usize)>,
    /// What the call after the next one would take, if the next one makes it.
    expected: Option<Handed>,
    /// What the next call may call into the L2 cache for the one behind it.
    ahead: Option<Ahead>,
    /// Rooms that became too small, while launches may still use them.
    outgrown: Vec<Arc<DeviceBlock>>,
    fault: FaultCell,
    /// Caches that launches since the last one that nothing overtakes write to, by the address of their keys.
    stored: Vec<u64>,
    /// Whether a kernel may begin before the one before it is done, where the device can.
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
            handing: None,
            handed: None,
            expected: None,
            ahead: None,
            outgrown: Vec::new(),
            fault,
            stored: Vec::new(),
            overlap: true,
        })
    }

    /// What shapes a launch.
    pub fn caps(&self) -> Caps {
        self.device.caps()
    }

    /// The address that kernels report to.
    pub fn fault(&self) -> u64 {
        self.fault.ptr()
    }

    /// Notes a launch that writes to a cache.
    pub fn stores(&mut self, keys: u64) {
        if !self.stored.contains(&keys) {
            self.stored.push(keys);
        }
    }

    /// Whether a launch that writes to a cache may still run when the next one begins: kernels begin before the ones ahead
    /// are done.
    pub fn may_be_storing(&self, keys: u64) -> bool {
        self.stored.contains(&keys)
    }

    /// Nothing that was launched so far can still run when the next launch begins.
    pub fn settled(&mut self) {
        self.stored.clear();
        self.forget_handed();
    }

    /// Where the launch before has put what it handed on, if it is this.
    pub(crate) fn handed(&self, what: Handed) -> Option<u64> {
        let (_, half) = self.handed.filter(|(handed, _)| *handed == what)?;
        Some(half_of(self.handing.as_ref()?, half))
    }

    /// Where a launch may put `bytes` for the next one, if there is room: nothing depends on it. It must be followed by
    /// [`has_handed`](Queue::has_handed) when it is launched.
    pub(crate) fn room_to_hand(&mut self, bytes: usize) -> Option<u64> {
        if self.handing.as_ref().is_none_or(|block| block.bytes() / 2 < bytes) {
            self.may_grow("growing the room for what launches hand on").ok()?;
            let grown = self.block(2 * bytes).ok()?;
            // What was handed on may be read by the launch to come.
            let old = self.handing.replace(grown);
            if self.handed.take().is_some() {
                self.outgrown.extend(old);
            }
        }
        self.handing.as_ref().map(|block| half_of(block, self.free_half()))
    }

    /// The last launch has handed this on, at an address that [`room_to_hand`](Queue::room_to_hand) gave.
    pub(crate) fn has_handed(&mut self, what: Handed, at: u64) {
        self.handed = self.handing.as_ref().map(|block| (what, usize::from(at != block.ptr())));
    }

    /// What was handed on may be of something else from here on.
    pub(crate) fn forget_handed(&mut self) {
        self.handed = None;
        self.expected = None;
    }

    /// Notes what the call after the next one would take, or that this is not known. The note is of addresses that were looked up just
    /// now: it lasts for one call.
    pub(crate) fn expect(&mut self, what: Option<Handed>) {
        self.expected = what;
    }

    /// A description of bytes in rows, by which kernels copy boxes: see [`TensorMap::of_bytes`].
    pub(crate) fn tensor_map(
        &self,
        ptr: u64,
        all: (u32, u32),
        part: (u32, u32),
    ) -> Result<TensorMap, CudaError> {
        TensorMap::of_bytes(&self.device.context, ptr, all, part)
    }

    /// Notes what the next call may call into the L2 cache: of addresses that were looked up just now, for one call.
    pub(crate) fn look_ahead(&mut self, ahead: Option<Ahead>) {
        self.ahead = ahead;
    }

    /// What this call may call into the L2 cache.
    pub(crate) fn ahead(&self) -> Option<Ahead> {
        self.ahead
    }

    /// The gain that rows at an address are expected to be multiplied with.
    pub(crate) fn expected_gain(&self, of: u64, rows: u32, width: u32) -> Option<u64> {
        let expected = self.expected?;
        let Form::Product { gain } = expected.form else { return None };
        gain.filter(|_| expected == Handed { form: expected.form, of, rows, width })
    }

    fn free_half(&self) -> usize {
        self.handed.map_or(0, |(_, half)| 1 - half)
    }

    /// So many blocks as the first dimension of a grid.
    pub fn blocks(&self, what: &str, count: u64) -> Result<u32, BackendError> {
        dimension(what, count, i32::MAX as u32)
    }

    /// So many blocks as the second dimension of a grid.
    pub fn rows(&self, what: &str, count: u64) -> Result<u32, BackendError> {
        dimension(what, count, u16::MAX.into())
    }

    /// Memory that is the caller's until its last launch, and the next caller's after that. While a program is captured
    /// there is no more than was planned.
    pub fn scratch(&mut self, bytes: usize) -> Result<u64, CudaError> {
        if let Some(block) = &self.scratch
            && block.bytes() >= bytes
        {
            return Ok(block.ptr());
        }
        self.may_grow("growing scratch memory")?;
        self.scratch = None;
        Ok(self.scratch.insert(self.block(bytes)?).ptr())
    }

    /// Whether memory that launches use may be replaced by more; if so, nothing uses it any longer. Captured programs keep
    /// theirs.
    fn may_grow(&self, call: &'static str) -> Result<(), CudaError> {
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
        self.forget_handed();
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
        // SAFETY: function and stream are alive; the arguments point to values that outlive the call, which copies them.
        // That they are those which the kernel declares is what the file of the op sees to.
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

    /// Refuses a call that must not be made while a program is captured.
    pub(crate) fn must_be_idle(&self, call: &'static str) -> Result<(), CudaError> {
        if self.state == State::Idle { Ok(()) } else { Err(CudaError::Capturing { call }) }
    }

    /// Waits for the device, and gives what its kernels reported.
    pub(crate) fn synchronize(&mut self) -> Result<(), BackendError> {
        self.must_be_idle("waiting for the device")?;
        self.stream.synchronize()?;
        self.settled();
        self.outgrown.clear();
        self.fault.take()
    }

    /// From here on launches are prepared and not run, until [`end_planning`](Queue::end_planning).
    pub(crate) fn begin_planning(&mut self) -> Result<(), CudaError> {
        self.must_be_idle("planning a program")?;
        self.settled();
        self.state = State::Planning;
        Ok(())
    }

    /// Launches run again.
    pub(crate) fn end_planning(&mut self) {
        self.settled();
        if self.state == State::Planning {
            self.state = State::Idle;
        }
    }

    /// From here on launches are recorded and not run, until [`end_capture`](Queue::end_capture).
    pub(crate) fn begin_capture(&mut self) -> Result<(), CudaError> {
        self.must_be_idle("beginning another capture")?;
        self.settled();
        self.stream.begin_capture()?;
        self.state = State::Capturing;
        Ok(())
    }

    /// Ends the recording. Launches run again, whatever comes of it. The scratch memory that was recorded belongs to the
    /// graph as well.
    pub(crate) fn end_capture(&mut self) -> Result<(Graph, Kept), CudaError> {
        self.settled();
        if self.state != State::Capturing {
            let reason = "none has begun".to_owned();
            return Err(CudaError::Capture { call: "ending a capture", reason });
        }
        self.state = State::Idle;
        Ok((self.stream.end_capture()?, [self.scratch.clone(), self.handing.clone()]))
    }

    /// Runs a recorded graph.
    pub(crate) fn launch_graph(&mut self, graph: &Graph) -> Result<(), CudaError> {
        self.must_be_idle("a replay")?;
        self.forget_handed();
        self.stream.launch(graph)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.state == State::Capturing {
            let _ = self.end_capture();
        }
        // Scratch memory and the place of reports may be in use.
        let _ = self.stream.synchronize();
    }
}

/// Where a half of a block begins.
fn half_of(block: &DeviceBlock, half: usize) -> u64 {
    block.ptr() + (half * (block.bytes() / 2)) as u64
}

fn dimension(what: &str, count: u64, most: u32) -> Result<u32, BackendError> {
    u32::try_from(count).ok().filter(|&count| count <= most).ok_or_else(|| BackendError::Unsupported {
        backend: BACKEND,
        what: format!("{what} with {count} blocks of threads (at most {most})"),
    })
}

const NO_ATTRIBUTE: CUlaunchAttribute = CUlaunchAttribute {
    id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue { pad: [0; 64] },
};
