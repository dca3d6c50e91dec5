//! The kernels of a context: loaded by the driver, which compiles their PTX, when they are first launched, or
//! before that on other threads ([`preload`](crate::preload)).

use std::collections::HashMap;
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{
    result,
    sys::{self, CUfunction, CUfunction_attribute_enum as FunctionAttribute, CUjit_option, CUmodule},
};

use fulmen_core::clock::Instant;
use fulmen_core::timeline;

use crate::embedded::Embedded;
use crate::error::{CudaError, reason};
use crate::handles::Context;
use crate::preload::PRELOAD_THREAD;

/// A kernel that is ready to launch.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    raw: CUfunction,
    /// The dynamic shared memory that it is allowed to use.
    shared: u32,
    /// Whether a launch has asked for it.
    used: bool,
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

/// A kernel, once it is loaded. Held while it is loaded, so that others wait for this kernel alone.
type Kernel = Arc<Mutex<Option<Function>>>;

/// The kernels of a file, each in a module of its own.
#[derive(Default)]
struct KernelFile {
    kernels: HashMap<Box<str>, Kernel>,
    /// PTX of a test instead of embedded PTX, loaded as a whole.
    test_module: Option<Module>,
}

/// A loaded module.
#[derive(Clone, Copy)]
struct Module(CUmodule);

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}

/// The name of a kernel: its file and its entry point.
pub(crate) type KernelName = (&'static str, Box<str>);

/// The kernels of one context. They may be loaded from several threads at once.
pub(crate) struct Modules {
    context: Arc<Context>,
    capability: u32,
    files: Mutex<HashMap<&'static str, KernelFile>>,
    /// The modules of embedded kernels.
    modules: Mutex<Vec<Module>>,
    /// The embedded kernels that launches have asked for, in this order.
    used: Mutex<Vec<KernelName>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Modules {
    pub(crate) fn new(context: &Arc<Context>, capability: u32) -> Modules {
        Modules {
            context: Arc::clone(context),
            capability,
            files: Mutex::default(),
            modules: Mutex::default(),
            used: Mutex::default(),
        }
    }

    /// The kernel `entry` of `file`, allowed to use `shared` bytes of dynamic shared memory.
    pub(crate) fn function(
        &self,
        file: &'static str,
        entry: &str,
        shared: u32,
    ) -> Result<Function, CudaError> {
        let (kernel, test_module) = self.kernel(file, entry);
        let mut kernel = lock(&kernel);
        let function = match kernel.as_mut() {
            Some(function) => function,
            None => kernel.insert(self.load(file, entry, test_module)?),
        };
        if !function.used {
            function.used = true;
            lock(&self.used).push((file, entry.into()));
        }
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

    /// Loads an embedded kernel that a launch may soon ask for.
    pub(crate) fn preload(&self, file: &'static str, entry: &str) -> Result<(), CudaError> {
        let (kernel, test_module) = self.kernel(file, entry);
        let mut kernel = lock(&kernel);
        if kernel.is_none() {
            *kernel = Some(self.load(file, entry, test_module)?);
        }
        Ok(())
    }

    /// The embedded kernels that launches have asked for, the first one first.
    pub(crate) fn used(&self) -> Vec<KernelName> {
        let used = lock(&self.used);
        used.iter().filter(|(file, _)| Embedded::find(file).is_some()).cloned().collect()
    }

    /// A kernel, loaded or not, and the module of its file if that is a test's.
    fn kernel(&self, file: &'static str, entry: &str) -> (Kernel, Option<Module>) {
        let mut files = lock(&self.files);
        let file = files.entry(file).or_default();
        let kernel = match file.kernels.get(entry) {
            Some(kernel) => Arc::clone(kernel),
            None => Arc::clone(file.kernels.entry(entry.into()).or_default()),
        };
        (kernel, file.test_module)
    }

    fn load(&self, file: &str, entry: &str, test_module: Option<Module>) -> Result<Function, CudaError> {
        let failed = |reason: String| CudaError::Module { file: file.to_owned(), reason, log: String::new() };
        let name = CString::new(entry).map_err(|error| failed(error.to_string()))?;
        let began = Instant::now();
        let module = match test_module {
            Some(module) => module,
            None => {
                let embedded =
                    Embedded::find(file).ok_or_else(|| failed("no such kernel file".to_owned()))?;
                let (major, minor) = (self.capability / 10, self.capability % 10);
                let index = embedded.index(self.capability).ok_or_else(|| {
                    failed(format!("it is not compiled for compute capability {major}.{minor}"))
                })?;
                let ptx = index.extract(entry).ok_or_else(|| failed(format!("it has no kernel {entry}")))?;
                let module = self.compile(&format!("{file}, {entry}"), &ptx)?;
                lock(&self.modules).push(module);
                module
            }
        };
        self.context.bind()?;
        // SAFETY: the module is alive as long as `self`.
        let raw = unsafe { result::module::get_function(module.0, name) };
        let raw = raw.map_err(|error| failed(format!("{entry}: {}", reason(error))))?;
        // Otherwise the driver uploads its code at the first launch.
        // SAFETY: the function is of a module that is alive.
        let loaded = unsafe { sys::cuFuncLoad(raw) }.result();
        loaded.map_err(|error| failed(format!("{entry}: {}", reason(error))))?;
        if timeline::is_on() {
            let thread = std::thread::current();
            let where_ = thread.name().filter(|name| *name == PRELOAD_THREAD).map_or("", |_| " (preload)");
            timeline::record(format!("load kernel {file}, {entry}{where_}"), 0, began);
        }
        Ok(Function { raw, shared: DEFAULT_SHARED, used: false })
    }

    fn compile(&self, file: &str, ptx: &str) -> Result<Module, CudaError> {
        let failed = |reason: String, log: String| CudaError::Module { file: file.to_owned(), reason, log };
        let image = CString::new(ptx).map_err(|error| failed(error.to_string(), String::new()))?;
        self.context.bind()?;
        load_ptx(&image).map(Module).map_err(|(error, log)| failed(reason(error), log))
    }

    /// Loads the PTX of a test under a name that no embedded file has, unless it is already loaded.
    pub(crate) fn add_test_module(&self, file: &'static str, ptx: &str) -> Result<(), CudaError> {
        let mut files = lock(&self.files);
        let file_entry = files.entry(file).or_default();
        if file_entry.test_module.is_none() {
            file_entry.test_module = Some(self.compile(file, ptx)?);
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
        let modules = std::mem::take(&mut *lock(&self.modules));
        let tests = lock(&self.files).drain().filter_map(|(_, file)| file.test_module).collect::<Vec<_>>();
        for Module(module) in modules.into_iter().chain(tests) {
            self.context.destroy(|| {
                // SAFETY: loaded by `compile` and unloaded only here; the device has waited for its kernels.
                unsafe { result::module::unload(module) }
            });
        }
    }
}
