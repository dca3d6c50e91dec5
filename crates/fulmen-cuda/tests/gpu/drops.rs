//! Dropping things while the device is busy, and in any order.

use fulmen_core::{BinaryCall, DeviceMemory, KernelDispatch, Program};
use fulmen_cuda::CudaDispatcher;
use fulmen_testkit::example::Example;

use crate::{bits, gpu};

/// Keeps the device busy for some milliseconds; returns the memory that it works in.
fn busy(cuda: &mut CudaDispatcher) -> u64 {
    let n_elements = 8 << 20;
    let x = cuda.alloc(4 * n_elements).unwrap();
    for _ in 0..400 {
        cuda.dispatch_add(&BinaryCall { a: x, b: x, output: x, n_elements }).unwrap();
    }
    x
}

/// The example layer and its captured program.
fn captured(cuda: &mut CudaDispatcher) -> (Example, Program, fulmen_core::ReplayId) {
    let layer = Example::new(cuda, fulmen_core::DType::Q4_K, 4).unwrap();
    let program = layer.graph.check().unwrap();
    let id = cuda.prepare(&program).unwrap().expect("programs are captured");
    (layer, program, id)
}

#[test]
fn freeing_and_dropping_wait_for_running_work() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let (layer, program, id) = captured(&mut cuda);
    program.run(&mut cuda).unwrap();
    let expected = layer.read(&mut cuda).unwrap();
    for round in 0..6 {
        let mut other = gpu.dispatcher();
        let (other_layer, _, other_id) = captured(&mut other);
        let x = busy(&mut other);
        other.replay(other_id).unwrap();
        match round {
            // Free memory in use, release a running program, or drop everything at once.
            0 => other.free(x).unwrap(),
            1 => other.release(other_id),
            2 => assert_eq!(bits(&other_layer.read(&mut other).unwrap()).len(), expected.len()),
            _ => {}
        }
        drop(other);
        cuda.replay(id).unwrap();
        assert_eq!(bits(&layer.read(&mut cuda).unwrap()), bits(&expected), "round {round}");
    }
    assert!(cuda.synchronize().is_ok());
}

#[test]
fn everything_can_be_dropped_in_any_order() {
    let orders = |n: usize| -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> = vec![Vec::new()];
        for item in 0..n {
            let insert = |order: &Vec<usize>| -> Vec<Vec<usize>> {
                (0..=order.len())
                    .map(|at| {
                        let mut order = order.clone();
                        order.insert(at, item);
                        order
                    })
                    .collect()
            };
            all = all.iter().flat_map(insert).collect();
        }
        all
    };
    let orders = orders(4);
    assert_eq!(orders.len(), 24);
    for order in orders {
        let Some(gpu) = gpu() else { return };
        let (mut first, mut second) = (gpu.dispatcher(), gpu.dispatcher());
        let (_, _, id) = captured(&mut first);
        first.replay(id).unwrap();
        let x = second.alloc(4096).unwrap();
        second.dispatch_add(&BinaryCall { a: x, b: x, output: x, n_elements: 1024 }).unwrap();
        let mark = first.mark().unwrap();
        let mut things: Vec<Option<Box<dyn std::any::Any>>> =
            vec![Some(Box::new(first)), Some(Box::new(second)), Some(Box::new(mark)), Some(Box::new(gpu))];
        for at in order {
            things[at] = None;
        }
    }
}
