//! Launches kernels that are not embedded, for tests.

use crate::dispatch::CudaDispatcher;
use crate::error::CudaError;
use crate::queue::Launch;

impl CudaDispatcher {
    /// Launches one thread of a kernel with one integer argument.
    ///
    /// # Safety
    /// The kernel may do anything.
    #[doc(hidden)]
    pub unsafe fn launch_test_kernel(&mut self, ptx: &str, entry: &str, arg: u64) -> Result<(), CudaError> {
        const FILE: &str = "test kernel";
        self.device().modules.add_test_module(FILE, ptx)?;
        self.queue.launch(&Launch::new(FILE, entry, 1, 1), &arg)
    }
}
