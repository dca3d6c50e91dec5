//! Through wgpu, on a software adapter where there is no other.

use fulmen_core::DType;
use fulmen_engine::EngineOptions;
use fulmen_wgpu::WgpuDispatcher;

use crate::scenario::{
    Reference, Storm, expert_model, hybrid_model, mixed_prompts_are_those_of_sessions, mixed_steps,
    prefix_hits_change_nothing, small_model,
};

/// Whether all cases run: a software GPU takes seconds for each request.
fn full() -> bool {
    std::env::var_os("FULMEN_TEST_FULL").is_some()
}

#[test]
fn a_storm_gives_the_tokens_of_running_alone() {
    let model = small_model("f32", Box::new(WgpuDispatcher::open(0).unwrap()));
    let options =
        EngineOptions { context: 384, max_sequences: 4, pages: 9, max_rows: 320, ..EngineOptions::default() };
    let requests = if full() { 200 } else { 10 };
    let storm = Storm { requests, max_tokens: 6, sampled: false, options, seed: 6 };
    let stats = storm.near(&model, &Reference::new("f32"));
    assert!(stats.prefix_cache.hits > 0, "{stats:?}");
}

#[test]
fn a_storm_gives_equal_bits_in_batch_invariant_mode() {
    let kinds = [("q4_k_m", DType::F16, 200), ("q8_0", DType::Q8_0, 20), ("f16", DType::F32, 20)];
    for (recipe, cache, requests) in kinds.into_iter().take(if full() { 3 } else { 1 }) {
        let requests = if full() { requests } else { 5 };
        let model = small_model(recipe, Box::new(WgpuDispatcher::open(0).unwrap()));
        let options = EngineOptions {
            context: 384,
            max_sequences: 4,
            pages: 9,
            max_rows: 320,
            batch_invariant: true,
            cache,
            ..EngineOptions::default()
        };
        let storm = Storm { requests, max_tokens: 4, sampled: true, options, seed: 6 };
        let stats = storm.equal_bits(&model);
        assert!(stats.dropped > 0, "{recipe}: {stats:?}");
    }
}

#[test]
fn a_storm_of_experts_gives_equal_bits_in_batch_invariant_mode() {
    let kinds = [("tiny-qwen3moe", "q4_k_m"), ("tiny-gpt-oss", "mxfp4_moe")];
    for (preset, recipe) in kinds.into_iter().take(if full() { 2 } else { 1 }) {
        let model = expert_model(preset, recipe, Box::new(WgpuDispatcher::open(0).unwrap()));
        let options = EngineOptions {
            context: 384,
            max_sequences: 4,
            pages: 9,
            max_rows: 320,
            batch_invariant: true,
            ..EngineOptions::default()
        };
        let requests = if full() { 60 } else { 5 };
        let storm = Storm { requests, max_tokens: 4, sampled: true, options, seed: 6 };
        let stats = storm.equal_bits(&model);
        assert!(stats.dropped > 0, "{preset}: {stats:?}");
    }
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let model = small_model("q8_0", Box::new(WgpuDispatcher::open(0).unwrap()));
    let options = EngineOptions { context: 384, max_sequences: 2, max_rows: 64, ..EngineOptions::default() };
    prefix_hits_change_nothing(&model, &options, 2e-2);
    let options = EngineOptions { batch_invariant: true, ..options };
    prefix_hits_change_nothing(&model, &options, 0.0);
}

#[test]
fn prompts_of_hybrid_models_in_mixed_steps_are_those_of_sessions() {
    let model = hybrid_model("tiny-qwen35", "f32", Box::new(WgpuDispatcher::open(0).unwrap()));
    let options = EngineOptions { cache: DType::F32, ..mixed_steps() };
    mixed_prompts_are_those_of_sessions(&model, &options, &Reference::hybrid("tiny-qwen35", "f32"), 1e-3);
}

#[test]
fn logits_after_a_prefix_hit_of_a_hybrid_model_are_the_cold_ones() {
    let model = hybrid_model("tiny-qwen35", "q8_0", Box::new(WgpuDispatcher::open(0).unwrap()));
    let options = EngineOptions { context: 384, max_sequences: 2, max_rows: 64, ..EngineOptions::default() };
    let options = EngineOptions { batch_invariant: true, ..options };
    prefix_hits_change_nothing(&model, &options, 0.0);
}
