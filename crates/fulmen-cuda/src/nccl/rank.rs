//! One rank of a group: collectives on the stream of its device, and exchanges of the host.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::result;
use fulmen_core::{AllGatherCall, AllReduceCall, BackendError, Communicator, CommunicatorError};

use super::comm::Comm;
use super::group::{NcclGroup, Work};
use super::library::{FLOAT32, Library, RawComm, SUM, Status, UINT8};
use crate::BACKEND;
use crate::error::CudaError;
use crate::handles::{Context, DeviceBlock, Stream, StreamGuard};
use crate::queue::Queue;

/// A rank of an [`NcclGroup`], on a device.
pub(crate) struct NcclRank {
    rank: u32,
    group: Arc<NcclGroup>,
    comm: Comm,
    context: Arc<Context>,
    /// Where programs run.
    stream: Arc<Stream>,
    exchange: Mutex<Exchange>,
    /// What was launched before: the first launch of a kind and size connects the devices, which a capture
    /// does not allow.
    connected: Mutex<HashSet<(&'static str, usize)>>,
}

/// Device memory and a stream for values of the host.
struct Exchange {
    stream: Arc<Stream>,
    block: Option<DeviceBlock>,
}

impl NcclRank {
    /// Joins a group; returns when all ranks have.
    pub(crate) fn join(
        context: &Arc<Context>,
        stream: &Arc<Stream>,
        group: &Arc<NcclGroup>,
        rank: u32,
    ) -> Result<Arc<NcclRank>, CudaError> {
        let failed = || group.failure().is_some();
        let comm = Comm::join(context, group.id, (rank, group.ranks()), group.timeout(), &failed)?;
        let exchange = Exchange { stream: Arc::new(Stream::new(context)?), block: None };
        let member = Arc::new(NcclRank {
            rank,
            group: Arc::clone(group),
            comm,
            context: Arc::clone(context),
            stream: Arc::clone(stream),
            exchange: Mutex::new(exchange),
            connected: Mutex::default(),
        });
        let work: Weak<NcclRank> = Arc::downgrade(&member);
        group.add(rank, work.clone());
        stream.set_guard(work);
        Ok(member)
    }

    /// An error if a call is of another number of ranks.
    fn check_ranks(&self, ranks: u32) -> Result<(), BackendError> {
        match ranks == self.group.ranks() {
            true => Ok(()),
            false => {
                let what = format!("a collective of {ranks} ranks in a group of {}", self.group.ranks());
                Err(BackendError::Unsupported { backend: BACKEND, what })
            }
        }
    }

    /// Launches a collective.
    fn launch(
        &self,
        name: &'static str,
        call: impl FnOnce(&Library, RawComm) -> Status,
    ) -> Result<(), CudaError> {
        self.group.check()?;
        let failed = |reason| self.group.fail(CommunicatorError::Rank { rank: self.rank, reason });
        match self.comm.call(name, self.group.timeout(), call) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.group.lose();
                self.comm.abort();
                Err(failed(format!("{name} was not launched within {:?}", self.group.timeout())))
            }
            Err(CudaError::Nccl(error)) => Err(failed(error.to_string())),
            Err(error) => Err(error),
        }
    }

    fn all_reduce_on(&self, stream: &Stream, input: u64, output: u64, count: usize) -> Result<(), CudaError> {
        self.launch("ncclAllReduce", |nccl, comm| {
            // SAFETY: the operands were checked, or belong to the exchange; the stream is alive.
            unsafe { (nccl.all_reduce)(input as _, output as _, count, FLOAT32, SUM, comm, stream.raw()) }
        })
    }

    fn all_gather_on(&self, stream: &Stream, input: u64, output: u64, count: usize) -> Result<(), CudaError> {
        self.launch("ncclAllGather", |nccl, comm| {
            // SAFETY: as above.
            unsafe { (nccl.all_gather)(input as _, output as _, count, FLOAT32, comm, stream.raw()) }
        })
    }

    /// Whether a collective of this kind and size is launched for the first time.
    fn is_new(&self, name: &'static str, count: usize) -> bool {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner).insert((name, count))
    }

    /// An all-reduce of a program, on the stream of the queue.
    pub(crate) fn dispatch_all_reduce(
        &self,
        queue: &mut Queue,
        call: &AllReduceCall,
    ) -> Result<usize, BackendError> {
        self.check_ranks(call.ranks)?;
        let count = call.n_elements;
        if count == 0 {
            return Ok(0);
        }
        if queue.is_loading() {
            if self.is_new("all_reduce", count) {
                let scratch = queue.scratch(4 * count)?;
                self.all_reduce_on(&self.stream, scratch, scratch, count)?;
            }
            return Ok(1);
        }
        self.all_reduce_on(&self.stream, call.input, call.output, count)?;
        queue.behind_foreign_kernel();
        Ok(1)
    }

    /// An all-gather of a program: ranks behind each other, then, if there are several rows, rows of all
    /// ranks beside each other.
    pub(crate) fn dispatch_all_gather(
        &self,
        queue: &mut Queue,
        call: &AllGatherCall,
    ) -> Result<usize, BackendError> {
        self.check_ranks(call.ranks)?;
        let (m, width, ranks) = (call.m as usize, call.width as usize, call.ranks as usize);
        let count = m * width;
        if count == 0 {
            return Ok(0);
        }
        let in_rows = m == 1 || ranks == 1;
        let scratch = match in_rows && !queue.is_loading() {
            true => 0,
            false => queue.scratch(4 * count * (ranks + 1))?,
        };
        if queue.is_loading() {
            if self.is_new("all_gather", count) {
                let input = scratch + (4 * count * ranks) as u64;
                self.all_gather_on(&self.stream, input, scratch, count)?;
            }
            return Ok(1);
        }
        let gathered = if in_rows { call.output } else { scratch };
        self.all_gather_on(&self.stream, call.input, gathered, count)?;
        queue.behind_foreign_kernel();
        if in_rows {
            return Ok(1);
        }
        for rank in 0..ranks {
            let from = (scratch + (4 * rank * count) as u64, 4 * width);
            let to = (call.output + (4 * rank * width) as u64, 4 * width * ranks);
            self.stream.copy_2d(from, to, (4 * width, m))?;
        }
        Ok(1 + ranks)
    }

    /// Exchanges bytes of the host: copies them to the device, runs `collective` on them with the addresses
    /// of input and output, and returns the first `result` bytes of the output.
    fn exchange(
        &self,
        values: &[u8],
        result: usize,
        collective: impl FnOnce(&Stream, u64, u64) -> Result<(), CudaError>,
    ) -> Result<Vec<u8>, CudaError> {
        let mut exchange = self.exchange.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = values.len().next_multiple_of(256);
        let needed = (offset + result).next_power_of_two().max(4096);
        if exchange.block.as_ref().is_none_or(|block| block.bytes() < needed) {
            exchange.block = Some(DeviceBlock::new(&self.context, needed, needed as u64)?);
        }
        let Exchange { stream, block: Some(block) } = &*exchange else { return Ok(Vec::new()) };
        let (input, output) = (block.ptr(), block.ptr() + offset as u64);
        let mut out = vec![0; result];
        self.context.bind()?;
        // SAFETY: the block is large enough, and the stream is waited for before anything is dropped.
        let copied = unsafe { result::memcpy_htod_async(input, values, stream.raw()) };
        copied.map_err(|error| self.context.error("cuMemcpyHtoDAsync", error))?;
        let ran = collective(stream, input, output);
        let done = StreamGuard::wait(self, &|| stream.is_idle());
        ran.and(done)?;
        self.context.bind()?;
        // SAFETY: as above; the output was written.
        let copied = unsafe { result::memcpy_dtoh_sync(&mut out, output) };
        copied.map_err(|error| self.context.error("cuMemcpyDtoH", error))?;
        Ok(out)
    }
}

impl Work for NcclRank {
    fn is_done(&self) -> Result<bool, CudaError> {
        self.stream.is_idle()
    }

    fn error(&self) -> Option<String> {
        self.comm.error().err().map(|error| error.to_string())
    }

    fn end_collectives(&self) {
        // Captured programs still use it.
        self.comm.abort();
    }
}

/// A part of the work of a rank.
struct PartOfWork<'a> {
    rank: &'a NcclRank,
    is_done: &'a (dyn Fn() -> Result<bool, CudaError> + 'a),
}

impl Work for PartOfWork<'_> {
    fn is_done(&self) -> Result<bool, CudaError> {
        (self.is_done)()
    }

    fn error(&self) -> Option<String> {
        self.rank.error()
    }

    fn end_collectives(&self) {
        self.rank.end_collectives();
    }
}

impl StreamGuard for NcclRank {
    fn wait(&self, is_done: &dyn Fn() -> Result<bool, CudaError>) -> Result<(), CudaError> {
        self.group.wait(self.rank, &PartOfWork { rank: self, is_done })
    }

    fn check(&self) -> Result<(), CudaError> {
        self.group.check()
    }
}

/// The error of a communicator, of one of this backend.
fn of_collective(rank: u32, error: CudaError) -> CommunicatorError {
    match error {
        CudaError::Collective(error) => error,
        error => CommunicatorError::Rank { rank, reason: error.to_string() },
    }
}

impl Communicator for NcclRank {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.group.ranks()
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommunicatorError> {
        let count = values.len();
        let run = |stream: &Stream, input, output| self.all_reduce_on(stream, input, output, count);
        let sums = self.exchange(bytemuck::cast_slice(values), 4 * count, run);
        let sums = sums.map_err(|error| of_collective(self.rank, error))?;
        bytemuck::cast_slice_mut(values).copy_from_slice(&sums);
        Ok(())
    }

    fn all_gather(&self, values: &[f32]) -> Result<Vec<f32>, CommunicatorError> {
        let count = values.len();
        let run = |stream: &Stream, input, output| self.all_gather_on(stream, input, output, count);
        let all = self.exchange(bytemuck::cast_slice(values), 4 * count * self.size() as usize, run);
        all.map(|all| bytemuck::pod_collect_to_vec(&all)).map_err(|error| of_collective(self.rank, error))
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), CommunicatorError> {
        let count = bytes.len();
        let run = |stream: &Stream, input: u64, output: u64| {
            self.launch("ncclBroadcast", |nccl, comm| {
                // SAFETY: the addresses are of the exchange, which has room for this many bytes.
                unsafe { (nccl.broadcast)(input as _, output as _, count, UINT8, 0, comm, stream.raw()) }
            })
        };
        let sent = self.exchange(bytes, count, run).map_err(|error| of_collective(self.rank, error))?;
        bytes.copy_from_slice(&sent);
        Ok(())
    }

    fn barrier(&self) -> Result<(), CommunicatorError> {
        self.all_reduce(&mut [0.0])
    }

    fn abort(&self, reason: &str) {
        self.group.fail(CommunicatorError::Rank { rank: self.rank, reason: reason.to_owned() });
    }

    fn reset(&self) {
        self.group.reset();
    }

    fn is_lost(&self) -> bool {
        self.group.is_lost()
    }
}

impl std::fmt::Debug for NcclRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NcclRank").field("rank", &self.rank).field("group", &self.group).finish()
    }
}
