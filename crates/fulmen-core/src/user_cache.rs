//! The user's cache folder, where backends keep what makes the next start faster: compiled pipelines, tuning
//! tables, lists of kernels.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, io};

use crate::unfinished::Unfinished;

/// The user's cache folder, or `FULMEN_CACHE_DIR`. `None` if `FULMEN_CACHE` is `off`, or if there is no such
/// folder.
pub fn folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if set("FULMEN_CACHE").is_some_and(|value| value.as_os_str().eq_ignore_ascii_case("off")) {
        return None;
    }
    if let Some(folder) = set("FULMEN_CACHE_DIR") {
        return Some(folder);
    }
    let folder = if cfg!(windows) {
        set("LOCALAPPDATA")
    } else if cfg!(target_vendor = "apple") {
        set("HOME").map(|home| home.join("Library/Caches"))
    } else {
        // The XDG specification says to ignore relative paths.
        let xdg = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        xdg.or_else(|| set("HOME").map(|home| home.join(".cache")))
    };
    folder.map(|folder| folder.join("fulmen").join("pipelines"))
}

/// 128-bit FNV-1a: stable across processes, and long enough to identify kernels.
pub fn hash(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, &byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// Writes a temporary file next to the target and renames it. Its name is unique to this process and call.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{call}.tmp", std::process::id()));
    let _unfinished = Unfinished::new(&beside);
    let written = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The first error is the one to report; the file may not exist.
        let _ = fs::remove_file(&beside);
    }
    written
}
