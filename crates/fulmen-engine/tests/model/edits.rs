//! Token masks and logit biases of rows beside rows without any.

use fulmen_core::sampling::{Constraint, TokenMask};
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::Model;
use fulmen_engine::{EngineOptions, Event, ModelSampling, Request, RequestError, SamplingParams};
use fulmen_wgpu::WgpuDispatcher;

use crate::scenario::{answers, driver, small_model};

/// Allows the tokens that leave a remainder, another one after each token.
struct Remainders {
    vocabulary: u32,
    wanted: u32,
}

impl Constraint for Remainders {
    fn mask(&mut self) -> Result<TokenMask, String> {
        Ok(TokenMask::new(self.vocabulary, |token| token % 5 == self.wanted))
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if token % 5 != self.wanted {
            return Err(format!("{token} was excluded"));
        }
        self.wanted = (self.wanted + 1) % 5;
        Ok(())
    }
}

fn prompt(number: u32) -> Vec<u32> {
    (0..7 + number).map(|i| 3 * i + number + 1).collect()
}

fn masked_and_biased_rows_beside_others(model: &Model) {
    let options = EngineOptions { context: 256, max_sequences: 8, max_rows: 64, ..EngineOptions::default() };
    let vocabulary = model.config().vocabulary;
    let mut driver = driver(model, &options);
    let free: Vec<_> = (0..3).map(|number| Request::new(prompt(number), 6)).collect();
    let alone: Vec<_> = answers(&mut driver, free).into_iter().map(|answer| answer.tokens).collect();

    let bias = |logit_bias: Vec<(u32, f32)>| {
        SamplingParams::new(ModelSampling { logit_bias, ..ModelSampling::default() })
    };
    let constraint = || Some(Box::new(Remainders { vocabulary, wanted: 2 }) as Box<dyn Constraint>);
    let excluded: Vec<(u32, f32)> = alone[1].iter().map(|&token| (token, f32::NEG_INFINITY)).collect();
    let mut unique = excluded;
    unique.sort_by_key(|&(token, _)| token);
    unique.dedup();
    let requests = vec![
        Request::new(prompt(0), 6),
        Request { constraint: constraint(), ..Request::new(prompt(1), 6) },
        Request { sampling: bias(unique), ..Request::new(prompt(1), 6) },
        Request { sampling: bias(vec![(17, 1e6)]), ..Request::new(prompt(2), 6) },
        Request {
            sampling: bias(vec![(17, 1e6), (18, 1e5)]),
            constraint: constraint(),
            ..Request::new(prompt(2), 6)
        },
        Request::new(prompt(2), 6),
    ];
    let found = answers(&mut driver, requests);
    assert_eq!(found[0].tokens, alone[0], "a row beside masked ones");
    assert_eq!(found[5].tokens, alone[2], "a row beside biased ones");
    for (at, token) in (2..).zip(&found[1].tokens) {
        assert_eq!(token % 5, at % 5, "{:?}", found[1].tokens);
    }
    assert!(found[2].tokens.iter().all(|token| !alone[1].contains(token)), "{:?}", found[2].tokens);
    assert_eq!(found[3].tokens, [17; 6]);
    assert_eq!(found[4].tokens[..2], [17, 18], "both count");
    driver.scheduler().counted_back().unwrap();
}

#[test]
fn masks_and_biases_on_the_cpu() {
    masked_and_biased_rows_beside_others(&small_model("q8_0", Box::new(CpuDispatcher::with_threads(2))));
}

#[test]
fn masks_and_biases_through_wgpu() {
    masked_and_biased_rows_beside_others(&small_model("f32", Box::new(WgpuDispatcher::open(0).unwrap())));
}

#[test]
fn a_bias_out_of_the_vocabulary_ends_its_request_alone() {
    let model = small_model("q8_0", Box::new(CpuDispatcher::with_threads(2)));
    let options = EngineOptions { context: 256, max_sequences: 4, max_rows: 64, ..EngineOptions::default() };
    let mut driver = driver(&model, &options);
    let logit_bias = vec![(model.config().vocabulary, 1.0)];
    let sampling = SamplingParams::new(ModelSampling { logit_bias, ..ModelSampling::default() });
    let requests = vec![Request { sampling, ..Request::new(prompt(0), 3) }, Request::new(prompt(1), 3)];
    let found = answers(&mut driver, requests);
    let Some(Event::Failed(RequestError::Rejected { reason })) = &found[0].end else {
        panic!("{:?}", found[0].end)
    };
    assert!(reason.contains("vocabulary"), "{reason}");
    assert_eq!(found[1].tokens.len(), 3);
}
