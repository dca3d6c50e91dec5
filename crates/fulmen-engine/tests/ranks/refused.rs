//! Models and devices that do not fit ranks are refused by name.

use std::sync::Arc;

use fulmen_core::{AllReduceCall, DType, DeviceMemory, OpCall, Program};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, Model, TensorParallel};
use fulmen_model::ModelError;
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_wgpu::WgpuDispatcher;

use super::tiny::{LLAMA, QWEN3, Tiny, TinyShape};
use super::{cpu, options};

fn refusal(source: Arc<dyn ModelSource>, devices: Vec<Device>) -> String {
    Model::from_source_sharded(source, TensorParallel::new(devices), options()).unwrap_err().to_string()
}

fn on(ranks: usize, source: Arc<dyn ModelSource>) -> String {
    refusal(source, (0..ranks).map(|_| cpu()).collect())
}

#[test]
fn what_does_not_divide_is_named() {
    let tiny = |shape| Arc::new(Tiny::new(shape, 11));
    let heads = on(3, tiny(LLAMA));
    let expected = "3 ranks cannot share the model: its 4 query heads are not a multiple of 3; \
                    possible numbers of ranks: 1, 2, 4";
    assert_eq!(heads, expected);
    let kv_heads = on(4, tiny(TinyShape { heads: 12, kv_heads: 3, ..LLAMA }));
    assert!(kv_heads.contains("its 3 KV heads are no multiple of 4, nor the reverse"), "{kv_heads}");
    let inner = on(4, tiny(TinyShape { heads: 4, kv_heads: 4, inner: 98, ..LLAMA }));
    assert!(inner.contains(r#"the 98 rows of "blk.0.ffn_gate.weight" are not a multiple of 4"#), "{inner}");
    assert!(inner.ends_with("possible numbers of ranks: 1, 2"), "{inner}");
    let block = TinyShape { heads: 6, kv_heads: 6, head_dim: 32, inner: 96, dtype: DType::Q8_0, ..QWEN3 };
    let block = on(2, tiny(block));
    let expected = r#"48 columns of "blk.0.ffn_down.weight" for each rank are not whole Q8_0 blocks of 32"#;
    assert!(block.contains(expected), "{block}");
    assert!(block.ends_with("possible numbers of ranks: 1, 3"), "{block}");
    let none = on(0, tiny(LLAMA));
    assert!(none.starts_with("0 ranks cannot share the model: there can be 1 to 64"), "{none}");
}

#[test]
fn an_architecture_that_does_not_divide_is_named() {
    let shape = ModelShape::preset("tiny-gemma4").unwrap();
    let file = Arc::new(Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap());
    let refused = on(2, file);
    let expected = "2 ranks cannot share the model: tensor parallelism of gemma4 is not supported; \
                    possible numbers of ranks: 1";
    assert_eq!(refused, expected);
}

#[test]
fn devices_of_several_backends_are_refused() {
    let devices = vec![cpu(), Box::new(WgpuDispatcher::open(0).unwrap()) as Device];
    let refused = refusal(Arc::new(Tiny::new(LLAMA, 11)), devices);
    assert_eq!(refused, "the devices of ranks must be of one backend, is cpu, wgpu");
}

#[test]
fn tensors_that_no_rank_uses_are_refused() {
    let mut extra = Tiny::new(LLAMA, 11);
    extra.put("blk.9.mystery.weight", &[64], DType::F32, &[0.0; 64]);
    let devices = TensorParallel::new(vec![cpu(), cpu()]);
    let refused = Model::from_source_sharded(Arc::new(extra), devices, options());
    assert!(matches!(refused, Err(ModelError::ExtraTensors { count: 1, .. })), "{refused:?}");
}

#[test]
fn a_device_alone_has_no_collectives_of_several_ranks() {
    let mut cpu = CpuDispatcher::with_threads(1);
    let at = cpu.alloc(16).unwrap();
    let program = |ranks| {
        let call = AllReduceCall { input: at, output: at, n_elements: 4, ranks };
        Program::check_calls([OpCall::AllReduce(call)]).unwrap()
    };
    assert_eq!(program(1).run(&mut cpu).unwrap(), 0, "nothing to do in place");
    let error = program(2).run(&mut cpu).unwrap_err().to_string();
    assert_eq!(error, "node 0 (AllReduce): cpu cannot run AllReduce of 2 ranks without a communicator");
}
