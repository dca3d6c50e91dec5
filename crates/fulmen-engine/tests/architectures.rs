//! Small random models of the architectures that deviate from the plain transformer give llama.cpp's logits,
//! across windows and contexts.

#[path = "golden/architectures.rs"]
mod golden;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;

use golden::{close, compare_chunks, goldens, load, prompt};

#[test]
fn logits_are_those_of_llama_cpp() {
    for golden in goldens() {
        compare_chunks(&golden, || Box::new(CpuDispatcher::with_threads(2)));
    }
}

#[test]
fn decoded_tokens_do_not_depend_on_the_batch() {
    for golden in goldens().iter().filter(|golden| golden.length == 41) {
        let device = Box::new(CpuDispatcher::with_threads(2));
        let mut session = load(golden, device, DType::F32, 0).session().unwrap();
        let greedy = fulmen_engine::Sampling { temperature: 0.0, ..Default::default() };
        let mut answers = Vec::new();
        for sequence in [0, 1] {
            session.set_sampling(sequence, greedy).unwrap();
            session.logits(sequence, &prompt(30 + 11 * sequence as usize)).unwrap();
            answers.push(session.decode(&[sequence], 20).unwrap().remove(0));
            session.truncate(sequence, 30 + 11 * sequence as usize).unwrap();
        }
        assert_eq!(session.decode(&[0, 1], 20).unwrap(), answers, "{}", golden.preset);
    }
}

#[test]
fn wgpu_gives_the_same_logits() {
    for golden in goldens().iter().filter(|golden| matches!(golden.length, 1 | 100)) {
        let device = fulmen_wgpu::WgpuDispatcher::open(0).unwrap();
        let mut session = load(golden, Box::new(device), DType::F32, 64).session().unwrap();
        let prompt = prompt(golden.length);
        let (whole, last) = prompt.split_at(golden.length - 1);
        if !whole.is_empty() {
            session.logits(0, whole).unwrap();
        }
        close(&session.logits(0, last).unwrap(), golden, 1e-6, "wgpu");
    }
}
