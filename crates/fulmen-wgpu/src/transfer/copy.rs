//! Copies out of mapped memory.
//!
//! One thread copies about 10 GB/s, and first touching the pages of a new array costs as much again,
//! while the device delivers several times that. So a large copy is divided among threads, each with
//! its own pages.

use std::{
    mem::MaybeUninit,
    sync::{Mutex, PoisonError},
    thread,
};

use bytemuck::Pod;

/// The fewest bytes that are worth a thread: starting one takes as long as copying a few hundred KiB.
const CHUNK: usize = 1 << 20;

/// More threads do not copy faster: memory bandwidth is the limit.
const MAX_THREADS: usize = 8;

/// Copies `from` to `to`, of equal length.
pub(super) fn copy_bytes(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "copy_bytes");
    // SAFETY: initialized bytes may be viewed as possibly uninitialized ones; `copy` only writes
    // initialized bytes.
    let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<MaybeUninit<u8>>(), to.len()) };
    copy(from, to);
}

/// The values in `bytes`; an incomplete last value is dropped.
pub(crate) fn vec_of<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let Some(count) = bytes.len().checked_div(size_of::<T>()) else { return Vec::new() };
    let mut values: Vec<T> = Vec::with_capacity(count);
    let room = &mut values.spare_capacity_mut()[..count];
    let len = count * size_of::<T>();
    // SAFETY: the room of `count` values is that many bytes, and any alignment will do for bytes.
    let room = unsafe { std::slice::from_raw_parts_mut(room.as_mut_ptr().cast::<MaybeUninit<u8>>(), len) };
    copy(&bytes[..len], room);
    // SAFETY: `copy` has written all bytes of the first `count` values, and any bytes are a value of a `Pod`.
    unsafe { values.set_len(count) };
    values
}

/// Writes every byte of `to`, which is as long as `from`.
pub(super) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    let threads = match from.len() / CHUNK {
        0 | 1 => 1,
        chunks => chunks.min(MAX_THREADS).min(thread::available_parallelism().map_or(1, |n| n.get())),
    };
    if threads == 1 {
        to.write_copy_of_slice(from);
        return;
    }
    // Chunks are whole pages, so that no page is first touched by two threads.
    let chunks = Mutex::new(from.chunks(CHUNK).zip(to.chunks_mut(CHUNK)));
    let work = || {
        let next = || chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((from, to)) = next() {
            to.write_copy_of_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If the system refuses a thread, the others do its work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_at_any_length() {
        for len in [0, 1, 3, 4096, CHUNK - 1, 2 * CHUNK, 3 * CHUNK + 4097] {
            let from: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let mut to = vec![0; len];
            copy_bytes(&from, &mut to);
            assert!(from == to, "{len}");
            assert!(vec_of::<u8>(&from) == from, "{len}");
            let words: Vec<u32> = vec_of(&from);
            assert_eq!(words.len(), len / 4);
            assert!(bytemuck::cast_slice::<u32, u8>(&words) == &from[..len / 4 * 4], "{len}");
        }
    }
}
