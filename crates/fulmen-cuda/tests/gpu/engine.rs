//! An engine with a small model: many requests give the tokens of running alone, launched and replayed.

use fulmen_engine::EngineOptions;

use crate::engine_scenario::{Storm, prefix_hits_change_nothing, small_model};
use crate::gpu;

#[test]
fn a_storm_gives_the_tokens_of_running_alone() {
    let Some(gpu) = gpu() else { return };
    for (recipe, near_tie) in [("f16", 2e-2), ("q8_0", 1e-1), ("q4_k_m", 2e-1)] {
        for eager in [false, true] {
            let model = small_model(recipe, Box::new(gpu.dispatcher()));
            let options = EngineOptions {
                context: 512,
                max_sequences: 8,
                pages: 14,
                eager,
                ..EngineOptions::default()
            };
            let storm = Storm { requests: 100, max_tokens: 24, sampled: false, options, seed: 8, near_tie };
            let stats = storm.run(&model);
            let preempted = stats.dropped > 0 && stats.cancelled > 0;
            assert!(preempted && stats.prefix_cache.hits > 5, "{recipe}: {stats:?}");
        }
    }
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
