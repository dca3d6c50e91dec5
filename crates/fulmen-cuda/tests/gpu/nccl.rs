//! Collectives by NCCL, on one GPU: of one rank, and of two where NCCL allows it (2.30 or newer with
//! `NCCL_MULTI_RANK_GPU_ENABLE=1`). Without NCCL each test says that it was skipped; with
//! `FULMEN_REQUIRE_NCCL=1` it fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen_core::{
    AllGatherCall, AllReduceCall, Communicator, DeviceGroup, DeviceMemory, GroupSpec, KernelDispatch, OpCall,
    Program,
};
use fulmen_cuda::CudaDispatcher;
use fulmen_cuda::nccl::{NcclVersion, nccl_version};
use fulmen_engine::{Collectives, Device, LoadOptions, Model, SessionOptions, TensorParallel};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_testkit::device_or_say_so;

use crate::greedy::compare;
use crate::{Gpu, gpu};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A GPU, if there is NCCL.
fn gpu_with_nccl() -> Option<(Gpu, NcclVersion)> {
    let gpu = gpu()?;
    let version = device_or_say_so(nccl_version(), "FULMEN_REQUIRE_NCCL")?;
    Some((gpu, version))
}

fn new_group(device: &CudaDispatcher, ranks: u32, timeout: Duration) -> Arc<dyn DeviceGroup> {
    let group = device.device_group(&GroupSpec { ranks, timeout, id: None }).unwrap();
    assert_eq!(group.id().len(), 128);
    group
}

#[test]
fn one_rank_has_its_collectives_in_a_captured_program() {
    let Some((gpu, version)) = gpu_with_nccl() else { return };
    let mut device = gpu.dispatcher();
    let group = new_group(&device, 1, TIMEOUT);
    assert_eq!(group.describe(), format!("NCCL {version}"));
    device.join_group(&group, 0).unwrap();
    let values: Vec<f32> = (0..5120).map(|i| i as f32 * 0.5 - 7.0).collect();
    let [input, sum, all] = [(); 3].map(|()| device.alloc(4 * values.len()).unwrap());
    let calls = [
        OpCall::AllReduce(AllReduceCall { input, output: sum, n_elements: values.len(), ranks: 1 }),
        OpCall::AllReduce(AllReduceCall { input: sum, output: sum, n_elements: values.len(), ranks: 1 }),
        OpCall::AllGather(AllGatherCall { input: sum, output: all, m: 5, width: 1024, ranks: 1 }),
    ];
    let program = Program::check_calls(calls).unwrap();
    let id = device.prepare(&program).unwrap().unwrap();
    for round in 0..3 {
        let values: Vec<f32> = values.iter().map(|value| value + round as f32).collect();
        device.write(input, bytemuck::cast_slice(&values)).unwrap();
        assert_eq!(device.replay(id).unwrap(), 1, "one launch");
        let mut found = vec![0f32; values.len()];
        device.read(all, bytemuck::cast_slice_mut(&mut found)).unwrap();
        assert_eq!(found, values);
    }
    device.write(all, &vec![0; 4 * values.len()]).unwrap();
    program.run(&mut device).unwrap();
    let mut found = vec![0f32; values.len()];
    device.read(all, bytemuck::cast_slice_mut(&mut found)).unwrap();
    assert_eq!(found[1], values[1] + 2.0);
    let wrong = AllReduceCall { input, output: sum, n_elements: 4, ranks: 2 };
    let error = device.dispatch_all_reduce(&wrong).unwrap_err().to_string();
    assert!(error.contains("a collective of 2 ranks in a group of 1"), "{error}");
}

#[test]
fn the_host_exchanges_values_beside() {
    let Some((gpu, _)) = gpu_with_nccl() else { return };
    let mut device = gpu.dispatcher();
    let group = new_group(&device, 1, TIMEOUT);
    let rank: Arc<dyn Communicator> = device.join_group(&group, 0).unwrap();
    assert_eq!((rank.rank(), rank.size()), (0, 1));
    let mut values = [1.5, -2.0, 3.25];
    rank.all_reduce(&mut values).unwrap();
    assert_eq!(values, [1.5, -2.0, 3.25]);
    assert_eq!(rank.all_gather(&values).unwrap(), values);
    let mut bytes: Vec<u8> = (0..5000).map(|i| (i * 7) as u8).collect();
    let expected = bytes.clone();
    rank.broadcast(&mut bytes).unwrap();
    assert_eq!(bytes, expected);
    rank.barrier().unwrap();
    rank.abort("on purpose");
    assert_eq!(rank.barrier().unwrap_err().to_string(), "rank 0 failed: on purpose");
    rank.reset();
    assert!(!rank.is_lost(), "nothing had to be aborted");
    rank.barrier().unwrap();
}

#[test]
fn a_rank_that_does_not_join_is_not_waited_for_longer_than_the_timeout() {
    let Some((gpu, _)) = gpu_with_nccl() else { return };
    let mut device = gpu.dispatcher();
    let timeout = Duration::from_secs(2);
    let group = new_group(&device, 2, timeout);
    let began = Instant::now();
    let error = device.join_group(&group, 0).map(drop).unwrap_err().to_string();
    assert!(error.contains("not all 2 ranks have joined within 2s"), "{error}");
    assert!(began.elapsed() < 10 * timeout, "{:?}", began.elapsed());
    // The device can be used as before.
    let ptr = device.alloc(64).unwrap();
    device.write(ptr, &[7; 64]).unwrap();
    let mut found = [0; 64];
    device.read(ptr, &mut found).unwrap();
    assert_eq!(found, [7; 64]);
}

fn load(gpu: &Gpu, recipe: &str, ranks: u32) -> Model {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Arc::new(Synth::new(shape, recipe.parse().unwrap(), 11).file().unwrap());
    let session = SessionOptions { context: 96, chunk: 16, sequences: 2, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let device = || -> Device { Box::new(gpu.dispatcher()) };
    if ranks == 0 {
        return Model::from_source(file, device(), options).unwrap();
    }
    let devices = (0..ranks).map(|_| device()).collect();
    let parallel =
        TensorParallel { timeout: TIMEOUT, collectives: Collectives::Device, ..TensorParallel::new(devices) };
    Model::from_source_sharded(file, parallel, options).unwrap()
}

fn compare_ranks(gpu: &Gpu, ranks: u32) {
    let prompt: Vec<u32> = (0..21).map(|i| i * 37 % 1000).collect();
    for (recipe, bound) in [("f32", 1e-6), ("f16", 1e-5), ("q8_0", 2e-3)] {
        let (whole, divided) = (load(gpu, recipe, 0), load(gpu, recipe, ranks));
        let (mut first, mut second) = (whole.session().unwrap(), divided.session().unwrap());
        let steps = if bound < 1e-4 { 24 } else { 0 };
        compare(&mut first, &mut second, &prompt, steps, bound, &format!("{ranks} ranks, {recipe}"));
        let launches = second.step_launches().map_or(1, |launches| launches.launches);
        assert_eq!(launches, 1, "a decode step with its collectives is one launch");
        // Graphs use the communicator, which must not be freed before them.
        let began = Instant::now();
        drop((second, divided));
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }
}

#[test]
fn a_model_of_one_rank_gives_the_logits_of_the_whole_model() {
    let Some((gpu, _)) = gpu_with_nccl() else { return };
    compare_ranks(&gpu, 1);
}

#[test]
fn a_model_of_two_ranks_on_one_gpu_gives_the_logits_of_the_whole_model() {
    let Some((gpu, version)) = gpu_with_nccl() else { return };
    let enabled = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1");
    if version < NcclVersion(23_000) || !enabled {
        println!("skipped: NCCL {version}; 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1 is needed");
        return;
    }
    compare_ranks(&gpu, 2);
}
