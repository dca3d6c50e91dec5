//! The example layer, as a compute graph with addresses, against f64.

use fulmen_core::*;
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::example::Example;

#[test]
fn a_layer_with_real_numbers_matches_f64() {
    let seed = fulmen_testkit::seed();
    for (dtype, tolerance) in
        [(DType::F32, 1e-12), (DType::F16, 1e-12), (DType::Q4_K, 1e-4), (DType::Q8_0, 1e-4)]
    {
        let mut cpu = CpuDispatcher::new();
        let layer = Example::new(&mut cpu, dtype, seed).unwrap();
        assert_eq!(execute_graph(&layer.graph, &mut cpu).unwrap(), 6);
        let out = layer.read(&mut cpu).unwrap();
        let nmse = layer.nmse(&out).unwrap();
        assert!(nmse <= tolerance, "{dtype}, seed {seed}: {nmse:e}");

        // Again, timed: the same bits.
        let timed = execute_graph_timed(&layer.graph, &mut cpu).unwrap();
        assert_eq!(timed.n_launches, 6);
        let again = layer.read(&mut cpu).unwrap();
        assert_eq!(bytemuck::cast_slice::<f32, u32>(&out), bytemuck::cast_slice::<f32, u32>(&again));
    }
}

/// Graphs that pass the check but whose addresses are not this device's, are too short, or overlap.
#[test]
fn wrong_addresses_are_errors_and_the_next_run_gives_the_same_bits() {
    let mut cpu = CpuDispatcher::new();
    let layer = Example::new(&mut cpu, DType::Q4_K, 3).unwrap();
    execute_graph(&layer.graph, &mut cpu).unwrap();
    let first = layer.read(&mut cpu).unwrap();

    type Break = fn(&mut ComputeGraph);
    let cases: &[(Break, &str)] = &[
        (|g| g.nodes[0].data_ptr = 0x10, "node 1 (RmsNorm): the input: 24576 bytes at 0x10 are not inside"),
        (|g| g.nodes[2].params.weight_ptr += 144, "node 2 (MulMat): the weight: 1327104 bytes at"),
        (|g| g.nodes[3].data_ptr += 2, "node 3 (MulMat): the output: "),
        (|g| g.nodes[6].data_ptr = g.nodes[5].data_ptr + 256, "node 6 (Add): the output: 24576 bytes"),
        (
            |g| g.nodes[4].data_ptr = g.nodes[1].data_ptr + 1024,
            "node 4 (MulMat): the output overlaps the input",
        ),
    ];
    for (damage, message) in cases {
        let mut graph = layer.graph.clone();
        damage(&mut graph);
        let error = execute_graph(&graph, &mut cpu).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    execute_graph(&layer.graph, &mut cpu).unwrap();
    let again = layer.read(&mut cpu).unwrap();
    assert_eq!(bytemuck::cast_slice::<f32, u32>(&first), bytemuck::cast_slice::<f32, u32>(&again));
}
