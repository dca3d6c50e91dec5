//! Loads the kernels of a model while its weights are copied.
//!
//! Which kernels a model launches is known when its steps are planned, after its weights are there. So each
//! process leaves a record of the kernels that were launched, one per device generation and list of weights,
//! in the user's cache folder. The next process loads those on a few threads, while others copy the weights:
//! decompressing the PTX, and the driver's look-up in its own cache of compiled kernels, then cost nothing
//! before the first token. A record is a hint: without one, or with names that are wrong, kernels are loaded
//! when they are first launched.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::{fs, io};

use fulmen_core::{WeightSpec, user_cache};

use crate::device::CudaDevice;
use crate::embedded::Embedded;
use crate::module::KernelName;

/// The name of the threads.
pub(crate) const PRELOAD_THREAD: &str = "fulmen-cuda-preload";

/// Threads that load kernels.
const THREADS: usize = 4;

/// The most kernels of a record; a model launches about thirty.
const MAX_KERNELS: usize = 64;

/// The most records; the oldest are deleted.
const MAX_RECORDS: usize = 64;

/// A larger file is not ours.
const MAX_FILE: u64 = 64 << 10;

const HEADER: &str = "fulmen kernels 1";

/// Kernels that are being loaded, and the record of what is launched. Dropping it waits for the kernel that
/// each thread is loading, and writes the record if it has changed.
pub(crate) struct Preload {
    device: Arc<CudaDevice>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    record: Record,
}

impl Preload {
    /// Starts to load the kernels that an earlier process launched with these weights. `None` if there is no
    /// cache folder.
    pub(crate) fn start(device: &Arc<CudaDevice>, weights: &[WeightSpec]) -> Option<Preload> {
        let record = Record::open(&user_cache::folder()?, &key(device.caps().capability, weights));
        let stop = Arc::new(AtomicBool::new(false));
        let names: Arc<[KernelName]> = record.names.clone().into();
        let next = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();
        for _ in 0..THREADS.min(names.len()) {
            let (device, stop) = (Arc::clone(device), Arc::clone(&stop));
            let (names, next) = (Arc::clone(&names), Arc::clone(&next));
            let work = move || {
                while let Some((file, entry)) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // A launch that asks for the kernel gets the error.
                    let _ = device.modules.preload(file, entry);
                }
            };
            // Without threads, kernels are loaded when they are launched.
            threads.extend(thread::Builder::new().name(PRELOAD_THREAD.to_owned()).spawn(work).ok());
        }
        Some(Preload { device: Arc::clone(device), stop, threads, record })
    }
}

impl Drop for Preload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
        // The next start is slower without it; nothing else depends on it.
        let _ = self.record.update(&self.device.modules.used());
    }
}

/// What determines the kernels of a model.
fn key(capability: u32, weights: &[WeightSpec]) -> String {
    let mut shapes = Vec::new();
    for WeightSpec { bytes, dtype, rows, width } in weights {
        shapes.extend_from_slice(format!("{dtype} {rows} {width} {bytes}\n").as_bytes());
    }
    format!("cuda|{}|{capability}|{:032x}", env!("CARGO_PKG_VERSION"), user_cache::hash(&shapes))
}

/// The kernels that were launched with a list of weights, on disk.
#[derive(Debug)]
struct Record {
    path: PathBuf,
    key: String,
    names: Vec<KernelName>,
}

impl Record {
    /// The record of a key; empty if there is no file, or if it is damaged or of another key.
    fn open(folder: &Path, key: &str) -> Record {
        let path = folder.join(format!("{:032x}.kernels", user_cache::hash(key.as_bytes())));
        let small = fs::metadata(&path).is_ok_and(|file| file.len() <= MAX_FILE);
        let text = small.then(|| fs::read_to_string(&path).ok()).flatten();
        let names = text.and_then(|text| decode(&text, key)).unwrap_or_default();
        Record { path, key: key.to_owned(), names }
    }

    /// Writes the record if kernels were used that it does not have: those first, the first used one first.
    fn update(&mut self, used: &[KernelName]) -> io::Result<()> {
        let known: HashSet<&KernelName> = self.names.iter().collect();
        if used.iter().take(MAX_KERNELS).all(|name| known.contains(name)) {
            return Ok(());
        }
        let new: HashSet<&KernelName> = used.iter().collect();
        let old = self.names.iter().filter(|name| !new.contains(name));
        let names: Vec<KernelName> = used.iter().chain(old).take(MAX_KERNELS).cloned().collect();
        user_cache::replace(&self.path, encode(&names, &self.key).as_bytes())?;
        self.names = names;
        self.path.parent().map_or(Ok(()), |folder| delete_oldest(folder, MAX_RECORDS))
    }
}

fn encode(names: &[KernelName], key: &str) -> String {
    let lines = names.iter().map(|(file, entry)| format!("{file} {entry}\n"));
    format!("{HEADER}\n{key}\n{}", lines.collect::<String>())
}

/// The names of kernels in files that this process has. `None` if the text is not a record of this key.
fn decode(text: &str, key: &str) -> Option<Vec<KernelName>> {
    let mut lines = text.lines();
    if lines.next()? != HEADER || lines.next()? != key {
        return None;
    }
    let name = |line: &str| {
        let (file, entry) = line.split_once(' ')?;
        Some((Embedded::find(file)?.file, entry.into()))
    };
    Some(lines.filter_map(name).take(MAX_KERNELS).collect())
}

/// Deletes the oldest records but `kept`.
fn delete_oldest(folder: &Path, kept: usize) -> io::Result<()> {
    let mut records = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "kernels") {
            // Another process may have deleted it.
            let modified = fs::metadata(&path).and_then(|file| file.modified());
            records.extend(modified.ok().map(|modified| (modified, path)));
        }
    }
    records.sort();
    let excess = records.len().saturating_sub(kept);
    for (_, path) in records.into_iter().take(excess) {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fulmen_core::DType;

    use super::*;

    fn name(file: &'static str, entry: &str) -> KernelName {
        (file, entry.into())
    }

    fn folder(test: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("fulmen-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn a_record_keeps_what_was_used_first_and_stays_bounded() {
        let folder = folder("records");
        let mut record = Record::open(&folder, "key");
        assert!(record.names.is_empty());
        record.update(&[]).unwrap();
        assert!(!record.path.exists(), "nothing to write");
        let [a, b, c] = [name("sample", "a"), name("embed", "b"), name("sample", "c")];
        record.update(&[a.clone(), b.clone()]).unwrap();
        let mut record = Record::open(&folder, "key");
        assert_eq!(record.names, [a.clone(), b.clone()]);
        record.update(&[c.clone(), b.clone()]).unwrap();
        assert_eq!(Record::open(&folder, "key").names, [c, b, a]);
        let many: Vec<KernelName> = (0..100).map(|i| name("gemv", &format!("k{i}"))).collect();
        record.update(&many).unwrap();
        let read = Record::open(&folder, "key").names;
        assert_eq!(read, many[..MAX_KERNELS]);
        let written = fs::metadata(&record.path).unwrap().modified().unwrap();
        record.update(&many).unwrap();
        assert_eq!(fs::metadata(&record.path).unwrap().modified().unwrap(), written, "unchanged");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_and_foreign_records_are_ignored() {
        let text = encode(&[name("sample", "a")], "key");
        assert_eq!(decode(&text, "key"), Some(vec![name("sample", "a")]));
        assert_eq!(decode(&text, "other"), None);
        assert_eq!(decode("", "key"), None);
        assert_eq!(decode(&text.replace("kernels 1", "kernels 2"), "key"), None);
        assert_eq!(decode(&format!("{text}nofile x\nsample\n\0\n"), "key"), Some(vec![name("sample", "a")]));
        let folder = folder("damaged");
        let record = Record::open(&folder, "key");
        fs::create_dir_all(&folder).unwrap();
        fs::write(&record.path, [0xff; 100]).unwrap();
        assert!(Record::open(&folder, "key").names.is_empty());
        fs::write(&record.path, vec![b'\n'; MAX_FILE as usize + 1]).unwrap();
        assert!(Record::open(&folder, "key").names.is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn old_records_are_deleted() {
        let folder = folder("old");
        fs::create_dir_all(&folder).unwrap();
        for i in 0..5u64 {
            let path = folder.join(format!("{i}.kernels"));
            fs::write(&path, "").unwrap();
            let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 + i);
            fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
        fs::write(folder.join("other.pipelines"), "").unwrap();
        delete_oldest(&folder, 2).unwrap();
        let mut left: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["3.kernels", "4.kernels", "other.pipelines"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn keys_differ_by_device_and_shapes() {
        let weight = |rows| WeightSpec { bytes: 32, dtype: DType::F16, rows, width: 8 };
        let keys = [key(90, &[weight(2)]), key(86, &[weight(2)]), key(90, &[weight(3)]), key(90, &[])];
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
    }
}
