//! Reads the header field by field, never past the end and without allocating more than the file can justify.

use std::{fmt::Arguments, io::Read, ops::Range};

use super::error::GgufProblem;
use super::parse::{MAX_HEADER, MAX_NAME};

/// The minimum read size.
const CHUNK: usize = 64 << 10;

/// The bytes of a header, read as far as needed. They are copied out of the file, because text borrowed from
/// a mapping could change when another process writes to the file.
pub(super) struct Header<R> {
    source: R,
    bytes: Vec<u8>,
    /// The next byte to consume.
    at: usize,
    /// The size of the whole file.
    file: u64,
}

impl<R: Read> Header<R> {
    pub(super) fn new(source: R, file: u64) -> Header<R> {
        Header { source, bytes: Vec::new(), at: 0, file }
    }

    /// The position of the next field.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The file offset of the next field.
    pub(super) fn offset(&self) -> u64 {
        // A position in memory fits into 64 bits.
        u64::try_from(self.at).unwrap_or(u64::MAX)
    }

    /// Bytes of the file not yet consumed.
    pub(super) fn left(&self) -> u64 {
        self.file.saturating_sub(self.offset())
    }

    /// All bytes read so far; the ranges returned by [`Header::take`] index them.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The next `count` bytes, as a range of the header.
    pub(super) fn take(&mut self, count: u64, what: Arguments) -> Result<Range<usize>, GgufProblem> {
        let (offset, left) = (self.offset(), self.left());
        let truncated = || GgufProblem::Truncated { what: what.to_string(), offset, needed: count, left };
        let end = offset.checked_add(count).filter(|_| count <= left).ok_or_else(truncated)?;
        let too_large = || GgufProblem::HeaderSize { what: what.to_string(), end };
        let end = usize::try_from(end).ok().filter(|_| end <= MAX_HEADER).ok_or_else(too_large)?;
        self.fill(end)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    /// Reads at least up to `end`, in large blocks.
    fn fill(&mut self, end: usize) -> Result<(), GgufProblem> {
        let have = self.bytes.len();
        if end <= have {
            return Ok(());
        }
        let file = usize::try_from(self.file).unwrap_or(usize::MAX);
        let target = end.max(have.saturating_mul(2)).max(CHUNK).min(file);
        let more = target - have;
        let failed = |error| GgufProblem::Io { call: "read the header", error };
        self.bytes.try_reserve_exact(more).map_err(|error| failed(error.into()))?;
        let limit = u64::try_from(more).unwrap_or(u64::MAX);
        self.source.by_ref().take(limit).read_to_end(&mut self.bytes).map_err(failed)?;
        if self.bytes.len() < end {
            let found = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
            return Err(GgufProblem::Changed { expected: self.file, found });
        }
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: Arguments) -> Result<[u8; N], GgufProblem> {
        let (offset, left) = (self.offset(), self.left());
        let needed = u64::try_from(N).unwrap_or(u64::MAX);
        let range = self.take(needed, what)?;
        let bytes = self.bytes.get(range).and_then(|bytes| bytes.first_chunk().copied());
        bytes.ok_or_else(|| GgufProblem::Truncated { what: what.to_string(), offset, needed, left })
    }

    pub(super) fn u32(&mut self, what: Arguments) -> Result<u32, GgufProblem> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: Arguments) -> Result<u64, GgufProblem> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of items of at least `least` bytes each. Fails if they exceed the remaining bytes.
    pub(super) fn count(&mut self, least: u64, what: Arguments) -> Result<u64, GgufProblem> {
        let count = self.u64(what)?;
        self.check_count(count, least, what)?;
        Ok(count)
    }

    pub(super) fn check_count(&self, count: u64, least: u64, what: Arguments) -> Result<(), GgufProblem> {
        let left = self.left();
        match count.checked_mul(least) {
            Some(needed) if needed <= left => Ok(()),
            _ => Err(GgufProblem::Count { what: what.to_string(), count, least, left }),
        }
    }

    /// The bytes of a range returned by [`Header::take`].
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The next string: a 64-bit length, then UTF-8. It may be empty.
    pub(super) fn text(&mut self, what: Arguments) -> Result<&str, GgufProblem> {
        let length = self.u64(format_args!("the length of {what}"))?;
        let offset = self.offset();
        let range = self.take(length, what)?;
        let bytes = self.bytes.get(range).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|_| GgufProblem::NotUtf8 { what: what.to_string(), offset })
    }

    /// The next name: a string of 1 to 65,535 bytes.
    pub(super) fn name(&mut self, what: Arguments) -> Result<String, GgufProblem> {
        let length = self.u64(format_args!("the length of {what}"))?;
        if length == 0 || length > MAX_NAME {
            return Err(GgufProblem::NameLength { what: what.to_string(), length });
        }
        let offset = self.offset();
        let range = self.take(length, what)?;
        let text = std::str::from_utf8(self.bytes(range));
        text.map(str::to_owned).map_err(|_| GgufProblem::NotUtf8 { what: what.to_string(), offset })
    }
}
