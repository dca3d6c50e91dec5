//! Reads of graph memory in flight.

use std::task::{Context, Poll};

use fulmen_core::{BackendError, PendingRead};

use crate::{BACKEND, buffer::GpuBuffer, device::GpuDevice, kernels::fault, transfer::Readback};

/// A range of a buffer in flight, and the fault record of the work before it.
pub(crate) struct PendingBuffer {
    /// `None` after the bytes were copied.
    pub(crate) readback: Option<Readback>,
    /// Whether the helper thread of the device waits for it: it does from the first poll on.
    pub(crate) watched: bool,
    /// Bytes before the range: reads are whole words.
    pub(crate) skip: usize,
    pub(crate) gpu: GpuDevice,
    pub(crate) fault: GpuBuffer,
}

impl PendingBuffer {
    fn readback(&self) -> Result<&Readback, BackendError> {
        self.readback.as_ref().ok_or_else(|| BackendError::Device {
            backend: BACKEND,
            call: "read",
            source: "the bytes were already copied".into(),
        })
    }
}

impl PendingRead for PendingBuffer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BackendError>> {
        let watched = std::mem::replace(&mut self.watched, true);
        let readback = match self.readback() {
            Ok(readback) => readback,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if !watched && let Err(error) = readback.watch() {
            return Poll::Ready(Err(error.into()));
        }
        readback.poll(context).map(Ok)
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        Ok(self.readback()?.block()?)
    }

    fn copy_to(&mut self, out: &mut [u8]) -> Result<(), BackendError> {
        self.readback()?;
        let Some(readback) = self.readback.take() else { return Ok(()) };
        let mut record = [0u32; 4];
        readback.copy_out(|index, bytes| match index {
            0 => out.copy_from_slice(&bytes[self.skip..self.skip + out.len()]),
            _ => record = bytemuck::pod_read_unaligned(&bytes[..16]),
        })?;
        report(&self.gpu, &self.fault, record)
    }
}

/// Turns a fault record into an error, and clears the record on the device.
pub(crate) fn report(gpu: &GpuDevice, cell: &GpuBuffer, record: [u32; 4]) -> Result<(), BackendError> {
    let Some(error) = fulmen_core::fault(record) else { return Ok(()) };
    gpu.upload("dispatcher", cell, 0, &[0; fault::FAULT_BYTES as usize])?;
    Err(error)
}
