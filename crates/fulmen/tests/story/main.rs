//! The story model of the `fulmen` command, from its file to text, on every backend.
//!
//! `golden.txt` is the greedy continuation of `prompt.txt`. The backends differ by rounding, but no token of
//! this text is a close call, so all of them produce the same text. A new model needs a new golden text:
//! `cargo test -p fulmen --test story` prints what each backend produces.

use std::sync::Arc;

use fulmen::cpu::CpuDispatcher;
use fulmen::cpu::isa::Isa;
use fulmen::model::tokenizer::Special;
use fulmen::model::{Device, LoadOptions};
use fulmen::prelude::*;
use fulmen_testkit::device_or_say_so;

/// Embedded, so that the test executable runs on a machine without the repository.
static FILE: &[u8] = include_bytes!("../../../fulmen-cli/assets/story.gguf");
const PROMPT: &str = include_str!("prompt.txt");
const GOLDEN: &str = include_str!("golden.txt");
const TOKENS: usize = 64;

fn load(device: Device) -> Model {
    Model::from_bytes(Arc::new(FILE), device, LoadOptions::default()).unwrap()
}

fn check(what: &str, device: Device) {
    let model = load(device);
    for ahead in [1, 16] {
        let options = GenerateOptions { max_tokens: TOKENS, ahead, ..GenerateOptions::default() };
        let answer = model.generate(PROMPT, &options, |_| ()).unwrap();
        assert_eq!(answer.tokens.len(), TOKENS);
        assert_eq!(answer.text, GOLDEN, "{what}, {ahead} ahead");
    }
}

#[test]
fn cpu_generates_the_golden_story_with_every_instruction_set() {
    for isa in Isa::available() {
        for threads in [1, 2] {
            let device = CpuDispatcher::with_threads(threads).with_isa(isa).unwrap();
            check(&format!("{isa}, {threads} threads"), Box::new(device));
        }
    }
}

#[test]
fn wgpu_generates_the_golden_story() {
    check("wgpu", fulmen::open("wgpu".parse().unwrap()).unwrap());
}

/// With `FULMEN_REQUIRE_CUDA=1` it fails if there is no device.
#[test]
fn cuda_generates_the_golden_story_if_available() {
    let opened = fulmen::open("cuda".parse().unwrap());
    let Some(device) = device_or_say_so(opened, "FULMEN_REQUIRE_CUDA") else { return };
    check("cuda", device);
}

#[test]
fn the_golden_story_has_no_close_calls() {
    let model = load(Box::new(CpuDispatcher::with_threads(2)));
    let tokenizer = model.tokenizer().unwrap();
    let mut fed = tokenizer.encode_prompt(PROMPT, Special::AsText);
    let mut session = model.session().unwrap();
    let mut said = Vec::new();
    for at in 0..TOKENS {
        let logits = session.logits(0, &fed).unwrap();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        // In logits; rounding moves the largest ones by hundredths.
        let margin = logits[order[0]] - logits[order[1]];
        let names = [order[0], order[1]].map(|token| tokenizer.decode(&[token as u32]).unwrap());
        assert!(margin > 0.15, "{margin} between {names:?} at token {at}");
        fed = vec![order[0] as u32];
        said.extend(&fed);
    }
    assert_eq!(tokenizer.decode(&said).unwrap(), GOLDEN);
}
