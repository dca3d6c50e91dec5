//! SmolLM2-135M-Instruct, if its file exists: token ids and the unambiguous starts of greedy answers match
//! llama.cpp.
//!
//! `scripts/compare-llama-cpp --fetch` gets the file; `scripts/test` does so where it can. `FULMEN_SMOLLM2`
//! names another place. The golden set was written by `scripts/compare-llama-cpp --golden`.

mod golden;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::tokenizer::Special;
use golden::Golden;

#[test]
fn ids_and_answers_are_those_of_llama_cpp() {
    let Some(path) = golden::file() else { return };
    let session = SessionOptions { context: 1024, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let model = Model::load_with(path, Box::new(CpuDispatcher::new()), options).unwrap();
    let mut session = model.session().unwrap();
    let (mut steps, mut prompts) = (0, 0);
    for Golden { prompt, tokens: expected, answer } in golden::set() {
        let tokens = model.tokenizer().unwrap().encode_prompt(&prompt, Special::Parse);
        assert_eq!(tokens, expected, "{prompt:?}");
        session.truncate(0, 0).unwrap();
        let mut got = Vec::new();
        if !answer.is_empty() {
            got.push(session.draw(0, &tokens).unwrap());
            got.extend(session.decode(&[0], answer.len() - 1).unwrap().remove(0));
        }
        assert_eq!(got, answer, "{prompt:?}");
        (steps, prompts) = (steps + answer.len(), prompts + 1);
    }
    assert!(prompts >= 20 && steps >= 100, "{prompts} prompts, {steps} steps");
    println!("{prompts} prompts, {steps} greedy steps");
}
