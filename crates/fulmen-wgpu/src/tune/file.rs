//! Measurements, kept between processes: a text file with a checksum, replaced by renaming. A file that is
//! damaged or of another device, driver or version is ignored.

use std::{fmt::Write as _, fs, path::PathBuf};

use super::{Key, Table};
use crate::{disk_cache, error::GpuError};

const HEADER: &str = "fulmen tuned kernels 2";

/// A larger file is not ours.
const LARGEST: u64 = 16 << 20;

/// The file of one device.
#[derive(Clone, Debug)]
pub(crate) struct TunedFile {
    path: PathBuf,
    key: String,
}

impl TunedFile {
    /// The file in a folder for a device of this key.
    pub(crate) fn new(folder: &std::path::Path, key: String) -> Self {
        let path = folder.join(format!("{:032x}.tuned", disk_cache::hash(key.as_bytes())));
        Self { path, key }
    }

    /// What it holds; `None` if there is no such file or it is damaged.
    pub(super) fn read(&self) -> Option<Table> {
        let meta = fs::metadata(&self.path).ok()?;
        if !meta.is_file() || meta.len() > LARGEST {
            return None;
        }
        decode(&fs::read_to_string(&self.path).ok()?, &self.key)
    }

    pub(super) fn write(&self, table: &Table) -> Result<(), GpuError> {
        disk_cache::replace(&self.path, encode(table, &self.key).as_bytes())
            .map_err(|error| GpuError::CacheFile { path: self.path.clone(), message: error.to_string() })
    }
}

fn encode(table: &Table, key: &str) -> String {
    let mut text = format!("{HEADER}\n{}\n", key.replace('\n', " "));
    for (Key { weight, rounded, n, k, m }, (kernel, micros)) in table {
        let how = if *rounded { "rounded" } else { "exact" };
        // Written to a string, which cannot fail.
        let _ = writeln!(text, "{weight}\t{how}\t{n}\t{k}\t{m}\t{micros:.3}\t{kernel}");
    }
    let _ = writeln!(text, "{:032x}", disk_cache::hash(text.as_bytes()));
    text
}

fn decode(text: &str, key: &str) -> Option<Table> {
    let body_end = text.trim_end_matches('\n').rfind('\n')? + 1;
    let (body, checksum) = text.split_at(body_end);
    if u128::from_str_radix(checksum.trim_end(), 16).ok()? != disk_cache::hash(body.as_bytes()) {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != HEADER || lines.next()? != key.replace('\n', " ") {
        return None;
    }
    lines.map(entry).collect()
}

fn entry(line: &str) -> Option<(Key, (String, f64))> {
    let mut fields = line.splitn(7, '\t');
    let weight = fields.next()?.to_owned();
    let rounded = match fields.next()? {
        "rounded" => true,
        "exact" => false,
        _ => return None,
    };
    let mut number = || fields.next()?.parse::<u32>().ok();
    let (n, k, m) = (number()?, number()?, number()?);
    let micros: f64 = fields.next()?.parse().ok().filter(|us: &f64| us.is_finite() && *us >= 0.0)?;
    Some((Key { weight, rounded, n, k, m }, (fields.next()?.to_owned(), micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let key = |weight: &str, m| Key { weight: weight.to_owned(), rounded: m == 1, n: 9728, k: 2560, m };
        [
            (key("Q4_K", 1), ("rows Int8 threads=128 lanes=16".to_owned(), 12.5)),
            (key("F32 NK", 32), ("tiled 32x128x32 by 8x8".to_owned(), 71.0)),
        ]
        .into()
    }

    #[test]
    fn a_file_gives_back_what_was_put_in() {
        assert_eq!(decode(&encode(&table(), "a device"), "a device"), Some(table()));
        assert_eq!(decode(&encode(&Table::new(), "k"), "k"), Some(Table::new()));
    }

    #[test]
    fn a_damaged_or_foreign_file_is_none() {
        let good = encode(&table(), "a device");
        assert_eq!(decode(&good, "another"), None);
        for length in (0..good.len() - 1).step_by(7) {
            assert_eq!(decode(&good[..length], "a device"), None, "cut to {length}");
        }
        for at in 0..good.len() - 1 {
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 1;
            let Ok(bad) = String::from_utf8(bad) else { continue };
            assert_eq!(decode(&bad, "a device"), None, "bit flipped in byte {at}");
        }
    }

    #[test]
    fn lines_that_make_no_sense_under_a_right_checksum_are_refused() {
        for line in [
            "Q4_K\trounded\t1\t2\t3\tNaN\tx",
            "Q4_K\tmaybe\t1\t2\t3\t1.0\tx",
            "Q4_K\texact\t1\t2\t-3\t1.0\tx",
            "x",
        ] {
            let body = format!("{HEADER}\nkey\n{line}\n");
            let text = format!("{body}{:032x}\n", disk_cache::hash(body.as_bytes()));
            assert_eq!(decode(&text, "key"), None, "{line}");
        }
    }
}
