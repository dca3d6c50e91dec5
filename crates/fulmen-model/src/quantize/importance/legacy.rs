//! The older format of importance matrices, read field by field, never past the end and without allocating
//! more than the file can justify.

use std::{fmt::Arguments, io::Read, path::Path};

use super::error::ImportanceProblem;
use super::{Importance, check_values};

/// The longest name of an entry or a text.
const MAX_NAME: u64 = 65_535;
/// Minimum bytes of an entry: length, one byte of name, sums, values, one value.
const MIN_ENTRY_BYTES: u64 = 4 + 1 + 4 + 4 + 4;
/// Values that are read at a time.
const CHUNK: usize = 16 << 10;

/// Reads a file of `size` bytes.
pub(super) fn read(source: impl Read, size: u64, path: &Path) -> Result<Importance, ImportanceProblem> {
    let mut fields = Fields { source, at: 0, size };
    let mut importance = Importance::new(path);
    let count = fields.i32(format_args!("the number of entries"))?;
    let entries = u64::try_from(count).ok().filter(|entries| *entries > 0);
    let fits =
        |entries: &u64| entries.checked_mul(MIN_ENTRY_BYTES).is_some_and(|least| least <= fields.left());
    if count == 0 {
        return Err(ImportanceProblem::Empty);
    }
    let entries =
        entries.filter(fits).ok_or_else(|| ImportanceProblem::Entries { count, left: fields.left() })?;
    for number in 0..entries {
        let name = fields.text(format_args!("the name of entry {number}"), 1)?;
        let values = entry(&mut fields, &name)?;
        importance.insert(name, values)?;
    }
    if fields.left() > 0 {
        let what = format_args!("the number of chunks");
        let chunks = fields.i32(what)?;
        let negative = |_| ImportanceProblem::Number { what: what.to_string(), found: chunks, least: 0 };
        importance.chunks = Some(u32::try_from(chunks).map_err(negative)?);
    }
    if fields.left() > 0 {
        let dataset = fields.text(format_args!("the name of the text"), 0)?;
        importance.datasets.extend((!dataset.is_empty()).then_some(dataset));
    }
    match fields.left() {
        0 => Ok(importance),
        bytes => Err(ImportanceProblem::Rest { bytes }),
    }
}

/// The values of an entry: its sums, divided by how many were added if that is known.
fn entry(fields: &mut Fields<impl Read>, name: &str) -> Result<Vec<f32>, ImportanceProblem> {
    let sums = fields.at_least(0, format_args!("the number of sums of entry {name:?}"))?;
    let count = fields.at_least(1, format_args!("the number of values of entry {name:?}"))?;
    let mut values = fields.floats(count, format_args!("the values of entry {name:?}"))?;
    check_values(name, 0, &values)?;
    if sums > 0 {
        values.iter_mut().for_each(|value| *value /= sums as f32);
    }
    Ok(values)
}

struct Fields<R> {
    source: R,
    at: u64,
    size: u64,
}

impl<R: Read> Fields<R> {
    fn left(&self) -> u64 {
        self.size.saturating_sub(self.at)
    }

    /// Fails if fewer than `needed` bytes are left.
    fn check(&self, needed: u64, what: Arguments) -> Result<(), ImportanceProblem> {
        let (offset, left) = (self.at, self.left());
        match needed <= left {
            true => Ok(()),
            false => Err(ImportanceProblem::Truncated { what: what.to_string(), offset, needed, left }),
        }
    }

    /// Fills `out`, whose length has been checked. A file that was truncated meanwhile ends too early.
    fn fill(&mut self, out: &mut [u8]) -> Result<(), ImportanceProblem> {
        self.source.read_exact(out)?;
        self.at = self.at.saturating_add(u64::try_from(out.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    fn i32(&mut self, what: Arguments) -> Result<i32, ImportanceProblem> {
        self.check(4, what)?;
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(i32::from_le_bytes(bytes))
    }

    /// A number that is not less than `least`, which is not negative.
    fn at_least(&mut self, least: i32, what: Arguments) -> Result<u32, ImportanceProblem> {
        let found = self.i32(what)?;
        let number = u32::try_from(found).ok().filter(|_| found >= least);
        number.ok_or_else(|| ImportanceProblem::Number { what: what.to_string(), found, least })
    }

    /// A text of at least `least` bytes.
    fn text(&mut self, what: Arguments, least: i32) -> Result<String, ImportanceProblem> {
        let length = u64::from(self.at_least(least, format_args!("the length of {what}"))?);
        self.check(length, what)?;
        if length > MAX_NAME {
            return Err(ImportanceProblem::NameLength { what: what.to_string(), length });
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| ImportanceProblem::NotUtf8 { what: what.to_string() })
    }

    fn floats(&mut self, count: u32, what: Arguments) -> Result<Vec<f32>, ImportanceProblem> {
        self.check(u64::from(count) * 4, what)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(ImportanceProblem::memory)?;
        let mut bytes = vec![0; count.min(CHUNK) * 4];
        while values.len() < count {
            let bytes = &mut bytes[..(count - values.len()).min(CHUNK) * 4];
            self.fill(bytes)?;
            values.extend(super::floats(bytes));
        }
        Ok(values)
    }
}
