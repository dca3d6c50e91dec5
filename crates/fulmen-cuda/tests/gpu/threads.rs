//! Several threads on one device.

use std::sync::Barrier;

use fulmen_core::{DType, DeviceMemory, KernelDispatch};
use fulmen_testkit::example::Example;

use crate::{bits, gpu};

#[test]
fn dispatchers_on_several_threads_do_not_affect_each_other() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let expected = [1, 2, 3].map(|seed| {
        let layer = Example::new(&mut cuda, DType::Q8_0, seed).unwrap();
        layer.graph.check().unwrap().run(&mut cuda).unwrap();
        bits(&layer.read(&mut cuda).unwrap())
    });
    drop(cuda);
    let start = Barrier::new(expected.len());
    std::thread::scope(|scope| {
        for (seed, expected) in (1..).zip(&expected) {
            let (start, gpu) = (&start, &gpu);
            scope.spawn(move || {
                let mut cuda = gpu.dispatcher();
                let layer = Example::new(&mut cuda, DType::Q8_0, seed).unwrap();
                let program = layer.graph.check().unwrap();
                start.wait();
                // Captures run while other threads launch, allocate, free, copy and synchronize.
                for round in 0..30 {
                    let id = cuda.prepare(&program).unwrap().expect("programs are captured");
                    let room = cuda.alloc(1 << 20).unwrap();
                    cuda.write(layer.output, &vec![0xFF; 4 * expected.len()]).unwrap();
                    match round % 2 {
                        0 => _ = cuda.replay(id).unwrap(),
                        _ => _ = program.run(&mut cuda).unwrap(),
                    }
                    assert_eq!(&bits(&layer.read(&mut cuda).unwrap()), expected, "seed {seed} round {round}");
                    cuda.free(room).unwrap();
                    cuda.release(id);
                }
            });
        }
    });
}

#[test]
fn a_dispatcher_can_move_to_another_thread() {
    let Some(gpu) = gpu() else { return };
    let mut cuda = gpu.dispatcher();
    let layer = Example::new(&mut cuda, DType::F16, 9).unwrap();
    let program = layer.graph.check().unwrap();
    let id = cuda.prepare(&program).unwrap().expect("programs are captured");
    cuda.replay(id).unwrap();
    let here = bits(&layer.read(&mut cuda).unwrap());
    let there = std::thread::spawn(move || {
        cuda.replay(id).unwrap();
        bits(&layer.read(&mut cuda).unwrap())
    });
    assert_eq!(there.join().unwrap(), here);
}
