//! Ranks that have a part of the vocabulary each: embedding, output matrix, and what they exchange to draw.

use std::sync::Arc;

use fulmen_core::{DType, Op, PlanOptions};
use fulmen_engine::{EngineOptions, Model, Request, Sampling, SamplingParams, Session, TensorParallel};
use fulmen_model::arch::{Beside, Config, GraphSpec, Results, Sharding, Step};
use fulmen_wgpu::WgpuDispatcher;

use super::scenario::{answers, driver};
use super::tiny::{QWEN3, Tiny, TinyShape};
use super::{on_ranks, options, whole};

/// The parts of 2, 3 and 4 ranks are larger than what they offer to draw from.
const WIDE: TinyShape = TinyShape { heads: 12, kv_heads: 12, vocabulary: 1200, tied: false, ..QWEN3 };

/// Greedy, and with each parameter of sampling, within what ranks offer; then with more candidates.
fn samplings() -> [Sampling; 6] {
    let hot = Sampling { temperature: 1.5, seed: 9, ..Sampling::GREEDY };
    [
        Sampling::GREEDY,
        Sampling { top_k: 1, ..hot },
        Sampling { top_k: 20, top_p: 0.9, ..hot },
        Sampling { top_k: 64, min_p: 0.02, ..hot },
        Sampling { top_k: 65, ..hot },
        Sampling { top_p: 0.8, ..hot },
    ]
}

/// Draws with every sampling alone, after a prefill and by decoding, and with several of them in a batch.
fn tokens(session: &mut Session) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    for sampling in samplings() {
        session.set_sampling(0, sampling).unwrap();
        session.truncate(0, 0).unwrap();
        found.push(vec![session.draw(0, &[1, 2, 3]).unwrap()]);
        found.extend(session.decode(&[0], 12).unwrap());
    }
    for pair in samplings().windows(2) {
        for (sequence, &sampling) in [1, 2].into_iter().zip(pair) {
            session.set_sampling(sequence, sampling).unwrap();
            session.truncate(sequence, 0).unwrap();
            session.feed(sequence, &[sequence, 700]).unwrap();
        }
        found.extend(session.decode(&[1, 2], 5).unwrap());
        found.extend(session.decode(&[2, 1], 1).unwrap());
    }
    found
}

#[test]
fn any_sampling_draws_the_tokens_of_one_device() {
    for tied in [false, true] {
        let tiny = Tiny::new(TinyShape { tied, ..WIDE }, 11);
        let expected = tokens(&mut whole(&tiny).session().unwrap());
        let distinct = expected.iter().flatten().filter(|token| **token >= 600).count();
        assert!(distinct > 20, "tokens of all ranks are drawn: {expected:?}");
        for ranks in 2..=4 {
            assert_eq!(tokens(&mut on_ranks(&tiny, ranks).session().unwrap()), expected, "{ranks} ranks");
        }
    }
}

#[test]
fn two_gpus_draw_the_tokens_of_one() {
    let tiny = Tiny::new(WIDE, 12);
    let gpu = || Box::new(WgpuDispatcher::open(0).unwrap()) as fulmen_engine::Device;
    let one = Model::from_source(Arc::new(tiny.clone()), gpu(), options()).unwrap();
    let two = TensorParallel::new(vec![gpu(), gpu()]);
    let two = Model::from_source_sharded(Arc::new(tiny), two, options()).unwrap();
    assert_eq!(tokens(&mut two.session().unwrap()), tokens(&mut one.session().unwrap()));
}

/// An output matrix whose rows repeat gives every logit many times, on all ranks: of equal ones the lowest
/// token is drawn, and only the first of them are candidates.
#[test]
fn ties_break_as_on_one_device() {
    let mut tiny = Tiny::new(WIDE, 11);
    let rows: Vec<f32> = (0..1200 * 64).map(|i| ((i % (5 * 64)) as f32).sin()).collect();
    tiny.put("output.weight", &[64, 1200], DType::F32, &rows);
    let expected = tokens(&mut whole(&tiny).session().unwrap());
    // Greedy rows draw one of the first five tokens.
    assert!(expected[0][0] < 5 && expected[1].iter().all(|&token| token < 5), "{expected:?}");
    assert!(expected[5].iter().any(|&token| token >= 5), "{expected:?}");
    for ranks in 2..=4 {
        assert_eq!(tokens(&mut on_ranks(&tiny, ranks).session().unwrap()), expected, "{ranks} ranks");
    }
    // All logits are equal.
    tiny.put("output.weight", &[64, 1200], DType::F32, &[0.0; 1200 * 64]);
    let model = on_ranks(&tiny, 3);
    assert_eq!(model.session().unwrap().draw(0, &[1, 2]).unwrap(), 0);
}

#[test]
fn a_row_without_a_finite_maximum_fails_on_ranks() {
    let mut tiny = Tiny::new(WIDE, 11);
    // Every logit overflows.
    tiny.put("output.weight", &[64, 1200], DType::F32, &[3e38; 1200 * 64]);
    for ranks in [1, 2] {
        let error = on_ranks(&tiny, ranks).session().unwrap().draw(0, &[1, 2]).unwrap_err().to_string();
        assert!(error.contains("finite"), "{ranks} ranks: {error}");
    }
}

/// The widths of what a step gathers.
fn gathered(config: &Config, sharding: &Sharding, tiny: &Tiny, step: Step) -> Vec<u32> {
    let source = sharding.source(Arc::new(tiny.clone()), 1).unwrap();
    let spec = GraphSpec::contiguous(step, DType::F16, 1, 64);
    let plan = config.graph(source.as_ref(), &spec).unwrap().plan(&PlanOptions::default()).unwrap();
    let width = |op: &Op| match op {
        Op::AllGather { x, .. } => Some(plan.graph.tensors[*x].width),
        _ => None,
    };
    plan.graph.ops.iter().filter_map(|node| width(&node.op)).collect()
}

#[test]
fn ranks_exchange_no_more_logits_than_rows_need() {
    let tiny = Tiny::new(WIDE, 11);
    let whole = Config::read(&tiny).unwrap();
    let sharding = Sharding::new(&whole, &tiny, 3).unwrap();
    let config = sharding.config(1);
    let of =
        |samplings: &[Sampling]| config.candidates(samplings.iter().map(|sampling| sampling.state(0, 0)));
    let [greedy, first, twenty, most, more, all] = samplings();
    assert_eq!([of(&[greedy]), of(&[first, greedy])], [Some(1); 2]);
    assert_eq!([of(&[greedy, twenty]), of(&[most])], [Some(64); 2]);
    assert_eq!([of(&[greedy, more]), of(&[all])], [None; 2]);
    assert_eq!(whole.candidates([greedy.state(0, 0)]), None, "a single device exchanges nothing");
    // With parts of 100 tokens, 64 logits and tokens are more than all logits.
    let narrow = Tiny::new(TinyShape { vocabulary: 300, ..WIDE }, 11);
    let narrow = Sharding::new(&Config::read(&narrow).unwrap(), &narrow, 3).unwrap().config(0);
    assert_eq!(narrow.candidates([twenty.state(0, 0)]), None);
    assert_eq!(narrow.candidates([greedy.state(0, 0)]), Some(1));

    let decode = |candidates| Step::Decode { rows: 1, penalize: false, mask: false, candidates };
    let widths = |step| gathered(&config, &sharding, &tiny, step);
    assert_eq!(widths(decode(None)), [400]);
    assert_eq!(widths(decode(Some(1))), [1, 1]);
    assert_eq!(widths(decode(Some(64))), [64, 64]);
    let penalized = Step::Decode { rows: 1, penalize: true, mask: false, candidates: Some(1) };
    assert_eq!(widths(penalized), [400]);
    let prefill = |log_probs| {
        let beside = Beside { log_probs, hidden: true };
        let draw = Results::Draw { penalize: false, mask: false, candidates: Some(1), beside };
        Step::Mixed { rows: 1, chunks: 1, results: Some((1, draw)) }
    };
    assert_eq!(widths(prefill(Some(2))), [400]);
    assert_eq!(widths(prefill(None)), [1, 1]);
}

#[test]
fn an_engine_draws_the_tokens_of_one_device() {
    let tiny = Tiny::new(WIDE, 11);
    let engine = EngineOptions { context: 200, max_sequences: 4, max_rows: 64, ..EngineOptions::default() };
    let requests = || -> Vec<Request> {
        let prompt = |n: u32| (0..40 + 9 * n).map(|i| (i * 31 + n) % 1200).collect::<Vec<u32>>();
        let requests = (0u32..).zip(samplings()).map(|(number, sampling)| Request {
            sampling: SamplingParams::new(sampling),
            ..Request::new(prompt(number / 2), 6 + 3 * number)
        });
        requests.collect()
    };
    let expected = answers(&mut driver(&whole(&tiny), &engine), requests());
    for ranks in [2, 3] {
        let found = answers(&mut driver(&on_ranks(&tiny, ranks), &engine), requests());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.tokens, expected.tokens, "{ranks} ranks");
        }
    }
}

/// A tied head is the same part of the embedding: both are there once.
#[test]
fn a_rank_has_its_part_of_the_vocabulary() {
    for (tied, matrices) in [(true, 1), (false, 2)] {
        let tiny = Tiny::new(TinyShape { tied, layers: 1, ..WIDE }, 11);
        let bytes = |ranks| *on_ranks(&tiny, ranks).rank_weight_bytes().iter().max().unwrap();
        let (one, two, four) = (bytes(1), bytes(2), bytes(4));
        let part = |ranks: u64| matrices * 4 * 64 * 1200 / ranks;
        assert!(one > part(1) && two < one / 2 + 4096 && four < one / 4 + 4096, "{one} {two} {four}");
        // What does not divide is whole.
        let odd = Tiny::new(TinyShape { tied, layers: 1, vocabulary: 1201, ..WIDE }, 11);
        assert!(*on_ranks(&odd, 2).rank_weight_bytes().iter().max().unwrap() > part(1));
    }
}
