//! Copies out of mapped memory.
//!
//! One thread copies some 10 GB/s, and the pages of a new array cost as much again when they are first touched, while the
//! device delivers several times that. So a large copy is shared among threads, each with pages of its own.

use std::{
    mem::MaybeUninit,
    sync::{Mutex, PoisonError},
    thread,
};

use bytemuck::Pod;

/// Bytes that are worth a thread: starting one takes as long as copying some hundred KiB.
const PIECE: usize = 1 << 20;

/// More threads do not copy faster: memory is the limit.
const MOST_THREADS: usize = 8;

/// Copies all of `from` to all of `to`; both have one length.
pub(super) fn copy_bytes(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "copy_bytes");
    // SAFETY: bytes that hold a value may be seen as bytes that may hold none; `copy` only writes values to them.
    let to = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<MaybeUninit<u8>>(), to.len()) };
    copy(from, to);
}

/// The values in `bytes`; a rest that is no whole value is left out.
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
    let threads = match from.len() / PIECE {
        0 | 1 => 1,
        pieces => pieces.min(MOST_THREADS).min(thread::available_parallelism().map_or(1, |n| n.get())),
    };
    if threads == 1 {
        to.write_copy_of_slice(from);
        return;
    }
    // Pieces are whole pages, so that no two threads touch one for the first time.
    let pieces = Mutex::new(from.chunks(PIECE).zip(to.chunks_mut(PIECE)));
    let work = || {
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((from, to)) = next() {
            to.write_copy_of_slice(from);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // A thread that the system refuses is done without.
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
        for len in [0, 1, 3, 4096, PIECE - 1, 2 * PIECE, 3 * PIECE + 4097] {
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
