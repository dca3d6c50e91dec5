//! Hybrid models on ranks: each has some of the key heads of the delta nets, with their value heads and
//! states.

use std::sync::Arc;

use fulmen_engine::{
    Device, EngineOptions, LoadOptions, Model, Request, Sampling, SamplingParams, TensorParallel,
};
use fulmen_model::arch::{Config, Sharding, split_fused};
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_wgpu::WgpuDispatcher;

use super::scenario::{answers, driver, hybrid_hits_change_nothing};
use super::tiny::{HYBRIDS, QWEN35, Tiny, TinyShape};
use super::{cpu, logits, nmse, on_ranks, options, story, whole};

fn hybrids() -> [TinyShape; 3] {
    HYBRIDS.map(|shape| TinyShape { vocabulary: 120, ..shape })
}

#[test]
fn two_ranks_give_the_logits_and_tokens_of_one_device() {
    for shape in hybrids() {
        let tiny = Tiny::new(shape, 11);
        let (one, two) = (whole(&tiny), on_ranks(&tiny, 2));
        let found = nmse(&logits(&two), &logits(&one));
        assert!(found < 1e-10, "{}: {found}", shape.arch);
        assert!(found > 0.0, "{}: sums of parts round differently", shape.arch);
        let tokens = story(&mut two.session().unwrap());
        assert_eq!(tokens, story(&mut one.session().unwrap()), "{}", shape.arch);
    }
}

#[test]
fn two_gpus_give_the_logits_of_one_cpu() {
    let gpu = || Box::new(WgpuDispatcher::open(0).unwrap()) as Device;
    for shape in hybrids() {
        let tiny = Tiny::new(shape, 12);
        let devices = TensorParallel::new(vec![gpu(), gpu()]);
        let model = Model::from_source_sharded(Arc::new(tiny.clone()), devices, options()).unwrap();
        let one = whole(&tiny);
        let found = nmse(&logits(&model), &logits(&one));
        assert!(found < 1e-6, "{}: {found}", shape.arch);
        let tokens = story(&mut model.session().unwrap());
        assert_eq!(tokens, story(&mut one.session().unwrap()), "{}", shape.arch);
    }
}

/// A file of a small preset, with the delta nets of large models: 16 key heads and 32 value heads.
fn preset(name: &str, layers: usize) -> Arc<dyn ModelSource> {
    let shape = ModelShape { layers, context: 8192, ..ModelShape::preset(name).unwrap() };
    Arc::new(Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap())
}

#[test]
fn four_ranks_divide_files_of_every_hybrid() {
    for name in ["tiny-qwen3next", "tiny-qwen35", "tiny-qwen35moe"] {
        let file = preset(name, 4);
        let one = Model::from_source(file.clone(), cpu(), LoadOptions::default()).unwrap();
        let run = |model: &Model| model.session().unwrap().logits(0, &[1, 5, 9, 200, 17, 3]).unwrap();
        let expected = run(&one);
        for ranks in [2, 4] {
            let devices = TensorParallel::new((0..ranks).map(|_| cpu()).collect());
            let model = Model::from_source_sharded(file.clone(), devices, LoadOptions::default()).unwrap();
            let found = nmse(&run(&model), &expected);
            assert!(found < 1e-6, "{name} on {ranks} ranks: {found}");
        }
    }
}

fn requests() -> Vec<Request> {
    let prompt = |n: u32| (0..150 + 40 * n).map(|i| (i * 31 + n / 2) % 500).collect::<Vec<u32>>();
    let sampling = |n: u32| match n % 2 {
        0 => Sampling::GREEDY,
        _ => Sampling { temperature: 0.8, top_k: 9, seed: n.into(), ..Sampling::GREEDY },
    };
    let request = |n| Request { sampling: SamplingParams::new(sampling(n)), ..Request::new(prompt(n), 12) };
    (0..6).map(request).collect()
}

/// With few pages, so that requests wait and are preempted.
#[test]
fn an_engine_on_ranks_gives_the_tokens_of_one_device() {
    let engine =
        EngineOptions { context: 512, max_sequences: 4, pages: 9, max_rows: 96, ..EngineOptions::default() };
    for name in ["tiny-qwen3next", "tiny-qwen35"] {
        let file = preset(name, 4);
        let on = |ranks: usize| {
            let devices = TensorParallel::new((0..ranks).map(|_| cpu()).collect());
            Model::from_source_sharded(file.clone(), devices, LoadOptions::default()).unwrap()
        };
        let expected = answers(&mut driver(&on(1), &engine), requests());
        for ranks in [2, 4] {
            let found = answers(&mut driver(&on(ranks), &engine), requests());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.tokens, expected.tokens, "{name} on {ranks} ranks");
            }
        }
    }
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let options =
        EngineOptions { batch_invariant: true, context: 1024, max_sequences: 4, ..EngineOptions::default() };
    let devices = TensorParallel::new(vec![cpu(), cpu()]);
    let model =
        Model::from_source_sharded(preset("tiny-qwen35", 4), devices, LoadOptions::default()).unwrap();
    hybrid_hits_change_nothing(&model, &options, 0.0);
}

/// A rank has the heads, the channels of the convolution and the states of its part.
#[test]
fn a_rank_has_its_part_of_a_delta_net() {
    let file = split_fused(preset("tiny-qwen35", 4)).unwrap();
    let config = Config::read(file.as_ref()).unwrap();
    let sharding = Sharding::new(&config, file.as_ref(), 4).unwrap();
    for rank in 0..4 {
        let local = sharding.config(rank);
        let heads = local.delta_net.unwrap().heads;
        assert_eq!((heads.n_k_heads, heads.n_v_heads), (4, 8));
        let states = |config: &Config| config.delta_net.unwrap().state_widths();
        assert_eq!(states(&local).map(|width| 4 * width), states(&config));
        let source = sharding.source(file.clone(), rank).unwrap();
        let shape_of = |name: &str| source.tensor(name).unwrap().dims().to_vec();
        assert_eq!(shape_of("blk.0.attn_qkv.weight"), [128, 2048]);
        assert_eq!(shape_of("blk.0.ssm_conv1d.weight"), [4, 2048]);
        assert_eq!(shape_of("blk.0.ssm_out.weight"), [1024, 128]);
        assert_eq!(shape_of("blk.0.ssm_a"), [8]);
        assert_eq!(shape_of("blk.0.ssm_norm.weight"), [128]);
        let all: u64 = source.tensors().iter().map(|info| info.bytes() as u64).sum();
        assert_eq!(all, sharding.rank_bytes(file.as_ref()));
        // Value heads share key heads in turn: 16 apart are those of one key head.
        let floats = |source: &dyn ModelSource, name: &str| -> Vec<f32> {
            bytemuck::pod_collect_to_vec((*source.data(name).unwrap()).as_ref())
        };
        let (part, whole) = (floats(source.as_ref(), "blk.0.ssm_a"), floats(file.as_ref(), "blk.0.ssm_a"));
        let first = 4 * rank as usize;
        assert_eq!(part, [&whole[first..first + 4], &whole[first + 16..first + 20]].concat());
    }
}

#[test]
fn key_heads_that_do_not_divide_are_named() {
    let tiny = Tiny::new(TinyShape { vocabulary: 120, ..QWEN35 }, 11);
    let refused = Sharding::new(&Config::read(&tiny).unwrap(), &tiny, 4).unwrap_err().to_string();
    let expected =
        "the 2 key heads of its delta nets are not a multiple of 4; possible numbers of ranks: 1, 2";
    assert!(refused.ends_with(expected), "{refused}");
}
