//! The kernels of a context: loaded by the driver, which compiles their PTX, when they are first launched.

use std::collections::HashMap;
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{
    result,
    sys::{self, CUfunction, CUfunction_attribute_enum as FunctionAttribute, CUjit_option, CUmodule},
};

use crate::embedded::Embedded;
use crate::error::{CudaError, reason};
use crate::handles::Context;
use crate::ptx;

/// A kernel that is ready to launch.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    raw: CUfunction,
    /// The dynamic shared memory that it is allowed to use.
    shared: u32,
}

// SAFETY: functions may be launched from any thread.
unsafe impl Send for Function {}

impl Function {
    pub(crate) fn raw(&self) -> CUfunction {
        self.raw
    }
}

/// Dynamic shared memory that needs no function attribute: 48 KiB, less what a kernel may declare statically.
const DEFAULT_SHARED: u32 = 32 << 10;

/// The loaded kernels of a file, each in a module of its own.
#[derive(Default)]
struct LoadedFile {
    modules: Vec<CUmodule>,
    /// PTX of a test instead of embedded PTX, loaded as a whole.
    test_module: Option<CUmodule>,
    functions: HashMap<Box<str>, Function>,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for LoadedFile {}

/// The kernels of one context.
pub(crate) struct Modules {
    context: Arc<Context>,
    capability: u32,
    files: Mutex<HashMap<&'static str, LoadedFile>>,
}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>, capability: u32) -> Modules {
        Modules { context: Arc::clone(context), capability, files: Mutex::default() }
    }

    /// The kernel `entry` of `file`, allowed to use `shared` bytes of dynamic shared memory.
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
                let function = Function { raw, shared: DEFAULT_SHARED };
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

    fn load(&self, to: &mut LoadedFile, file: &str, entry: &str) -> Result<CUfunction, CudaError> {
        let failed = |reason: String| CudaError::Module { file: file.to_owned(), reason, log: String::new() };
        let name = CString::new(entry).map_err(|error| failed(error.to_string()))?;
        let module = match to.test_module {
            Some(module) => module,
            None => {
                let embedded =
                    Embedded::find(file).ok_or_else(|| failed("no such kernel file".to_owned()))?;
                let (major, minor) = (self.capability / 10, self.capability % 10);
                let all = embedded.ptx(self.capability).ok_or_else(|| {
                    failed(format!("it is not compiled for compute capability {major}.{minor}"))
                })?;
                let ptx =
                    ptx::extract(all, entry).ok_or_else(|| failed(format!("it has no kernel {entry}")))?;
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

    /// Loads the PTX of a test under a name that no embedded file has, unless it is already loaded.
    pub(crate) fn add_test_module(&self, file: &'static str, ptx: &str) -> Result<(), CudaError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = files.entry(file).or_default();
        if loaded.test_module.is_none() {
            loaded.test_module = Some(self.compile(file, ptx)?);
        }
        Ok(())
    }
}

/// Compiles PTX for the device of the current context. The error has the log of the driver's compiler.
fn load_ptx(image: &CString) -> Result<CUmodule, (result::DriverError, String)> {
    let mut log = vec![0u8; 8 << 10];
    let mut options =
        [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: a context is current; the image is zero-terminated; there are two options and two values, which
    // outlive the call, as does the log.
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
        for module in files.drain().flat_map(|(_, file)| file.modules.into_iter().chain(file.test_module)) {
            self.context.destroy(|| {
                // SAFETY: loaded by `compile` and unloaded only here; the device has waited for its kernels.
                unsafe { result::module::unload(module) }
            });
        }
    }
}
