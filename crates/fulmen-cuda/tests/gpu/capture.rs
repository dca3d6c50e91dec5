//! Captures: which calls are errors, and that a capture always ends.

use std::sync::Arc;

use fulmen_core::{
    AddRmsNormCall, ArgMaxCall, BackendError, BinaryCall, CopyCall, DeviceMemory, KernelDispatch, ReplayId,
};
use fulmen_cuda::{CudaDevice, CudaDispatcher, CudaOptions};

use crate::gpu;

fn upload(cuda: &mut CudaDispatcher, values: &[f32]) -> u64 {
    let ptr = cuda.alloc(4 * values.len()).unwrap();
    cuda.write(ptr, bytemuck::cast_slice(values)).unwrap();
    ptr
}

fn read(cuda: &mut CudaDispatcher, ptr: u64) -> [f32; 2] {
    let mut out = [0f32; 2];
    cuda.read(ptr, bytemuck::bytes_of_mut(&mut out)).unwrap();
    out
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, BackendError>, words: &str) {
    let error = result.unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    let message = format!("{error}: {source}");
    assert!(message.contains(words), "{message}");
}

#[test]
fn calls_that_a_capture_does_not_allow_are_errors_and_the_capture_continues() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let (x, y) = (upload(&mut cuda, &[1.0, 2.0]), upload(&mut cuda, &[0.0; 2]));
    let add = BinaryCall { a: x, b: y, output: y, n_elements: 2 };
    cuda.dispatch_add(&add).unwrap();

    cuda.begin_capture().unwrap();
    let capturing = "is not allowed while a program is being captured";
    refused(cuda.alloc(64), capturing);
    refused(cuda.free(x), capturing);
    refused(cuda.write(x, &[0; 8]), capturing);
    refused(cuda.read(x, &mut [0; 8]), capturing);
    refused(cuda.import(Arc::new(vec![0u8; 8])), capturing);
    refused(cuda.synchronize(), capturing);
    refused(cuda.begin_capture(), capturing);
    let unknown = cuda.replay(ReplayId(99)).unwrap_err();
    assert!(matches!(unknown, BackendError::Replay { .. }), "{unknown:?}");
    assert_eq!(cuda.dispatch_add(&add).unwrap(), 1);
    // Addresses are checked as usual.
    let wild = cuda.dispatch_copy(&CopyCall { input: 0x10, output: y, bytes: 4 });
    assert!(matches!(wild, Err(BackendError::Address { .. })), "{wild:?}");
    let id = cuda.end_capture().unwrap();
    refused(cuda.end_capture(), "no capture was started");

    // Only the one add that was allowed is recorded, and nothing ran.
    assert_eq!(cuda.captured_nodes(id), Some(1));
    assert_eq!(read(&mut cuda, y), [1.0, 2.0]);
    cuda.replay(id).unwrap();
    cuda.replay(id).unwrap();
    assert_eq!(read(&mut cuda, y), [3.0, 6.0]);
    // A program whose memory was freed is an error.
    cuda.free(x).unwrap();
    refused(cuda.replay(id), "was freed");
    cuda.release(id);
    refused(cuda.replay(id), "there is no program");
}

#[test]
fn missing_scratch_memory_is_an_error_and_does_not_end_the_capture() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let n = 1 << 20;
    let (x, out) = (cuda.alloc(4 * n).unwrap(), cuda.alloc(4).unwrap());
    cuda.begin_capture().unwrap();
    // A split row needs scratch memory, which was not allocated before.
    let call = ArgMaxCall { input: x, output: out, m: 1, n: n as u32 };
    refused(cuda.dispatch_argmax(&call), "growing scratch memory");
    let _ = cuda.end_capture();
    cuda.write(x, &vec![0; 4 * n]).unwrap();
    cuda.dispatch_argmax(&call).unwrap();
    let mut token = [1u8; 4];
    cuda.read(out, &mut token).unwrap();
    assert_eq!(token, [0; 4]);
}

#[test]
fn dropping_a_dispatcher_during_a_capture_does_not_affect_others() {
    let Some(gpu) = gpu() else { return };
    for _ in 0..3 {
        let mut cuda = gpu.dispatcher();
        let x = upload(&mut cuda, &[1.0, 2.0]);
        let call = BinaryCall { a: x, b: x, output: x, n_elements: 2 };
        cuda.dispatch_add(&call).unwrap();
        assert_eq!(read(&mut cuda, x), [2.0, 4.0]);
        cuda.begin_capture().unwrap();
        cuda.dispatch_add(&call).unwrap();
    }
}

#[test]
fn the_device_is_usable_after_a_failed_capture() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let x = upload(&mut cuda, &[1.0, 2.0]);
    cuda.begin_capture().unwrap();
    // The sum and the output must not overlap.
    let call = AddRmsNormCall { a: x, b: x, gamma: x, sum: x, output: x, width: 2, rows: 1, epsilon: 1e-6 };
    assert!(matches!(cuda.dispatch_add_rms_norm(&call), Err(BackendError::Overlap { .. })));
    let _ = cuda.end_capture();
    assert_eq!(read(&mut cuda, x), [1.0, 2.0]);
}

#[test]
fn capturing_can_be_disabled() {
    let Some(gpu) = gpu() else { return };
    let options = CudaOptions { capture: false, ..CudaOptions::default() };
    let device = CudaDevice::open(0, options).unwrap();
    let mut cuda = CudaDispatcher::new(&device).unwrap();
    let layer = fulmen_testkit::example::Example::new(&mut cuda, fulmen_core::DType::F32, 1).unwrap();
    assert_eq!(cuda.prepare(&layer.graph.check().unwrap()).unwrap(), None);
    drop((cuda, device, gpu));
}
