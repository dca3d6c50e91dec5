//! A kernel that accesses an illegal address destroys the context: every later call is an error that says so.
//! Tested in a process of its own.

use std::process::Command;

use fulmen_core::{BackendError, DeviceMemory, KernelDispatch};
use fulmen_cuda::{CudaDispatcher, CudaError};

use crate::gpu;

/// Set in the child process, which loses its context.
const CHILD: &str = "FULMEN_TEST_LOSES_ITS_CONTEXT";

/// Writes to the address that it gets.
const PTX: &str = "// A test kernel
.version 7.0
.target sm_80
.address_size 64
.visible .entry poke(.param .u64 poke_param_0)
{
    .reg .b64 %rd<3>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [poke_param_0];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, 42;
    st.global.u32 [%rd2], %r1;
    ret;
}
";

#[track_caller]
fn lost<T: std::fmt::Debug>(result: Result<T, BackendError>) {
    let error = result.unwrap_err();
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<CudaError>());
    assert!(matches!(source, Some(CudaError::ContextLost { .. })), "{error:?}");
}

#[test]
fn an_illegal_address_is_an_error_from_then_on() {
    let Some(gpu) = gpu() else { return };
    if std::env::var_os(CHILD).is_none() {
        drop(gpu);
        let this = std::env::current_exe().unwrap();
        let name = "lost::an_illegal_address_is_an_error_from_then_on";
        let child =
            Command::new(this).args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let (mut cuda, mut other) = (gpu.dispatcher(), gpu.dispatcher());
    let (x, there) = (cuda.alloc(4).unwrap(), other.alloc(4).unwrap());
    // A valid address first: the kernel does write.
    // SAFETY: four bytes are allocated at the address, and nothing else uses them.
    unsafe { cuda.launch_test_kernel(PTX, "poke", x) }.unwrap();
    let mut word = [0; 4];
    cuda.read(x, &mut word).unwrap();
    assert_eq!(word, 42u32.to_le_bytes());

    // SAFETY: the illegal access is what this test is about.
    unsafe { cuda.launch_test_kernel(PTX, "poke", 0x10) }.unwrap();
    lost(cuda.synchronize());
    // Every later call fails, on every dispatcher of the device, and everything can still be dropped.
    lost(cuda.synchronize());
    lost(cuda.alloc(64));
    lost(cuda.write(x, &[0; 4]));
    lost(cuda.read(x, &mut word));
    lost(other.write(there, &[0; 4]));
    lost(other.synchronize());
    assert!(matches!(CudaDispatcher::new(&gpu.device), Err(CudaError::ContextLost { .. })));
    drop(cuda);
    drop(gpu);
}
