//! Models: loading, generating, embeddings, logits, scores.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use fulmen::core::{DType, LogicalGraph};
use fulmen::engine::EngineOptions;
use fulmen::hub::{self, Event as HubEvent, Overrides, Reference, Settings};
use fulmen::model::PerplexityOptions;
use fulmen::model::arch::{GraphSpec, Results, Step};
use fulmen::model::source;
use fulmen::model::tokenizer::Special;
use fulmen::prelude::{LoadOptions, Model as Inner, ModelError, Session, SessionOptions};
use fulmen::{OpenOptions, Registry};
use numpy::{PyArray1, PyArray2, PyArrayMethods, ToPyArray};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cancel::{Cancel, CancelToken};
use crate::chat::AnswerReader;
use crate::failure::{Failure, Kind};
use crate::generate::{self, Task, in_session};
use crate::loaded::{Loaded, find};
use crate::options::Options;
use crate::process::OfProcess;
use crate::stream::Stream;
use crate::tokenizer::Tokenizer;
use crate::worker::{Interrupted, Reporter, detached, wait};

/// A model on a device.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct Model {
    loaded: OfProcess<Mutex<Option<Arc<Loaded>>>>,
}

impl Model {
    fn loaded(&self) -> Result<Arc<Loaded>, Failure> {
        let loaded = self.loaded.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| Failure::new(Kind::Closed, "the model was closed"))
    }

    /// How prompts are continued with these options.
    fn task(&self, options: &Options, reader: Option<&Bound<'_, AnswerReader>>) -> Result<Task, Failure> {
        Ok(Task {
            loaded: self.loaded()?,
            options: options.generate.clone(),
            grammar: options.grammar.clone(),
            logprobs: options.logprobs,
            first_call: reader.and_then(|reader| reader.get().first_call()),
        })
    }
}

/// Runs work in a session of the model and waits for it.
fn run<T: Send + 'static>(
    py: Python<'_>,
    loaded: Arc<Loaded>,
    progress: Option<&Bound<'_, PyAny>>,
    token: Option<&Bound<'_, CancelToken>>,
    work: impl FnOnce(&mut Session, &Reporter<T>) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let cancel = Cancel::of(token.map(Bound::get));
    let own = Arc::clone(&cancel);
    wait(py, &cancel, Interrupted::Join, progress, move |reporter| {
        own.check()?;
        in_session(&loaded, &own, |session| work(session, reporter))
    })
}

/// How a model is loaded.
struct Load {
    path: Option<String>,
    device: String,
    context: u32,
    kv: String,
    threads: Option<usize>,
    max_sequences: u32,
    batch_memory: u64,
    check_weights: bool,
}

fn load(load: Load, reporter: &Reporter<Loaded>, cancel: &Cancel) -> Result<Loaded, Failure> {
    let Load { path, device, context, kv, threads, max_sequences, batch_memory, check_weights } = load;
    let path = path.as_deref().map(find).transpose()?;
    let registry = Registry::builtin();
    let asked = registry.parse(&device)?;
    let cache: DType = kv.parse()?;
    if threads == Some(0) {
        return Err(Failure::argument("load", "threads", "at least 1", 0));
    }
    let source: Arc<dyn source::ModelSource> = match path {
        Some(path) => Arc::from(source::open(path)?),
        None => Arc::from(source::from_bytes(crate::story::story_model())?),
    };
    cancel.check()?;
    let (info, device) = registry.open_with(asked, &OpenOptions { threads })?;
    let mut progress = |at: fulmen::model::LoadProgress| {
        reporter.progress(at.done, at.total);
        cancel.flow()
    };
    let session = SessionOptions { context, cache, ..SessionOptions::default() };
    let options = LoadOptions { session, check_weights, progress: Some(&mut progress) };
    let model = Inner::from_source(source, device, options)?;
    let engine = EngineOptions {
        context: model.session_options().context,
        max_sequences,
        memory: batch_memory,
        cache,
        ..EngineOptions::default()
    };
    Ok(Loaded::new(model, info, engine))
}

/// The path of a model: of a file or folder, or of a model in the download cache.
#[pyfunction]
pub(crate) fn find_model(py: Python<'_>, name: &str) -> PyResult<PathBuf> {
    detached(py, || find(name))
}

/// Downloads a model into the cache of the hub and returns its path. `progress(done, total)` gets bytes.
#[pyfunction]
#[pyo3(signature = (name, endpoint=None, cache=None, progress=None, token=None))]
pub(crate) fn pull(
    py: Python<'_>,
    name: String,
    endpoint: Option<String>,
    cache: Option<PathBuf>,
    progress: Option<Bound<'_, PyAny>>,
    token: Option<Bound<'_, CancelToken>>,
) -> PyResult<PathBuf> {
    let reference: Reference = name.parse().map_err(Failure::from)?;
    let overrides = Overrides { endpoint, cache, ..Overrides::default() };
    let settings = Settings::from_env_with(&overrides).map_err(Failure::from)?;
    let cancel = Cancel::of(token.as_ref().map(Bound::get));
    let own = Arc::clone(&cancel);
    // What was downloaded is kept, and the next download resumes there.
    wait(py, &cancel, Interrupted::Leave, progress.as_ref(), move |reporter| {
        let (mut done, mut total) = (0, 0);
        let pulled = hub::pull(&settings, &reference, &mut |event| {
            match event {
                HubEvent::Chosen(choice) => total = choice.files.iter().filter_map(|file| file.size).sum(),
                HubEvent::File { have, .. } => done += have,
                HubEvent::Bytes(bytes) => done += bytes,
                HubEvent::Waiting { path } => reporter.note(format!("{path}: another process downloads it")),
                HubEvent::Retry { error, wait } => {
                    reporter.note(format!("{error}; the next try is in {wait:.1?}"));
                }
                HubEvent::Complete { .. } | HubEvent::Pending => {}
            }
            reporter.progress(done, total);
            own.flow()
        });
        Ok(pulled?.path)
    })
}

#[pymethods]
impl Model {
    /// Loads a model; a path of `None` is the built-in one. `progress(done, total)` gets bytes.
    #[staticmethod]
    #[pyo3(signature = (
        path, device, context, kv, threads, max_sequences, batch_memory, check_weights, progress=None,
        token=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn load(
        py: Python<'_>,
        path: Option<String>,
        device: String,
        context: u32,
        kv: String,
        threads: Option<usize>,
        max_sequences: u32,
        batch_memory: u64,
        check_weights: bool,
        progress: Option<Bound<'_, PyAny>>,
        token: Option<Bound<'_, CancelToken>>,
    ) -> PyResult<Model> {
        crate::logs::follow(py)?;
        let options = Load { path, device, context, kv, threads, max_sequences, batch_memory, check_weights };
        let cancel = Cancel::of(token.as_ref().map(Bound::get));
        let own = Arc::clone(&cancel);
        let loaded = wait(py, &cancel, Interrupted::Join, progress.as_ref(), move |reporter| {
            load(options, reporter, &own)
        })?;
        Ok(Model { loaded: OfProcess::new(Mutex::new(Some(Arc::new(loaded)))) })
    }

    /// Frees the model as soon as no call uses it. Later calls fail.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let loaded = self.loaded.get()?.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(loaded));
        Ok(())
    }

    /// Whether it was closed.
    fn is_closed(&self) -> PyResult<bool> {
        Ok(self.loaded.get()?.lock().unwrap_or_else(PoisonError::into_inner).is_none())
    }

    /// What is known of it.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let loaded = self.loaded()?;
        let (model, config) = (&loaded.model, loaded.model.config());
        let dict = PyDict::new(py);
        dict.set_item("architecture", config.architecture.name())?;
        dict.set_item("layers", config.layers)?;
        dict.set_item("embedding", config.hidden)?;
        dict.set_item("heads", config.heads.n_heads)?;
        dict.set_item("kv_heads", config.heads.n_kv_heads)?;
        dict.set_item("head_dim", config.heads.head_dim)?;
        dict.set_item("vocabulary", config.vocabulary)?;
        dict.set_item("model_context", config.context)?;
        dict.set_item("context", model.session_options().context)?;
        dict.set_item("kv", model.session_options().cache.name())?;
        dict.set_item("weight_bytes", model.weight_bytes())?;
        let parameters: u64 = model.source().tensors().iter().map(|tensor| tensor.elements() as u64).sum();
        dict.set_item("parameters", parameters)?;
        dict.set_item("device", loaded.device.selector().to_string())?;
        dict.set_item("device_name", &loaded.device.name)?;
        Ok(dict)
    }

    /// The metadata of its file.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        crate::gguf::metadata_dict(py, self.loaded()?.model.source().metadata())
    }

    /// Its tokenizer.
    fn tokenizer(&self) -> PyResult<Tokenizer> {
        Ok(Tokenizer::of_model(&self.loaded()?.model)?)
    }

    /// The tokens of a prompt.
    fn encode(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Vec<u32>> {
        let special = if special { Special::Parse } else { Special::AsText };
        let loaded = self.loaded()?;
        detached(py, || Ok(loaded.encode(text, special)?))
    }

    /// Starts to continue one prompt. Without `pieces`, only the whole answer is given. `reader` may end the
    /// answer behind its first call.
    #[pyo3(signature = (prompt, options, pieces, reuse, reader=None))]
    fn generate(
        &self,
        prompt: Vec<u32>,
        options: &Bound<'_, Options>,
        pieces: bool,
        reuse: bool,
        reader: Option<&Bound<'_, AnswerReader>>,
    ) -> PyResult<Stream> {
        let options = options.get();
        let task = self.task(options, reader)?;
        Ok(Stream::start(options.token.as_ref(), move |sender, cancel| {
            let sender = pieces.then_some(sender);
            generate::one(&task, &prompt, reuse, sender, cancel).map(|answer| vec![answer])
        })?)
    }

    /// Starts to continue many prompts together.
    #[pyo3(signature = (prompts, options, pieces, reader=None))]
    fn generate_many(
        &self,
        prompts: Vec<Vec<u32>>,
        options: &Bound<'_, Options>,
        pieces: bool,
        reader: Option<&Bound<'_, AnswerReader>>,
    ) -> PyResult<Stream> {
        let options = options.get();
        let task = self.task(options, reader)?;
        Ok(Stream::start(options.token.as_ref(), move |sender, cancel| {
            generate::many(&task, prompts, pieces.then_some(sender), cancel)
        })?)
    }

    /// The embeddings of texts, pooled as the model's file says: one row for each text.
    #[pyo3(signature = (texts, token=None))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Vec<u32>>,
        token: Option<Bound<'py, CancelToken>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let loaded = self.loaded()?;
        let (rows, width) = (texts.len(), loaded.model.config().hidden as usize);
        let cancel = Cancel::of(token.as_ref().map(Bound::get));
        let own = Arc::clone(&cancel);
        let values = wait(py, &cancel, Interrupted::Join, None, move |_| {
            own.check()?;
            Ok(crate::embed::embed(&loaded, &texts, &own)?.concat())
        })?;
        values.to_pyarray(py).reshape([rows, width])
    }

    /// The logits after each token from `first` on: one row for each.
    #[pyo3(signature = (tokens, first, token=None))]
    fn logits<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        first: usize,
        token: Option<Bound<'py, CancelToken>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let loaded = self.loaded()?;
        let vocabulary = loaded.model.config().vocabulary as usize;
        let rows = tokens.len().saturating_sub(first);
        if tokens.is_empty() {
            return Err(Failure::from(ModelError::EmptyPrompt).into());
        }
        let values = run(py, loaded, None, token.as_ref(), move |session, _| {
            session.truncate(0, 0)?;
            let mut values = Vec::new();
            session.logits_of_each(0, &tokens, first, |_, rows| values.extend_from_slice(rows))?;
            Ok(values)
        })?;
        values.to_pyarray(py).reshape([rows, vocabulary])
    }

    /// The log-probabilities of the tokens from `first` (at least 1) on, each after those before it.
    #[pyo3(signature = (tokens, first, token=None))]
    fn score<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
        first: usize,
        token: Option<Bound<'py, CancelToken>>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let loaded = self.loaded()?;
        let vocabulary = loaded.model.config().vocabulary as usize;
        if tokens.is_empty() {
            return Err(Failure::from(ModelError::EmptyPrompt).into());
        }
        if let Some(at) = tokens.iter().position(|&token| token as usize >= vocabulary) {
            let vocabulary = loaded.model.config().vocabulary;
            return Err(Failure::from(ModelError::Token { token: tokens[at], at, vocabulary }).into());
        }
        let first = first.clamp(1, tokens.len());
        let values = run(py, loaded, None, token.as_ref(), move |session, _| {
            session.truncate(0, 0)?;
            let (mut scores, fed) = (Vec::new(), tokens.len() - 1);
            session.logits_of_each(0, &tokens[..fed], first - 1, |at, rows| {
                let next = &tokens[at + 1..];
                let pairs = rows.chunks_exact(vocabulary).zip(next);
                scores.extend(pairs.map(|(row, &token)| log_probability(row, token as usize)));
            })?;
            Ok(scores)
        })?;
        Ok(values.to_pyarray(py))
    }

    /// The perplexity of a text: its value, standard error of the mean of −ln p, tokens scored, and seconds.
    #[pyo3(signature = (tokens, window=None, stride=None, progress=None, token=None))]
    fn perplexity(
        &self,
        py: Python<'_>,
        tokens: Vec<u32>,
        window: Option<usize>,
        stride: Option<usize>,
        progress: Option<Bound<'_, PyAny>>,
        token: Option<Bound<'_, CancelToken>>,
    ) -> PyResult<(f64, f64, usize, f64)> {
        let loaded = self.loaded()?;
        let context = loaded.model.session_options().context as usize;
        let tokenizer = loaded.model.tokenizer();
        let begin = tokenizer.filter(|tokenizer| tokenizer.adds_bos()).and_then(|tokenizer| tokenizer.bos());
        let options = PerplexityOptions {
            window: window.unwrap_or(context.min(512)),
            stride,
            begin,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        };
        let known = run(py, loaded, progress.as_ref(), token.as_ref(), move |session, reporter| {
            let report = |known: &fulmen::model::Perplexity, total: usize| {
                reporter.progress(known.run as u64, total as u64);
            };
            Ok(session.perplexity(&tokens, &options, report)?)
        })?;
        Ok((known.value(), known.error(), known.scored, known.time.as_secs_f64()))
    }

    /// The graph of a step of `rows` rows, `decode` or `prefill`: as text, or as a Graphviz drawing; fused as
    /// for the device of the model, or as it was built.
    fn graph(&self, step: &str, rows: u32, fused: bool, dot: bool) -> PyResult<String> {
        let loaded = self.loaded()?;
        let options = loaded.model.session_options();
        let step = match step {
            "decode" => Step::decode(rows),
            "prefill" => Step::Prefill { rows, results: Some((1, Results::Logits)) },
            other => {
                let expected = "\"decode\" or \"prefill\"";
                return Err(Failure::argument("graph", "the step", expected, format!("{other:?}")).into());
            }
        };
        let sequences = if matches!(step, Step::Decode { .. }) { rows } else { 1 };
        let spec = GraphSpec::contiguous(step, options.cache, sequences, options.context);
        let graph: LogicalGraph = match fused {
            true => loaded.model.plan(&spec).map_err(Failure::from)?.graph,
            false => loaded.model.graph(&spec).map_err(Failure::from)?,
        };
        Ok(if dot { graph.to_dot() } else { graph.to_string() })
    }
}

/// ln softmax(row)[token].
fn log_probability(row: &[f32], token: usize) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&logit| (f64::from(logit) - f64::from(largest)).exp()).sum();
    let logit = row.get(token).copied().unwrap_or(f32::NEG_INFINITY);
    f64::from(logit) - f64::from(largest) - sum.ln()
}
