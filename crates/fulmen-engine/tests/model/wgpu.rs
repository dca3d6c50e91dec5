//! Through wgpu, on a software adapter where there is no other.

use fulmen_engine::EngineOptions;
use fulmen_wgpu::WgpuDispatcher;

use crate::scenario::{Storm, prefix_hits_change_nothing, small_model};

#[test]
fn a_storm_gives_the_tokens_of_running_alone() {
    let model = small_model("f32", Box::new(WgpuDispatcher::open(0).unwrap()));
    let options =
        EngineOptions { context: 384, max_sequences: 4, pages: 9, max_rows: 320, ..EngineOptions::default() };
    let storm = Storm { requests: 10, max_tokens: 6, sampled: false, options, seed: 6, near_tie: 2e-2 };
    let stats = storm.run(&model);
    assert!(stats.prefix_cache.hits > 0, "{stats:?}");
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let model = small_model("q8_0", Box::new(WgpuDispatcher::open(0).unwrap()));
    let options = EngineOptions { context: 384, max_sequences: 2, max_rows: 64, ..EngineOptions::default() };
    prefix_hits_change_nothing(&model, &options, 2e-2);
}
