//! What a captured program refuses, and that it makes nothing when it is replayed.

use fulmen_core::{
    BackendError, ComputeGraph, DType, DeviceMemory, KernelDispatch, OpParams, Program, ReplayId, TensorOp,
};
use fulmen_wgpu::WgpuDispatcher;

use crate::{dispatcher, get, put, source};

/// `out = silu(x) + x`, in two ops.
fn program(x: u64, out: u64, n: u32) -> Program {
    let mut graph = ComputeGraph::new();
    let leaf = graph.add_leaf(x, [n, 1, 1, 0]);
    let silu = graph.add_op(TensorOp::Silu, out, [n, 1, 1, 0], vec![leaf], OpParams::default());
    graph.add_op(TensorOp::Add, out, [n, 1, 1, 0], vec![silu, leaf], OpParams::default());
    graph.check().unwrap()
}

fn prepared(wgpu: &mut WgpuDispatcher, x: u64, out: u64) -> ReplayId {
    wgpu.prepare(&program(x, out, 4)).unwrap().expect("programs are captured")
}

#[test]
fn a_replay_is_one_pass_and_one_submission_and_makes_nothing() {
    let mut wgpu = dispatcher();
    let (x, out) = (put(&mut wgpu, &[1f32, -2.0, 3.0, 0.0]), put(&mut wgpu, &[0f32; 4]));
    let id = prepared(&mut wgpu, x, out);
    assert_eq!(wgpu.captured_dispatches(id), Some(2));
    let expected = [1f32, -2.0, 3.0, 0.0].map(|x| x / (1.0 + (-x).exp()) + x);
    let close = |got: Vec<f32>| got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
    // Nothing ran so far.
    assert_eq!(get::<f32>(&mut wgpu, out, 4), [0.0; 4]);
    wgpu.replay(id).unwrap();
    assert!(close(get(&mut wgpu, out, 4)));
    let gpu = wgpu.device().clone();
    let before = gpu.stats();
    for _ in 0..5 {
        assert_eq!(wgpu.replay(id).unwrap(), 1);
    }
    assert!(close(get(&mut wgpu, out, 4)));
    let done = gpu.stats().since(&before);
    // The last one is read in the submission that runs it.
    assert_eq!((done.submissions, done.passes, done.dispatches), (5, 5, 10), "{done:?}");
    let made = [done.buffers, done.bind_groups, done.shader_modules, done.pipelines_compiled];
    assert_eq!(made, [0; 4], "{done:?}");
    // Kernels can be timed; the program runs as it would.
    if let Some(times) = wgpu.replay_timed(id).unwrap() {
        assert_eq!(times.iter().map(|kernel| &*kernel.name).collect::<Vec<_>>(), ["swish", "add"]);
        assert_eq!(times.iter().map(|kernel| kernel.calls.clone()).collect::<Vec<_>>(), [0..1, 1..2]);
    }
    let before = gpu.stats();
    // Waiting submits what is left.
    wgpu.replay(id).unwrap();
    wgpu.synchronize().unwrap();
    assert_eq!(gpu.stats().since(&before).passes, 1);
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, BackendError>, words: &str) {
    let message = source(&result.unwrap_err());
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_program_whose_memory_is_gone_is_refused() {
    let mut wgpu = dispatcher();
    let (x, out) = (put(&mut wgpu, &[1f32; 4]), put(&mut wgpu, &[0f32; 4]));
    refused(wgpu.replay(ReplayId(7)), "there is no program of this number");
    let (id, other) = (prepared(&mut wgpu, x, out), prepared(&mut wgpu, x, out));
    wgpu.replay(id).unwrap();
    // What was let go still runs if it was asked for before.
    wgpu.release(id);
    assert!(get::<f32>(&mut wgpu, out, 1)[0] > 1.7);
    refused(wgpu.replay(id), "there is no program of this number");
    wgpu.free(x).unwrap();
    refused(wgpu.replay(other), "was freed");
}

#[test]
fn a_program_that_fails_while_it_is_captured_leaves_the_device_usable() {
    let mut wgpu = dispatcher();
    let (x, out) = (put(&mut wgpu, &[1f32; 4]), put(&mut wgpu, &[0f32; 4]));
    let error = wgpu.prepare(&program(x, 0x10, 4)).unwrap_err();
    assert!(source(&error).contains("not inside an allocation"), "{error}");
    let id = prepared(&mut wgpu, x, out);
    wgpu.replay(id).unwrap();
    assert!(get::<f32>(&mut wgpu, out, 1)[0] > 1.7);
    assert!(wgpu.prepare(&ComputeGraph::new().check().unwrap()).unwrap().is_none());
}

#[test]
fn blocks_in_plain_memory_are_put_in_order_again_when_they_were_written() {
    let mut wgpu = dispatcher();
    let block = |value: f32| fulmen_core::quant::quantize_to_vec(DType::Q8_0, &[value; 32]).unwrap();
    let (x, w) = (put(&mut wgpu, &[1f32; 32]), put(&mut wgpu, &block(2.0)));
    let out = put(&mut wgpu, &[0f32]);
    let mut graph = ComputeGraph::new();
    let leaf = graph.add_leaf(x, [32, 1, 1, 0]);
    let params = OpParams { weight_ptr: w, weight_qtype: Some(DType::Q8_0), ..OpParams::default() };
    graph.add_op(TensorOp::MulMat, out, [1, 32, 1, 0], vec![leaf], params);
    let program = graph.check().unwrap();
    let near = |got: Vec<f32>, expected: f32| assert!((got[0] - expected).abs() < 0.5, "{got:?}");
    program.run(&mut wgpu).unwrap();
    near(get(&mut wgpu, out, 1), 64.0);
    let id = wgpu.prepare(&program).unwrap().expect("programs are captured");
    wgpu.write(w, &block(3.0)).unwrap();
    refused(wgpu.replay(id), "were written since");
    program.run(&mut wgpu).unwrap();
    near(get(&mut wgpu, out, 1), 96.0);
}
