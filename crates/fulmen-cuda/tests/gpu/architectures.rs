//! Small random models of every architecture give llama.cpp's logits, and small folders PyTorch's.

use std::sync::Arc;

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model, Session, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};

use crate::gpu;
use crate::greedy::{compare, nmse};
use crate::{llama_cpp, pytorch};

#[test]
fn logits_are_those_of_llama_cpp() {
    let Some(gpu) = gpu() else { return };
    for golden in llama_cpp::goldens() {
        golden.compare_chunks(|chunk| llama_cpp::load(&golden, Box::new(gpu.dispatcher()), chunk));
    }
}

#[test]
fn logits_are_those_of_pytorch() {
    let Some(gpu) = gpu() else { return };
    for golden in pytorch::goldens() {
        let folder = golden.folder();
        for case in &golden.cases {
            let device = || Box::new(gpu.dispatcher());
            case.compare_chunks(|chunk| pytorch::load(folder.path(), case, device(), chunk));
        }
    }
}

/// Heads, KV heads, head size, vocabulary.
const ODD_SHAPES: [(usize, usize, usize, usize); 8] = [
    (7, 1, 64, 515),
    (10, 5, 64, 1024),
    (6, 6, 80, 50_001),
    (16, 2, 96, 2049),
    (12, 3, 128, 777),
    (4, 4, 256, 1000),
    (7, 1, 128, 4099),
    (16, 2, 64, 32_003),
];

/// Prompts of 1 to 650 tokens, and decode batches of 1 to 40 sequences.
#[test]
fn odd_shapes_give_the_logits_of_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (at, (heads, kv_heads, head_size, vocabulary)) in ODD_SHAPES.into_iter().enumerate() {
        for (recipe, bound) in [("f16", 1e-5), ("q4_k_m", 2e-3)] {
            let shape = ModelShape {
                layers: 2,
                heads,
                kv_heads,
                head_size,
                vocabulary,
                ..ModelShape::preset("tiny-qwen3").unwrap()
            };
            let source = Arc::new(Synth::new(shape, recipe.parse().unwrap(), 3).file().unwrap());
            let session = SessionOptions { context: 720, sequences: 40, ..SessionOptions::default() };
            let options = || LoadOptions { session, ..LoadOptions::default() };
            let cpu = Box::new(CpuDispatcher::with_threads(2));
            let cpu = Model::from_source(source.clone(), cpu, options()).unwrap();
            let cuda = Model::from_source(source, Box::new(gpu.dispatcher()), options()).unwrap();
            let (mut cpu, mut cuda) = (cpu.session().unwrap(), cuda.session().unwrap());
            let what = format!("{heads}:{kv_heads}x{head_size}, {vocabulary} tokens, {recipe}");
            let length = [1, 2, 17, 33, 65, 129, 257, 650][(at + heads) % 8];
            let tokens: Vec<u32> = (0..length).map(|i| (i * 37 + 11) % 500).collect();
            let steps = if bound < 1e-4 { 12 } else { 0 };
            compare(&mut cpu, &mut cuda, &tokens, steps, bound, &format!("{what}, prompt of {length}"));
            for rows in [2, 3, 5, 8, 9, 16, 17, 32, 33, 40] {
                batch_equals_single(&mut cuda, rows, bound, &format!("{what}, {rows} rows"));
            }
        }
    }
}

/// What decoding in a batch stores for each sequence gives the logits of running its tokens alone.
fn batch_equals_single(session: &mut Session, rows: u32, bound: f64, what: &str) {
    let prompt = |row: u32| -> Vec<u32> { (0..3 + row % 5).map(|i| (i * 91 + row * 17) % 500).collect() };
    for row in 0..rows {
        session.truncate(row, 0).unwrap();
        session.feed(row, &prompt(row)).unwrap();
    }
    let sequences: Vec<u32> = (0..rows).collect();
    let drawn = session.decode(&sequences, 3).unwrap();
    for row in [0, rows - 1] {
        let tokens = [prompt(row), drawn[row as usize].clone(), vec![7]].concat();
        let batched = session.logits(row, &[7]).unwrap();
        assert_eq!(session.tokens(row).unwrap(), tokens, "{what}");
        session.truncate(row, 0).unwrap();
        let error = nmse(&batched, &session.logits(row, &tokens).unwrap());
        assert!(error <= bound, "{what}, row {row}: {error:e}");
    }
}
