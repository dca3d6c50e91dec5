//! The example layer with `execute_graph`, eager and replayed.

use fulmen_core::{DType, KernelDispatch, execute_graph};
use fulmen_testkit::example::Example;

use crate::{bits, gpu};

#[test]
fn the_example_layer_is_correct_and_its_replay_gives_the_same_bits() {
    let Some(gpu) = gpu() else { return };
    let seed = fulmen_testkit::seed();
    for (dtype, tolerance) in [
        (DType::F32, 1e-10),
        (DType::F16, 1e-6),
        (DType::Q4_K, 1e-4),
        (DType::Q6_K, 1e-4),
        (DType::Q8_0, 1e-4),
    ] {
        let mut cuda = gpu.dispatcher();
        let layer = Example::new(&mut cuda, dtype, seed).unwrap();
        assert!(execute_graph(&layer.graph, &mut cuda).unwrap() >= 6);
        let eager = layer.read(&mut cuda).unwrap();
        let nmse = layer.nmse(&eager).unwrap();
        assert!(nmse <= tolerance, "{dtype}, seed {seed}: {nmse:e}");

        cuda.synchronize().unwrap();
        let program = layer.graph.check().unwrap();
        let id = cuda.prepare(&program).unwrap().expect("programs are captured");
        fulmen_core::DeviceMemory::write(&mut cuda, layer.output, &vec![0xFF; 4 * eager.len()]).unwrap();
        assert_eq!(cuda.replay(id).unwrap(), 1);
        let replayed = layer.read(&mut cuda).unwrap();
        assert_eq!(bits(&replayed), bits(&eager), "{dtype}, seed {seed}");
        cuda.release(id);
    }
}
