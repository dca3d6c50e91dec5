//! The helper thread that polls a device for futures.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Sender, channel},
    },
};

use wgpu::{PollType, SubmissionIndex};

use crate::{device::GpuDevice, error::GpuError};

/// Waits for submissions on its own thread, so that their map callbacks run. The thread starts with the
/// first future and ends with the device.
#[derive(Default)]
pub(crate) struct Waiter {
    thread: Mutex<Option<Sender<WaitRequest>>>,
}

struct WaitRequest {
    submission: SubmissionIndex,
    then: Box<dyn FnOnce() + Send>,
}

impl Waiter {
    /// Makes the thread wait for a submission and then call `then`, whether or not the wait succeeded.
    pub(crate) fn watch(
        &self,
        gpu: &GpuDevice,
        submission: SubmissionIndex,
        then: impl FnOnce() + Send + 'static,
    ) -> Result<(), GpuError> {
        let failed = |message: String| GpuError::BufferMap { call: "read_many_async", message };
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match thread.take() {
            Some(sender) => sender,
            None => start(gpu.wgpu_device().clone(), gpu.polling().clone())
                .map_err(|error| failed(format!("the thread that waits could not be started: {error}")))?,
        };
        let job = WaitRequest { submission, then: Box::new(then) };
        sender.send(job).map_err(|_| failed("the thread that waits has ended".to_owned()))?;
        *thread = Some(sender);
        Ok(())
    }
}

fn start(device: wgpu::Device, polling: Arc<Mutex<()>>) -> std::io::Result<Sender<WaitRequest>> {
    let (sender, receiver) = channel::<WaitRequest>();
    std::thread::Builder::new().name("fulmen-wgpu-wait".to_owned()).spawn(move || {
        for WaitRequest { submission, then } in receiver {
            let wait = PollType::Wait { submission_index: Some(submission), timeout: None };
            // wgpu panics here if the driver loses the device, after it has called the device-lost
            // callback. Other failures are detected by the reader, whose mapping has not completed.
            let turn = polling.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = catch_unwind(AssertUnwindSafe(|| device.poll(wait)));
            drop(turn);
            then();
        }
    })?;
    Ok(sender)
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").finish_non_exhaustive()
    }
}
