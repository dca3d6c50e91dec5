//! Sessions on ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use fulmen_core::{DType, PlanOptions};
use fulmen_engine::{Device, LoadOptions, Model, TensorParallel};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, GraphSpec, Sharding, Step, split_fused};
use fulmen_model::source::ModelSource;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_wgpu::WgpuDispatcher;

use super::tiny::{LLAMA, QWEN3, QWEN3_MOE, Tiny, TinyShape};
use super::{DIVISIBLE, SESSION, logits, nmse, on_ranks, options, story, whole};

#[test]
fn any_number_of_ranks_gives_the_logits_of_one_device() {
    for shape in DIVISIBLE {
        let tiny = Tiny::new(shape, 11);
        let expected = logits(&whole(&tiny));
        for ranks in 1..=4 {
            let model = on_ranks(&tiny, ranks);
            assert_eq!((model.ranks(), model.config().heads.n_heads), (ranks as u32, shape.heads as u32));
            let found = nmse(&logits(&model), &expected);
            assert!(found < 1e-10, "{} of {} KV heads, {ranks} ranks: {found}", shape.arch, shape.kv_heads);
            assert!(ranks == 1 || found > 0.0, "{}: sums of parts round differently", shape.arch);
        }
    }
}

/// Small models of every architecture that divides, but for hybrid ones.
const PRESETS: [&str; 16] = [
    "tiny-llama-untied",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen3-untied",
    "tiny-gemma3",
    "tiny-mistral3",
    "tiny-phi",
    "tiny-granite",
    "tiny-smollm3",
    "tiny-olmo2",
    "tiny-olmo3",
    "tiny-olmoe",
    "tiny-qwen3moe",
    "tiny-gpt-oss",
    "tiny-glm4moe",
    "tiny-glm4moe-groups",
];

#[test]
fn all_architectures_that_divide_give_the_logits_of_one_device() {
    let mut divided = Vec::new();
    for name in PRESETS {
        let shape = ModelShape { layers: 2, ..ModelShape::preset(name).unwrap() };
        let file: Arc<dyn ModelSource> =
            Arc::new(Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap());
        let source = split_fused(file.clone()).unwrap();
        let config = Config::read(source.as_ref()).unwrap();
        for ranks in Sharding::possible(&config, source.as_ref()).into_iter().filter(|r| (2..=4).contains(r))
        {
            let load = LoadOptions::default;
            let one = Model::from_source(file.clone(), super::cpu(), load()).unwrap();
            let devices = TensorParallel::new((0..ranks).map(|_| super::cpu()).collect());
            let several = Model::from_source_sharded(file.clone(), devices, load()).unwrap();
            let run = |model: &Model| model.session().unwrap().logits(0, &[1, 5, 9, 200, 17, 3]).unwrap();
            let found = nmse(&run(&several), &run(&one));
            assert!(found < 1e-6, "{name} on {ranks} ranks: {found}");
            divided.push((config.architecture, ranks));
        }
    }
    assert_eq!(divided.len(), 2 * PRESETS.len(), "{divided:?}");
}

/// Logits of a prompt longer than the windows of OLMo 3, and what two sequences draw behind it and another.
fn prompt_and_tokens(model: &Model) -> (Vec<f32>, Vec<Vec<u32>>) {
    let mut session = model.session_with(SESSION).unwrap();
    let prompt: Vec<u32> = (0..50).map(|at| (at * 37 + 11) % 500).collect();
    let logits = session.logits(0, &prompt).unwrap();
    session.feed(0, &[7]).unwrap();
    session.feed(1, &prompt[9..20]).unwrap();
    (logits, session.decode(&[0, 1], 20).unwrap())
}

/// Ranks have parts of the rows that are normed: KV heads that divide, and of four ranks two with the same
/// one.
#[test]
fn norms_of_all_heads_together_give_the_logits_and_tokens_of_one_device() {
    let models = ["tiny-olmo2", "tiny-olmo3", "tiny-olmoe"].map(|name| {
        let shape = ModelShape::preset(name).unwrap();
        (name, Arc::new(Synth::new(shape, "f32".parse().unwrap(), 3).file().unwrap()))
    });
    for (name, file) in models {
        let one = Model::from_source(file.clone(), super::cpu(), LoadOptions::default()).unwrap();
        let (expected, tokens) = prompt_and_tokens(&one);
        let on = |device: fn() -> Device, ranks: u32| {
            let devices = TensorParallel::new((0..ranks).map(|_| device()).collect());
            let model = Model::from_source_sharded(file.clone(), devices, LoadOptions::default()).unwrap();
            let (logits, found) = prompt_and_tokens(&model);
            let error = nmse(&logits, &expected);
            assert!(error < 1e-6 && error > 0.0, "{name} on {ranks} ranks: {error}");
            assert_eq!(found, tokens, "{name} on {ranks} ranks");
        };
        on(super::cpu, 2);
        on(super::cpu, 4);
        on(wgpu, 2);
    }
}

#[test]
fn ranks_draw_the_tokens_of_one_device() {
    for shape in [DIVISIBLE[0], DIVISIBLE[4], DIVISIBLE[5], DIVISIBLE[6]] {
        let tiny = Tiny::new(shape, 11);
        let expected = story(&mut whole(&tiny).session().unwrap());
        assert!(
            expected[expected.len() - 5].iter().all(|token| token % 32 / 4 == 2),
            "the mask: {expected:?}"
        );
        for ranks in 2..=4 {
            let model = on_ranks(&tiny, ranks);
            let mut session = model.session().unwrap();
            assert_eq!(story(&mut session), expected, "{} on {ranks} ranks", shape.arch);
            let mut eager = SESSION;
            eager.eager = true;
            assert_eq!(story(&mut model.session_with(eager).unwrap()), expected);
        }
    }
}

fn wgpu() -> Device {
    Box::new(WgpuDispatcher::open(0).unwrap())
}

#[test]
fn two_gpus_give_the_logits_of_one_cpu() {
    let shapes = [LLAMA, TinyShape { heads: 6, kv_heads: 2, vocabulary: 102, ..QWEN3_MOE }];
    for shape in shapes {
        let tiny = Tiny::new(shape, 11);
        let devices = TensorParallel::new(vec![wgpu(), wgpu()]);
        let model = Model::from_source_sharded(Arc::new(tiny.clone()), devices, options()).unwrap();
        let one = whole(&tiny);
        let found = nmse(&logits(&model), &logits(&one));
        assert!(found < 1e-6, "{}: {found}", shape.arch);
        let mut session = model.session().unwrap();
        assert_eq!(story(&mut session), story(&mut one.session().unwrap()), "{}", shape.arch);
        // The step was captured in segments: each is one launch, and so is each collective.
        let launches = session.step_launches().unwrap();
        assert!(launches.launches > 2 * 2 && launches.kernels >= launches.launches, "{launches:?}");
    }
}

#[test]
fn quantized_ranks_are_as_close_as_their_activations_allow() {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::F16] {
        let shape = TinyShape { heads: 4, kv_heads: 2, head_dim: 32, inner: 128, dtype, ..QWEN3 };
        let tiny = Tiny::new(shape, 11);
        let expected = logits(&whole(&tiny));
        for ranks in [2, 4] {
            let found = nmse(&logits(&on_ranks(&tiny, ranks)), &expected);
            assert!(found < 1e-3, "{dtype} on {ranks} ranks: {found}");
        }
    }
}

/// A rank has its part of the weights and of the KV cache, and its graph the collectives of its layers.
#[test]
fn a_rank_has_its_part() {
    let shape = TinyShape { heads: 12, kv_heads: 6, vocabulary: 120, layers: 3, ..LLAMA };
    let tiny = Arc::new(Tiny::new(shape, 11));
    let config = Config::read(tiny.as_ref()).unwrap();
    let sharding = Sharding::new(&config, tiny.as_ref(), 3).unwrap();
    for rank in 0..3 {
        let local = sharding.config(rank);
        assert_eq!((local.heads.n_heads, local.heads.n_kv_heads, local.inner), (4, 2, 32));
        let source = sharding.source(tiny.clone(), rank).unwrap();
        let shape_of = |name: &str| source.tensor(name).unwrap().dims().to_vec();
        assert_eq!(shape_of("blk.1.attn_q.weight"), [64, 64]);
        assert_eq!(shape_of("blk.1.attn_v.weight"), [64, 32]);
        assert_eq!(shape_of("blk.1.attn_output.weight"), [64, 64]);
        assert_eq!(shape_of("blk.1.ffn_down.weight"), [32, 64]);
        assert_eq!(shape_of("token_embd.weight"), [64, 40]);
        assert!(source.tensor("output.weight").is_none(), "a tied head is the same part");
        let all: u64 = source.tensors().iter().map(|info| info.bytes() as u64).sum();
        assert_eq!(all, sharding.rank_bytes(tiny.as_ref()));
        let of = |name: &str| (*source.data(name).unwrap()).as_ref().to_vec();
        let whole = |name: &str| (*tiny.data(name).unwrap()).as_ref().to_vec();
        let (down, row) = (of("blk.2.ffn_down.weight"), 4 * 32 * rank as usize);
        assert_eq!(down[4 * 32..8 * 32], whole("blk.2.ffn_down.weight")[4 * 96 + row..4 * 96 + row + 4 * 32]);
        assert_eq!(
            of("token_embd.weight"),
            whole("token_embd.weight")[4 * 64 * 40 * rank as usize..][..4 * 64 * 40]
        );
        let spec = GraphSpec::contiguous(Step::decode(1), DType::F16, 1, 64);
        let plan = local.graph(source.as_ref(), &spec).unwrap().plan(&PlanOptions::default()).unwrap();
        let names: Vec<&str> = plan.graph.ops.iter().map(|node| node.op.name()).collect();
        assert_eq!(names.iter().filter(|name| **name == "all_reduce").count(), 1 + 2 * 3);
        assert_eq!(names.iter().filter(|name| **name == "all_gather").count(), 1);
    }
    let model = on_ranks(&tiny, 3);
    let bytes = model.rank_weight_bytes();
    // The constants of RoPE are no tensors of their own.
    assert!(bytes.iter().all(|&bytes| bytes.abs_diff(sharding.rank_bytes(tiny.as_ref())) < 100), "{bytes:?}");
    assert_eq!(model.weight_bytes(), bytes.iter().sum::<u64>());
}

#[test]
fn a_cancelled_step_leaves_a_session_as_it_was() {
    let model = on_ranks(&Tiny::new(DIVISIBLE[0], 11), 3);
    let mut session = model.session().unwrap();
    session.feed(0, &[1, 2, 3]).unwrap();
    session.cancel_flag().store(true, Ordering::Relaxed);
    assert!(matches!(session.draw(0, &[4, 5]), Err(ModelError::Cancelled)));
    assert!(matches!(session.decode(&[0], 2), Err(ModelError::Cancelled)));
    session.cancel_flag().store(false, Ordering::Relaxed);
    assert_eq!(session.tokens(0).unwrap(), [1, 2, 3]);
    // At any moment of a step, by another thread.
    let expected = model.session().unwrap().draw(0, &[1, 2, 3, 4, 5]).unwrap();
    let mut cancelled = 0;
    for wait in 0..40 {
        let flag = session.cancel_flag();
        let prompt: Vec<u32> = (0..100).map(|i| (i * wait + 3) % 101).collect();
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(u64::from(wait) * 100));
                flag.store(true, Ordering::Relaxed);
            });
            session.feed(1, &prompt)
        });
        session.cancel_flag().store(false, Ordering::Relaxed);
        match result {
            Ok(()) => session.truncate(1, 0).unwrap(),
            Err(error) => {
                assert!(matches!(error, ModelError::Cancelled), "{error}");
                assert!(session.tokens(1).unwrap().is_empty());
                cancelled += 1;
            }
        }
    }
    assert!(cancelled > 5, "{cancelled}");
    assert_eq!(session.draw(0, &[4, 5]).unwrap(), expected);
}

#[test]
fn sessions_of_one_model_take_turns() {
    let model = on_ranks(&Tiny::new(DIVISIBLE[3], 11), 2);
    let expected = story(&mut model.session().unwrap());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(story(&mut model.session().unwrap()), expected));
        }
    });
}

#[test]
fn a_profile_has_the_collectives() {
    let model = on_ranks(&Tiny::new(DIVISIBLE[0], 11), 2);
    let mut session = model.session().unwrap();
    session.feed(0, &[1]).unwrap();
    session.start_profile();
    session.decode(&[0], 2).unwrap();
    let rows = session.stop_profile().unwrap().rows();
    let count =
        |name: &str| -> u64 { rows.iter().filter(|row| row.name.contains(name)).map(|row| row.count).sum() };
    // The embedding and two in each layer; the largest logit of each rank and its token.
    assert_eq!((count("AllReduce"), count("AllGather")), (2 * (1 + 2 * 2), 2 * 2), "{rows:?}");
}
