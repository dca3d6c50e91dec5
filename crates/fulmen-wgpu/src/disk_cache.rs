//! The driver's compiled pipelines, kept on disk between processes.
//!
//! One file per adapter and driver, named by a hash of both and of this crate's version. It holds that
//! key in full, the hashes of its kernels, the driver's data and a checksum. It is replaced by
//! renaming, so that readers see either the old or the new file. A file that is damaged, has another
//! key or is refused by the driver is ignored, and replaced at the next save. wgpu offers this on
//! Vulkan; other drivers keep caches of their own.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fulmen_core::user_cache;
pub(crate) use fulmen_core::user_cache::{hash, replace};
use wgpu::{AdapterInfo, ErrorFilter, Features};

use crate::{
    device::{DiskCache, ready},
    error::GpuError,
};

const MAGIC: &[u8; 8] = b"FULMENPC";
const VERSION: u32 = 1;

/// A larger file is not ours.
const MAX_FILE: u64 = 1 << 30;

/// The pipelines of one device, in memory and on disk.
#[derive(Debug)]
pub(crate) struct PipelineFile {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    key: String,
    /// Hashes of the kernels in the data.
    kernels: Mutex<HashSet<u128>>,
    /// Size of the driver's data for an empty cache. Some drivers never return more.
    empty: usize,
    changed: AtomicBool,
}

impl PipelineFile {
    /// The cache of a device, loaded from disk if there is a file. `None` if the device has no pipeline
    /// cache or it is turned off.
    pub(crate) fn open(device: &wgpu::Device, info: &AdapterInfo, place: &DiskCache) -> Option<Self> {
        let folder = folder(place).filter(|_| device.features().contains(Features::PIPELINE_CACHE))?;
        let key = key(info);
        let path = folder.join(format!("{:032x}.pipelines", hash(key.as_bytes())));
        let empty = driver_cache(device, None)?;
        let empty_len = empty.get_data().map_or(0, |data| data.len());
        let stored = read_file(&path).and_then(|bytes| decode(&bytes, &key));
        let (cache, kernels) = stored
            .and_then(|stored| Some((driver_cache(device, Some(&stored.data))?, stored.kernels)))
            .unwrap_or_else(|| (empty, HashSet::new()));
        let changed = AtomicBool::new(false);
        Some(Self { cache, path, key, kernels: Mutex::new(kernels), empty: empty_len, changed })
    }

    /// The cache to create pipelines with.
    pub(crate) fn cache(&self) -> &wgpu::PipelineCache {
        &self.cache
    }

    /// The driver's own data of the pipelines so far; empty if it is not available.
    #[cfg(any(windows, target_os = "linux"))]
    pub(crate) fn driver_data(&self) -> Vec<u8> {
        // wgpu puts its own header before the driver's, which starts with its length, 32, and its version, 1.
        let mut data = self.cache.get_data().unwrap_or_default();
        let begins = |window: &[u8]| window == [32, 0, 0, 0, 1, 0, 0, 0];
        let Some(at) = data.windows(8).position(begins) else { return Vec::new() };
        data.split_off(at)
    }

    /// Notes that a pipeline was created; returns whether the driver already had it.
    pub(crate) fn note(&self, kernel: u128) -> bool {
        let new = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).insert(kernel);
        self.changed.fetch_or(new, Ordering::Relaxed);
        !new
    }

    /// Writes the file if there are new pipelines.
    pub(crate) fn save(&self) -> Result<(), GpuError> {
        if !self.changed.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let Some(data) = self.cache.get_data() else { return Ok(()) };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if data.len() <= self.empty {
            // The driver stores nothing here, so the next process will find nothing.
            kernels.clear();
        }
        let bytes = encode(&self.key, &kernels, &data);
        replace(&self.path, &bytes).map_err(|error| {
            self.changed.store(true, Ordering::Relaxed);
            GpuError::CacheFile { path: self.path.clone(), message: error.to_string() }
        })
    }
}

/// The driver's cache, or `None` if it refuses the data.
fn driver_cache(device: &wgpu::Device, data: Option<&[u8]>) -> Option<wgpu::PipelineCache> {
    let internal = device.push_error_scope(ErrorFilter::Internal);
    let validation = device.push_error_scope(ErrorFilter::Validation);
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("fulmen"), data, fallback: data.is_none() };
    // SAFETY: the data comes from `get_data` of this adapter and driver, as the file's key and checksum show.
    let cache = unsafe { device.create_pipeline_cache(&descriptor) };
    let refused = [ready(validation.pop()), ready(internal.pop())];
    refused.iter().all(Option::is_none).then_some(cache)
}

impl DiskCache {
    /// The folder of compiled pipelines and tuned kernels; `None` if the cache is off.
    pub fn folder(&self) -> Option<PathBuf> {
        folder(self)
    }
}

/// The cache folder, unless the cache is off.
pub(crate) fn folder(place: &DiskCache) -> Option<PathBuf> {
    match place {
        DiskCache::Off => None,
        DiskCache::Folder(folder) => Some(folder.clone()),
        DiskCache::UserFolder => user_cache::folder(),
    }
}

/// Everything that determines whether the driver can use the data.
pub(crate) fn key(info: &AdapterInfo) -> String {
    let AdapterInfo { name, vendor, device, driver, driver_info, backend, .. } = info;
    let version = env!("CARGO_PKG_VERSION");
    format!("{backend}|{name}|{vendor:08x}:{device:08x}|{driver}|{driver_info}|{version}")
}

#[derive(Debug, PartialEq)]
struct Stored {
    kernels: HashSet<u128>,
    data: Vec<u8>,
}

fn encode(key: &str, kernels: &HashSet<u128>, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64 + key.len() + kernels.len() * 16 + data.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    for part in [key.len(), kernels.len(), data.len()] {
        bytes.extend_from_slice(&(part as u64).to_le_bytes());
    }
    bytes.extend_from_slice(key.as_bytes());
    let mut sorted: Vec<_> = kernels.iter().collect();
    sorted.sort_unstable();
    sorted.into_iter().for_each(|kernel| bytes.extend_from_slice(&kernel.to_le_bytes()));
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(&hash(&bytes).to_le_bytes());
    bytes
}

/// The contents, if the file is intact and has this key.
fn decode(bytes: &[u8], key: &str) -> Option<Stored> {
    let (body, checksum) = bytes.split_last_chunk::<16>()?;
    if hash(body) != u128::from_le_bytes(*checksum) {
        return None;
    }
    let (magic, body) = body.split_first_chunk::<8>()?;
    let (version, body) = body.split_first_chunk::<4>()?;
    if magic != MAGIC || u32::from_le_bytes(*version) != VERSION {
        return None;
    }
    let length = |bytes: [u8; 8]| usize::try_from(u64::from_le_bytes(bytes)).ok();
    let (key_len, body) = body.split_first_chunk::<8>()?;
    let (kernels_len, body) = body.split_first_chunk::<8>()?;
    let (data_len, body) = body.split_first_chunk::<8>()?;
    let (stored_key, body) = body.split_at_checked(length(*key_len)?)?;
    let (kernels, data) = body.split_at_checked(length(*kernels_len)?.checked_mul(16)?)?;
    if stored_key != key.as_bytes() || data.len() != length(*data_len)? {
        return None;
    }
    let kernels = kernels.as_chunks::<16>().0.iter().map(|chunk| u128::from_le_bytes(*chunk)).collect();
    Some(Stored { kernels, data: data.to_vec() })
}

fn read_file(path: &Path) -> Option<Vec<u8>> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > MAX_FILE {
        return None;
    }
    fs::read(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_back_what_was_put_in() {
        let stored = Stored { kernels: [1, u128::MAX].into(), data: b"driver".to_vec() };
        assert_eq!(decode(&encode("key", &stored.kernels, &stored.data), "key"), Some(stored));
    }

    #[test]
    fn a_damaged_or_foreign_file_is_none() {
        let good = encode("key", &[7].into(), b"driver");
        assert_eq!(decode(&good, "other"), None);
        for length in 0..good.len() {
            assert_eq!(decode(&good[..length], "key"), None, "cut to {length}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(decode(&bad, "key"), None, "bit flipped in byte {at}");
        }
        // Wrong lengths with a valid checksum.
        for at in [12, 20, 28] {
            let mut bad = good[..good.len() - 16].to_vec();
            bad[at..at + 8].fill(0xff);
            bad.extend_from_slice(&hash(&bad).to_le_bytes());
            assert_eq!(decode(&bad, "key"), None, "length at {at}");
        }
    }
}
