//! Errors that a device's callbacks have reported.

use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::error::GpuError;

/// Device loss and uncaptured errors: written by wgpu's callbacks, checked by every call.
#[derive(Debug, Default)]
pub(crate) struct DeviceErrors {
    lost: OnceLock<String>,
    has_uncaptured: AtomicBool,
    uncaptured: Mutex<Option<GpuError>>,
}

impl DeviceErrors {
    /// Sets wgpu's callbacks. wgpu's default error handler panics; this one keeps the first error for
    /// the next call.
    pub(super) fn watch(self: &std::sync::Arc<Self>, device: &wgpu::Device) {
        let state = self.clone();
        device.set_device_lost_callback(move |reason, message| state.lose(reason, &message));
        let state = self.clone();
        device.on_uncaptured_error(std::sync::Arc::new(move |error| state.keep(error)));
    }

    fn lose(&self, reason: wgpu::DeviceLostReason, message: &str) {
        self.lose_because(match (reason, message) {
            (wgpu::DeviceLostReason::Destroyed, _) => "it was destroyed".to_owned(),
            (wgpu::DeviceLostReason::Unknown, "") => "the driver does not say why".to_owned(),
            (wgpu::DeviceLostReason::Unknown, message) => message.to_owned(),
        });
    }

    /// Marks the device as lost. The first reason is kept.
    pub(super) fn lose_because(&self, reason: String) {
        // A second reason is a consequence of the first.
        let _ = self.lost.set(reason);
    }

    fn keep(&self, error: wgpu::Error) {
        let mut first = self.uncaptured.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| to_gpu_error("a call outside this crate", None, error));
        self.has_uncaptured.store(true, Ordering::Release);
    }

    /// The loss of the device, or else the first error that was not reported yet, once.
    pub(super) fn check(&self) -> Result<(), GpuError> {
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        if self.has_uncaptured.load(Ordering::Acquire) {
            let mut first = self.uncaptured.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_uncaptured.store(false, Ordering::Release);
            if let Some(error) = first.take() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// The error of a device that is lost.
    pub(super) fn lost(&self) -> Option<GpuError> {
        self.lost.get().map(|reason| GpuError::DeviceLost { reason: reason.clone() })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }
}

/// Converts wgpu's error.
pub(super) fn to_gpu_error(call: &'static str, needed: Option<u64>, error: wgpu::Error) -> GpuError {
    match error {
        wgpu::Error::OutOfMemory { .. } => GpuError::OutOfMemory { call, needed, available: None },
        wgpu::Error::Validation { description, .. } => {
            GpuError::Validation { call, message: tidy(&description) }
        }
        wgpu::Error::Internal { description, .. } => GpuError::Internal { call, message: tidy(&description) },
    }
}

/// wgpu's message without the headings that the error type already implies.
fn tidy(description: &str) -> String {
    let text = description.trim();
    let text = text.strip_prefix("Validation Error").unwrap_or(text).trim_start();
    text.strip_prefix("Caused by:").unwrap_or(text).trim_start().to_owned()
}
