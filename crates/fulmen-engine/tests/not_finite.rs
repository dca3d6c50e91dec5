//! Weights that overflow or are NaN: the step that cannot draw a token ends with an error that names it.

mod tiny;

use std::sync::Arc;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, PerplexityOptions, Sampling, SessionOptions};
use fulmen_model::ModelError;
use tiny::{LLAMA, QWEN2, Tiny, TinyShape};

fn unchecked(tiny: &Tiny, sequences: u32) -> Model {
    let session = SessionOptions { sequences, ..SessionOptions::default() };
    let options = LoadOptions { session, check_weights: false, ..LoadOptions::default() };
    Model::from_source(Arc::new(tiny.clone()), Box::new(CpuDispatcher::with_threads(2)), options).unwrap()
}

fn place(error: &ModelError) -> (u32, usize, u32) {
    match error {
        &ModelError::LogitsNotFinite { token, position, sequence } => (token, position, sequence),
        other => panic!("{other}"),
    }
}

const WARM: Sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, ..Sampling::GREEDY };
const PENALIZED: Sampling = Sampling { repeat_penalty: 1.1, ..Sampling::GREEDY };

#[test]
fn a_prompt_without_finite_logits_is_an_error() {
    let (hidden, huge, nan) = (LLAMA.hidden, 3e38f32, f32::NAN);
    for (name, value) in [("output_norm.weight", huge), ("blk.0.attn_norm.weight", nan)] {
        let mut tiny = Tiny::new(LLAMA, 1);
        tiny.spoil(name, 0, &value.to_le_bytes().repeat(hidden));
        for sampling in [Sampling::GREEDY, WARM, PENALIZED] {
            let mut session = unchecked(&tiny, 1).session().unwrap();
            session.set_sampling(0, sampling).unwrap();
            let error = session.draw(0, &[5, 6, 7]).unwrap_err();
            assert_eq!(place(&error), (7, 2, 0), "{name} {value}");
            assert!(error.to_string().contains("after token 7 (position 2 of sequence 0)"), "{error}");
            assert_eq!(session.tokens(0).unwrap(), [] as [u32; 0], "the sequence is as it was");
            let error = session.generate_from(&[5, 6], &Default::default()).map(drop);
            assert!(matches!(error, Err(ModelError::Without { .. })), "this model has no tokenizer");
        }
    }
}

#[test]
fn perplexity_without_finite_logits_is_an_error() {
    let mut tiny = Tiny::new(LLAMA, 1);
    tiny.spoil("blk.1.ffn_norm.weight", 12, &f32::NAN.to_le_bytes());
    let options = PerplexityOptions { window: 8, stride: None, begin: None, threads: 1 };
    let text: Vec<u32> = (10..30).collect();
    let error = unchecked(&tiny, 1).session().unwrap().perplexity(&text, &options, |_, _| ()).unwrap_err();
    assert_eq!(place(&error), (14, 4, 0));
}

/// A model whose embedding of one token is NaN, which is drawn in the middle of an answer: whether steps are
/// queued or not, the error names that token.
#[test]
fn the_step_is_named_however_many_are_queued() {
    let shape = TinyShape { tied: false, ..QWEN2 };
    let healthy = Tiny::new(shape, 3);
    for sampling in [Sampling::GREEDY, WARM, PENALIZED] {
        let mut session = unchecked(&healthy, 2).session().unwrap();
        session.set_sampling(1, sampling).unwrap();
        session.feed(1, &[1, 2, 3]).unwrap();
        let answer = session.decode(&[1], 24).unwrap().remove(0);
        let fresh = |&at: &usize| !answer[..at].contains(&answer[at]) && !(1..4).contains(&answer[at]);
        let at = (1..20).find(fresh).expect("a token that is new");
        let mut damaged = healthy.clone();
        damaged.spoil("token_embd.weight", answer[at] as usize * shape.hidden * 4, &f32::NAN.to_le_bytes());
        for ahead in [1, 2, 24] {
            let mut session = unchecked(&damaged, 2).session().unwrap();
            session.set_sampling(1, sampling).unwrap();
            session.feed(0, &[9, 8]).unwrap();
            session.feed(1, &[1, 2, 3]).unwrap();
            let mut drawn = Vec::new();
            let error = loop {
                match session.decode(&[1], ahead) {
                    Ok(tokens) => drawn.extend(tokens.concat()),
                    Err(error) => break error,
                }
                assert!(drawn.len() < 40, "no error");
            };
            assert_eq!(place(&error), (answer[at], 3 + at, 1), "{ahead} steps ahead, {error}");
            assert_eq!(drawn, answer[..drawn.len()]);
            // The other sequence goes on.
            session.decode(&[0], 1).unwrap();
        }
    }
}
