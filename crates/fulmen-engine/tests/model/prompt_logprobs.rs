//! Several rows of one sequence end a step with results: log-probabilities of prompts, and drawn tokens.

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::model::{ModelDevice, ModelSampling};
use fulmen_engine::pages::PageId;
use fulmen_engine::step::{
    LogitsRow, NextToken, PrefillChunk, Prologue, Rows, Sampled, SlotSetup, StepPlan, TableEdit,
};
use fulmen_engine::{
    EngineOptions, Event, LaunchError, Model, Request, Sampling, SamplingParams, SessionOptions, StepDevice,
};
use fulmen_wgpu::WgpuDispatcher;

use crate::scenario::{Answer, answers, driver, small_model};

fn cpu() -> Model {
    small_model("f32", Box::new(CpuDispatcher::with_threads(2)))
}

fn wgpu() -> Model {
    small_model("f32", Box::new(WgpuDispatcher::open(0).unwrap()))
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|at| (at * 37 + at * at % 11) % 300).collect()
}

/// The logits after each token, by a session on the CPU.
fn logits(tokens: &[u32]) -> Vec<Vec<f32>> {
    let options = SessionOptions { cache: DType::F32, ..SessionOptions::default() };
    let model = cpu();
    let (mut session, mut all) = (model.session_with(options).unwrap(), Vec::new());
    let width = model.config().vocabulary as usize;
    session
        .logits_of_each(0, tokens, 0, |_, rows| all.extend(rows.chunks_exact(width).map(<[f32]>::to_vec)))
        .unwrap();
    all
}

/// The log-probabilities of all tokens, in f64.
fn log_probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit - largest) - sum.ln()).collect()
}

/// Compares the log-probabilities of a prompt with those of a session.
fn check(prompt: &[u32], top: usize, found: &[Sampled], tolerance: f64) {
    assert_eq!(found.iter().map(|token| token.token).collect::<Vec<_>>(), prompt);
    assert_eq!((found[0].logprob, found[0].top.len()), (None, 0));
    for (at, logits) in logits(prompt).iter().enumerate().take(prompt.len() - 1) {
        let (expected, found) = (log_probabilities(logits), &found[at + 1]);
        let near =
            |token: u32, logprob: f32| (expected[token as usize] - f64::from(logprob)).abs() < tolerance;
        assert!(near(found.token, found.logprob.unwrap()), "position {at}: {found:?}");
        assert_eq!(found.top.len(), top, "position {at}");
        assert!(found.top.iter().all(|&(token, logprob)| near(token, logprob)), "position {at}: {found:?}");
        let mut sorted = expected.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if let Some(&(best, _)) = found.top.first() {
            assert!((expected[best as usize] - sorted[0]).abs() < tolerance, "position {at}: {found:?}");
        }
    }
}

fn finished(answer: &Answer) -> usize {
    let Some(Event::Finished { usage, .. }) = &answer.end else { panic!("{answer:?}") };
    usage.cached_tokens
}

/// Requests together, with sampling that log-probabilities know nothing of, and after a prefix was cached.
fn prompts_have_the_log_probabilities_of_a_session(model: &Model, tolerance: f64) {
    let options = EngineOptions {
        context: 256,
        max_sequences: 3,
        max_rows: 96,
        prompt_outputs: 20,
        cache: DType::F32,
        ..EngineOptions::default()
    };
    let sampling = Sampling { repeat_penalty: 1.5, temperature: 0.7, ..Sampling::GREEDY };
    let biased = ModelSampling { sampling, logit_bias: vec![(5, -1.0), (7, 2.0)] };
    let request = |len, top| Request { prompt_logprobs: top, ..Request::new(prompt(len), 3) };
    let requests = || {
        vec![
            Request { sampling: SamplingParams::new(biased.clone()), ..request(130, Some(3)) },
            request(9, None),
            Request { logprobs: Some(1), ..request(50, Some(0)) },
            request(1, Some(2)),
        ]
    };
    let mut driver = driver(model, &options);
    let plain = answers(&mut driver, vec![request(140, None)]).remove(0);
    assert!(finished(&plain) == 0 && plain.prompt.is_empty());
    for _ in 0..2 {
        let found = answers(&mut driver, requests());
        check(&prompt(130), 3, &found[0].prompt, tolerance);
        assert!(found[1].prompt.is_empty());
        check(&prompt(50), 0, &found[2].prompt, tolerance);
        assert_eq!((found[2].logprobs.len(), &found[3].prompt[..]), (3, &[Sampled::token(0)][..]));
        assert_eq!([0, 2].map(|number| finished(&found[number])), [0, 0], "nothing is looked up");
    }
    let plain = answers(&mut driver, vec![request(140, None)]).remove(0);
    assert!(finished(&plain) >= 128, "their pages serve others: {plain:?}");
}

#[test]
fn prompts_have_the_log_probabilities_of_a_session_on_the_cpu() {
    prompts_have_the_log_probabilities_of_a_session(&cpu(), 1e-4);
}

#[test]
fn prompts_have_the_log_probabilities_of_a_session_through_wgpu() {
    prompts_have_the_log_probabilities_of_a_session(&wgpu(), 1e-3);
}

#[test]
fn more_log_probabilities_than_there_are_end_the_request() {
    let mut driver = driver(&cpu(), &EngineOptions { context: 64, ..EngineOptions::default() });
    let many = Request { prompt_logprobs: Some(21), ..Request::new(prompt(5), 1) };
    let refused = answers(&mut driver, vec![many, Request::new(prompt(5), 1)]);
    assert!(format!("{:?}", refused[0].end).contains("at most 20"), "{refused:?}");
    finished(&refused[1]);
}

/// A step of consecutive rows of slot 0 that begins at a position.
fn plan(history: &[u32], first: usize, logits: Vec<LogitsRow>) -> StepPlan {
    let rows = (history.len() - first) as u32;
    let setup = SlotSetup { slot: 0, sampling: SamplingParams::default(), history: history.to_vec() };
    let table = vec![TableEdit { group: 0, slot: 0, index: 0, page: Some(PageId(0)) }];
    StepPlan {
        bucket: rows,
        prologue: Prologue { slots: vec![setup], table, ..Prologue::default() },
        rows: Rows {
            active: rows,
            tokens: history[first..].to_vec(),
            positions: (first as u32..history.len() as u32).collect(),
            slots: vec![0; rows as usize],
            sampling: vec![0; rows as usize],
        },
        chunks: vec![PrefillChunk { slot: 0, position: first as u32, rows: 0..rows }],
        logits,
        ..StepPlan::default()
    }
}

fn output(row: u32, next: NextToken) -> LogitsRow {
    LogitsRow { row, next, logprobs: Some(1), hidden: true, mask: None }
}

/// What the verification of drafted tokens needs: each of several rows of a sequence draws a token, and the
/// sequence goes on behind the last one that is right.
fn several_rows_of_a_sequence_draw_tokens(model: &Model, tolerance: f64) {
    let options = EngineOptions {
        context: 100,
        max_sequences: 2,
        max_rows: 16,
        prompt_outputs: 4,
        cache: DType::F32,
        ..EngineOptions::default()
    };
    let (_, mut device) = ModelDevice::open(model, &options).unwrap();
    let mut run = |plan: &StepPlan| {
        let ticket = device.launch(plan).unwrap();
        device.wait(ticket).unwrap().sampled
    };
    let tokens = prompt(9);
    let best = |logits: &[f32]| (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    let expected = logits(&tokens);
    let known = NextToken::Known;
    let rows = vec![
        output(2, NextToken::Sample),
        output(3, known(tokens[4])),
        output(4, NextToken::Sample),
        output(6, known(299)),
        output(8, NextToken::Sample),
    ];
    let found = run(&plan(&tokens, 0, rows.clone()));
    assert_eq!(found.len(), rows.len());
    for (row, found) in rows.iter().zip(&found) {
        let logits = &expected[row.row as usize];
        let token = match row.next {
            NextToken::Sample => best(logits) as u32,
            NextToken::Known(token) => token,
        };
        let logprob = log_probabilities(logits)[token as usize];
        assert_eq!((found.token, found.top[0].0), (token, best(logits) as u32), "{row:?}");
        assert!((f64::from(found.logprob.unwrap()) - logprob).abs() < tolerance, "{row:?}: {found:?}");
        let width = model.config().hidden as usize;
        assert!(found.hidden.len() == width && found.hidden.iter().any(|&x| x != 0.0), "{row:?}");
    }
    // The sequence goes on behind row 4 with the token that it drew, which the device has.
    let drawn = found[2].token;
    let continued = [&tokens[..5], &[drawn]].concat();
    let step = StepPlan {
        prologue: Prologue::default(),
        decode_rows: 1,
        chunks: Vec::new(),
        ..plan(&continued, 5, vec![output(0, NextToken::Sample)])
    };
    let again = run(&step);
    assert_eq!(again[0].token, best(logits(&continued).last().unwrap()) as u32);

    let refused = device.launch(&plan(&tokens, 0, vec![output(0, known(100_000))])).unwrap_err();
    assert!(matches!(&refused, LaunchError::Rejected { slot: 0, reason } if reason.contains("100000")));
    let many = (0..7).map(|row| output(row, NextToken::Sample)).collect();
    let refused = device.launch(&plan(&tokens, 0, many)).unwrap_err();
    assert!(matches!(&refused, LaunchError::Failed(reason) if reason.contains("at most 6")), "{refused:?}");
}

#[test]
fn several_rows_of_a_sequence_draw_tokens_on_the_cpu() {
    several_rows_of_a_sequence_draw_tokens(&cpu(), 1e-4);
}

#[test]
fn several_rows_of_a_sequence_draw_tokens_through_wgpu() {
    several_rows_of_a_sequence_draw_tokens(&wgpu(), 1e-3);
}
