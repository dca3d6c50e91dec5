//! A device that is lost: typed errors from then on, and a new device that works.

use fulmen_core::{BinaryCall, DeviceMemory, KernelDispatch};
use fulmen_wgpu::GpuError;

use crate::{dispatcher, get, put};

#[test]
fn every_call_says_that_the_device_is_lost() {
    let mut wgpu = dispatcher();
    let x = put(&mut wgpu, &[1f32; 4]);
    let call = BinaryCall { a: x, b: x, output: x, n_elements: 4 };
    wgpu.dispatch_add(&call).unwrap();
    wgpu.synchronize().unwrap();
    wgpu.device().wgpu_device().destroy();
    let lost = |error: fulmen_core::BackendError| {
        let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<GpuError>());
        assert!(matches!(source, Some(GpuError::DeviceLost { .. })), "{error:?}");
    };
    // The first call that waits notices it.
    lost(wgpu.dispatch_add(&call).and_then(|_| wgpu.synchronize()).unwrap_err());
    lost(wgpu.read(x, &mut [0; 16]).unwrap_err());
    lost(wgpu.write(x, &[0; 16]).unwrap_err());
    lost(wgpu.alloc(16).unwrap_err());
    let mut other = dispatcher();
    let y = put(&mut other, &[2f32; 4]);
    other.dispatch_add(&BinaryCall { a: y, b: y, output: y, n_elements: 4 }).unwrap();
    assert_eq!(get::<f32>(&mut other, y, 4), [4.0; 4]);
}
