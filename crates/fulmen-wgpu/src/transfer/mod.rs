//! Bytes to the device and back.
//!
//! - **Up.** Small data goes with the next submission, by wgpu's own staging. Large data goes in pieces, of which at
//!   most two are in flight, so that uploading a model does not hold it in memory once more.
//!   Inputs of products that are computed again and again go through mapped memory that is kept (`upload_staging.rs`).
//! - **Down.** Any number of ranges is copied into staging buffers inside one submission ([`Readback`]), which may be the
//!   one that computes them. Staging buffers are kept and used again, and what they hold is copied once, to where it
//!   is wanted, by several threads where it is much (`copy.rs`).
//! - **Waiting.** Blocking calls wait for their own submission and nothing after it. A future needs somebody to poll the
//!   device: one helper thread per device does so, started by the first future, asleep in the driver while it waits.

mod copy;
mod readback;
mod staging;
mod upload_staging;
mod waiter;

pub(crate) use self::copy::vec_of;
pub use self::readback::{ReadFuture, Readback};
pub(crate) use self::{
    staging::StagingPool,
    upload_staging::{Upload, UploadStaging},
    waiter::Waiter,
};
use crate::{
    buffer::{BufferSlice, GpuBuffer},
    device::GpuDevice,
    error::GpuError,
};

/// Bytes of one piece of a large upload.
const PIECE: usize = 32 << 20;

impl GpuDevice {
    /// Copies `data` into a buffer, in order with the submissions before and after. `offset` is a multiple of 4; where
    /// the length is not, zeros fill the last word.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where the range is not inside the buffer, [`GpuError::OutOfMemory`],
    /// [`GpuError::DeviceLost`].
    pub fn upload(
        &self,
        call: &'static str,
        buffer: &GpuBuffer,
        offset: u64,
        data: &[u8],
    ) -> Result<(), GpuError> {
        self.check_alive()?;
        let size = (data.len() as u64).next_multiple_of(4);
        BufferSlice { buffer: buffer.clone(), offset, size }.check(self, call)?;
        let (words, rest) = data.split_at(data.len() & !3);
        let mut at = offset;
        let mut in_flight = None;
        for piece in words.chunks(PIECE) {
            self.write(call, buffer, at, piece)?;
            at += piece.len() as u64;
            if words.len() > PIECE {
                let submission = self.submit(call, [])?;
                if let Some(earlier) = in_flight.replace(submission) {
                    self.wait(&earlier)?;
                }
            }
        }
        if !rest.is_empty() {
            let mut word = [0; 4];
            word[..rest.len()].copy_from_slice(rest);
            self.write(call, buffer, at, &word)?;
        }
        Ok(())
    }

    fn write(&self, call: &'static str, buffer: &GpuBuffer, at: u64, data: &[u8]) -> Result<(), GpuError> {
        self.scoped(call, Some(data.len() as u64), || self.wgpu_queue().write_buffer(buffer.raw(), at, data))
    }

    /// Reads ranges of buffers, all with one submission.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where a range is not inside its buffer, [`GpuError::OutOfMemory`], [`GpuError::Timeout`],
    /// [`GpuError::BufferMap`], [`GpuError::DeviceLost`].
    pub fn read_many(&self, slices: &[BufferSlice]) -> Result<Vec<Vec<u8>>, GpuError> {
        self.start_reads("read_many", slices)?.wait()
    }

    /// [`read_many`](Self::read_many) for any executor. The copies are submitted by this call; the future may be awaited
    /// later, or dropped.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many).
    pub fn read_many_async(&self, slices: &[BufferSlice]) -> Result<ReadFuture, GpuError> {
        self.start_reads("read_many_async", slices)?.into_future(self)
    }

    /// Reads one range into memory of the caller, of the range's size.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many).
    pub fn download_into(&self, slice: &BufferSlice, out: &mut [u8]) -> Result<(), GpuError> {
        if slice.size != out.len() as u64 {
            return Err(GpuError::Argument {
                call: "download_into",
                what: "the length of the output".to_owned(),
                expected: format!("{} bytes", slice.size),
                got: format!("{}", out.len()),
            });
        }
        self.start_reads("download_into", std::slice::from_ref(slice))?.wait_into(&mut [out])
    }

    pub(crate) fn start_reads(
        &self,
        call: &'static str,
        slices: &[BufferSlice],
    ) -> Result<Readback, GpuError> {
        let mut readback = Readback::plan(self, call, slices)?;
        if !readback.is_empty() {
            let submission = self.record(call, |encoder| readback.record(encoder))?;
            readback.submitted(submission)?;
        }
        Ok(readback)
    }
}
