//! The benchmarks of models as a library: random weights on the CPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen::{OpenOptions, Registry};
use fulmen_bench::memory_bandwidth::{self, DeviceState};
use fulmen_bench::model::{
    DecodeOptions, LoadedModel, PrefillOptions, TextOptions, ThroughputOptions, bench_decode, bench_prefill,
    bench_throughput, measure_perplexity, write_trace,
};
use fulmen_bench::ops::{OpBenchOptions, OpOutcome, bench_ops};
use fulmen_bench::{BenchError, Progress};
use fulmen_engine::{LoadOptions, Model, SessionOptions};
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_testkit::Filter;

fn loaded(session: SessionOptions) -> LoadedModel {
    let start = Instant::now();
    let threads = 2;
    let options = OpenOptions { threads: Some(threads) };
    let (device, backend) = Registry::builtin().open_with("cpu".parse().unwrap(), &options).unwrap();
    let synth = Synth::new(ModelShape::preset("tiny-llama").unwrap(), "q8_0".parse().unwrap(), 1);
    let options = LoadOptions { session, check_weights: false, progress: None };
    let model = Model::from_source(Arc::new(synth.source().unwrap()), backend, options).unwrap();
    LoadedModel { model, device, load_time: start.elapsed(), threads }
}

#[test]
fn decode_reports_every_depth_and_batch_and_its_progress() {
    let options = DecodeOptions {
        depths: vec![3, 9],
        batches: vec![1, 2],
        steps: 4,
        steps_ahead: 1,
        repeat: 2,
        session: SessionOptions::default(),
    };
    let loaded = loaded(options.session_options());
    let mut steps = Vec::new();
    let mut note = |progress: Progress<'_>| steps.push((progress.done, progress.total));
    let report = bench_decode(&loaded, &options, &mut note).unwrap();
    assert_eq!(steps, [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]);
    let which: Vec<_> = report.tests.iter().map(|test| (test.depth, test.batch)).collect();
    assert_eq!(which, [(3, 1), (3, 2), (9, 1), (9, 2)]);
    for test in &report.tests {
        assert_eq!(test.rate.runs.len(), 2);
        // On the CPU, whose peak is unknown, only bytes count.
        let bound = test.profile.bytes() as f64 / report.memory_bytes_per_second.unwrap();
        assert!((test.bound_us.unwrap() / 1e6 / bound - 1.0).abs() < 1e-9);
        assert!((test.profile.sum_us + test.profile.gaps_us - test.step_us).abs() < 1e-6 * test.step_us);
    }
    let mut trace = Vec::new();
    write_trace(&mut trace, report.tests.iter().map(|test| &test.profile)).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let rows = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "M").count();
    assert_eq!(rows, 4);
}

#[test]
fn prefill_and_throughput_have_consistent_rates() {
    let options =
        PrefillOptions { tokens: vec![8], depths: vec![0, 5], repeat: 1, session: SessionOptions::default() };
    let with_room = loaded(options.session_options());
    let report = bench_prefill(&with_room, &options, &mut |_| ()).unwrap();
    for test in &report.tests {
        assert!((test.seconds * test.rate.mean / 8.0 - 1.0).abs() < 1e-9);
        assert_eq!(test.flops, test.profile.flops());
        assert_eq!(test.share_of_peak, None);
    }
    let options = ThroughputOptions {
        prefill: vec![8, 0],
        decode: vec![4],
        depths: vec![0],
        batch: 2,
        steps_ahead: 2,
        repeat: 1,
    };
    let session = SessionOptions { context: options.context(), sequences: 2, ..SessionOptions::default() };
    let report = bench_throughput(&loaded(session), &options, &mut |_| ()).unwrap();
    let names: Vec<_> = report.tests.iter().map(|test| test.test.as_str()).collect();
    assert_eq!(names, ["pp8", "tg4 x2"]);
    assert!(report.tests[0].share_of_bound.is_none() && report.tests[1].share_of_bound.unwrap() > 0.0);
}

#[test]
fn a_context_that_the_model_does_not_have_is_an_error() {
    let loaded = loaded(SessionOptions { context: 64, ..SessionOptions::default() });
    let options = DecodeOptions {
        depths: vec![1 << 20],
        batches: vec![1],
        steps: 1,
        steps_ahead: 1,
        repeat: 1,
        session: SessionOptions::default(),
    };
    let error = bench_decode(&loaded, &options, &mut |_| ()).unwrap_err();
    assert!(matches!(error, BenchError::Model(_)), "{error}");
    assert!(memory_bandwidth::measure(&loaded, DeviceState::Idle).unwrap() > 0.0);
}

#[test]
fn perplexity_reports_its_progress() {
    let loaded = loaded(SessionOptions::default());
    let options = TextOptions {
        context: Some(16),
        stride: None,
        special: false,
        bare: false,
        session: SessionOptions::default(),
    };
    let (mut last, text) = ((0, 1), "The quick brown fox jumps over the lazy dog. ".repeat(8));
    let report = measure_perplexity(&loaded, &text, &options, |known, total| last = (known.run, total));
    let report = report.unwrap();
    assert!(last.0 == report.tokens_run && last.0 <= last.1, "{last:?}");
    assert!((report.mean_nll.exp() / report.perplexity - 1.0).abs() < 1e-12);
    assert!(report.tokens_scored < report.tokens && report.context == 16);
}

#[test]
fn ops_are_timed_against_ceilings() {
    let (device, mut backend) =
        Registry::builtin().open_with("cpu".parse().unwrap(), &OpenOptions::default()).unwrap();
    let filter =
        Filter { ops: vec!["rms_norm".to_owned()], dtypes: vec![], name: "smollm2".to_owned(), up_to: None };
    let mut options =
        OpBenchOptions { filter, all: false, budget: Some(Duration::from_millis(2)), seed: 1, threads: 2 };
    let report = bench_ops(&device, backend.as_mut(), &options, &mut |_| ()).unwrap();
    assert!(report.ceiling.gflop_s > 0.0 && report.ceiling.gflop_s_by.starts_with("mul_mat/"));
    assert!(!report.cases.is_empty());
    assert!(report.cases.iter().all(|case| matches!(case.outcome, OpOutcome::Timed(_))));
    options.filter.ops = vec!["no such op".to_owned()];
    let error = bench_ops(&device, backend.as_mut(), &options, &mut |_| ()).unwrap_err();
    assert!(matches!(error, BenchError::NoCases), "{error}");
}
