//! Token masks of sequences, and generation under a constraint.

use std::sync::Arc;

use fulmen_core::DType;
use fulmen_core::sampling::{Constraint, TokenMask};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::generation::FinishReason;
use fulmen_engine::{GenerateOptions, LoadOptions, Model, Sampling, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::synth::{ModelShape, Synth};

fn model(sequences: u32) -> Model {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap();
    let cache = DType::F32;
    let session = SessionOptions { context: 128, chunk: 16, cache, sequences, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    Model::from_source(Arc::new(file), Box::new(CpuDispatcher::with_threads(2)), options).unwrap()
}

fn options(max_tokens: usize, temperature: f32) -> GenerateOptions {
    let sampling = Sampling { temperature, seed: 3, repeat_penalty: 1.1, ..Sampling::GREEDY };
    GenerateOptions { sampling, max_tokens, stop_at_end: false, ..GenerateOptions::default() }
}

/// Allows tokens of one remainder by 7, in turn, `left` times; then none.
struct Turns {
    vocabulary: u32,
    turn: u32,
    left: usize,
    fails: bool,
}

impl Constraint for Turns {
    fn mask(&mut self) -> Result<TokenMask, String> {
        let turn = self.turn % 7;
        Ok(TokenMask::new(self.vocabulary, |token| self.left > 0 && token % 7 == turn))
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert_eq!(token % 7, self.turn % 7, "a masked token was drawn");
        (self.turn, self.left) = (self.turn + 1, self.left - 1);
        if self.fails && self.left == 0 { Err("out of turns".to_owned()) } else { Ok(()) }
    }
}

#[test]
fn a_constraint_decides_which_tokens_are_drawn() {
    let model = model(1);
    let vocabulary = model.config().vocabulary;
    let mut session = model.session().unwrap();
    for temperature in [0.0, 0.9] {
        let options = options(40, temperature);
        let free = session.generate("Hello there", &options).unwrap().finish(|_| {}).unwrap();
        let turns = |left, fails| Box::new(Turns { vocabulary, turn: 3, left, fails });
        let generation = session.generate("Hello there", &options).unwrap().constrained(turns(100, false));
        let masked = generation.finish(|_| {}).unwrap();
        assert_eq!((masked.tokens.len(), masked.reason), (40, FinishReason::MaxTokens));
        assert!((3u32..).zip(&masked.tokens).all(|(turn, token)| token % 7 == turn % 7));
        let short = session.generate("Hello there", &options).unwrap().constrained(turns(5, false));
        let short = short.finish(|_| {}).unwrap();
        assert_eq!((short.tokens.as_slice(), short.reason), (&masked.tokens[..5], FinishReason::Complete));
        let failing = session.generate("Hello there", &options).unwrap().constrained(turns(5, true));
        let error = failing.finish(|_| {}).unwrap_err();
        assert!(matches!(&error, ModelError::Constraint(reason) if reason == "out of turns"), "{error}");
        // Without a constraint everything is as before.
        let again = session.generate("Hello there", &options).unwrap().finish(|_| {}).unwrap();
        assert_eq!(again.tokens, free.tokens);
    }
}

#[test]
fn a_mask_is_of_one_sequence_of_a_batch() {
    let model = model(3);
    let vocabulary = model.config().vocabulary;
    let mut session = model.session().unwrap();
    let decode = |session: &mut fulmen_engine::Session, mask: Option<TokenMask>| {
        for sequence in 0..3 {
            session.truncate(sequence, 0).unwrap();
            session.set_sampling(sequence, Sampling::GREEDY).unwrap();
            session.set_mask(sequence, None).unwrap();
            session.feed(sequence, &[5 + sequence, 17, 40]).unwrap();
        }
        session.set_mask(1, mask).unwrap();
        session.decode(&[2, 0, 1], 6).unwrap()
    };
    let free = decode(&mut session, None);
    let odd = decode(&mut session, Some(TokenMask::new(vocabulary, |token| token % 2 == 1)));
    assert_eq!((&odd[0], &odd[1]), (&free[0], &free[1]), "the others are not changed");
    assert!(odd[2].iter().all(|token| token % 2 == 1) && odd[2] != free[2], "{odd:?}");
    let only = decode(&mut session, Some(TokenMask::new(vocabulary, |token| token == vocabulary - 1)));
    assert_eq!(only[2], [vocabulary - 1; 6]);
    let error = session.set_mask(0, Some(TokenMask::new(31, |_| true))).unwrap_err().to_string();
    assert!(error.starts_with("the token mask must be ") && error.ends_with("is 1 words"), "{error}");
    assert!(session.set_mask(3, None).is_err(), "there is no such sequence");
}
