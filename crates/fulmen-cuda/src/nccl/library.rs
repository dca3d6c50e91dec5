//! The functions of NCCL's library, which is opened at run time.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::{env, fmt};

use cudarc::driver::sys::CUstream;
use libloading::Library as Object;

/// The environment variable with the file of the library, if it is not where the system looks for it.
pub const LIBRARY_VARIABLE: &str = "FULMEN_NCCL_LIBRARY";

/// The oldest NCCL whose non-blocking communicators are used.
pub const MIN_NCCL: NcclVersion = NcclVersion(21_800);

/// Where the library is looked for, in this order.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// A version of NCCL as the library encodes it: `10000 * major + 100 * minor + patch`, with 1000 instead of
/// 10000 up to version 2.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NcclVersion(pub i32);

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.0 < 10_000 { 1000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / unit, self.0 % unit / 100, self.0 % 100)
    }
}

/// Why NCCL cannot be used, or why one of its functions failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// The library was not found.
    #[error(
        "NCCL was not found (tried {tried}); install NCCL {MIN_NCCL} or newer, or set {LIBRARY_VARIABLE} to \
         its file, such as nvidia/nccl/lib/libnccl.so.2 of a Python environment with PyTorch"
    )]
    LibraryMissing {
        /// The files that were tried.
        tried: String,
    },
    /// A library that was found but is not NCCL, or a very old one.
    #[error("{file} is not a usable NCCL: it has no {symbol}")]
    NotNccl {
        /// The file.
        file: String,
        /// The function that is missing.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error("{file} is NCCL {found}, but {MIN_NCCL} or newer is required")]
    TooOld {
        /// The file.
        file: String,
        /// Its version.
        found: NcclVersion,
    },
    /// A function failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The function.
        call: &'static str,
        /// The reason that NCCL gives.
        reason: String,
    },
    /// The id of a group that is not one of NCCL's.
    #[error("the id of an NCCL group has {} bytes, got {got}", size_of::<UniqueId>())]
    Id {
        /// Its length.
        got: usize,
    },
}

/// `ncclComm_t`.
pub(crate) type RawComm = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Status(c_int);

impl Status {
    pub(crate) const SUCCESS: Status = Status(0);
    pub(crate) const IN_PROGRESS: Status = Status(7);
}

/// `ncclFloat32` and `ncclUint8`, of `ncclDataType_t`.
pub(crate) const FLOAT32: c_int = 7;
pub(crate) const UINT8: c_int = 1;
/// `ncclSum`, of `ncclRedOp_t`.
pub(crate) const SUM: c_int = 0;

/// `ncclConfig_t` of version 2.17, from which on fields were added behind. NCCL reads as many bytes as
/// `size` says and takes defaults for what is undefined.
#[repr(C)]
pub(crate) struct CommConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Padding in 2.17, `trafficClass` later.
    traffic_class: c_int,
}

impl CommConfig {
    /// Every function returns at once, and is polled for.
    pub(crate) fn non_blocking() -> CommConfig {
        // NCCL_CONFIG_UNDEF_INT.
        let undefined = c_int::MIN;
        CommConfig {
            size: size_of::<CommConfig>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: 0,
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: undefined,
            net_name: std::ptr::null(),
            split_share: undefined,
            traffic_class: undefined,
        }
    }
}

/// Declares the functions that are used, as fields of [`Library`].
macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        /// The open library.
        pub(crate) struct Library {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> $result,)*
            version: NcclVersion,
            /// Keeps the functions alive.
            _object: Object,
        }

        impl Library {
            /// Looks the functions up.
            fn of(object: Object, file: &str) -> Result<Library, NcclError> {
                let missing = |symbol| NcclError::NotNccl { file: file.to_owned(), symbol };
                // SAFETY: the types are those of NCCL's header, and the library outlives the functions.
                let library = unsafe {
                    Library {
                        $($field: *object.get($symbol).map_err(|_| missing($symbol))?,)*
                        version: NcclVersion(0),
                        _object: object,
                    }
                };
                Ok(library)
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion": fn(*mut c_int) -> Status;
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> Status;
    comm_init_rank_config = "ncclCommInitRankConfig":
        fn(*mut RawComm, c_int, UniqueId, c_int, *mut CommConfig) -> Status;
    comm_get_async_error = "ncclCommGetAsyncError": fn(RawComm, *mut Status) -> Status;
    comm_abort = "ncclCommAbort": fn(RawComm) -> Status;
    all_reduce = "ncclAllReduce":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Status;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, RawComm, CUstream) -> Status;
    broadcast = "ncclBroadcast":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CUstream) -> Status;
    get_error_string = "ncclGetErrorString": fn(Status) -> *const c_char;
    get_last_error = "ncclGetLastError": fn(RawComm) -> *const c_char;
}

impl Library {
    /// The library of this process, opened at the first call.
    pub(crate) fn get() -> Result<&'static Library, NcclError> {
        static LIBRARY: OnceLock<Result<Library, NcclError>> = OnceLock::new();
        let opened = LIBRARY.get_or_init(|| match env::var_os(LIBRARY_VARIABLE) {
            Some(file) if !file.is_empty() => Library::open(&[&file.to_string_lossy()]),
            _ => Library::open(&NAMES),
        });
        opened.as_ref().map_err(Clone::clone)
    }

    /// Opens the first of these files that can be opened.
    fn open(names: &[&str]) -> Result<Library, NcclError> {
        for &file in names {
            // SAFETY: opening the library runs its initializers, which are safe to run in any process.
            let Ok(object) = (unsafe { Object::new(file) }) else { continue };
            let mut library = Library::of(object, file)?;
            let mut version = 0;
            // SAFETY: it writes one integer to a variable that outlives the call.
            let status = unsafe { (library.get_version)(&mut version) };
            library.check("ncclGetVersion", status, None)?;
            library.version = NcclVersion(version);
            if library.version < MIN_NCCL {
                return Err(NcclError::TooOld { file: file.to_owned(), found: library.version });
            }
            return Ok(library);
        }
        Err(NcclError::LibraryMissing { tried: names.join(", ") })
    }

    pub(crate) fn version(&self) -> NcclVersion {
        self.version
    }

    /// The id of a new group.
    pub(crate) fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: it writes 128 bytes.
        let status = unsafe { (self.get_unique_id)(&mut id) };
        self.check("ncclGetUniqueId", status, None)?;
        Ok(id)
    }

    /// An error unless a function succeeded.
    pub(crate) fn check(
        &self,
        call: &'static str,
        status: Status,
        comm: Option<RawComm>,
    ) -> Result<(), NcclError> {
        match status {
            Status::SUCCESS => Ok(()),
            status => Err(NcclError::Call { call, reason: self.reason(status, comm) }),
        }
    }

    /// What NCCL says about an error: its kind, and what it last logged about the communicator.
    fn reason(&self, status: Status, comm: Option<RawComm>) -> String {
        // SAFETY: it returns a static text for every number.
        let kind = text(unsafe { (self.get_error_string)(status) });
        // SAFETY: the communicator is alive or null; the text is copied at once.
        let last = text(unsafe { (self.get_last_error)(comm.unwrap_or(std::ptr::null_mut())) });
        match (kind, last) {
            (Some(kind), Some(last)) => format!("{kind}: {last}"),
            (Some(text), None) | (None, Some(text)) => text,
            (None, None) => format!("error {}", status.0),
        }
    }
}

/// A text of the library, if it is not empty.
fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: NCCL returns texts that end with a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The version of NCCL that is installed.
///
/// # Errors
/// Why it cannot be used.
pub fn nccl_version() -> Result<NcclVersion, NcclError> {
    Library::get().map(Library::version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_formatted_like_nvidia_does() {
        for (number, text) in [(22_809, "2.28.9"), (21_800, "2.18.0"), (2_804, "2.8.4"), (23_203, "2.32.3")] {
            assert_eq!(NcclVersion(number).to_string(), text);
        }
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let names = ["libno-such-nccl.so.2", "/no/such/nccl.so"];
        let error = Library::open(&names).map(drop).unwrap_err();
        assert_eq!(error, NcclError::LibraryMissing { tried: names.join(", ") });
        let text = error.to_string();
        assert!(text.contains("(tried libno-such-nccl.so.2, /no/such/nccl.so)"), "{text}");
        assert!(text.contains("NCCL 2.18.0 or newer") && text.contains("FULMEN_NCCL_LIBRARY"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_is_refused_by_what_it_lacks() {
        let error = Library::open(&["libc.so.6"]).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "libc.so.6 is not a usable NCCL: it has no ncclGetVersion");
    }

    #[test]
    fn the_configuration_is_as_large_as_that_of_nccl() {
        let config = CommConfig::non_blocking();
        assert_eq!((config.size, std::mem::offset_of!(CommConfig, split_share)), (48, 40));
    }
}
