//! Scratch memory that only grows, aligned to cache lines.

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory for plain values, kept between uses. Its content after [`reserve`](Buffer::reserve) is unspecified
/// but initialized.
#[derive(Default)]
pub(super) struct Buffer {
    lines: Vec<Line>,
}

impl Buffer {
    /// Reserves `len` values of `T` and returns a pointer to them, valid until the next call.
    pub(super) fn reserve<T: bytemuck::Pod>(&mut self, len: usize) -> *mut T {
        const { assert!(align_of::<T>() <= 64) };
        let lines = (len * size_of::<T>()).div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        self.lines.as_mut_ptr().cast()
    }

    /// As [`reserve`](Buffer::reserve), as a slice.
    pub(super) fn slice<T: bytemuck::Pod>(&mut self, len: usize) -> &mut [T] {
        let p = self.reserve(len);
        // SAFETY: `reserve` has reserved that many, initialized; any bytes are a valid `T`.
        unsafe { std::slice::from_raw_parts_mut(p, len) }
    }

    /// The first `len` values. They must have been reserved.
    pub(super) fn get<T: bytemuck::Pod>(&self, len: usize) -> &[T] {
        assert!(len * size_of::<T>() <= self.lines.len() * 64);
        // SAFETY: checked just above; any bytes are a valid `T`, and alignment is that of a line.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), len) }
    }
}
