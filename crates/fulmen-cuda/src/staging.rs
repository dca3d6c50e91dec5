//! Bulk uploads: several threads fill slots of staging memory, and each slot is copied to the device while
//! its thread fills its next one.
//!
//! One thread reads from the page cache at less than the speed of PCIe, and a copy from memory that is not
//! pinned runs through a small buffer of the driver, on one thread. So the bytes of an upload are cut into
//! pieces of a slot each; threads take pieces in order, have the caller write them straight into a slot, and
//! start its copy. A slot is written again only after its copy has finished, which [`CopyEngine::memory`]
//! waits for. Everything that is not about CUDA is here, so that it is tested without a device.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Bytes of a slot. Large enough that the start of a copy (5 µs) does not count beside the copy (40 µs), and
/// small enough that pinning all slots, at 2 to 3 GB/s, does not.
pub(crate) const SLOT_BYTES: usize = 2 << 20;

/// Slots that a thread alternates between: one is filled while the other is copied.
const SLOTS_PER_THREAD: usize = 2;

/// The most threads: together they read faster than PCIe copies.
const MAX_THREADS: usize = 8;

/// The most slots that are in use at a time.
pub(crate) const MAX_SLOTS: usize = SLOTS_PER_THREAD * MAX_THREADS;

/// Copies slots to a device, asynchronously.
pub(crate) trait CopyEngine: Sync {
    /// Staging memory, and its copy in flight.
    type Slot: Send;
    type Error: Send;

    /// A slot whose copy may still be running.
    fn take_slot(&self) -> Result<Self::Slot, Self::Error>;

    /// Takes a slot back, whose copy may still be running.
    fn put_slot(&self, slot: Self::Slot);

    /// The memory of a slot, once its copy has finished.
    fn memory<'a>(&self, slot: &'a mut Self::Slot) -> Result<&'a mut [u8], Self::Error>;

    /// Starts to copy the first `bytes` bytes of a slot to the device.
    fn start_copy(&self, slot: &mut Self::Slot, bytes: usize, to: u64) -> Result<(), Self::Error>;
}

/// Where an item of an upload goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Its number, for the reader.
    pub(crate) item: usize,
    pub(crate) ptr: u64,
    pub(crate) bytes: usize,
    /// It is read in multiples of this many bytes, of which a slot holds at least one.
    pub(crate) unit: usize,
}

/// A part of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    item: usize,
    /// Where it starts in the item.
    offset: usize,
    bytes: usize,
    /// Where it starts in the slot.
    at: usize,
}

/// What one slot copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    to: u64,
    bytes: usize,
    parts: Vec<Part>,
}

/// Cuts items into pieces of at most `slot` bytes. Small neighbors share one. The items lie in one
/// allocation, in ascending order; what is between them is overwritten with zeros.
pub(crate) fn pieces(items: &[Destination], slot: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for &Destination { item, ptr, bytes, unit } in items {
        let mut offset = 0;
        while offset < bytes {
            let to = ptr + offset as u64;
            let at = pieces.last().and_then(|piece| usize::try_from(to - piece.to).ok());
            let room = at.map_or(0, |at| slot.saturating_sub(at));
            let fits = (bytes - offset).min(room / unit * unit);
            match pieces.last_mut().zip(at) {
                Some((piece, at)) if fits > 0 => {
                    piece.parts.push(Part { item, offset, bytes: fits, at });
                    piece.bytes = at + fits;
                    offset += fits;
                }
                _ => pieces.push(Piece { to, bytes: 0, parts: Vec::new() }),
            }
        }
    }
    pieces
}

/// Writes the bytes of an item from an offset on; `false` stops the upload.
pub(crate) type Read<'a> = dyn Fn(usize, usize, &mut [u8]) -> bool + Sync + 'a;

/// Uploads pieces on several threads, of which this one reports the bytes read so far. Returns whether all
/// of them were read. When it returns, the last copies may still be running.
pub(crate) fn upload<E: CopyEngine>(
    engine: &E,
    pieces: &[Piece],
    read: &Read<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, E::Error> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
    upload_with(engine, pieces, read, threads.min(pieces.len()), progress)
}

fn upload_with<E: CopyEngine>(
    engine: &E,
    pieces: &[Piece],
    read: &Read<'_>,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<bool, E::Error> {
    let work = Work {
        engine,
        pieces,
        read,
        next: AtomicUsize::new(0),
        done: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // If a thread cannot be started, the others do its work.
            let _ = thread::Builder::new()
                .name("fulmen-cuda-upload".to_owned())
                .spawn_scoped(scope, || work.run(&mut |_| ()));
        }
        work.run(progress);
    });
    progress(work.done.load(Ordering::Relaxed));
    match work.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(!work.stop.load(Ordering::Relaxed)),
    }
}

/// What the threads of an upload share.
struct Work<'a, E: CopyEngine> {
    engine: &'a E,
    pieces: &'a [Piece],
    read: &'a Read<'a>,
    next: AtomicUsize,
    /// Bytes that were read.
    done: AtomicU64,
    /// Set by a failure, and by a reader that stops the upload.
    stop: AtomicBool,
    failure: Mutex<Option<E::Error>>,
}

impl<E: CopyEngine> Work<'_, E> {
    /// Uploads pieces until none is left.
    fn run(&self, progress: &mut dyn FnMut(u64)) {
        let mut slots = Vec::new();
        if let Err(error) = self.upload_pieces(&mut slots, progress) {
            self.stop.store(true, Ordering::Relaxed);
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        slots.into_iter().for_each(|slot| self.engine.put_slot(slot));
    }

    fn upload_pieces(&self, slots: &mut Vec<E::Slot>, progress: &mut dyn FnMut(u64)) -> Result<(), E::Error> {
        for turn in 0.. {
            // Before a piece is taken: every piece before one that could not be read is read to its end, so
            // that the reader knows the first failure.
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(next) else { break };
            if slots.len() < SLOTS_PER_THREAD {
                slots.push(self.engine.take_slot()?);
            }
            let slot = &mut slots[turn % SLOTS_PER_THREAD];
            if !self.fill(piece, self.engine.memory(slot)?) {
                self.stop.store(true, Ordering::Relaxed);
                break;
            }
            self.engine.start_copy(slot, piece.bytes, piece.to)?;
            let read: usize = piece.parts.iter().map(|part| part.bytes).sum();
            progress(self.done.fetch_add(read as u64, Ordering::Relaxed) + read as u64);
        }
        Ok(())
    }

    fn fill(&self, piece: &Piece, memory: &mut [u8]) -> bool {
        let mut filled = 0;
        piece.parts.iter().all(|part| {
            memory[filled..part.at].fill(0);
            filled = part.at + part.bytes;
            (self.read)(part.item, part.offset, &mut memory[part.at..filled])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a slot here.
    const SLOT: usize = 10_000;

    /// A device whose copies are carried out at the last possible moment: when somebody waits for them. A
    /// slot that is written too early is seen in the result.
    #[derive(Default)]
    struct Lazy {
        memory: Mutex<Vec<u8>>,
        free: Mutex<Vec<LazySlot>>,
        slots: AtomicUsize,
        copies: AtomicUsize,
        fail_slot: Option<usize>,
        fail_copy: Option<usize>,
    }

    #[derive(Default)]
    struct LazySlot {
        bytes: Vec<u8>,
        pending: Option<(usize, u64)>,
    }

    impl Lazy {
        fn finish(&self, slot: &mut LazySlot) {
            if let Some((bytes, to)) = slot.pending.take() {
                let (mut memory, to) = (self.memory.lock().unwrap(), to as usize);
                if memory.len() < to + bytes {
                    memory.resize(to + bytes, 0);
                }
                memory[to..to + bytes].copy_from_slice(&slot.bytes[..bytes]);
            }
        }

        /// Finishes everything and returns the bytes at an address.
        fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
            self.free.lock().unwrap().iter_mut().for_each(|slot| self.finish(slot));
            let memory = self.memory.lock().unwrap();
            memory[at as usize..at as usize + bytes].to_vec()
        }
    }

    impl CopyEngine for Lazy {
        type Slot = LazySlot;
        type Error = String;

        fn take_slot(&self) -> Result<LazySlot, String> {
            if let Some(slot) = self.free.lock().unwrap().pop() {
                return Ok(slot);
            }
            let made = self.slots.fetch_add(1, Ordering::Relaxed);
            match self.fail_slot == Some(made) {
                true => Err(format!("slot {made}")),
                false => Ok(LazySlot { bytes: vec![0xee; SLOT], pending: None }),
            }
        }

        fn put_slot(&self, slot: LazySlot) {
            self.free.lock().unwrap().push(slot);
        }

        fn memory<'a>(&self, slot: &'a mut LazySlot) -> Result<&'a mut [u8], String> {
            self.finish(slot);
            Ok(&mut slot.bytes)
        }

        fn start_copy(&self, slot: &mut LazySlot, bytes: usize, to: u64) -> Result<(), String> {
            assert!(slot.pending.is_none(), "a slot is used for one copy at a time");
            let copy = self.copies.fetch_add(1, Ordering::Relaxed);
            if self.fail_copy == Some(copy) {
                return Err(format!("copy {copy}"));
            }
            slot.pending = Some((bytes, to));
            Ok(())
        }
    }

    fn byte(item: usize, offset: usize) -> u8 {
        (item * 31 + offset * 7 + offset / 4096) as u8
    }

    /// Items one after another, 256 bytes apart.
    fn items(sizes: &[(usize, usize)]) -> Vec<Destination> {
        let mut ptr = 4096;
        let place = |(item, &(bytes, unit)): (usize, &(usize, usize))| {
            let at = ptr;
            ptr += (bytes.next_multiple_of(256) + 256) as u64;
            Destination { item, ptr: at, bytes, unit }
        };
        sizes.iter().enumerate().map(place).collect()
    }

    fn write(item: usize, offset: usize, out: &mut [u8]) -> bool {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = byte(item, offset + i));
        true
    }

    const SIZES: [(usize, usize); 9] = [
        (10, 2),
        (0, 1),
        (210 * 3, 210),
        (SLOT - 7, 1),
        (144 * 400, 144),
        (1, 1),
        (SLOT, 4),
        (34 * 1001, 34),
        (4, 4),
    ];

    #[test]
    fn pieces_are_whole_units_and_cover_every_byte_once() {
        let items = items(&SIZES);
        let pieces = pieces(&items, SLOT);
        let mut covered = vec![0; items.len()];
        for piece in &pieces {
            assert!(!piece.parts.is_empty() && piece.bytes <= SLOT);
            for part in &piece.parts {
                let item = &items[part.item];
                assert_eq!(piece.to + part.at as u64, item.ptr + part.offset as u64);
                assert_eq!((part.offset, part.offset % item.unit), (covered[part.item], 0));
                assert!(part.bytes > 0 && part.bytes % item.unit == 0 && part.at + part.bytes <= piece.bytes);
                covered[part.item] += part.bytes;
            }
        }
        assert_eq!(covered, SIZES.map(|(bytes, _)| bytes));
        let total: usize = covered.iter().sum();
        assert!(pieces.len() <= total / SLOT + 3, "small items share a piece: {}", pieces.len());
    }

    #[test]
    fn everything_arrives_with_any_number_of_threads_and_with_slots_in_flight() {
        let items = items(&SIZES);
        let cut = pieces(&items, SLOT);
        let engine = Lazy::default();
        for threads in [1, 2, 3, 8] {
            engine.memory.lock().unwrap().clear();
            let mut reports = Vec::new();
            let done = upload_with(&engine, &cut, &write, threads, &mut |done| reports.push(done));
            assert_eq!(done, Ok(true));
            for item in &items {
                let expected: Vec<_> = (0..item.bytes).map(|i| byte(item.item, i)).collect();
                assert!(engine.read(item.ptr, item.bytes) == expected, "{threads} threads, {item:?}");
            }
            let total: usize = SIZES.iter().map(|(bytes, _)| bytes).sum();
            assert_eq!(reports.last(), Some(&(total as u64)));
            assert!(reports.windows(2).all(|pair| pair[0] <= pair[1]), "{reports:?}");
        }
        assert!(engine.slots.load(Ordering::Relaxed) <= MAX_SLOTS, "slots are reused");
        assert_eq!(upload(&engine, &[], &|_, _, _| unreachable!(), &mut |_| ()), Ok(true));
    }

    #[test]
    fn failures_are_returned_and_slots_are_given_back() {
        let cut = pieces(&items(&SIZES), SLOT);
        for threads in [1, 4] {
            let engine = Lazy { fail_copy: Some(2), ..Lazy::default() };
            assert_eq!(upload_with(&engine, &cut, &write, threads, &mut |_| ()), Err("copy 2".to_owned()));
            assert_eq!(engine.free.lock().unwrap().len(), engine.slots.load(Ordering::Relaxed));
            let engine = Lazy { fail_slot: Some(0), ..Lazy::default() };
            assert_eq!(upload_with(&engine, &cut, &write, threads, &mut |_| ()), Err("slot 0".to_owned()));
        }
    }

    #[test]
    fn a_reader_can_stop_the_upload() {
        let cut = pieces(&items(&SIZES), SLOT);
        for threads in [1, 4] {
            let engine = Lazy::default();
            let read = |item: usize, offset: usize, out: &mut [u8]| item != 4 && write(item, offset, out);
            assert_eq!(upload_with(&engine, &cut, &read, threads, &mut |_| ()), Ok(false));
            assert!(engine.copies.load(Ordering::Relaxed) < cut.len());
        }
    }
}
