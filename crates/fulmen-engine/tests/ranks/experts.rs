//! Mixtures whose experts are divided by expert, because their columns do not divide.

use std::sync::Arc;

use fulmen_core::{DType, PlanOptions};
use fulmen_engine::{Device, EngineOptions, Model, Request, Sampling, SamplingParams, TensorParallel};
use fulmen_model::arch::{Config, GraphSpec, Sharding, Step};
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_wgpu::WgpuDispatcher;

use super::scenario::{answers, driver};
use super::tiny::{GPT_OSS, QWEN3_MOE, Tiny, TinyShape};
use super::{logits, nmse, on_ranks, options, story, whole};

/// An odd width, and 12 experts, of which a row has 3: whole ones divide among 2, 3 and 4 ranks.
const BY_EXPERT: TinyShape =
    TinyShape { heads: 12, kv_heads: 12, vocabulary: 120, inner: 97, experts: Some((12, 3)), ..QWEN3_MOE };
/// The same with biases of all projections.
const WITH_BIASES: TinyShape = TinyShape { arch: GPT_OSS.arch, ..BY_EXPERT };
/// Of 96 columns in blocks of 32, no rank of two can have a half.
const QUANTIZED: TinyShape = TinyShape {
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    inner: 96,
    experts: Some((8, 3)),
    dtype: DType::Q8_0,
    ..QWEN3_MOE
};

#[test]
fn whole_experts_on_ranks_give_the_logits_and_tokens_of_one_device() {
    let mut grouped = Tiny::new(BY_EXPERT, 11);
    // Groups of three experts, which no number of ranks but 4 leaves whole.
    grouped.metadata.set("qwen3moe.expert_group_count", 4u32);
    grouped.metadata.set("qwen3moe.expert_group_used_count", 2u32);
    let [plain, biased] = [BY_EXPERT, WITH_BIASES].map(|shape| Tiny::new(shape, 11));
    for (name, tiny) in [("plain", plain), ("with biases", biased), ("in groups", grouped)] {
        let one = whole(&tiny);
        let (expected, tokens) = (logits(&one), story(&mut one.session().unwrap()));
        for ranks in 2..=4 {
            let model = on_ranks(&tiny, ranks);
            let found = nmse(&logits(&model), &expected);
            assert!(found < 1e-10, "{} on {ranks} ranks: {found}", name);
            assert!(found > 0.0, "{}: sums of parts round differently", name);
            assert_eq!(story(&mut model.session().unwrap()), tokens, "{} on {ranks} ranks", name);
        }
    }
}

#[test]
fn blocks_that_do_not_divide_are_no_obstacle() {
    let tiny = Tiny::new(QUANTIZED, 11);
    let found = nmse(&logits(&on_ranks(&tiny, 2)), &logits(&whole(&tiny)));
    assert!(found < 1e-3, "{found}");
}

#[test]
fn two_gpus_with_whole_experts_give_the_logits_of_one_cpu() {
    let gpu = || Box::new(WgpuDispatcher::open(0).unwrap()) as Device;
    for shape in [BY_EXPERT, WITH_BIASES] {
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

#[test]
fn an_engine_with_whole_experts_on_ranks_gives_the_tokens_of_one_device() {
    let tiny = Tiny::new(BY_EXPERT, 13);
    let engine = EngineOptions { context: 200, max_sequences: 4, max_rows: 64, ..EngineOptions::default() };
    let requests = || -> Vec<Request> {
        // Prompts of several chunks, some with a prefix in common.
        let prompt = |n: u32| (0..70 + 9 * n).map(|i| (i * 31 + n / 2) % 120).collect::<Vec<u32>>();
        let sampling = |n: u32| match n % 2 {
            0 => Sampling::GREEDY,
            _ => Sampling { temperature: 0.8, top_k: 9, seed: n.into(), ..Sampling::GREEDY },
        };
        let request =
            |n| Request { sampling: SamplingParams::new(sampling(n)), ..Request::new(prompt(n), 12) };
        (0..6).map(request).collect()
    };
    let expected = answers(&mut driver(&whole(&tiny), &engine), requests());
    for ranks in [2, 3] {
        let found = answers(&mut driver(&on_ranks(&tiny, ranks), &engine), requests());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.tokens, expected.tokens, "{ranks} ranks");
        }
    }
}

/// The router is on every rank, and expert tensors and their biases are those of the rank.
#[test]
fn a_rank_has_its_experts() {
    let tiny = Arc::new(Tiny::new(WITH_BIASES, 11));
    let config = Config::read(tiny.as_ref()).unwrap();
    let sharding = Sharding::new(&config, tiny.as_ref(), 3).unwrap();
    for rank in 0..3 {
        let local = sharding.config(rank);
        assert_eq!(local.shard.unwrap().experts, Some(4));
        assert_eq!(local.experts.map(|experts| (experts.count, experts.inner)), Some((12, 97)));
        let source = sharding.source(tiny.clone(), rank).unwrap();
        let shape_of = |name: &str| source.tensor(name).unwrap().dims().to_vec();
        assert_eq!(shape_of("blk.1.ffn_gate_inp.weight"), [64, 12]);
        assert_eq!(shape_of("blk.1.ffn_up_exps.weight"), [64, 97, 4]);
        assert_eq!(shape_of("blk.1.ffn_down_exps.weight"), [97, 64, 4]);
        assert_eq!(shape_of("blk.1.ffn_gate_exps.bias"), [97, 4]);
        assert_eq!(shape_of("blk.1.ffn_down_exps.bias"), [64, 4]);
        for (name, elements) in [("weight", 97 * 64), ("bias", 64)] {
            let name = format!("blk.1.ffn_down_exps.{name}");
            let (part, all) = (source.data(&name).unwrap(), tiny.data(&name).unwrap());
            let bytes = 4 * 4 * elements;
            assert_eq!((*part).as_ref(), &(*all).as_ref()[bytes * rank as usize..][..bytes], "{name}");
        }
        let all: u64 = source.tensors().iter().map(|info| info.bytes() as u64).sum();
        assert_eq!(all, sharding.rank_bytes(tiny.as_ref()));
        // As many collectives as with divided columns.
        let spec = GraphSpec::contiguous(Step::decode(1), DType::F16, 1, 64);
        let plan = local.graph(source.as_ref(), &spec).unwrap().plan(&PlanOptions::default()).unwrap();
        let reduces = plan.graph.ops.iter().filter(|node| node.op.name() == "all_reduce").count();
        assert_eq!(reduces, 1 + 2 * 2);
    }
    // Columns are divided where they can be.
    let even = Tiny::new(TinyShape { inner: 96, ..BY_EXPERT }, 11);
    let sharding = Sharding::new(&Config::read(&even).unwrap(), &even, 3).unwrap();
    assert_eq!(sharding.config(0).shard.unwrap().experts, None);
}

#[test]
fn experts_that_do_not_divide_either_are_refused() {
    let refused = |shape: TinyShape, ranks| {
        let tiny = Tiny::new(shape, 11);
        Sharding::new(&Config::read(&tiny).unwrap(), &tiny, ranks).unwrap_err().to_string()
    };
    let odd = refused(TinyShape { experts: Some((7, 3)), ..BY_EXPERT }, 2);
    let expected = "the 97 rows of \"blk.0.ffn_gate_exps.weight\" are not a multiple of 2, and whole \
                    experts are not possible: 3.5 of 7 for each rank, where a row has 3; possible numbers \
                    of ranks: 1";
    assert!(odd.ends_with(expected), "{odd}");
    let few = refused(TinyShape { experts: Some((8, 3)), ..BY_EXPERT }, 4);
    assert!(few.contains("are not possible: 2 of 8 for each rank, where a row has 3"), "{few}");
    assert!(few.ends_with("possible numbers of ranks: 1, 2"), "{few}");
}

/// The experts of Qwen3-30B-A3B are 768 wide: three blocks of Q4_K, whose columns no number of ranks divides.
#[test]
fn qwen3_30b_a3b_divides_in_blocks_of_256() {
    let shape = ModelShape { layers: 1, ..ModelShape::preset("qwen3-30b-a3b").unwrap() };
    let source = Synth::new(shape, "Q4_K_M".parse().unwrap(), 1).source().unwrap();
    let config = Config::read(&source).unwrap();
    assert_eq!(Sharding::possible(&config, &source), [1, 2, 4, 8, 16]);
    let sharding = Sharding::new(&config, &source, 2).unwrap();
    assert_eq!(sharding.config(1).shard.unwrap().experts, Some(64));
    let all: u64 = source.tensors().iter().map(|info| info.bytes() as u64).sum();
    // But for norms and the router, and KV heads that ranks share, a rank has its part of everything.
    assert!(sharding.rank_bytes(&source) < all / 2 + (2 << 20), "{} of {all}", sharding.rank_bytes(&source));
    assert!(Sharding::new(&config, &source, 16).unwrap().rank_bytes(&source) < all / 16 + (2 << 20));
}
