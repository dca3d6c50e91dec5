//! Uploads and downloads.
//!
//! - **Uploads.** Small data goes with the next submission, through wgpu's own staging. Large data goes
//!   in chunks, at most two of them in flight, so that uploading a model does not hold it in memory
//!   twice. Inputs of matmuls that are called repeatedly go through persistent mapped buffers
//!   (`upload_staging.rs`).
//! - **Downloads.** Any number of ranges is copied to staging buffers in one submission ([`Readback`]),
//!   which may be the one that computes them. Staging buffers are reused, and their contents are copied
//!   once, to their destination, by several threads if large (`copy.rs`).
//! - **Waiting.** Blocking calls wait for their own submission and nothing after it. For futures, one
//!   helper thread per device polls it; it is started by the first future and sleeps in the driver
//!   while it waits.

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

/// Bytes per chunk of a large upload.
const CHUNK: usize = 32 << 20;

/// Bytes per chunk of a large upload that must not block: they are copied in about a millisecond.
const ASYNC_CHUNK: usize = 4 << 20;

impl GpuDevice {
    /// Copies `data` into a buffer, ordered with the submissions before and after. `offset` is a
    /// multiple of 4; if the length is not, the last word is padded with zeros.
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
        let (words, rest) = self.checked_upload(call, buffer, offset, data)?;
        let mut at = offset;
        let mut in_flight = None;
        for chunk in words.chunks(CHUNK) {
            self.write(call, buffer, at, chunk)?;
            at += chunk.len() as u64;
            if words.len() > CHUNK {
                let submission = self.submit(call, [])?;
                if let Some(earlier) = in_flight.replace(submission) {
                    self.wait(&earlier)?;
                }
            }
        }
        self.write_rest(call, buffer, at, rest)
    }

    /// [`upload`](Self::upload) for any executor: where there is much data, it yields until the device has
    /// taken what was given to it.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub async fn upload_async(
        &self,
        call: &'static str,
        buffer: &GpuBuffer,
        offset: u64,
        data: &[u8],
    ) -> Result<(), GpuError> {
        let (words, rest) = self.checked_upload(call, buffer, offset, data)?;
        let mut at = offset;
        let mut in_flight = None;
        for chunk in words.chunks(ASYNC_CHUNK) {
            self.write(call, buffer, at, chunk)?;
            at += chunk.len() as u64;
            if words.len() > ASYNC_CHUNK {
                self.ready_to_submit().await?;
                let submission = self.submit(call, [])?;
                if let Some(earlier) = in_flight.replace(submission) {
                    self.finished(&earlier).await?;
                }
            }
        }
        self.write_rest(call, buffer, at, rest)
    }

    /// Checks the range of an upload; gives the whole words of the data and the bytes behind them.
    fn checked_upload<'a>(
        &self,
        call: &'static str,
        buffer: &GpuBuffer,
        offset: u64,
        data: &'a [u8],
    ) -> Result<(&'a [u8], &'a [u8]), GpuError> {
        self.check_alive()?;
        let size = (data.len() as u64).next_multiple_of(4);
        BufferSlice { buffer: buffer.clone(), offset, size }.check(self, call)?;
        Ok(data.split_at(data.len() & !3))
    }

    /// Writes fewer bytes than a word, padded with zeros.
    fn write_rest(
        &self,
        call: &'static str,
        buffer: &GpuBuffer,
        at: u64,
        rest: &[u8],
    ) -> Result<(), GpuError> {
        if rest.is_empty() {
            return Ok(());
        }
        let mut word = [0; 4];
        word[..rest.len()].copy_from_slice(rest);
        self.write(call, buffer, at, &word)
    }

    fn write(&self, call: &'static str, buffer: &GpuBuffer, at: u64, data: &[u8]) -> Result<(), GpuError> {
        self.scoped(call, Some(data.len() as u64), || self.wgpu_queue().write_buffer(buffer.raw(), at, data))
    }

    /// Reads ranges of buffers, all with one submission.
    ///
    /// # Errors
    /// [`GpuError::Argument`] where a range is not inside its buffer, [`GpuError::OutOfMemory`],
    /// [`GpuError::Timeout`], [`GpuError::BufferMap`], [`GpuError::DeviceLost`].
    pub fn read_many(&self, slices: &[BufferSlice]) -> Result<Vec<Vec<u8>>, GpuError> {
        self.start_reads("read_many", slices)?.wait()
    }

    /// [`read_many`](Self::read_many) for any executor. The copies are submitted by this call; the
    /// future may be awaited later, or dropped.
    ///
    /// # Errors
    /// As [`read_many`](Self::read_many).
    pub fn read_many_async(&self, slices: &[BufferSlice]) -> Result<ReadFuture, GpuError> {
        self.start_reads("read_many_async", slices)?.into_future()
    }

    /// Reads one range into the caller's memory, of the same size.
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
