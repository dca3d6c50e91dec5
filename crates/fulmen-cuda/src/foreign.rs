//! Kernels that are not of this crate, for tests.

use crate::dispatch::CudaDispatcher;
use crate::error::CudaError;
use crate::queue::Launch;

impl CudaDispatcher {
    /// Launches one thread of a kernel that takes one number.
    ///
    /// # Safety
    /// The kernel may do anything.
    #[doc(hidden)]
    pub unsafe fn launch_foreign(&mut self, ptx: &str, entry: &str, number: u64) -> Result<(), CudaError> {
        const FILE: &str = "foreign";
        self.device().modules.add_test_module(FILE, ptx)?;
        self.queue.launch(&Launch::new(FILE, entry, 1, 1), &number)
    }
}
