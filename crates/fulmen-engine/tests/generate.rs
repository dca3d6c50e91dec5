//! Text generation: streaming, stop strings, limits, cancellation, growing conversations.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmen_core::DType;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::generation::FinishReason;
use fulmen_engine::{GenerateOptions, Generated, LoadOptions, Model, Pooling, Sampling, SessionOptions};
use fulmen_model::ModelError;
use fulmen_model::gguf::GgufWriter;
use fulmen_model::synth::{ModelShape, Synth};
use fulmen_model::tokenizer::Special;

/// Weights and caches in F32: the same tokens come out however the work is divided.
fn model() -> Model {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap();
    let session = SessionOptions { context: 128, chunk: 16, cache: DType::F32, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    Model::from_source(Arc::new(file), Box::new(CpuDispatcher::with_threads(2)), options).unwrap()
}

fn options(max_tokens: usize) -> GenerateOptions {
    let sampling = Sampling { temperature: 0.8, seed: 3, ..Sampling::GREEDY };
    GenerateOptions { sampling, max_tokens, stop_at_end: false, ..GenerateOptions::default() }
}

fn run(model: &Model, prompt: &str, options: &GenerateOptions) -> (Vec<String>, Generated) {
    let mut pieces = Vec::new();
    let generated = model.generate(prompt, options, |piece| pieces.push(piece.to_owned())).unwrap();
    assert_eq!(pieces.concat(), generated.text);
    assert!(pieces.iter().all(|piece| !piece.is_empty()));
    (pieces, generated)
}

#[test]
fn pieces_are_the_text_of_the_tokens() {
    let model = model();
    let (pieces, generated) = run(&model, "Hello there", &options(40));
    assert_eq!((generated.tokens.len(), &generated.reason), (40, &FinishReason::MaxTokens));
    assert!(pieces.len() > 10);
    let tokenizer = model.tokenizer().unwrap();
    assert_eq!(generated.text, tokenizer.decode(&generated.tokens).unwrap());
    assert_eq!(generated.prompt_tokens, tokenizer.encode_prompt("Hello there", Special::AsText).len());
    assert_eq!(generated.fed_tokens, generated.prompt_tokens);
    assert!(generated.prefill_rate() > 0.0 && generated.decode_rate() > 0.0);
    // The same seed produces the same text, however many steps are queued.
    for ahead in [0, 1, 3, 64] {
        assert_eq!(
            run(&model, "Hello there", &GenerateOptions { ahead, ..options(40) }).1.tokens,
            generated.tokens
        );
    }
    // None at all.
    let (_, none) = run(&model, "Hello there", &options(0));
    assert_eq!((none.text.as_str(), none.reason), ("", FinishReason::MaxTokens));
}

#[test]
fn an_iterator_gives_the_same_pieces_and_may_be_left() {
    let model = model();
    let (pieces, _) = run(&model, "Hello", &options(20));
    let mut session = model.session().unwrap();
    let some: Vec<String> =
        session.generate("Hello", &options(20)).unwrap().take(3).collect::<Result<_, _>>().unwrap();
    assert_eq!(some, pieces[..3]);
    let all: Vec<String> =
        session.generate("Hello", &options(20)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(all, pieces);
}

#[test]
fn pieces_of_tokens_drawn_ahead_come_without_another_step() {
    let model = model();
    let (pieces, whole) = run(&model, "Hello", &options(20));
    let mut session = model.session().unwrap();
    let mut generation = session.generate("Hello", &GenerateOptions { ahead: 5, ..options(20) }).unwrap();
    let (mut all, mut steps) = (Vec::new(), 0);
    loop {
        while let Some(piece) = generation.drawn_piece().unwrap() {
            all.push(piece);
        }
        // Tokens that were drawn together: the first one alone, and then five at a time.
        let known = generation.generated().tokens.len();
        assert!(
            (known == 20 || known.saturating_sub(1).is_multiple_of(5))
                && all.concat() == generation.generated().text
        );
        let Some(piece) = generation.next_piece().unwrap() else { break };
        all.push(piece);
        steps += 1;
    }
    assert_eq!((all, generation.generated().text.clone()), (pieces, whole.text));
    assert!((2..=5).contains(&steps), "{steps} steps");
    assert_eq!(generation.drawn_piece().unwrap(), None, "the text has ended");
}

#[test]
fn stop_strings_end_the_text_across_token_borders() {
    let model = model();
    let (pieces, whole) = run(&model, "Hello there", &options(40));
    // From the middle of one piece to the middle of a later one.
    let start = pieces[..6].concat().len() + pieces[6].chars().next().unwrap().len_utf8();
    let start = if whole.text[start..].starts_with(&pieces[7]) { pieces[..6].concat().len() } else { start };
    let stop: String = whole.text[start..].chars().take(6).collect();
    let first = whole.text.find(&stop).unwrap();
    for ahead in [0, 1, 8] {
        let options = GenerateOptions { stop: vec!["never".to_owned(), stop.clone()], ahead, ..options(40) };
        let mut session = model.session().unwrap();
        let generated = session.generate("Hello there", &options).unwrap().finish(|_| ()).unwrap();
        assert_eq!(generated.reason, FinishReason::StopString(stop.clone()));
        assert_eq!(generated.text, whole.text[..first]);
        assert!(generated.tokens.len() < 40 && whole.tokens.starts_with(&generated.tokens));
        let kept = session.tokens(0).unwrap().len();
        assert_eq!(kept, generated.prompt_tokens + generated.tokens.len(), "what was drawn ahead is gone");
    }
    let empty = GenerateOptions { stop: vec![String::new()], ..options(4) };
    assert!(model.generate("Hello", &empty, |_| ()).unwrap_err().to_string().contains("stop string"));
}

#[test]
fn an_end_token_ends_the_answer() {
    let model = model();
    let tokenizer = model.tokenizer().unwrap();
    // Find a seed whose text has an end token, and compare with the same text without stopping there.
    for seed in 0..200 {
        let sampling = Sampling { temperature: 3.0, seed, ..Sampling::GREEDY };
        let free = GenerateOptions { sampling, ..options(100) };
        let (_, whole) = run(&model, "Hello", &free);
        let Some(at) = whole.tokens.iter().position(|&token| tokenizer.is_end(token)) else { continue };
        let (_, ended) = run(&model, "Hello", &GenerateOptions { stop_at_end: true, ..free });
        assert_eq!(ended.tokens, whole.tokens[..=at]);
        assert_eq!(ended.reason, FinishReason::EndToken(whole.tokens[at]));
        return;
    }
    panic!("no seed gave an end token");
}

#[test]
fn a_full_context_ends_the_answer() {
    let model = model();
    let (_, generated) = run(&model, "Hello there", &options(usize::MAX));
    assert_eq!(generated.reason, FinishReason::ContextFull);
    assert_eq!(generated.prompt_tokens + generated.tokens.len(), 128);
    let mut session = model.session().unwrap();
    // Exactly the context: nothing can follow. One more token does not fit.
    let prompt = vec![7; 128];
    let full = session.generate_from(&prompt, &options(5)).unwrap().finish(|_| ()).unwrap();
    assert_eq!((full.tokens.len(), full.reason), (0, FinishReason::ContextFull));
    for tokens in [129, 1_000_000] {
        let error = session.generate_from(&vec![7; tokens], &options(5)).unwrap_err();
        assert!(matches!(error, ModelError::PromptTooLong { context: 128, .. }), "{error}");
    }
    let last = session.generate_from(&prompt[..127], &options(5)).unwrap().finish(|_| ()).unwrap();
    assert_eq!((last.tokens.len(), last.reason), (1, FinishReason::ContextFull));
    assert!(matches!(session.generate("", &options(5)).map(drop), Err(ModelError::EmptyPrompt)));
    assert!(matches!(
        session.generate_from(&[9999], &options(5)).unwrap().next(),
        Some(Err(ModelError::Token { .. }))
    ));
}

#[test]
fn sampling_that_makes_no_sense_is_refused_before_anything_runs() {
    let mut session = model().session().unwrap();
    for sampling in [
        Sampling { temperature: f32::NAN, ..Sampling::GREEDY },
        Sampling { temperature: -0.5, ..Sampling::GREEDY },
        Sampling { top_p: f32::NAN, ..Sampling::GREEDY },
        Sampling { repeat_penalty: 0.0, ..Sampling::GREEDY },
    ] {
        let options = GenerateOptions { sampling, ..options(5) };
        assert!(matches!(session.generate("Hello", &options).map(drop), Err(ModelError::Sampling(_))));
    }
}

#[test]
fn cancelling_ends_the_answer_with_what_there_is() {
    let model = model();
    let (_, whole) = run(&model, "Hello", &options(40));
    let mut session = model.session().unwrap();
    let flag = session.cancel_flag();
    let mut count = 0;
    let generation = session.generate("Hello", &options(40)).unwrap();
    let generated = generation
        .finish(|_| {
            count += 1;
            flag.store(count == 5, Ordering::Relaxed);
        })
        .unwrap();
    assert_eq!(generated.reason, FinishReason::Cancelled);
    assert!(whole.text.starts_with(&generated.text) && !generated.text.is_empty());
    flag.store(false, Ordering::Relaxed);
    let again = session.generate("Hello", &options(40)).unwrap().finish(|_| ()).unwrap();
    assert_eq!(again.text, whole.text);
}

#[test]
fn a_conversation_pays_for_what_is_new() {
    let model = model();
    let tokenizer = model.tokenizer().unwrap();
    let mut session = model.session().unwrap();
    let first = session.generate("Hello there", &options(10)).unwrap().finish(|_| ()).unwrap();
    // The same and more: prompt, answer, another question.
    let mut longer = tokenizer.encode_prompt("Hello there", Special::AsText);
    longer.extend(&first.tokens);
    longer.extend(tokenizer.encode(" and then", Special::AsText));
    let second = session.generate_from(&longer, &options(10)).unwrap().finish(|_| ()).unwrap();
    // The last token of the answer was drawn, but not run.
    assert_eq!(second.fed_tokens, longer.len() - first.prompt_tokens - 10 + 1);
    let fresh =
        model.session().unwrap().generate_from(&longer, &options(10)).unwrap().finish(|_| ()).unwrap();
    assert_eq!(second.tokens, fresh.tokens);
    // Another branch from the middle.
    let other = session.generate("Hello then", &options(10)).unwrap().finish(|_| ()).unwrap();
    assert_eq!(other.tokens, run(&model, "Hello then", &options(10)).1.tokens);
}

#[test]
fn texts_have_embeddings() {
    let model = model();
    let (a, b) = (model.embed("Hello there").unwrap(), model.embed("Hello then").unwrap());
    assert_eq!(a.len(), model.config().hidden as usize);
    assert!(a != b && a.iter().all(|x| x.is_finite()));
    assert_eq!(model.embed("Hello there").unwrap(), a);
}

#[test]
fn embeddings_are_pooled_as_the_file_says() {
    let shape = ModelShape { layers: 2, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let synth = Synth::new(shape, "f32".parse().unwrap(), 5);
    let (tensors, key) = (synth.tensors().unwrap(), "qwen3.pooling_type");
    let with_pooling = |number: Option<u32>| {
        let mut metadata = synth.metadata();
        if let Some(number) = number {
            metadata.set(key, number);
        }
        let mut writer = GgufWriter::new(Vec::new(), &metadata, &tensors).unwrap();
        for tensor in &tensors {
            writer.write(tensor.name(), &synth.data(tensor).unwrap()).unwrap();
        }
        // Chunks of 4 tokens: the mean is one of several chunks.
        let session =
            SessionOptions { context: 128, chunk: 4, cache: DType::F32, ..SessionOptions::default() };
        let options = LoadOptions { session, ..LoadOptions::default() };
        let bytes = Arc::new(writer.finish().unwrap());
        Model::from_bytes(bytes, Box::new(CpuDispatcher::with_threads(2)), options).unwrap()
    };
    let model = with_pooling(None);
    assert_eq!(model.pooling().unwrap(), Pooling::Last);
    let text = "Hello there, how are you?";
    let tokens = model.tokenizer().unwrap().encode_prompt(text, Special::AsText);
    assert!(tokens.len() > 5);
    let mut session = model.session().unwrap();
    let states: Vec<Vec<f32>> = tokens.iter().map(|&token| session.hidden(0, &[token]).unwrap()).collect();
    let mean: Vec<f32> = (0..states[0].len())
        .map(|at| (states.iter().map(|state| f64::from(state[at])).sum::<f64>() / states.len() as f64) as f32)
        .collect();
    let expected = [(None, states.last()), (Some(1), Some(&mean)), (Some(2), states.first())];
    for (number, expected) in expected.into_iter().chain([(Some(3), states.last())]) {
        let got = with_pooling(number).embed(text).unwrap();
        let far = got.iter().zip(expected.unwrap()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 1e-4, "pooling {number:?}: {far}");
    }
    for number in [0, 4, 99] {
        let error = with_pooling(Some(number)).embed(text).unwrap_err();
        assert!(matches!(&error, ModelError::Value { key: named, .. } if named == key), "{error}");
    }
}

#[test]
fn a_prompt_is_cancelled_inside_a_chunk() {
    // One chunk, long enough to be canceled midway.
    let shape = ModelShape { layers: 8, ..ModelShape::preset("tiny-qwen3").unwrap() };
    let file = Synth::new(shape, "f32".parse().unwrap(), 5).file().unwrap();
    let session = SessionOptions { context: 512, chunk: 512, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let model =
        Model::from_source(Arc::new(file), Box::new(CpuDispatcher::with_threads(1)), options).unwrap();
    let prompt: Vec<u32> = (0..500).map(|at| at % 900).collect();
    let mut session = model.session().unwrap();
    let whole = std::time::Instant::now();
    let expected = session.logits(0, &prompt).unwrap();
    let whole = whole.elapsed();
    session.truncate(0, 0).unwrap();
    let flag = session.cancel_flag();
    let cancelled = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(whole / 10);
            flag.store(true, Ordering::Relaxed);
        });
        let start = std::time::Instant::now();
        let result = session.logits(0, &prompt);
        (result, start.elapsed())
    });
    assert!(matches!(cancelled.0, Err(ModelError::Cancelled)), "it was not stopped");
    assert!(cancelled.1 < whole * 3 / 4, "{:?} of {whole:?}", cancelled.1);
    // Nothing remains of it.
    assert!(session.tokens(0).unwrap().is_empty());
    flag.store(false, Ordering::Relaxed);
    assert_eq!(session.logits(0, &prompt).unwrap(), expected);
}

/// Bytes at an arbitrary address.
struct Shifted(Vec<u8>, usize);

impl AsRef<[u8]> for Shifted {
    fn as_ref(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

#[test]
fn a_model_in_memory_answers_as_the_file_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let synth = Synth::new(
        ModelShape { layers: 2, ..ModelShape::preset("tiny-llama").unwrap() },
        "q4_k_m".parse().unwrap(),
        9,
    );
    let bytes = synth.bytes().unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let device = || Box::new(CpuDispatcher::with_threads(2));
    let answer = |model: Model| model.generate("Hello", &options(12), |_| ()).unwrap().tokens;
    let expected = answer(Model::load(&path, device()).unwrap());
    for shift in [0, 1, 7, 16] {
        let shifted = [vec![0; shift], bytes.clone()].concat();
        let model = Model::from_bytes(Arc::new(Shifted(shifted, shift)), device(), LoadOptions::default());
        assert_eq!(answer(model.unwrap()), expected, "shifted by {shift}");
    }
    let cut = Model::from_bytes(Arc::new(bytes[..999].to_vec()), device(), LoadOptions::default());
    assert!(cut.unwrap_err().to_string().starts_with("memory: "));
}
