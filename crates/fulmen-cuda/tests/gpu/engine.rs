//! An engine with a small model: many requests give the tokens of running alone, launched and replayed.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_engine::{EngineOptions, LoadOptions, Model};
use fulmen_model::synth::{ModelShape, Synth};

use crate::engine_scenario::{
    Reference, Storm, expert_model, hybrid_model, mixed_prompts_are_those_of_sessions, mixed_steps,
    prefix_hits_change_nothing, small_model,
};
use crate::engine_scenario::{window_hits_change_nothing, window_model};
use crate::gpu;

/// Too few pages for as many sequences as run, so that some are preempted.
fn few_pages() -> EngineOptions {
    EngineOptions { context: 512, max_sequences: 8, pages: 14, ..EngineOptions::default() }
}

#[test]
fn a_storm_gives_the_tokens_of_running_alone() {
    let Some(gpu) = gpu() else { return };
    for recipe in ["f16", "q8_0", "q4_k_m"] {
        for eager in [false, true] {
            let model = small_model(recipe, Box::new(gpu.dispatcher()));
            let options = EngineOptions { eager, ..few_pages() };
            let storm = Storm { requests: 100, max_tokens: 24, sampled: false, options, seed: 8 };
            // With quantized weights one row rounds activations to 8 bits, and several rows to 16.
            let most = if recipe == "f16" { 20 } else { 40 };
            let stats = storm.near_but_for(most, &model, &Reference::new(recipe));
            let preempted = stats.dropped > 0 && stats.cancelled > 0;
            assert!(preempted && stats.prefix_cache.hits > 5, "{recipe}: {stats:?}");
        }
    }
}

#[test]
fn a_storm_gives_equal_bits_in_batch_invariant_mode() {
    let Some(gpu) = gpu() else { return };
    let kinds = [("q8_0", DType::F16), ("q4_k_m", DType::F16), ("q4_k_m", DType::Q8_0), ("f16", DType::F32)];
    for (recipe, cache) in kinds {
        let model = small_model(recipe, Box::new(gpu.dispatcher()));
        let options = EngineOptions { batch_invariant: true, cache, ..few_pages() };
        prefix_hits_change_nothing(&model, &options, 0.0);
        let storm = Storm { requests: 200, max_tokens: 24, sampled: true, options, seed: 3 };
        let stats = storm.equal_bits(&model);
        let preempted = stats.dropped > 0 && stats.cancelled > 0;
        assert!(preempted && stats.prefix_cache.hits > 5, "{recipe}, {cache}: {stats:?}");
    }
}

/// Three query heads per KV head: tiles of prefill attention have a number of rows that divides no page.
#[test]
fn a_storm_gives_equal_bits_where_tiles_divide_no_page() {
    let Some(gpu) = gpu() else { return };
    let shape = ModelShape { layers: 2, heads: 6, kv_heads: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, "q4_k_m".parse().unwrap(), 5).file().unwrap();
    let device = Box::new(gpu.dispatcher());
    let model = Model::from_source(Arc::new(file), device, LoadOptions::default()).unwrap();
    let options = EngineOptions { max_rows: 256, batch_invariant: true, ..few_pages() };
    prefix_hits_change_nothing(&model, &options, 0.0);
    let storm = Storm { requests: 200, max_tokens: 24, sampled: true, options, seed: 4 };
    let stats = storm.equal_bits(&model);
    assert!(stats.dropped > 0 && stats.prefix_cache.hits > 0, "{stats:?}");
}

#[test]
fn a_storm_of_experts_gives_equal_bits_in_batch_invariant_mode() {
    let Some(gpu) = gpu() else { return };
    for (preset, recipe) in [("tiny-qwen3moe", "q4_k_m"), ("tiny-gpt-oss", "mxfp4_moe")] {
        let model = expert_model(preset, recipe, Box::new(gpu.dispatcher()));
        let options = EngineOptions { batch_invariant: true, ..few_pages() };
        let storm = Storm { requests: 100, max_tokens: 24, sampled: true, options, seed: 3 };
        let stats = storm.equal_bits(&model);
        assert!(stats.dropped > 0, "{preset}: {stats:?}");
    }
}

#[test]
fn layers_with_windows_have_pages_of_their_own() {
    let Some(gpu) = gpu() else { return };
    let options = EngineOptions { window_pages: 10, max_rows: 256, ..few_pages() };
    for cache in [DType::F16, DType::Q8_0, DType::F32] {
        let model = window_model("tiny-gemma3", "q8_0", Box::new(gpu.dispatcher()));
        let options = EngineOptions { batch_invariant: true, cache, ..options.clone() };
        let context = EngineOptions { context: 1024, pages: 0, window_pages: 0, ..options.clone() };
        window_hits_change_nothing(&model, &context, 0.0);
        let storm = Storm { requests: 200, max_tokens: 40, sampled: true, options, seed: 3 };
        let stats = storm.equal_bits(&model);
        assert!(stats.dropped > 0 && stats.prefix_cache.window_evictions > 0, "{cache}: {stats:?}");
    }
    // Other bits may have other experts, whose tokens no error of the logits explains.
    let model = window_model("tiny-gpt-oss", "f16", Box::new(gpu.dispatcher()));
    let batch_invariant = EngineOptions { batch_invariant: true, ..options.clone() };
    let storm = Storm { requests: 100, max_tokens: 40, sampled: true, options: batch_invariant, seed: 8 };
    let stats = storm.equal_bits(&model);
    assert!(stats.prefix_cache.hits > 5, "{stats:?}");
    let model = window_model("tiny-gemma3", "f16", Box::new(gpu.dispatcher()));
    let storm = Storm { requests: 100, max_tokens: 40, sampled: false, options, seed: 8 };
    let stats = storm.near(&model, &Reference::windows("tiny-gemma3", "f16"));
    assert!(stats.prefix_cache.hits > 5, "{stats:?}");
}

/// With enough sequences that decode steps have inactive rows.
#[test]
fn a_storm_of_hybrid_models_gives_the_tokens_of_running_alone() {
    let Some(gpu) = gpu() else { return };
    let model = hybrid_model("tiny-qwen35", "f16", Box::new(gpu.dispatcher()));
    let options = EngineOptions { context: 512, max_sequences: 14, pages: 40, ..EngineOptions::default() };
    let storm = Storm { requests: 100, max_tokens: 40, sampled: false, options, seed: 5 };
    let stats = storm.near(&model, &Reference::hybrid("tiny-qwen35", "f16"));
    assert!(stats.decode_rows > 7 * stats.steps, "{stats:?}");
}

/// Chunks of rows beside walks, captured and not; and walks alone, batch-invariant. One other token 20
/// positions before the end changes log-probabilities by 0.02 to 0.5.
#[test]
fn prompts_of_hybrid_models_in_mixed_steps_are_those_of_sessions() {
    let Some(gpu) = gpu() else { return };
    let f32 = EngineOptions { cache: DType::F32, ..mixed_steps() };
    for preset in ["tiny-qwen35", "tiny-qwen3next"] {
        let reference = Reference::hybrid(preset, "f32");
        let model = hybrid_model(preset, "f32", Box::new(gpu.dispatcher()));
        for eager in [false, true] {
            let options = EngineOptions { eager, ..f32.clone() };
            mixed_prompts_are_those_of_sessions(&model, &options, &reference, 2e-2);
        }
    }
    let model = hybrid_model("tiny-qwen35", "f32", Box::new(gpu.dispatcher()));
    let options = EngineOptions { batch_invariant: true, ..f32 };
    mixed_prompts_are_those_of_sessions(&model, &options, &Reference::hybrid("tiny-qwen35", "f32"), 2e-2);
}

/// A delta net walks over rows there, whatever their number.
#[test]
fn a_storm_of_hybrid_models_gives_equal_bits_in_batch_invariant_mode() {
    let Some(gpu) = gpu() else { return };
    let model = hybrid_model("tiny-qwen35", "q8_0", Box::new(gpu.dispatcher()));
    let options = EngineOptions {
        context: 512,
        max_sequences: 8,
        pages: 14,
        batch_invariant: true,
        ..EngineOptions::default()
    };
    let storm = Storm { requests: 100, max_tokens: 24, sampled: true, options, seed: 3 };
    let stats = storm.equal_bits(&model);
    assert!(stats.cancelled > 0 && stats.prefix_cache.hits > 5, "{stats:?}");
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let Some(gpu) = gpu() else { return };
    for (recipe, tolerance) in [("f16", 2e-2), ("q4_k_m", 1e-1)] {
        let model = small_model(recipe, Box::new(gpu.dispatcher()));
        let options = EngineOptions { context: 512, max_sequences: 4, ..EngineOptions::default() };
        prefix_hits_change_nothing(&model, &options, tolerance);
    }
}
