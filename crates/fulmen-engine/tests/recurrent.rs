//! Sessions of models with recurrent states: what goes back is run again from a state that was kept.

mod tiny;

use std::sync::atomic::Ordering;

use fulmen_core::DType;
use fulmen_engine::SessionOptions;
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, Stage};
use tiny::{HYBRIDS, Tiny, TinyShape, reference};

fn options() -> SessionOptions {
    SessionOptions { context: 64, sequences: 3, cache: DType::F32, chunk: 4, ..SessionOptions::default() }
}

fn tokens(n: usize, seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..n).map(|_| random.u32(..101)).collect()
}

#[track_caller]
fn close(got: &[f32], expected: &[f64], what: &str) {
    let error: f64 = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    let error = error / expected.iter().map(|b| b * b).sum::<f64>();
    assert!(error < 1e-9, "{what}: error {error:e}");
}

fn last(tiny: &Tiny, tokens: &[u32]) -> Vec<f64> {
    reference::logits(tiny, tokens).pop().unwrap()
}

#[test]
fn a_sequence_that_goes_back_is_run_again() {
    for shape in HYBRIDS {
        let tiny = Tiny::new(shape, 3);
        let mut session = tiny.load(options()).unwrap().session().unwrap();
        let (prompt, other) = (tokens(17, 1), tokens(6, 2));
        session.feed(0, &prompt).unwrap();
        session.feed(1, &other).unwrap();
        // Another end.
        session.truncate(0, 9).unwrap();
        let changed = [&prompt[..9], &other[..]].concat();
        close(&session.logits(0, &other).unwrap(), &last(&tiny, &changed), shape.arch);
        // The same logits once more: nothing new is fed, and the state has seen everything.
        close(&session.logits(0, &[]).unwrap(), &last(&tiny, &changed), shape.arch);
        // From the beginning, and the other sequence is as it was.
        session.truncate(0, 0).unwrap();
        close(&session.logits(0, &prompt[..1]).unwrap(), &last(&tiny, &prompt[..1]), shape.arch);
        close(&session.logits(1, &[]).unwrap(), &last(&tiny, &other), shape.arch);
    }
}

#[test]
fn a_sequence_goes_back_to_a_state_that_was_kept() {
    for shape in HYBRIDS {
        let tiny = Tiny::new(shape, 8);
        let options = SessionOptions { chunk: 16, ..options() };
        let mut session = tiny.load(options).unwrap().session().unwrap();
        let (prompt, other) = (tokens(40, 1), tokens(36, 2));
        session.feed(0, &prompt).unwrap();
        session.feed(1, &other).unwrap();
        // A generation, of which tokens that were decoded ahead are dropped.
        let drawn = session.decode(&[0, 1], 6).unwrap();
        session.truncate(0, 43).unwrap();
        assert_eq!(session.fed(0).unwrap(), 40, "the end of the prompt");
        let kept = [&prompt[..], &drawn[0][..3], &[50]].concat();
        close(&session.logits(0, &[50]).unwrap(), &last(&tiny, &kept), shape.arch);
        // The same prompt again, and another end of it.
        session.truncate(0, 39).unwrap();
        assert_eq!(session.fed(0).unwrap(), 32, "the last chunk border");
        close(&session.logits(0, &prompt[39..]).unwrap(), &last(&tiny, &prompt), shape.arch);
        session.truncate(0, 33).unwrap();
        let changed = [&prompt[..33], &other[..3]].concat();
        close(&session.logits(0, &other[..3]).unwrap(), &last(&tiny, &changed), shape.arch);
        session.truncate(0, 31).unwrap();
        assert_eq!(session.fed(0).unwrap(), 0, "nothing was kept before");
        // The other sequence has states of its own.
        session.truncate(1, 36).unwrap();
        assert_eq!(session.fed(1).unwrap(), 36);
        let again = session.decode(&[1], 6).unwrap().remove(0);
        assert_eq!(again, drawn[1]);
    }
}

#[test]
fn tokens_decoded_ahead_are_forgotten() {
    for shape in HYBRIDS {
        let tiny = Tiny::new(TinyShape { tied: false, ..shape }, 4);
        let mut session = tiny.load(options()).unwrap().session().unwrap();
        let (prompt, other) = (tokens(5, 1), tokens(8, 2));
        session.feed(0, &prompt).unwrap();
        session.feed(2, &other).unwrap();
        let drawn = session.decode(&[0, 2], 7).unwrap();
        let all = [&prompt[..], &drawn[0]].concat();
        close(&session.logits(0, &[]).unwrap(), &last(&tiny, &all), shape.arch);
        // A generation that stops in the middle of what was decoded.
        session.truncate(2, 8 + 3).unwrap();
        let kept = [&other[..], &drawn[1][..3], &[50]].concat();
        close(&session.logits(2, &[50]).unwrap(), &last(&tiny, &kept), shape.arch);
    }
}

#[test]
fn a_step_that_failed_is_run_again() {
    let tiny = Tiny::new(HYBRIDS[0], 5);
    let mut session = tiny.load(options()).unwrap().session().unwrap();
    let prompt = tokens(20, 7);
    session.feed(0, &prompt[..10]).unwrap();
    let cancel = session.cancel_flag();
    cancel.store(true, Ordering::Relaxed);
    assert!(matches!(session.feed(0, &prompt[10..]), Err(ModelError::Cancelled)));
    cancel.store(false, Ordering::Relaxed);
    close(&session.logits(0, &prompt[10..]).unwrap(), &last(&tiny, &prompt), "after a cancelled step");
}

#[test]
fn layers_have_a_kv_cache_or_a_state() {
    let tiny = Tiny::new(HYBRIDS[0], 6);
    let config = Config::read(&tiny).unwrap();
    let all = Stage::whole(2);
    assert_eq!(config.cached_layers(all).collect::<Vec<u32>>(), [1]);
    let states = config.recurrent_states(all);
    let expected = [("state.0.conv".to_owned(), 3 * 64), ("state.0.delta".to_owned(), 4 * 8 * 8)];
    assert_eq!(states, expected);
    let session = options();
    assert_eq!(session.state_bytes(&config), 3 * 4 * (3 * 64 + 4 * 8 * 8));
    // One layer, keys and values, three sequences of a page of 2 heads of 16.
    assert_eq!(session.cache_bytes(&config), 2 * 3 * 128 * 2 * 16 * 4);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let refusal = |key: &str, value: u32| {
        let mut tiny = Tiny::new(HYBRIDS[1], 7);
        tiny.metadata.set(format!("qwen35moe.{key}"), value);
        tiny.refusal()
    };
    for (key, value, expected) in [
        ("attention.recurrent_layers", 1, "absent"),
        ("full_attention_interval", 3, "at most the 2 layers"),
        ("ssm.conv_kernel", 1, "from 2 to 8"),
        ("ssm.state_size", 257, "from 1 to 256"),
        ("ssm.group_count", 3, "a divisor of the 4 value heads"),
        ("ssm.inner_size", 33, "4 value heads of 8"),
    ] {
        let error = refusal(key, value);
        let expected = format!("\"qwen35moe.{key}\" must be {expected}");
        assert!(error.contains(&expected), "{error}");
    }
    let mut tiny = Tiny::new(HYBRIDS[0], 7);
    let sections = fulmen_model::gguf::Array::numbers(&[2i32, 2, 2, 2]);
    tiny.metadata.set("qwen35.rope.dimension_sections", sections);
    let error = tiny.refusal();
    assert!(error.contains("rope.dimension_sections\" must be without pairs of a fourth axis"), "{error}");
}
