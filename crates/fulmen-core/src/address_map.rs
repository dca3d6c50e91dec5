//! The address ranges that a device has allocated.
//!
//! A graph's addresses are plain numbers. A backend that keeps its allocations in an [`AddressMap`] can look
//! up each operand before a kernel touches it, so that a wrong graph is an error that names the operand,
//! never an out-of-bounds access.

use std::{cell::RefCell, collections::BTreeSet};

use crate::{BackendError, DType};

/// A range of device memory that an operand takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which operand it is, for messages.
    pub what: &'static str,
    /// Its address.
    pub ptr: u64,
    /// Its length.
    pub bytes: usize,
}

impl Extent {
    fn end(self) -> u64 {
        self.ptr.saturating_add(self.bytes as u64)
    }

    /// Whether the ranges share any byte.
    pub fn overlaps(self, other: Extent) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.ptr < other.end() && other.ptr < self.end()
    }

    /// An error if this output overlaps the operand.
    pub fn apart_from(self, operand: Extent) -> Result<(), BackendError> {
        if self.overlaps(operand) {
            return Err(BackendError::Overlap { output: self.what, operand: operand.what });
        }
        Ok(())
    }

    /// As [`apart_from`](Extent::apart_from), but the identical range is allowed: the op works in place.
    pub fn apart_or_same(self, operand: Extent) -> Result<(), BackendError> {
        if self.ptr == operand.ptr && self.bytes == operand.bytes { Ok(()) } else { self.apart_from(operand) }
    }
}

/// Looks up operands in the memory of a device.
pub trait LookUp {
    /// The range, if it is inside one allocation, aligned and, with `write`, writable.
    fn look_up(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
        align: usize,
        write: bool,
    ) -> Result<Extent, BackendError>;

    /// The alignment that kernels require of a weight, an embedding table or a cache of this type.
    fn alignment(&self, dtype: DType) -> usize {
        let _ = dtype;
        1
    }

    /// An error if no kernel reads weights and embedding tables of this type.
    fn check_weight_type(&self, dtype: DType) -> Result<(), BackendError> {
        let _ = dtype;
        Ok(())
    }
}

/// One allocation or import.
#[derive(Debug)]
pub struct Entry<D> {
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub bytes: usize,
    /// Whether kernels must not write there.
    pub read_only: bool,
    /// What the backend stores with it.
    pub data: D,
}

impl<D> Entry<D> {
    /// Checks the alignment of an address in it and, with `write`, that it is writable.
    pub fn check(&self, what: &'static str, ptr: u64, align: usize, write: bool) -> Result<(), BackendError> {
        if !ptr.is_multiple_of(align as u64) {
            return Err(BackendError::Alignment { what, ptr, align });
        }
        if write && self.read_only {
            return Err(BackendError::ReadOnly { what, ptr });
        }
        Ok(())
    }
}

/// Every allocation and import of a device, with data of the backend for each.
#[derive(Debug)]
pub struct AddressMap<D> {
    /// Sorted by address; no two overlap.
    entries: Vec<Entry<D>>,
    /// First addresses of the entries that were looked up, while recording.
    recorded: Option<RefCell<BTreeSet<u64>>>,
}

impl<D> Default for AddressMap<D> {
    fn default() -> AddressMap<D> {
        AddressMap { entries: Vec::new(), recorded: None }
    }
}

impl<D> AddressMap<D> {
    /// Adds an entry, which must not overlap any other, and returns its address.
    pub fn insert(&mut self, entry: Entry<D>) -> u64 {
        let start = entry.start;
        let at = self.entries.partition_point(|other| other.start < start);
        self.entries.insert(at, entry);
        start
    }

    /// Removes the entry that starts at `ptr`.
    pub fn remove(&mut self, ptr: u64) -> Result<Entry<D>, BackendError> {
        let at = self.entries.binary_search_by_key(&ptr, |entry| entry.start);
        let at = at.map_err(|_| BackendError::Address { what: "free", ptr, bytes: 0 })?;
        Ok(self.entries.remove(at))
    }

    /// The entry that contains a range, and the range's offset in it.
    pub fn find(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
    ) -> Result<(&Entry<D>, usize), BackendError> {
        let missing = BackendError::Address { what, ptr, bytes };
        let at = self.entries.partition_point(|entry| entry.start <= ptr);
        let Some(entry) = at.checked_sub(1).map(|at| &self.entries[at]) else { return Err(missing) };
        match usize::try_from(ptr - entry.start) {
            Ok(offset) if offset <= entry.bytes && bytes <= entry.bytes - offset => Ok((entry, offset)),
            _ => Err(missing),
        }
    }

    /// Whether any entry overlaps this range.
    pub fn is_taken(&self, start: u64, bytes: usize) -> bool {
        let end = start.saturating_add(bytes as u64);
        self.entries.iter().any(|e| start < e.start.saturating_add(e.bytes as u64) && e.start < end)
    }

    /// Starts to record which entries operands lie in: those that a captured program must keep alive.
    pub fn begin_recording(&mut self) {
        self.recorded = Some(RefCell::default());
    }

    /// Stops recording and returns the first addresses of the entries that were looked up.
    pub fn end_recording(&mut self) -> BTreeSet<u64> {
        self.recorded.take().map(RefCell::into_inner).unwrap_or_default()
    }

    /// Total bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }
}

impl<D> LookUp for AddressMap<D> {
    fn look_up(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
        align: usize,
        write: bool,
    ) -> Result<Extent, BackendError> {
        let (entry, _) = self.find(what, ptr, bytes)?;
        if let Some(recorded) = &self.recorded {
            recorded.borrow_mut().insert(entry.start);
        }
        entry.check(what, ptr, align, write)?;
        Ok(Extent { what, ptr, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> AddressMap<&'static str> {
        let mut map = AddressMap::default();
        for (start, bytes, read_only, data) in
            [(0x2000, 64, false, "b"), (0x1000, 64, false, "a"), (0x3000, 0, true, "c")]
        {
            map.insert(Entry { start, bytes, read_only, data });
        }
        map
    }

    #[test]
    fn ranges_are_found_inside_one_entry_only() {
        let map = map();
        assert_eq!(map.find("x", 0x1010, 48).map(|(entry, at)| (entry.data, at)).unwrap(), ("a", 16));
        assert_eq!(map.find("x", 0x2040, 0).unwrap().0.data, "b");
        for (ptr, bytes) in [(0x1010, 49), (0xfff, 1), (0, 1), (u64::MAX, usize::MAX), (0x3000, 1)] {
            assert!(matches!(map.find("x", ptr, bytes), Err(BackendError::Address { what: "x", .. })));
        }
        assert!(matches!(
            map.look_up("x", 0x1002, 4, 4, false),
            Err(BackendError::Alignment { align: 4, .. })
        ));
        assert!(matches!(map.look_up("x", 0x3000, 0, 1, true), Err(BackendError::ReadOnly { .. })));
        assert!(map.is_taken(0xff0, 17) && !map.is_taken(0xff0, 16) && !map.is_taken(0x1040, 8));
        assert_eq!(map.bytes(), 128);
    }

    #[test]
    fn entries_that_are_looked_up_are_recorded() {
        let mut map = map();
        map.look_up("before", 0x1000, 4, 4, false).unwrap();
        map.begin_recording();
        map.look_up("x", 0x2010, 8, 4, false).unwrap();
        map.look_up("y", 0x2000, 4, 4, true).unwrap();
        assert!(map.look_up("missing", 0x5000, 4, 4, false).is_err());
        assert_eq!(map.end_recording(), BTreeSet::from([0x2000]));
        map.look_up("after", 0x1000, 4, 4, false).unwrap();
        assert_eq!(map.end_recording(), BTreeSet::new());
    }

    #[test]
    fn what_is_removed_is_gone() {
        let mut map = map();
        assert!(map.remove(0x1001).is_err());
        assert_eq!(map.remove(0x1000).unwrap().data, "a");
        assert!(map.find("x", 0x1000, 1).is_err() && map.remove(0x1000).is_err());
        assert!(map.find("x", 0x2000, 64).is_ok());
    }

    #[test]
    fn overlaps_are_refused_and_the_same_range_is_not() {
        let extent = |what, ptr, bytes| Extent { what, ptr, bytes };
        let (a, b) = (extent("out", 100, 10), extent("x", 109, 1));
        assert!(matches!(a.apart_from(b), Err(BackendError::Overlap { output: "out", operand: "x" })));
        assert!(a.apart_from(extent("x", 110, 5)).is_ok() && a.apart_from(extent("x", 105, 0)).is_ok());
        assert!(a.apart_or_same(extent("x", 100, 10)).is_ok());
        assert!(a.apart_or_same(extent("x", 100, 9)).is_err());
    }
}
