//! Layers with a sliding window, which have KV pages of their own.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::pages::GroupKind;
use fulmen_engine::{Device, EngineOptions, Event, LoadOptions, Model, Progress, Request};
use fulmen_wgpu::WgpuDispatcher;

use crate::scenario::{
    Reference, Storm, driver, preset_file, preset_model, small_model, window_hits_change_nothing,
    window_model,
};

const PRESETS: [(&str, &str); 2] = [("tiny-gemma3", "q8_0"), ("tiny-gpt-oss", "mxfp4_moe")];

fn cpu() -> Device {
    Box::new(CpuDispatcher::with_threads(2))
}

fn full() -> bool {
    std::env::var_os("FULMEN_TEST_FULL").is_some()
}

/// Sequences hold up to three pages of everything and two of the window.
fn few_pages() -> EngineOptions {
    EngineOptions {
        context: 512,
        max_sequences: 6,
        pages: 11,
        window_pages: 8,
        max_rows: 256,
        ..EngineOptions::default()
    }
}

/// Pages of a window that are in use.
fn window_pages_in_use(driver: &fulmen_engine::Driver<fulmen_engine::model::ModelDevice>) -> u32 {
    let group = driver.scheduler().stats().groups[1];
    assert!(matches!(group.kind, GroupKind::Window { positions: 40 }), "{group:?}");
    group.pages - group.free
}

#[test]
fn a_storm_gives_equal_bits_with_pages_of_windows() {
    for (preset, recipe) in PRESETS {
        let model = window_model(preset, recipe, cpu());
        for (cache, host_memory) in [(DType::F16, 0), (DType::Q8_0, 64 << 20)] {
            let options = EngineOptions { batch_invariant: true, cache, host_memory, ..few_pages() };
            let storm = Storm { requests: 60, max_tokens: 40, sampled: true, options, seed: 3 };
            let stats = storm.equal_bits(&model);
            assert!(stats.cancelled > 0 && stats.prefix_cache.hits > 5, "{preset}: {stats:?}");
            assert!(stats.prefix_cache.window_evictions > 0, "{preset}: {stats:?}");
            assert_eq!((stats.swapped_out > 0, stats.dropped > 0), (host_memory > 0, host_memory == 0));
        }
    }
}

/// Two layers of Gemma 3 both have a window, so full attention has no layer. The layers of Gemma 4 share KV
/// caches, and those with a window have heads of another size.
#[test]
fn models_of_windows_alone_and_with_shared_caches_give_equal_bits() {
    for (preset, layers) in [("tiny-gemma3", 2), ("tiny-gemma4", 9)] {
        let model = preset_model((preset, layers), "q8_0", cpu());
        let options = EngineOptions { batch_invariant: true, ..few_pages() };
        let storm = Storm { requests: 40, max_tokens: 40, sampled: true, options, seed: 3 };
        let stats = storm.equal_bits(&model);
        assert!(stats.window_group().is_some() && stats.prefix_cache.hits > 5, "{preset}: {stats:?}");
    }
}

/// The first device has layers with a window alone, the last one of each group.
#[test]
fn a_storm_on_two_devices_swaps_the_pages_of_both_groups() {
    let file = Arc::new(preset_file(("tiny-gemma3", 7), "q8_0"));
    let model = Model::from_source_split(file, vec![(cpu(), 3), (cpu(), 4)], LoadOptions::default()).unwrap();
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, ..few_pages() };
    let storm = Storm { requests: 30, max_tokens: 30, sampled: true, options, seed: 4 };
    let stats = storm.equal_bits(&model);
    assert!(stats.swapped_out > 0 && stats.window_group().is_some(), "{stats:?}");
}

#[test]
fn a_storm_on_a_gpu_gives_equal_bits_with_pages_of_windows() {
    for (preset, recipe) in PRESETS.into_iter().rev().take(if full() { 2 } else { 1 }) {
        let model = window_model(preset, recipe, Box::new(WgpuDispatcher::open(0).unwrap()));
        let options = EngineOptions { batch_invariant: true, max_sequences: 4, ..few_pages() };
        let requests = if full() { 60 } else { 5 };
        let storm = Storm { requests, max_tokens: 6, sampled: true, options, seed: 6 };
        let stats = storm.equal_bits(&model);
        assert_eq!(stats.groups[1].pages, 8, "{stats:?}");
    }
}

#[test]
fn logits_after_a_prefix_hit_with_windows_are_the_cold_ones() {
    for (preset, recipe) in PRESETS {
        hits_change_nothing(&window_model(preset, recipe, cpu()));
    }
}

#[test]
fn logits_after_a_prefix_hit_with_windows_are_the_cold_ones_on_a_gpu() {
    for (preset, recipe) in PRESETS.into_iter().rev().take(if full() { 2 } else { 1 }) {
        hits_change_nothing(&window_model(preset, recipe, Box::new(WgpuDispatcher::open(0).unwrap())));
    }
}

fn hits_change_nothing(model: &Model) {
    let options =
        EngineOptions { context: 1024, max_sequences: 2, max_rows: 256, ..EngineOptions::default() };
    window_hits_change_nothing(model, &options, 2e-2);
    let options = EngineOptions { batch_invariant: true, ..options };
    window_hits_change_nothing(model, &options, 0.0);
}

/// Compared with a session, whose layers share contiguous pages.
#[test]
fn a_storm_gives_the_tokens_of_running_alone_with_pages_of_windows() {
    let model = window_model("tiny-gemma3", "f32", cpu());
    let storm = Storm { requests: 40, max_tokens: 40, sampled: false, options: few_pages(), seed: 5 };
    let stats = storm.near(&model, &Reference::windows("tiny-gemma3", "f32"));
    assert!(stats.prefix_cache.hits > 5 && stats.copied_pages > 0, "{stats:?}");
}

/// Chunks are a page long here: a sequence never has more than that and the page with its window.
#[test]
fn pages_behind_the_window_are_freed_while_a_sequence_runs() {
    let model = window_model("tiny-gemma3", "q8_0", cpu());
    let options =
        EngineOptions { context: 2048, max_sequences: 2, max_rows: 128, ..EngineOptions::default() };
    let options = EngineOptions { prefix_cache: false, ..options };
    let mut driver = driver(&model, &options);
    let prompt = (0..1500).map(|at| at * 7 % 300).collect();
    driver.submit(Request::new(prompt, 100), std::time::Duration::ZERO).unwrap();
    let (mut most, mut decoding) = (0, 0);
    while driver.step(std::time::Duration::ZERO) == Progress::Busy {
        most = most.max(window_pages_in_use(&driver));
        if driver.scheduler().stats().decode_rows > 0 {
            decoding = decoding.max(window_pages_in_use(&driver));
        }
    }
    assert!(matches!(driver.take_events().last(), Some((_, Event::Finished { .. }))));
    assert_eq!((most, decoding), (2, 2));
    assert_eq!(driver.scheduler().stats().groups[0].pages, 2 * 17);
    driver.scheduler().counted_back().unwrap();
}

#[test]
fn models_without_windows_or_with_wide_ones_have_one_group() {
    let groups = |model: &Model, context| {
        let options = EngineOptions { context, max_sequences: 2, ..EngineOptions::default() };
        options.scheduler(model).unwrap().groups.iter().map(|group| group.kind).collect::<Vec<_>>()
    };
    assert_eq!(groups(&small_model("q8_0", cpu()), 1024), [GroupKind::Full]);
    let gemma = window_model("tiny-gemma3", "q8_0", cpu());
    assert_eq!(groups(&gemma, 256), [GroupKind::Full], "two pages, which a window of 40 may touch");
    assert_eq!(groups(&gemma, 384), [GroupKind::Full, GroupKind::Window { positions: 40 }]);
}

/// The same memory holds more tokens.
#[test]
fn memory_is_divided_between_the_groups() {
    let model = window_model("tiny-gemma3", "q8_0", cpu());
    let options =
        EngineOptions { context: 2048, max_sequences: 4, memory: 8 << 20, ..EngineOptions::default() };
    let groups = options.scheduler(&model).unwrap().groups;
    let device = driver(&model, &options);
    let bytes = device.device().unwrap().cache_bytes();
    // One page more in each group for inactive rows.
    assert!(bytes > 7 << 20 && bytes < 9 << 20, "{bytes} bytes");
    assert!(groups[1].pages >= 8 && 2 * groups[1].pages < groups[0].pages, "{groups:?}");
}
