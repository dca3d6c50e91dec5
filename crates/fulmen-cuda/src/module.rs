//! The embedded kernels, and how a device gets them.

use std::collections::HashMap;
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{
    result,
    sys::{self, CUfunction, CUfunction_attribute_enum as FunctionAttribute, CUjit_option, CUmodule},
};

use crate::error::{CudaError, reason};
use crate::handles::Context;
use crate::ptx;

/// The compute capability that every file is built for: older devices have no kernels.
pub const OLDEST: u32 = 80;

/// The PTX of one file of kernels, for each target.
struct Embedded {
    file: &'static str,
    targets: &'static [(&'static str, &'static str)],
}

macro_rules! embedded {
    ($($file:literal: $($target:literal)*;)*) => {
        &[$(Embedded {
            file: $file,
            targets: &[$(($target, include_str!(concat!("../ptx/", $file, ".sm_", $target, ".ptx")))),*],
        }),*]
    };
}

/// Every file of kernels with its targets.
static EMBEDDED: &[Embedded] = embedded! {
    "activations": "80" "90";
    "advance": "80" "90";
    "argmax": "80" "90";
    "attention": "80" "90";
    "attention_prefill": "80" "90";
    "attention_prefill_hopper": "90a";
    "attention_step": "90";
    "copy": "80" "90";
    "dequantize": "80" "90";
    "elementwise": "80" "90";
    "embed": "80" "90";
    "gemm": "80" "90";
    "gemm_hopper": "90a";
    "gemm_small_m": "90";
    "gemv": "90";
    "kv_store": "80" "90";
    "matmul_generic": "80" "90";
    "pack_f16_fragments": "90";
    "penalize": "80" "90";
    "rms_norm": "80" "90";
    "rope": "80" "90";
    "rope_store": "80" "90";
    "sample": "80" "90";
    "softmax": "80" "90";
};

/// The capability that a target needs, and whether it needs exactly that: `90a` uses what 9.0 has and 10.0 has not.
fn needs(target: &str) -> (u32, bool) {
    let digits = target.trim_end_matches(|c: char| !c.is_ascii_digit());
    (digits.parse().unwrap_or(u32::MAX), digits.len() < target.len())
}

/// The newest target that a device of this capability runs.
fn choose(targets: &'static [(&'static str, &'static str)], capability: u32) -> Option<&'static str> {
    let runs = |target: &str| match needs(target) {
        (needed, true) => needed == capability,
        (needed, false) => needed <= capability,
    };
    targets
        .iter()
        .filter(|(target, _)| runs(target))
        .max_by_key(|(target, _)| needs(target))
        .map(|(_, ptx)| *ptx)
}

/// A kernel that is ready to launch.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    raw: CUfunction,
    /// Dynamic shared memory that it may take so far.
    shared: u32,
}

// SAFETY: functions may be launched from any thread.
unsafe impl Send for Function {}

impl Function {
    pub(crate) fn raw(&self) -> CUfunction {
        self.raw
    }
}

/// Dynamic shared memory that a kernel may take without asking: 48 KiB less what it may have of its own.
const SHARED_WITHOUT_ASKING: u32 = 32 << 10;

/// Kernels of a file that are loaded, each from PTX of its own.
#[derive(Default)]
struct File {
    modules: Vec<CUmodule>,
    /// Other PTX than the embedded, which is loaded whole.
    foreign: Option<CUmodule>,
    functions: HashMap<Box<str>, Function>,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for File {}

/// The kernels of one context, compiled when they are first needed.
pub(crate) struct Modules {
    context: Arc<Context>,
    capability: u32,
    files: Mutex<HashMap<&'static str, File>>,
}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>, capability: u32) -> Modules {
        Modules { context: Arc::clone(context), capability, files: Mutex::default() }
    }

    /// The kernel `entry` of `file`, with room for so much dynamic shared memory.
    pub(crate) fn function(
        &self,
        file: &'static str,
        entry: &str,
        shared: u32,
    ) -> Result<Function, CudaError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = files.entry(file).or_default();
        let function = match loaded.functions.get_mut(entry) {
            Some(function) => function,
            None => {
                let raw = self.load(loaded, file, entry)?;
                let function = Function { raw, shared: SHARED_WITHOUT_ASKING };
                loaded.functions.entry(entry.into()).or_insert(function)
            }
        };
        if shared > function.shared {
            self.context.bind()?;
            let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(shared).unwrap_or(i32::MAX);
            // SAFETY: the function is of a module that is alive.
            let set = unsafe { result::function::set_function_attribute(function.raw, attribute, bytes) };
            set.map_err(|error| {
                let reason = format!("{shared} bytes of shared memory: {}", reason(error));
                CudaError::Launch { kernel: entry.to_owned(), reason }
            })?;
            function.shared = shared;
        }
        Ok(*function)
    }

    fn load(&self, to: &mut File, file: &str, entry: &str) -> Result<CUfunction, CudaError> {
        let failed = |reason: String| CudaError::Module { file: file.to_owned(), reason, log: String::new() };
        let name = CString::new(entry).map_err(|error| failed(error.to_string()))?;
        let module = match to.foreign {
            Some(module) => module,
            None => {
                let embedded = EMBEDDED.iter().find(|embedded| embedded.file == file);
                let embedded = embedded.ok_or_else(|| failed("no such file is embedded".to_owned()))?;
                let all = choose(embedded.targets, self.capability).ok_or_else(|| {
                    failed(format!(
                        "no target for capability {}.{}",
                        self.capability / 10,
                        self.capability % 10
                    ))
                })?;
                let ptx = ptx::only(all, entry).ok_or_else(|| failed(format!("{entry}: no such kernel")))?;
                let module = self.compile(&format!("{file}, {entry}"), &ptx)?;
                to.modules.push(module);
                module
            }
        };
        self.context.bind()?;
        // SAFETY: the module is alive as long as `self`.
        let raw = unsafe { result::module::get_function(module, name) };
        raw.map_err(|error| failed(format!("{entry}: {}", reason(error))))
    }

    fn compile(&self, file: &str, ptx: &str) -> Result<CUmodule, CudaError> {
        let failed = |reason: String, log: String| CudaError::Module { file: file.to_owned(), reason, log };
        let image = CString::new(ptx).map_err(|error| failed(error.to_string(), String::new()))?;
        self.context.bind()?;
        load_ptx(&image).map_err(|(error, log)| failed(reason(error), log))
    }

    /// Loads other PTX than the embedded, if none of that name is there.
    pub(crate) fn add(&self, file: &'static str, ptx: &str) -> Result<(), CudaError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = files.entry(file).or_default();
        if loaded.foreign.is_none() {
            loaded.foreign = Some(self.compile(file, ptx)?);
        }
        Ok(())
    }
}

/// Compiles PTX for the device of the current context; with the compiler's words where it fails.
fn load_ptx(image: &CString) -> Result<CUmodule, (result::DriverError, String)> {
    let mut log = vec![0u8; 8 << 10];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: a context is current; the image ends with a zero; options and values are two each and, with the log,
    // outlive the call.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            options.len() as c_uint,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    status.result().map(|()| module).map_err(|error| {
        let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
        (error, String::from_utf8_lossy(&log[..end]).trim().to_owned())
    })
}

impl Drop for Modules {
    fn drop(&mut self) {
        let files = self.files.get_mut().unwrap_or_else(PoisonError::into_inner);
        for module in files.drain().flat_map(|(_, file)| file.modules.into_iter().chain(file.foreign)) {
            self.context.destroy(|| {
                // SAFETY: loaded by `compile` and unloaded only here; the device has waited for its kernels.
                unsafe { result::module::unload(module) }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_newest_target_that_runs_is_taken() {
        const TARGETS: &[(&str, &str)] = &[("80", "old"), ("90a", "hopper"), ("90", "new")];
        for (capability, expected) in
            [(75, None), (80, Some("old")), (89, Some("old")), (90, Some("hopper")), (100, Some("new"))]
        {
            assert_eq!(choose(TARGETS, capability), expected, "{capability}");
        }
    }

    #[test]
    fn every_file_of_ptx_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/ptx");
        let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        let built: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
        let embedded: BTreeSet<String> = EMBEDDED
            .iter()
            .flat_map(|e| e.targets.iter().map(|(target, _)| format!("{}.sm_{target}.ptx", e.file)))
            .collect();
        assert_eq!(built, embedded);
        // What only newer devices have is another file's work on the older ones.
        let newer = [
            "attention_prefill_hopper",
            "attention_step",
            "gemm_hopper",
            "gemm_small_m",
            "gemv",
            "pack_f16_fragments",
        ];
        assert!(EMBEDDED.iter().all(|e| newer.contains(&e.file) || choose(e.targets, OLDEST).is_some()));
    }

    #[test]
    fn every_kernel_can_be_cut_out() {
        const BEGIN: &str = ".visible .entry ";
        for (file, (target, all)) in EMBEDDED.iter().flat_map(|e| e.targets.iter().map(|t| (e.file, t))) {
            let names: Vec<&str> =
                all.split(BEGIN).skip(1).map(|rest| &rest[..rest.find('(').unwrap()]).collect();
            assert!(!names.is_empty(), "{file} {target}");
            for name in &names {
                let ptx = ptx::only(all, name).unwrap();
                assert_eq!(ptx.matches(BEGIN).count(), 1, "{file} {target} {name}");
                assert_eq!(ptx.matches('{').count(), ptx.matches('}').count(), "{file} {target} {name}");
            }
        }
    }
}
