//! On the CPU.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{EngineOptions, Request, Shutdown, TextEngine, TextEvent, TextFinish, TextRequest};
use fulmen_model::tokenizer::Special;
use fulmen_model::{LoadOptions, Model};

use crate::scenario::{Storm, answers, driver, prefix_hits_change_nothing, small_model};

static STORY: &[u8] = include_bytes!("../../../fulmen-cli/assets/story.gguf");

fn story() -> Model {
    let device = Box::new(CpuDispatcher::with_threads(2));
    Model::from_bytes(Arc::new(STORY), device, LoadOptions::default()).unwrap()
}

fn few_pages() -> EngineOptions {
    EngineOptions { context: 512, max_sequences: 8, pages: 14, max_rows: 192, ..EngineOptions::default() }
}

#[test]
fn one_request_at_a_time_gives_the_tokens_of_a_session() {
    let model = story();
    let tokenizer = model.tokenizer().unwrap();
    let options = EngineOptions { max_sequences: 4, context: 256, max_rows: 8, ..EngineOptions::default() };
    let prompts = ["Once upon a time", "One day a dog", "Lily", "The sun was", "Once upon a time there"];
    let prompts: Vec<Vec<u32>> =
        prompts.iter().map(|text| tokenizer.encode_prompt(text, Special::AsText)).collect();
    let alone = prompts.iter().map(|prompt| {
        let mut session = model.session().unwrap();
        let mut tokens = vec![session.draw(0, prompt).unwrap()];
        tokens.extend(session.decode(&[0], 23).unwrap().remove(0));
        tokens
    });
    let alone: Vec<Vec<u32>> = alone.collect();
    let mut driver = driver(&model, &options);
    for (prompt, alone) in prompts.into_iter().zip(alone) {
        let request = Request { use_prefix_cache: false, ..Request::new(prompt, 24) };
        assert_eq!(answers(&mut driver, vec![request])[0].tokens, alone);
    }
}

#[test]
fn a_storm_gives_equal_bits_in_batch_invariant_mode() {
    for (recipe, cache) in [("q8_0", DType::F16), ("q4_k_m", DType::Q8_0), ("f16", DType::F32)] {
        let model = small_model(recipe, Box::new(CpuDispatcher::with_threads(2)));
        let options = EngineOptions { batch_invariant: true, cache, ..few_pages() };
        let requests = if recipe == "q8_0" { 200 } else { 60 };
        let storm = Storm { requests, max_tokens: 24, sampled: true, options, seed: 3, near_tie: 0.0 };
        let stats = storm.run(&model);
        assert!(stats.dropped > 0 && stats.cancelled > 0 && stats.prefix_cache.hits > 10, "{stats:?}");
    }
}

#[test]
fn a_storm_swaps_to_the_host_and_back() {
    let model = small_model("q8_0", Box::new(CpuDispatcher::with_threads(2)));
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, ..few_pages() };
    let storm = Storm { requests: 60, max_tokens: 24, sampled: true, options, seed: 4, near_tie: 0.0 };
    let stats = storm.run(&model);
    assert!(stats.swapped_out > 0 && stats.cancelled > 0, "{stats:?}");
}

#[test]
fn a_storm_gives_the_tokens_of_running_alone() {
    let model = small_model("q8_0", Box::new(CpuDispatcher::with_threads(2)));
    let options = few_pages();
    let storm = Storm { requests: 100, max_tokens: 24, sampled: false, options, seed: 5, near_tie: 4e-2 };
    let stats = storm.run(&model);
    assert!(stats.dropped > 0 && stats.prefix_cache.hits > 10, "{stats:?}");
}

#[test]
fn logits_after_a_prefix_hit_are_the_cold_ones() {
    let model = small_model("q4_k_m", Box::new(CpuDispatcher::with_threads(2)));
    let options = EngineOptions { context: 512, max_sequences: 4, ..EngineOptions::default() };
    prefix_hits_change_nothing(&model, &options, 1e-2);
    let options = EngineOptions { batch_invariant: true, ..options };
    prefix_hits_change_nothing(&model, &options, 0.0);
}

#[test]
fn a_device_without_invariant_kernels_says_so() {
    let model = small_model("q8_0", Box::new(fulmen_wgpu::WgpuDispatcher::open(0).unwrap()));
    let options = EngineOptions { batch_invariant: true, ..EngineOptions::default() };
    let error = TextEngine::new(&model, &options).err().unwrap().to_string();
    assert!(error.contains("batch-invariant") && error.contains("wgpu"), "{error}");
}

#[test]
fn text_ends_at_stop_strings_end_tokens_and_limits() {
    let model = story();
    let options = EngineOptions { context: 256, ..EngineOptions::default() };
    let engine = TextEngine::new(&model, &options).unwrap();
    let request =
        |max_tokens| TextRequest { max_tokens, ..TextRequest::new(engine.encode("Once upon a time")) };
    let (whole, usage) = engine.submit(request(u32::MAX)).unwrap().finish(|_| ()).unwrap();
    assert!(whole.len() > 100 && usage.prompt_tokens == 5, "{whole}");
    let mut session = model.session().unwrap();
    let expected = session.generate("Once upon a time", &Default::default()).unwrap().finish(|_| ()).unwrap();
    assert_eq!(whole[..40], expected.text[..40]);

    let word = whole.split_whitespace().nth(8).unwrap().to_owned();
    let stop = TextRequest { stop: vec![word.clone()], ..request(u32::MAX) };
    let events: Vec<TextEvent> = engine.submit(stop).unwrap().collect();
    let text: String = events
        .iter()
        .map(|event| match event {
            TextEvent::Piece { text, .. } | TextEvent::Finished { text, .. } => text.as_str(),
            TextEvent::Failed(error) => panic!("{error}"),
        })
        .collect();
    assert_eq!(text, whole[..whole.find(&word).unwrap()]);
    let Some(TextEvent::Finished { reason, usage, .. }) = events.last() else { panic!("{events:?}") };
    assert_eq!((reason, usage.prompt_tokens), (&TextFinish::StopString(word), 5));

    let logprobs = TextRequest { logprobs: Some(3), ..request(2) };
    let events: Vec<TextEvent> = engine.submit(logprobs).unwrap().collect();
    let TextEvent::Piece { token, .. } = &events[0] else { panic!("{events:?}") };
    assert!(token.top.len() == 3 && token.logprob == Some(token.top[0].1), "{token:?}");
    assert!(matches!(&events[2], TextEvent::Finished { reason: TextFinish::MaxTokens, .. }), "{events:?}");
    let empty = TextRequest { prompt: Vec::new(), ..request(1) };
    assert!(matches!(engine.submit(empty).unwrap().next(), Some(TextEvent::Failed(_))));
    let stats = engine.shutdown(Shutdown::Drain).unwrap();
    assert_eq!((stats.finished, stats.cancelled), (2, 1));
}
