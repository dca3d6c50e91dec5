//! On the CPU.

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{EngineOptions, Request};

use crate::common::{driver, run, story};

#[test]
fn greedy_tokens_are_those_of_a_session() {
    let model = story(Box::new(CpuDispatcher::new()));
    let tokenizer = model.tokenizer().unwrap();
    let prompts = ["Once upon a time", "One day a dog", "Lily", "The sun was", "Once upon a time there"];
    let prompts: Vec<Vec<u32>> =
        prompts.map(|text| tokenizer.encode_prompt(text, fulmen_model::tokenizer::Special::AsText)).to_vec();
    let mut alone = Vec::new();
    for prompt in &prompts {
        let mut session = model.session().unwrap();
        let mut tokens = vec![session.draw(0, prompt).unwrap()];
        tokens.extend(session.decode(&[0], 15).unwrap().remove(0));
        alone.push(tokens);
    }
    let options = EngineOptions { max_sequences: 4, context: 256, pages: 16, ..EngineOptions::default() };
    let mut driver = driver(&model, &options);
    let requests = prompts.iter().map(|prompt| Request::new(prompt.clone(), 16)).collect();
    let answers = run(&mut driver, requests);
    let found: Vec<Vec<u32>> = answers.iter().map(|answer| answer.tokens.clone()).collect();
    assert_eq!(found, alone, "{answers:?}");
}
