//! Small random models of the architectures that deviate from the plain transformer give llama.cpp's logits,
//! across windows and contexts.

#[path = "golden/compare.rs"]
mod compare;
#[path = "golden/architectures.rs"]
mod golden;

use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::sample::some_of;

use compare::{Case, prompt};
use golden::{goldens, load};

#[test]
fn logits_are_those_of_llama_cpp() {
    for golden in goldens() {
        golden.compare_chunks(|chunk| load(&golden, Box::new(CpuDispatcher::with_threads(2)), chunk));
    }
}

#[test]
fn decoded_tokens_do_not_depend_on_the_batch() {
    for golden in goldens().iter().filter(|golden| golden.length == 41) {
        let device = Box::new(CpuDispatcher::with_threads(2));
        let mut session = load(golden, device, 0).session().unwrap();
        let greedy = fulmen_engine::Sampling { temperature: 0.0, ..Default::default() };
        let mut answers = Vec::new();
        for sequence in [0, 1] {
            session.set_sampling(sequence, greedy).unwrap();
            session.logits(sequence, &prompt(30 + 11 * sequence as usize)).unwrap();
            answers.push(session.decode(&[sequence], 20).unwrap().remove(0));
            session.truncate(sequence, 30 + 11 * sequence as usize).unwrap();
        }
        assert_eq!(session.decode(&[0, 1], 20).unwrap(), answers, "{}", golden.model);
    }
}

/// On a software GPU a prompt takes seconds: those of 1 and 100 tokens, and some of the others.
#[test]
fn wgpu_gives_the_same_logits() {
    let goldens = goldens();
    let is_short = |golden: &&Case| matches!(golden.length, 1 | 100);
    let (short, others): (Vec<&Case>, Vec<&Case>) = goldens.iter().partition(is_short);
    for golden in short.into_iter().chain(some_of("llama.cpp's other prompts on wgpu", 4, others)) {
        let device = fulmen_wgpu::WgpuDispatcher::open(0).unwrap();
        golden.compare_last(&load(golden, Box::new(device), 64), "wgpu");
    }
}
