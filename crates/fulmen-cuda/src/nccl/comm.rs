//! NCCL's handle of a rank.

use std::ffi::c_int;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::library::{CommConfig, Library, NcclError, RawComm, Status, UniqueId};
use crate::error::CudaError;
use crate::handles::Context;

/// How long dropping a communicator waits for NCCL to free it.
const FREE_LIMIT: Duration = Duration::from_secs(10);

/// How often NCCL is asked whether it is ready.
const POLL: Duration = Duration::from_micros(100);

/// A non-blocking communicator of one rank. Aborting is also how it is freed: unlike destroying, that waits
/// for no other rank.
pub(crate) struct Comm {
    nccl: &'static Library,
    context: Arc<Context>,
    /// `None` once it was aborted.
    raw: Mutex<Option<Handle>>,
    /// Its sender is dropped when NCCL has freed it.
    freed: Mutex<Option<Receiver<()>>>,
}

#[derive(Clone, Copy)]
struct Handle(RawComm);

// SAFETY: a communicator may be used from any thread, one at a time, which the mutex ensures.
unsafe impl Send for Handle {}

/// What a call of NCCL left to do.
pub(super) type Called = Result<(), NcclError>;

impl Comm {
    /// Joins a group: returns when all ranks have, or an error after the time-out or when `failed` says so.
    pub(super) fn join(
        context: &Arc<Context>,
        id: UniqueId,
        (rank, ranks): (u32, u32),
        timeout: Duration,
        failed: &dyn Fn() -> bool,
    ) -> Result<Comm, CudaError> {
        let library = Library::get()?;
        context.bind()?;
        let (mut raw, mut config) = (std::ptr::null_mut(), CommConfig::non_blocking());
        let (number, count) = (rank as c_int, ranks as c_int);
        // SAFETY: the context of the rank's device is current; NCCL writes one handle and reads the rest.
        let status = unsafe { (library.comm_init_rank_config)(&mut raw, count, id, number, &mut config) };
        let call = "ncclCommInitRankConfig";
        if raw.is_null() {
            library.check(call, status, None)?;
            return Err(NcclError::Call { call, reason: "it returned no communicator".to_owned() }.into());
        }
        // From here on dropping it aborts it.
        let context = Arc::clone(context);
        let raw_comm = Mutex::new(Some(Handle(raw)));
        let comm = Comm { nccl: library, context, raw: raw_comm, freed: Mutex::default() };
        match comm.finish(call, raw, status, timeout, failed)? {
            true => Ok(comm),
            false => {
                let reason = format!("not all {ranks} ranks have joined within {timeout:?}");
                Err(NcclError::Call { call, reason }.into())
            }
        }
    }

    fn raw(&self) -> MutexGuard<'_, Option<Handle>> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function of NCCL and waits until it has been launched; `false` if that takes longer than the
    /// time-out, or if the communicator was aborted.
    pub(super) fn call(
        &self,
        name: &'static str,
        timeout: Duration,
        call: impl FnOnce(&Library, RawComm) -> Status,
    ) -> Result<bool, CudaError> {
        self.context.bind()?;
        let raw = self.raw();
        let Some(Handle(comm)) = *raw else { return Ok(false) };
        let status = call(self.nccl, comm);
        Ok(self.finish(name, comm, status, timeout, &|| false)?)
    }

    /// Waits while a call is in progress.
    fn finish(
        &self,
        call: &'static str,
        comm: RawComm,
        status: Status,
        timeout: Duration,
        failed: &dyn Fn() -> bool,
    ) -> Result<bool, NcclError> {
        let (began, mut status) = (Instant::now(), status);
        while status == Status::IN_PROGRESS {
            if began.elapsed() >= timeout || failed() {
                return Ok(false);
            }
            thread::sleep(POLL);
            status = self.async_status(comm)?;
        }
        self.nccl.check(call, status, Some(comm)).map(|()| true)
    }

    fn async_status(&self, comm: RawComm) -> Result<Status, NcclError> {
        let mut status = Status::SUCCESS;
        // SAFETY: the communicator is alive: `raw` is locked, or nobody else has it yet.
        let asked = unsafe { (self.nccl.comm_get_async_error)(comm, &mut status) };
        self.nccl.check("ncclCommGetAsyncError", asked, Some(comm))?;
        Ok(status)
    }

    /// What NCCL has found out since a collective was launched.
    pub(super) fn error(&self) -> Called {
        let raw = self.raw();
        let Some(Handle(comm)) = *raw else { return Ok(()) };
        match self.async_status(comm)? {
            Status::IN_PROGRESS => Ok(()),
            status => self.nccl.check("a collective", status, Some(comm)),
        }
    }

    /// Ends the collectives that run, and frees the communicator when no CUDA graph uses it any more. Does
    /// not wait for that.
    pub(super) fn abort(&self) {
        let Some(comm) = self.raw().take() else { return };
        let (library, context) = (self.nccl, Arc::clone(&self.context));
        let (sender, freed) = channel::<()>();
        let started = thread::Builder::new().name("nccl-abort".to_owned()).spawn(move || {
            let Handle(comm) = { comm };
            if context.bind().is_ok() {
                // SAFETY: it was taken, so that nobody else uses it.
                unsafe { (library.comm_abort)(comm) };
            }
            drop(sender);
        });
        if started.is_ok() {
            *self.freed.lock().unwrap_or_else(PoisonError::into_inner) = Some(freed);
        }
    }
}

impl Drop for Comm {
    /// A process that ends while NCCL frees a communicator, also one that was aborted before, may crash.
    fn drop(&mut self) {
        self.abort();
        if let Some(freed) = self.freed.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // Ends when the sender is dropped.
            let _ = freed.recv_timeout(FREE_LIMIT);
        }
    }
}
