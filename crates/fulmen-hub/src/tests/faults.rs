//! Every call of a download to the disk fails once, and connections end at every byte: the error is typed,
//! nothing half-written is taken for whole, and the next pull completes the model.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::server::{Faults, Server, git_hash, sha256};
use super::{limits, settings};
use crate::cache::Cache;
use crate::disk::{Disk, PartialFile, SystemDisk};
use crate::error::HubError;
use crate::inventory::Inventory;
use crate::limits::Limits;
use crate::pull::{Event, Puller};
use crate::reference::Reference;

/// Which operation fails, and how.
#[derive(Clone)]
struct Fault {
    /// Operations left before the one that fails.
    left: Rc<Cell<usize>>,
    kind: ErrorKind,
    /// A write that fails writes the first half of its bytes.
    half: bool,
}

impl Fault {
    fn hits(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.wrapping_sub(1));
        left == 0
    }

    fn check(&self) -> io::Result<()> {
        if self.hits() { Err(self.kind.into()) } else { Ok(()) }
    }
}

/// A disk of which one operation fails.
struct FaultyDisk(Fault);

struct FaultyFile(Box<dyn PartialFile>, Fault);

impl Disk for FaultyDisk {
    fn open_partial(&self, path: &Path) -> Result<Box<dyn PartialFile>, HubError> {
        self.0.check().map_err(HubError::write(path, 0))?;
        Ok(Box::new(FaultyFile(SystemDisk.open_partial(path)?, self.0.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.check()?;
        SystemDisk.rename(from, to)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.check()?;
        SystemDisk.replace(path, bytes)
    }

    fn link(&self, relative: &str, blob: &Path, place: &Path) -> io::Result<()> {
        self.0.check()?;
        SystemDisk.link(relative, blob, place)
    }

    fn available(&self, folder: &Path) -> Option<u64> {
        SystemDisk.available(folder)
    }
}

impl Read for FaultyFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Reading fills no disk.
        if self.1.kind == ErrorKind::Other {
            self.1.check()?;
        }
        self.0.read(buffer)
    }
}

impl Seek for FaultyFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.1.hits() {
            if self.1.half {
                self.0.write_all(&bytes[..bytes.len() / 2])?;
            }
            return Err(self.1.kind.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl PartialFile for FaultyFile {
    fn empty(&mut self) -> io::Result<()> {
        self.1.check()?;
        self.0.empty()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.1.check()?;
        self.0.sync()
    }
}

/// A model of four files, by their blobs.
struct Repo {
    server: Server,
    blobs: BTreeMap<String, Vec<u8>>,
}

impl Repo {
    fn new() -> Repo {
        Repo::with_sizes(200_001, 70_003)
    }

    /// With large files of these sizes.
    fn with_sizes(first: usize, second: usize) -> Repo {
        let noise = |seed, len| {
            let mut random = fastrand::Rng::with_seed(seed);
            (0..len).map(|_| random.u8(..)).collect::<Vec<u8>>()
        };
        let (first, second) = (noise(1, first), noise(2, second));
        let small: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("tokenizer.json", b"{\"a\": 1}")];
        let mut files = small.to_vec();
        files.push(("model-00001-of-00002.safetensors", &first));
        files.push(("model-00002-of-00002.safetensors", &second));
        let mut blobs: BTreeMap<String, Vec<u8>> =
            small.iter().map(|(_, bytes)| (git_hash(bytes), bytes.to_vec())).collect();
        blobs.extend([&first, &second].map(|bytes| (sha256(bytes), bytes.clone())));
        Repo { server: Server::new(&files), blobs }
    }

    fn pull(&self, root: &Path, disk: &dyn Disk) -> Result<(), HubError> {
        let reference: Reference = "org/name".parse().unwrap();
        let settings = settings(&self.server.address, root);
        Puller::new(&settings, &reference, disk, limits())?.pull(&mut |_| ControlFlow::Continue(())).map(drop)
    }

    /// The start of the larger file, as an interrupted download leaves it.
    fn begin(&self, root: &Path) {
        let cache = Cache::of(root, &"org/name".parse().unwrap());
        let (name, bytes) = self.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let path = cache.incomplete(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, &bytes[..bytes.len() / 3]).unwrap();
    }

    /// Every blob has the content that its name promises, and a model that is found is whole.
    fn check(&self, root: &Path, complete: bool) {
        let reference: Reference = "org/name".parse().unwrap();
        let cache = Cache::of(root, &reference);
        for entry in fs::read_dir(cache.folder().join("blobs")).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let bytes = fs::read(entry.path()).unwrap();
            match name.strip_suffix(".incomplete") {
                Some(whole) => assert!(self.blobs[whole].starts_with(&bytes), "{name}"),
                None => assert!(self.blobs[&name] == bytes, "{name}"),
            }
        }
        let found = cache.find(&reference).unwrap();
        assert_eq!(found.is_some(), complete);
        for model in Inventory::read(root).unwrap().models {
            let mut bytes: Vec<u8> = Vec::new();
            model.files.iter().for_each(|file| bytes.extend(fs::read(file).unwrap()));
            assert_eq!(bytes.len(), self.blobs.values().map(Vec::len).sum::<usize>(), "{}", model.name);
        }
        let strays = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().count();
        assert_eq!(strays(&cache.folder().join("refs")), usize::from(complete), "no temporary file stays");
    }
}

/// A disk with this space.
struct SmallDisk(Option<u64>);

impl Disk for SmallDisk {
    fn open_partial(&self, path: &Path) -> Result<Box<dyn PartialFile>, HubError> {
        SystemDisk.open_partial(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        SystemDisk.replace(path, bytes)
    }

    fn link(&self, relative: &str, blob: &Path, place: &Path) -> io::Result<()> {
        SystemDisk.link(relative, blob, place)
    }

    fn available(&self, _folder: &Path) -> Option<u64> {
        self.0
    }
}

#[test]
fn what_does_not_fit_is_not_begun() {
    let repo = Repo::new();
    let size: u64 = repo.blobs.values().map(|bytes| bytes.len() as u64).sum();
    let root = tempfile::tempdir().unwrap();
    let error = repo.pull(root.path(), &SmallDisk(Some(size - 1))).unwrap_err();
    assert!(matches!(error, HubError::NoSpace { needed, .. } if needed == size), "{error:?}");
    assert_eq!(repo.server.fetched().len(), 0);
    // What is there already needs no space.
    let cache = Cache::of(root.path(), &"org/name".parse().unwrap());
    let (name, bytes) = repo.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    fs::write(cache.incomplete(name), &bytes[..100_000]).unwrap();
    repo.pull(root.path(), &SmallDisk(Some(size - 100_001))).unwrap_err();
    repo.pull(root.path(), &SmallDisk(Some(size - 100_000))).unwrap();
    repo.check(root.path(), true);
    // A disk that does not tell is tried.
    repo.pull(tempfile::tempdir().unwrap().path(), &SmallDisk(None)).unwrap();
}

/// A server that sends a byte now and then is as good as silent.
#[test]
fn a_connection_that_drips_is_given_up() {
    let server = Server::new(&[("a.gguf", &[7; 100_000])]);
    server.set(Faults { drip: Duration::from_millis(20), ..Faults::default() });
    let reference: Reference = "org/name".parse().unwrap();
    let root = tempfile::tempdir().unwrap();
    let limits = Limits { window: Duration::from_millis(200), ..limits() };
    let settings = settings(&server.address, root.path());
    let start = Instant::now();
    let result = Puller::new(&settings, &reference, &SystemDisk, limits)
        .unwrap()
        .pull(&mut |_| ControlFlow::Continue(()));
    assert!(matches!(result, Err(HubError::Short { .. })), "{result:?}");
    assert!(start.elapsed() < Duration::from_secs(20) && server.fetched().len() == 4);
}

#[test]
fn a_download_ends_at_any_event_and_is_resumed() {
    let repo = Repo::new();
    let reference: Reference = "org/name".parse().unwrap();
    // Until one download has fewer events than this.
    for end in 0.. {
        let root = tempfile::tempdir().unwrap();
        let settings = settings(&repo.server.address, root.path());
        let mut events = 0;
        let puller = Puller::new(&settings, &reference, &SystemDisk, limits()).unwrap();
        let result = puller.pull(&mut |_| {
            events += 1;
            if events > end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if result.is_ok() {
            assert!(end >= 13, "four files have three events each: {end}");
            return repo.check(root.path(), true);
        }
        assert!(matches!(result, Err(HubError::Stopped)), "{result:?}");
        assert_eq!(events, end + 1, "nothing is told after the end");
        repo.check(root.path(), false);
        repo.pull(root.path(), &SystemDisk).unwrap();
        repo.check(root.path(), true);
    }
}

#[test]
fn waiting_for_another_process_ends_when_it_is_told_to() {
    let repo = Repo::new();
    let root = tempfile::tempdir().unwrap();
    let reference: Reference = "org/name".parse().unwrap();
    let (etag, _) = repo.blobs.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
    let held = Cache::of(root.path(), &reference).lock(etag, || Ok(())).unwrap();
    let settings = settings(&repo.server.address, root.path());
    let mut waited = Vec::new();
    let puller = Puller::new(&settings, &reference, &SystemDisk, limits()).unwrap();
    let result = puller.pull(&mut |event| {
        waited.extend(match event {
            Event::Waiting { .. } => Some("waiting"),
            Event::Pending => Some("pending"),
            _ => None,
        });
        if waited.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(HubError::Stopped)), "{result:?}");
    assert_eq!(waited, ["waiting", "pending", "pending"]);
    drop(held);
}

#[test]
fn a_disk_that_fails_at_any_call_leaves_nothing_that_is_taken_for_whole() {
    let repo = Repo::new();
    let mut injected = 0;
    let faults = [
        (ErrorKind::StorageFull, false),
        (ErrorKind::StorageFull, true),
        (ErrorKind::QuotaExceeded, true),
        (ErrorKind::Other, false),
    ];
    for (kind, half) in faults {
        // Until one run has fewer operations than this.
        for nth in 0.. {
            let root = tempfile::tempdir().unwrap();
            repo.begin(root.path());
            let left = Rc::new(Cell::new(nth));
            let result = repo.pull(root.path(), &FaultyDisk(Fault { left: Rc::clone(&left), kind, half }));
            // It counts down past zero when the fault strikes.
            if left.get() < usize::MAX / 2 {
                result.unwrap();
                repo.check(root.path(), true);
                break;
            }
            injected += 1;
            let error = result.expect_err("the failed call is reported");
            let typed = match kind {
                ErrorKind::Other => matches!(error, HubError::Io { .. }),
                _ => matches!(error, HubError::Full { .. }),
            };
            assert!(typed, "operation {nth}, {kind:?}: {error:?}");
            repo.check(root.path(), false);
            let before = repo.server.fetched().len();
            repo.pull(root.path(), &SystemDisk).unwrap();
            repo.check(root.path(), true);
            assert!(repo.server.fetched().len() <= before + 2, "whole files are not fetched again");
        }
    }
    println!("{injected} faults injected");
    assert!(injected >= 60, "{injected}");
}

/// Whatever is cut, a list, a header or a file: another connection brings the rest, or the error is typed and
/// the next pull completes the model.
#[test]
fn a_connection_that_ends_at_any_byte_loses_nothing() {
    let repo = Repo::with_sizes(601, 403);
    let full = std::env::var_os("FULMEN_TEST_FULL").is_some_and(|value| value == "1");
    let (mut injected, mut survived) = (0, 0);
    for byte in (0..).step_by(if full { 1 } else { 11 }) {
        let root = tempfile::tempdir().unwrap();
        repo.begin(root.path());
        repo.server.set(Faults { cut_all: Some(byte), ..Faults::default() });
        let result = repo.pull(root.path(), &SystemDisk);
        // Until one run sends fewer bytes than this.
        if repo.server.faults().cut_all.is_some() {
            result.unwrap();
            repo.check(root.path(), true);
            break;
        }
        injected += 1;
        match result {
            Ok(()) => survived += 1,
            Err(error) => {
                let typed = matches!(error, HubError::Network { .. } | HubError::Short { .. });
                assert!(typed, "byte {byte}: {error:?}");
                repo.check(root.path(), false);
                repo.pull(root.path(), &SystemDisk).unwrap();
            }
        }
        repo.check(root.path(), true);
    }
    println!("{injected} faults injected: connections that end, {survived} pulls were complete at once");
    assert!(injected > 100, "{injected}");
}
