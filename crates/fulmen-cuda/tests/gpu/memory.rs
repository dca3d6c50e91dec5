//! Device memory: transfers, and running out of memory.

use fulmen_core::{BackendError, DeviceMemory, GraphBuilder, KernelDispatch, PlanOptions};
use fulmen_cuda::CudaDispatcher;

use crate::gpu;

#[test]
fn bytes_are_read_back_as_written() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    // Also more than all staging buffers hold.
    for bytes in [1, 3, 4096, (16 << 20) - 1, (16 << 20) + 1, (70 << 20) + 13] {
        let data: Vec<u8> = (0..bytes).map(|i| (i as u32).wrapping_mul(2_654_435_761) as u8 >> 3).collect();
        let ptr = cuda.alloc(bytes).unwrap();
        cuda.write(ptr, &data).unwrap();
        let mut back = vec![0; bytes];
        cuda.read(ptr, &mut back).unwrap();
        assert!(back == data, "{bytes}");
        // A part in the middle.
        let mut part = vec![0; bytes / 3];
        cuda.read(ptr + bytes as u64 / 2, &mut part).unwrap();
        assert!(part == data[bytes / 2..][..bytes / 3], "{bytes}");
        assert!(cuda.read(ptr + 1, &mut back).is_err());
        cuda.free(ptr).unwrap();
        assert!(cuda.free(ptr).is_err());
    }
    assert_eq!(cuda.memory_bytes(), 0);
}

#[track_caller]
fn out_of_memory<T: std::fmt::Debug>(result: Result<T, BackendError>, at_least: u64) {
    match result {
        Err(BackendError::OutOfMemory { needed, available: Some(available) }) => {
            assert!(needed >= at_least && available < needed, "{needed} {available}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn running_out_of_memory_is_an_error_that_says_how_much_is_free() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    out_of_memory(cuda.alloc(1 << 46), 1 << 46);
    assert!(matches!(cuda.alloc(usize::MAX), Err(BackendError::OutOfMemory { .. })));
    // Nothing leaks, and the device is still usable.
    let ptr = cuda.alloc(1 << 20).unwrap();
    cuda.write(ptr, &[7; 16]).unwrap();
    assert_eq!(cuda.memory_bytes(), 1 << 20);
}

/// Allocates device memory until `left` bytes are free.
fn fill(cuda: &mut CudaDispatcher, left: u64) -> Vec<u64> {
    let mut taken = Vec::new();
    let mut size = 1u64 << 36;
    while size >= 1 << 21 {
        while cuda.available_bytes().is_some_and(|free| free > left + size) {
            match cuda.alloc(size as usize) {
                Ok(ptr) => taken.push(ptr),
                Err(_) => break,
            }
        }
        size /= 2;
    }
    taken
}

#[test]
fn a_capture_without_scratch_memory_is_an_error_and_can_be_repeated() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    // The histograms of this many rows need 800 MB.
    let (rows, width) = (1 << 16, 1 << 10);
    let mut b = GraphBuilder::new();
    let x = b.input("x", rows, width).unwrap();
    let states = b.sample_states("states", rows).unwrap();
    let y = b.sample(x, states).unwrap();
    b.output("y", y).unwrap();
    let states = cuda.alloc(32 * rows as usize).unwrap();
    cuda.write(states, &vec![0; 32 * rows as usize]).unwrap();
    let mut bindings = fulmen_core::Bindings::new();
    bindings.set("states", states);
    let bound = b.finish().plan(&PlanOptions::default()).unwrap().bind(&mut cuda, &bindings).unwrap();

    let taken = fill(&mut cuda, 64 << 20);
    out_of_memory(cuda.prepare(bound.program()), 500 << 20);
    taken.into_iter().for_each(|ptr| cuda.free(ptr).unwrap());

    let id = cuda.prepare(bound.program()).unwrap().expect("programs are captured");
    bound.write_f32(&mut cuda, "x", &vec![0.5; (rows * width) as usize]).unwrap();
    cuda.replay(id).unwrap();
    assert!(bound.read_u32(&mut cuda, "y").unwrap().iter().all(|&token| token == 0));
}
