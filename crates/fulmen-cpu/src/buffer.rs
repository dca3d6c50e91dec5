//! The CPU backend's memory: every operand address is looked up here before a kernel accesses it, so that a
//! graph with wrong addresses is an error, never undefined behavior.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use fulmen_core::{ALIGNMENT, AddressMap, BackendError, DeviceMemory, Entry, ReadTicket, SharedBytes};

use crate::device;

/// Allocations of at least this size are compared with the free memory first: an operating system that
/// overcommits would grant them and kill the process later.
const CHECK_FREE_MEMORY: usize = 64 << 20;

/// The memory of the CPU backend.
#[derive(Default)]
pub struct CpuMemory {
    blocks: AddressMap<Data>,
}

enum Data {
    Owned(Owned),
    Imported(SharedBytes),
}

/// Zeroed bytes aligned to [`ALIGNMENT`].
struct Owned {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: the bytes belong to this value alone; access through `CpuMemory` follows its borrow.
unsafe impl Send for Owned {}
// SAFETY: as above: shared access only reads the address.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated in `alloc` with this layout and freed only here.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

/// A range of memory that was looked up: valid until the [`CpuMemory`] changes.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Which operand it is, for messages.
    pub(crate) what: &'static str,
    pub(crate) ptr: *mut u8,
    pub(crate) bytes: usize,
}

impl Span {
    /// The range as elements.
    ///
    /// # Safety
    /// The memory is alive, nothing writes there meanwhile, and the range was looked up for `T`.
    pub(crate) unsafe fn slice<'a, T: bytemuck::Pod>(self) -> &'a [T] {
        // SAFETY: `CpuMemory::span` checked length and alignment; the rest by the contract.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    /// The range as elements to write.
    ///
    /// # Safety
    /// As [`slice`](Span::slice), the range was looked up by `span_mut`, and nothing else refers to it
    /// meanwhile.
    pub(crate) unsafe fn slice_mut<'a, T: bytemuck::Pod>(self) -> &'a mut [T] {
        // SAFETY: `CpuMemory::span_mut` checked length and alignment; the rest by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    fn overlaps(self, other: Span) -> bool {
        let (a, b) = (self.ptr as usize, other.ptr as usize);
        self.bytes > 0 && other.bytes > 0 && a < b + other.bytes && b < a + self.bytes
    }

    /// An error if this output overlaps the operand.
    pub(crate) fn apart_from(self, operand: Span) -> Result<(), BackendError> {
        if self.overlaps(operand) {
            return Err(BackendError::Overlap { output: self.what, operand: operand.what });
        }
        Ok(())
    }

    /// As [`apart_from`](Span::apart_from), but the identical range is allowed: the op works in place.
    pub(crate) fn apart_or_same(self, operand: Span) -> Result<(), BackendError> {
        if self.ptr == operand.ptr && self.bytes == operand.bytes { Ok(()) } else { self.apart_from(operand) }
    }
}

impl CpuMemory {
    /// No memory.
    pub fn new() -> CpuMemory {
        CpuMemory::default()
    }

    /// Bytes in use, imports included.
    pub fn bytes(&self) -> usize {
        self.blocks.bytes()
    }

    fn look_up(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
        align: usize,
        write: bool,
    ) -> Result<Span, BackendError> {
        let (block, offset) = self.blocks.find(what, ptr, bytes)?;
        block.check(what, ptr, align, write)?;
        let base = match &block.data {
            Data::Owned(owned) => owned.ptr,
            Data::Imported(data) => {
                // Borrowed again for each lookup: only a current borrow is known to be alive.
                let data = (**data).as_ref();
                if data.as_ptr() as u64 != block.start || data.len() != block.bytes {
                    return Err(BackendError::Address { what, ptr, bytes });
                }
                data.as_ptr().cast_mut()
            }
        };
        // SAFETY: `find` checked that the offset lies inside the block.
        Ok(Span { what, ptr: unsafe { base.add(offset) }, bytes })
    }

    /// `count` elements of `T` to read.
    pub(crate) fn span<T>(&self, what: &'static str, ptr: u64, count: usize) -> Result<Span, BackendError> {
        let bytes = count.saturating_mul(size_of::<T>());
        self.look_up(what, ptr, bytes, align_of::<T>(), false)
    }

    /// `count` elements of `T` to write.
    pub(crate) fn span_mut<T>(
        &self,
        what: &'static str,
        ptr: u64,
        count: usize,
    ) -> Result<Span, BackendError> {
        let bytes = count.saturating_mul(size_of::<T>());
        self.look_up(what, ptr, bytes, align_of::<T>(), true)
    }
}

impl DeviceMemory for CpuMemory {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        let available = if bytes >= CHECK_FREE_MEMORY { device::available_memory() } else { None };
        let out_of_memory = BackendError::OutOfMemory { needed: bytes as u64, available };
        // An empty allocation still has a unique address.
        let Ok(layout) = Layout::from_size_align(bytes.max(1), ALIGNMENT) else { return Err(out_of_memory) };
        if available.is_some_and(|available| bytes as u64 > available) {
            return Err(out_of_memory);
        }
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            return Err(out_of_memory);
        }
        let data = Data::Owned(Owned { ptr, layout });
        Ok(self.blocks.insert(Entry { start: ptr as u64, bytes, read_only: false, data }))
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.blocks.remove(ptr).map(|_| ())
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        let span = self.span_mut::<u8>("write", ptr, data.len())?;
        // SAFETY: looked up for writing, and `&mut self` keeps kernels away.
        unsafe { span.slice_mut::<u8>() }.copy_from_slice(data);
        Ok(())
    }

    /// Kernels have finished when their call returns, so the bytes are there at once.
    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        let span = self.span::<u8>("read", ptr, bytes)?;
        // SAFETY: looked up, and `&mut self` keeps kernels away.
        Ok(ReadTicket::ready(unsafe { span.slice::<u8>() }.to_vec()))
    }

    /// Without the copy that a ticket holds.
    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let span = self.span::<u8>("read", ptr, out.len())?;
        // SAFETY: looked up, and `&mut self` keeps kernels away.
        out.copy_from_slice(unsafe { span.slice::<u8>() });
        Ok(())
    }

    /// Zero-copy. Empty bytes, or bytes that are already imported, are copied instead: two blocks never share
    /// an address.
    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        let data = (*bytes).as_ref();
        let (start, len) = (data.as_ptr() as u64, data.len());
        if len == 0 || self.blocks.is_taken(start, len) {
            let ptr = self.alloc(len)?;
            self.write(ptr, data)?;
            return Ok(ptr);
        }
        Ok(self.blocks.insert(Entry { start, bytes: len, read_only: true, data: Data::Imported(bytes) }))
    }

    fn reads_imports_in_place(&self) -> bool {
        true
    }

    /// Memory that the system can provide, including its page cache.
    fn available_bytes(&self) -> Option<u64> {
        device::available_memory()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut memory = CpuMemory::new();
        let (a, b) = (memory.alloc(100).unwrap(), memory.alloc(0).unwrap());
        assert!(a != b && a.is_multiple_of(256) && b.is_multiple_of(256));
        memory.write(a + 10, &[1, 2, 3]).unwrap();
        let mut out = [9; 5];
        memory.read(a + 9, &mut out).unwrap();
        assert_eq!(out, [0, 1, 2, 3, 0]);
        memory.free(a).unwrap();
        assert!(matches!(memory.read(a, &mut out), Err(BackendError::Address { what: "read", .. })));
        assert!(memory.free(a).is_err());
    }

    #[test]
    fn ranges_outside_are_refused() {
        let mut memory = CpuMemory::new();
        let a = memory.alloc(64).unwrap();
        assert!(memory.span::<f32>("x", a, 16).is_ok());
        assert!(memory.span::<f32>("x", a, 17).is_err());
        assert!(memory.span::<f32>("x", a + 64, 0).is_ok());
        assert!(memory.span::<f32>("x", a + 61, 1).is_err());
        assert!(memory.span::<f32>("x", a - 4, 1).is_err());
        assert!(memory.span::<f32>("x", 0, 1).is_err());
        assert!(memory.span::<f32>("x", u64::MAX, usize::MAX).is_err());
        assert!(matches!(memory.span::<f32>("x", a + 2, 1), Err(BackendError::Alignment { align: 4, .. })));
    }

    #[test]
    fn imports_are_read_in_place_and_never_written() {
        let mut memory = CpuMemory::new();
        let bytes: Arc<Vec<u8>> = Arc::new((0..100).collect());
        let ptr = memory.import(bytes.clone()).unwrap();
        assert_eq!(ptr, bytes.as_ptr() as u64);
        assert!(matches!(memory.write(ptr, &[1]), Err(BackendError::ReadOnly { .. })));
        let again = memory.import(bytes.clone()).unwrap();
        assert_ne!(ptr, again);
        let mut out = [0; 100];
        memory.read(again, &mut out).unwrap();
        assert_eq!(out, bytes[..]);
        memory.free(ptr).unwrap();
        assert_eq!(Arc::strong_count(&bytes), 1);
    }

    #[test]
    fn an_allocation_beyond_the_free_memory_is_refused() {
        for bytes in [1usize << 46, usize::MAX] {
            let error = CpuMemory::new().alloc(bytes).unwrap_err();
            assert!(
                matches!(error, BackendError::OutOfMemory { needed, .. } if needed == bytes as u64),
                "{error}"
            );
        }
    }
}
