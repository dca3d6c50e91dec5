//! SmolLM2-135M-Instruct, if its file is there: the sure begins of greedy answers are those of the
//! golden set, as on the processor. `scripts/compare-llama-cpp --fetch` gets the file; `FULMEN_SMOLLM2`
//! names another place. A software device gets one of the prompts, or all with `FULMEN_SMOLLM2_ALL=1`,
//! which takes minutes.

use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_wgpu::{WgpuDispatcher, wgpu::DeviceType};

use crate::common::gpu;
use crate::golden::{self, Golden};

#[test]
fn greedy_answers_are_those_of_the_golden_set() {
    let Some(path) = golden::file() else { return };
    let gpu = gpu();
    let all = std::env::var_os("FULMEN_SMOLLM2_ALL").is_some() || gpu.info().device_type != DeviceType::Cpu;
    let takes = |prompt: usize, answer: usize| answer > 0 && (all || prompt < 8);
    let session = SessionOptions { context: 512, ..SessionOptions::default() };
    let options = LoadOptions { session, check_weights: false, ..LoadOptions::default() };
    let model = Model::load_with(path, Box::new(WgpuDispatcher::on(&gpu).unwrap()), options).unwrap();
    let mut session = model.session().unwrap();
    let mut steps = 0;
    for Golden { prompt, tokens, answer } in golden::set() {
        if !takes(tokens.len(), answer.len()) {
            continue;
        }
        session.truncate(0, 0).unwrap();
        let mut got = vec![session.draw(0, &tokens).unwrap()];
        got.extend(session.decode(&[0], answer.len() - 1).unwrap().remove(0));
        assert_eq!(got, answer, "{prompt}");
        steps += answer.len();
    }
    assert!(steps >= if all { 100 } else { 5 }, "{steps} steps");
    println!("{steps} greedy steps");
}
