//! Tensor parallelism: ranks of a model give the logits and the tokens of one device, whatever fails ends
//! with an error that names the rank, and nothing is left behind.

#[path = "../model/compare.rs"]
mod compare;
mod engine;
mod experts;
mod faults;
mod hybrid;
mod loopback;
mod nodes;
mod on_devices;
mod refused;
#[path = "../model/scenario.rs"]
mod scenario;
mod sessions;
#[path = "../tiny/mod.rs"]
mod tiny;
mod vocabulary;

use std::sync::Arc;

use compare::nmse;
use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{Device, LoadOptions, Model, Session, SessionOptions, TensorParallel};
use tiny::{GPT_OSS, LLAMA, QWEN2, QWEN3, QWEN3_MOE, Tiny, TinyShape};

/// Shapes whose heads, layers and vocabularies divide by 2, 3 and 4; KV heads that divide, and fewer than
/// there are ranks.
const DIVISIBLE: [TinyShape; 7] = [
    TinyShape { heads: 12, kv_heads: 12, vocabulary: 120, ..LLAMA },
    TinyShape { heads: 12, kv_heads: 1, ..LLAMA },
    TinyShape { heads: 12, kv_heads: 12, vocabulary: 120, ..QWEN2 },
    TinyShape { heads: 12, kv_heads: 12, ..QWEN3 },
    TinyShape { heads: 12, kv_heads: 1, vocabulary: 120, tied: false, ..QWEN3 },
    TinyShape { heads: 12, kv_heads: 12, vocabulary: 120, ..QWEN3_MOE },
    TinyShape { heads: 12, kv_heads: 12, vocabulary: 120, ..GPT_OSS },
];

const SESSION: SessionOptions =
    SessionOptions { context: 200, sequences: 3, cache: DType::F32, chunk: 7, eager: false };

fn cpu() -> Device {
    Box::new(CpuDispatcher::with_threads(1))
}

fn options() -> LoadOptions<'static> {
    LoadOptions { session: SESSION, ..LoadOptions::default() }
}

fn whole(tiny: &Tiny) -> Model {
    Model::from_source(Arc::new(tiny.clone()), cpu(), options()).unwrap()
}

fn on_ranks(tiny: &Tiny, ranks: usize) -> Model {
    let devices = (0..ranks).map(|_| cpu()).collect();
    Model::from_source_sharded(Arc::new(tiny.clone()), TensorParallel::new(devices), options()).unwrap()
}

/// The logits of the comparison, and of tokens that are fed one by one across a page border.
fn logits(model: &Model) -> Vec<f32> {
    let mut session = model.session().unwrap();
    let mut all = compare::logits_of(&mut session);
    // Pages have 128 positions.
    let long: Vec<u32> = (0..127).map(|i| (i * 13 + 1) % 101).collect();
    session.feed(0, &long).unwrap();
    for token in [7, 8, 9] {
        all.extend(session.logits(0, &[token]).unwrap());
    }
    all
}

/// Batches, sampling, penalties, masks, a reused prefix and single steps beside many at once.
fn story(session: &mut Session) -> Vec<Vec<u32>> {
    use fulmen_core::sampling::TokenMask;
    use fulmen_engine::Sampling;
    let warm = Sampling { temperature: 0.9, top_k: 20, seed: 5, repeat_penalty: 1.3, ..Sampling::GREEDY };
    session.set_sampling(1, warm).unwrap();
    session.feed(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    session.feed(1, &[10, 20]).unwrap();
    session.feed(2, &[30]).unwrap();
    let mut found = session.decode(&[0, 1, 2], 6).unwrap();
    found.extend(session.decode(&[2, 0], 1).unwrap());
    found.extend(session.decode(&[2, 0], 4).unwrap());
    session.truncate(0, 5).unwrap();
    found.push(vec![session.draw(0, &[40, 41, 42]).unwrap()]);
    found.extend(session.decode(&[0], 3).unwrap());
    session.set_mask(2, Some(TokenMask(Arc::from(vec![0x0000_0f00; 4])))).unwrap();
    found.extend(session.decode(&[2, 1], 5).unwrap());
    found.extend((0..3).map(|sequence| session.tokens(sequence).unwrap().to_vec()));
    found
}
