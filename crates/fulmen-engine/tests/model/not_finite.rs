//! A row without finite logits ends its request and no other.

use std::sync::Arc;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, LoadOptions, Model, Sampling};
use fulmen_engine::{EngineOptions, Event, Request, RequestError, SamplingParams};
use fulmen_wgpu::WgpuDispatcher;

use crate::scenario::{answers, driver};
use crate::tiny::{QWEN2, Tiny, TinyShape};

/// Token 7 is NaN in the embedding of the prompt.
fn spoiled(devices: Vec<(Device, u32)>) -> Model {
    let shape = TinyShape { tied: false, ..QWEN2 };
    let mut tiny = Tiny::new(shape, 2);
    tiny.spoil("token_embd.weight", 4 * 7 * shape.hidden, &f32::NAN.to_le_bytes().repeat(shape.hidden));
    let options = LoadOptions { check_weights: false, ..LoadOptions::default() };
    Model::from_source_split(Arc::new(tiny), devices, options).unwrap()
}

#[test]
fn nan_stays_with_its_request() {
    let cpu = || -> Device { Box::new(CpuDispatcher::with_threads(2)) };
    let wgpu = || -> Device { Box::new(WgpuDispatcher::open(0).unwrap()) };
    for devices in [vec![(cpu(), 2)], vec![(wgpu(), 2)], vec![(cpu(), 1), (cpu(), 1)]] {
        let model = spoiled(devices);
        let options =
            EngineOptions { max_sequences: 4, context: 64, max_rows: 16, ..EngineOptions::default() };
        let request = |prompt: &[u32], repeat_penalty| {
            // Tokens that are drawn must not be token 7.
            let sampling = Sampling { repeat_penalty, ..Sampling::GREEDY };
            Request { sampling: SamplingParams::new(sampling), ..Request::new(prompt.to_vec(), 6) }
        };
        let good = |driver: &mut _| answers(driver, vec![request(&[1, 2, 3], 1.0), request(&[4, 5], 1.3)]);
        let mut driver = driver(&model, &options);
        let expected = good(&mut driver);
        let requests = vec![
            request(&[1, 2, 3], 1.0),
            request(&[9, 7, 5], 1.3),
            request(&[4, 5], 1.3),
            request(&[7], 1.0),
            Request { prompt_logprobs: Some(1), ..request(&[9, 7, 5], 1.0) },
        ];
        let found = answers(&mut driver, requests);
        for (number, position) in [(1, 2), (3, 0), (4, 1)] {
            let Some(Event::Failed(RequestError::Row { position: at, reason })) = &found[number].end else {
                panic!("{found:?}");
            };
            assert!(*at == position && reason.contains("finite"), "{found:?}");
        }
        assert_eq!([&found[0].tokens, &found[2].tokens], [&expected[0].tokens, &expected[1].tokens]);
        assert!(expected.iter().all(|answer| !answer.tokens.contains(&7)), "{expected:?}");
        // What came of it is forgotten.
        assert_eq!(good(&mut driver)[0].tokens, expected[0].tokens);
    }
}
