//! Tiny random models produce the logits of a plain f64 implementation, however the work is divided.

mod tiny;

use fulmen_core::DType;
use fulmen_engine::{Sampling, SessionOptions};
use tiny::{LLAMA, QWEN3, SHAPES, Tiny, TinyShape, reference};

fn options() -> SessionOptions {
    SessionOptions { context: 64, cache: DType::F32, ..SessionOptions::default() }
}

fn tokens(n: usize, vocabulary: usize, seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..n).map(|_| random.u32(..vocabulary as u32)).collect()
}

/// Σ (a - b)² / Σ b².
fn nmse(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let error: f64 = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    error / expected.iter().map(|b| b * b).sum::<f64>()
}

#[track_caller]
fn close(got: &[f32], expected: &[f64], bound: f64, what: &str) {
    let error = nmse(got, expected);
    assert!(error < bound, "{what}: error {error:e} above {bound:e}");
}

#[test]
fn logits_are_those_of_the_plain_implementation() {
    for shape in SHAPES {
        for (seed, tied) in [(1, true), (2, false)] {
            let tiny = Tiny::new(TinyShape { tied, ..shape }, seed);
            let prompt = tokens(23, shape.vocabulary, seed);
            let expected = reference::logits(&tiny, &prompt);
            let mut session = tiny.load(options()).unwrap().session().unwrap();
            let got = session.logits(0, &prompt).unwrap();
            close(&got, &expected[22], 1e-9, &format!("{} whole", shape.arch));
            // One token at a time, checking every row.
            session.truncate(0, 0).unwrap();
            for (at, token) in prompt.iter().enumerate() {
                let got = session.logits(0, &[*token]).unwrap();
                close(&got, &expected[at], 1e-9, &format!("{} token {at}", shape.arch));
            }
            // In chunks of every size.
            for chunk in [1, 2, 5, 22, 23] {
                let model = tiny.load(SessionOptions { chunk, ..options() }).unwrap();
                let got = model.session().unwrap().logits(0, &prompt).unwrap();
                close(&got, &expected[22], 1e-9, &format!("{} chunk {chunk}", shape.arch));
            }
        }
    }
}

#[test]
fn positions_are_scaled_as_the_file_says() {
    for shape in SHAPES {
        for (kind, factor, n_rot) in [
            ("linear", 4.0f32, None),
            ("yarn", 8.0, None),
            ("yarn", 4.0, Some(8)),
            ("linear", 2.0, Some(4)),
            ("", 1.0, Some(6)),
        ] {
            // The file's own factors have one entry per rotated pair.
            let mut tiny = Tiny::new(TinyShape { factors: shape.factors && n_rot.is_none(), ..shape }, 31);
            let key = |key: &str| format!("{}.rope.{key}", shape.arch);
            if !kind.is_empty() {
                tiny.metadata.set(key("scaling.type"), kind);
                tiny.metadata.set(key("scaling.factor"), factor);
                tiny.metadata.set(key("scaling.original_context_length"), 64u32);
            }
            if let Some(n_rot) = n_rot {
                tiny.metadata.set(key("dimension_count"), n_rot as u32);
            }
            let prompt = tokens(40, shape.vocabulary, 6);
            let expected = reference::logits(&tiny, &prompt);
            let got = tiny.load(options()).unwrap().session().unwrap().logits(0, &prompt).unwrap();
            close(&got, &expected[39], 1e-9, &format!("{} {kind} {factor} {n_rot:?}", shape.arch));
        }
    }
}

#[test]
fn quantized_weights_and_caches_stay_close() {
    // Rows that are multiples of 32 for Q8_0.
    for shape in SHAPES {
        let shape = TinyShape { dtype: DType::Q8_0, head_dim: 32, heads: 4, kv_heads: 2, ..shape };
        // Without near ties in the routers.
        let tiny = Tiny::new(shape, if shape.is_hybrid() { 5 } else { 7 });
        let prompt = tokens(30, shape.vocabulary, 8);
        let expected = reference::logits(&tiny, &prompt);
        for (cache, bound) in [(DType::F32, 1e-3), (DType::F16, 1e-3), (DType::Q8_0, 2e-3)] {
            let model = tiny.load(SessionOptions { cache, ..options() }).unwrap();
            let got = model.session().unwrap().logits(0, &prompt).unwrap();
            close(&got, &expected[29], bound, &format!("{} {cache}", shape.arch));
        }
    }
}

/// The tokens of greedy decoding with the plain implementation.
fn greedy(tiny: &Tiny, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut all = prompt.to_vec();
    for _ in 0..n {
        let logits = reference::logits(tiny, &all).pop().unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        all.push(best as u32);
    }
    all.split_off(prompt.len())
}

#[test]
fn chunks_single_steps_batches_and_many_steps_at_once_give_the_same_tokens() {
    for shape in SHAPES {
        let tiny = Tiny::new(shape, 11);
        let prompts: Vec<Vec<u32>> =
            [9, 1, 17].iter().zip(20..).map(|(&n, seed)| tokens(n, shape.vocabulary, seed)).collect();
        let expected: Vec<Vec<u32>> = prompts.iter().map(|prompt| greedy(&tiny, prompt, 12)).collect();

        for (chunk, steps) in [(512, 1), (3, 1), (512, 4)] {
            let model = tiny.load(SessionOptions { chunk, ..options() }).unwrap();
            let mut session = model.session().unwrap();
            for (prompt, expected) in prompts.iter().zip(&expected) {
                session.truncate(0, 0).unwrap();
                let mut got = vec![session.draw(0, prompt).unwrap()];
                while got.len() < 12 {
                    let steps = steps.min(12 - got.len());
                    got.extend(session.decode(&[0], steps).unwrap().remove(0));
                }
                assert_eq!(&got, expected, "{} chunk {chunk} steps {steps}", shape.arch);
                assert_eq!(session.tokens(0).unwrap(), [&prompt[..], &got].concat());
            }
        }

        // Three sequences as a batch, fed in a different order than they decode.
        let model = tiny.load(SessionOptions { sequences: 4, ..options() }).unwrap();
        let mut session = model.session().unwrap();
        for (slot, prompt) in [(3, &prompts[0]), (0, &prompts[1]), (2, &prompts[2])] {
            session.feed(slot, prompt).unwrap();
        }
        let mut got = session.decode(&[3, 0, 2], 5).unwrap();
        // One sequence pauses for a while.
        let more = session.decode(&[2, 3], 4).unwrap();
        got[2].extend(&more[0]);
        got[0].extend(&more[1]);
        let more = session.decode(&[0], 7).unwrap();
        got[1].extend(&more[0]);
        let more = session.decode(&[3, 2], 3).unwrap();
        got[0].extend(&more[0]);
        got[2].extend(&more[1]);
        assert_eq!(got, expected, "{}", shape.arch);
    }
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_seed_others() {
    let tiny = Tiny::new(QWEN3, 3);
    let model = tiny.load(options()).unwrap();
    let mut session = model.session().unwrap();
    let mut draw = |sampling: Sampling, steps: usize| {
        session.truncate(0, 0).unwrap();
        session.set_sampling(0, sampling).unwrap();
        let mut tokens = vec![session.draw(0, &[5, 6, 7]).unwrap()];
        while tokens.len() < 24 {
            let steps = steps.min(24 - tokens.len());
            tokens.extend(session.decode(&[0], steps).unwrap().remove(0));
        }
        tokens
    };
    let hot = Sampling { temperature: 1.5, seed: 42, ..Sampling::GREEDY };
    let first = draw(hot, 1);
    assert_eq!(draw(hot, 1), first);
    assert_eq!(draw(hot, 8), first, "many steps at once draw the same");
    assert_ne!(draw(Sampling { seed: 43, ..hot }, 1), first);
    assert_ne!(draw(Sampling { seed: 42 << 32, ..hot }, 1), first);
    // A strong penalty keeps greedy decoding from repeating itself within its window.
    let fresh = Sampling { presence_penalty: 1e4, repeat_window: 64, ..Sampling::GREEDY };
    let tokens = draw(fresh, 1);
    let mut different = tokens.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 24, "{tokens:?}");
    assert!(tokens.iter().all(|token| ![5, 6, 7].contains(token)), "the prompt counts, too: {tokens:?}");
    assert_eq!(draw(fresh, 5), tokens);
}

#[test]
fn a_session_can_go_back_and_on() {
    let tiny = Tiny::new(LLAMA, 5);
    let model = tiny.load(options()).unwrap();
    let prompt = tokens(20, LLAMA.vocabulary, 1);
    let expected = model.session().unwrap().logits(0, &prompt).unwrap();
    let mut session = model.session().unwrap();
    session.draw(0, &prompt[..12]).unwrap();
    session.decode(&[0], 6).unwrap();
    session.truncate(0, 9).unwrap();
    assert_eq!(session.tokens(0).unwrap(), &prompt[..9]);
    let got = session.logits(0, &prompt[9..]).unwrap();
    let error = nmse(&got, &expected.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    assert!(error < 1e-9, "{error:e}");
    // Called again without new tokens, the last one is fed once more.
    let again = session.logits(0, &[]).unwrap();
    let error = nmse(&again, &got.iter().map(|&x| f64::from(x)).collect::<Vec<_>>());
    assert!(error < 1e-9, "{error:e}");
    assert_eq!(session.logits(0, &[]).unwrap(), again);
    // Hidden states are as wide as the model.
    assert_eq!(session.hidden(0, &[]).unwrap().len(), LLAMA.hidden);
}

#[test]
fn two_sessions_of_one_model_do_not_disturb_each_other() {
    let tiny = Tiny::new(QWEN3, 9);
    let model = tiny.load(options()).unwrap();
    let prompt = tokens(8, QWEN3.vocabulary, 4);
    let alone = |model: &fulmen_engine::Model, prompt: &[u32]| {
        let mut session = model.session().unwrap();
        let mut tokens = vec![session.draw(0, prompt).unwrap()];
        for _ in 0..20 {
            tokens.extend(session.decode(&[0], 1).unwrap().remove(0));
        }
        tokens
    };
    let expected = [alone(&model, &prompt), alone(&model, &prompt[3..])];
    let got = std::thread::scope(|scope| {
        let threads = [&prompt[..], &prompt[3..]].map(|prompt| {
            let model = model.clone();
            scope.spawn(move || alone(&model, prompt))
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(got, expected);
    // The model may be dropped before its sessions.
    let mut session = model.session().unwrap();
    drop(model);
    assert_eq!(session.draw(0, &prompt).unwrap(), expected[0][0]);
}
