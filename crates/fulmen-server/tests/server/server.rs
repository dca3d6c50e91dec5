//! Servers for tests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use fulmen_constraint::{Compiler, Grammar as Compiled};
use fulmen_engine::mock::MockDevice;
use fulmen_engine::{AnyDevice, Constraint, Engine, SchedulerConfig};
use fulmen_model::source;
use fulmen_model::template::ChatTemplate;
use fulmen_model::tokenizer::{Special, Tokenizer};
use fulmen_server::{
    ConstraintFactory, DecodeBound, EmbedError, EmbedFunction, Embedder, EngineModel, Grammar, LoadError,
    ModelDescription, ModelInfo, ModelLoader, ModelSpec, Registry, RegistryOptions, SamplingMap, ServedModel,
    Server, ServerOptions, SharedTokenizer,
};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::{self, Reply};
use crate::device::{ScriptDevice, SlowMock, mock_sampling, script_sampling};

/// The model that is built into the command.
pub(crate) const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");

/// The tokenizer of the model that is built into the command.
pub(crate) static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let source = source::open(STORY).unwrap();
    Arc::new(Tokenizer::from_source(source.as_ref()).unwrap().unwrap())
});

/// A template with thoughts and tools, in plain text.
pub(crate) const TEMPLATE: &str = "\
{%- if tools %}Tools <tool_call>: {{ tools | tojson }}\n{% endif -%}
{%- for message in messages -%}
{{ message.role ~ ': ' ~ message.content ~ '\n' }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>' ~ (call.function | tojson) ~ '</tool_call>\n' }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'assistant: ' }}
{%- if enable_thinking is defined and enable_thinking %}{{ '<think>' }}{% endif %}{% endif -%}";

/// What a test's model is.
#[derive(Clone)]
pub(crate) struct TestModel {
    /// The texts that it writes, by seed; none for a mock device.
    pub(crate) scripts: Vec<String>,
    pub(crate) step: Duration,
    pub(crate) context: u32,
    pub(crate) pages: u32,
    pub(crate) sequences: u32,
    pub(crate) queue: usize,
    pub(crate) template: Option<&'static str>,
    pub(crate) logprobs: bool,
    /// Whether answers can be constrained.
    pub(crate) constrained: bool,
    /// The bound that it tells clients.
    pub(crate) bound: Option<DecodeBound>,
    /// Whether embeddings are hidden states of the engine.
    pub(crate) hidden: bool,
    /// The step at which the mock device is lost.
    pub(crate) lost_at: Option<u64>,
}

impl Default for TestModel {
    fn default() -> TestModel {
        TestModel {
            scripts: Vec::new(),
            step: Duration::ZERO,
            context: 2048,
            pages: 256,
            sequences: 16,
            queue: 64,
            template: Some(TEMPLATE),
            logprobs: true,
            constrained: false,
            bound: None,
            hidden: false,
            lost_at: None,
        }
    }
}

/// Constraints for the tokenizer of the tests.
struct Constraints;

impl ConstraintFactory for Constraints {
    fn constraint(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, String> {
        let grammar = match grammar {
            Grammar::Lark(text) => Compiled::lark(text),
            Grammar::JsonSchema(schema) => Compiled::json_schema_value(schema.clone()),
            Grammar::Regex(pattern) => Compiled::regex(pattern),
            Grammar::JsonObject => Ok(Compiled::json_object()),
        };
        let compile = |grammar| Compiler::new(&TOKENIZER, TOKENIZER.vocab_size() as u32)?.compile(&grammar);
        Ok(Box::new(grammar.and_then(compile).map_err(|error| error.to_string())?))
    }
}

/// A model that writes these texts.
pub(crate) fn scripted(texts: &[&str]) -> TestModel {
    TestModel { scripts: texts.iter().map(|text| (*text).to_owned()).collect(), ..TestModel::default() }
}

impl TestModel {
    pub(crate) fn slow(self, step: Duration) -> TestModel {
        TestModel { step, ..self }
    }

    pub(crate) fn load(&self) -> EngineModel {
        let vocabulary = TOKENIZER.vocab_size() as u32;
        let config = SchedulerConfig {
            max_sequences: self.sequences,
            queue_limit: self.queue,
            ..SchedulerConfig::new(vocabulary, self.context, self.pages)
        };
        let mut sampling: SamplingMap = mock_sampling;
        let device: AnyDevice = if self.scripts.is_empty() {
            let mut mock = MockDevice::new(&config);
            mock.faults.lost_at = self.lost_at;
            Box::new(SlowMock(mock, self.step))
        } else {
            sampling = script_sampling;
            let end = TOKENIZER.ends()[0];
            let tokens = |text: &String| {
                let mut tokens = TOKENIZER.encode(text, Special::AsText);
                tokens.push(end);
                tokens
            };
            let scripts: Vec<Vec<u32>> = self.scripts.iter().map(tokens).collect();
            Box::new(ScriptDevice::new(&config, scripts.into(), self.step))
        };
        EngineModel {
            engine: Engine::start(config, device).unwrap(),
            tokenizer: SharedTokenizer::Own(Arc::clone(&TOKENIZER)),
            template: self.template.map(|source| ChatTemplate::new(source).unwrap()),
            context: self.context,
            info: ModelInfo {
                architecture: "test".to_owned(),
                parameters: Some(6_800_000),
                bytes: 1000,
                quantization: "F32".to_owned(),
                embedding: 2,
                metadata: [("test.block_count".to_owned(), serde_json::json!(7))].into_iter().collect(),
                device: "mock".to_owned(),
                bound: self.bound,
            },
            sampling,
            constraints: self.constrained.then(|| Box::new(Constraints) as Box<dyn ConstraintFactory>),
            logprobs: self.logprobs,
            embedder: Some(match self.hidden {
                true => Embedder::LastToken,
                false => Embedder::Function(embedding(self.step)),
            }),
        }
    }
}

/// Two numbers that tell the length of a text, after some time.
fn embedding(time: Duration) -> EmbedFunction {
    Box::new(move |tokens| {
        std::thread::sleep(time);
        match tokens.len() {
            13 => Err(EmbedError::Failed("unlucky".to_owned())),
            len => Ok(vec![3.0 * len as f32, 4.0 * len as f32]),
        }
    })
}

/// Loads test models by name, and counts.
#[derive(Default)]
pub(crate) struct TestLoader {
    pub(crate) models: Vec<(String, TestModel)>,
    pub(crate) loads: AtomicUsize,
    /// How many models have memory at the same time; 0 for any number.
    pub(crate) room: usize,
    /// The models that it has loaded.
    pub(crate) living: Mutex<Vec<Weak<dyn ServedModel>>>,
    /// The file that tells clients of models that are not loaded.
    pub(crate) described_by: Option<&'static str>,
}

impl ModelLoader for TestLoader {
    fn load(&self, spec: &ModelSpec) -> Result<Arc<dyn ServedModel>, LoadError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let model = self.models.iter().find(|(name, _)| *name == spec.name);
        let (_, model) = model.ok_or_else(|| "there is no such file".to_owned())?;
        let mut living = self.living.lock().unwrap();
        living.retain(|model| model.strong_count() > 0);
        if self.room > 0 && living.len() == self.room {
            return Err(LoadError { message: "out of memory".to_owned(), out_of_memory: true });
        }
        let model: Arc<dyn ServedModel> = Arc::new(model.load());
        living.push(Arc::downgrade(&model));
        Ok(model)
    }

    fn bytes(&self, _: &ModelSpec) -> Option<u64> {
        Some(1000)
    }

    fn describe(&self, spec: &ModelSpec) -> Option<ModelDescription> {
        let source = source::open(self.described_by?).unwrap();
        ModelDescription::of_source(source.as_ref(), spec.context.unwrap_or(0))
    }
}

/// A running server. Dropping it ends it.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) registry: Arc<Registry>,
    pub(crate) loader: Arc<TestLoader>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        address: "127.0.0.1:0".parse().unwrap(),
        grace: Duration::from_secs(5),
        ..ServerOptions::default()
    }
}

pub(crate) fn spec(name: &str) -> ModelSpec {
    ModelSpec { name: name.to_owned(), ..ModelSpec::default() }
}

/// A server with one model, `test`.
pub(crate) fn start(model: TestModel) -> TestServer {
    start_with(options(), model)
}

pub(crate) fn start_with(options: ServerOptions, model: TestModel) -> TestServer {
    let specs = vec![spec("test")];
    start_all(options, specs, vec![("test".to_owned(), model)], RegistryOptions::default())
}

pub(crate) fn start_all(
    options: ServerOptions,
    specs: Vec<ModelSpec>,
    models: Vec<(String, TestModel)>,
    kept: RegistryOptions,
) -> TestServer {
    start_by(options, specs, TestLoader { models, ..TestLoader::default() }, kept)
}

pub(crate) fn start_by(
    options: ServerOptions,
    specs: Vec<ModelSpec>,
    loader: TestLoader,
    kept: RegistryOptions,
) -> TestServer {
    let loader = Arc::new(loader);
    let dynamic: Arc<dyn ModelLoader> = loader.clone();
    let registry = Arc::new(Registry::new(specs, dynamic, kept).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(Server::bind(options, Arc::clone(&registry))).unwrap();
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        runtime.block_on(server.run(async {
            let _ = stopped.await;
        }));
    });
    TestServer { address, registry, loader, stop: Some(stop), thread: Some(thread) }
}

/// Why a server cannot listen.
pub(crate) fn bind_error(options: ServerOptions) -> fulmen_server::ServerError {
    let loader = TestLoader::default();
    let registry = Registry::new(vec![spec("test")], Arc::new(loader), RegistryOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match runtime.block_on(Server::bind(options, Arc::new(registry))) {
        Ok(server) => panic!("it listens on {}", server.address()),
        Err(error) => error,
    }
}

impl TestServer {
    pub(crate) fn get(&self, path: &str) -> Reply {
        client::send(self.address, &client::request("GET", path, &[], b""))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[], body.to_string().as_bytes())
    }

    pub(crate) fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        client::send(self.address, &client::request("POST", path, headers, body))
    }

    /// An answer with status 200.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// The engine's figures of a model.
    pub(crate) fn stats(&self, name: &str) -> fulmen_engine::Stats {
        let loaded = self.registry.loaded();
        loaded.into_iter().find(|(known, _)| known == name).expect("it is loaded").1.stats()
    }

    /// Waits until nothing runs and waits, and checks that all pages are free or cached.
    pub(crate) fn settled(&self, name: &str) -> fulmen_engine::Stats {
        for _ in 0..1000 {
            let stats = self.stats(name);
            if stats.running == 0 && stats.waiting == 0 {
                let group = &stats.groups[0];
                assert_eq!(group.free as usize + stats.cached_pages, group.pages as usize, "{stats:?}");
                return stats;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("requests are left: {:?}", self.stats(name));
    }

    /// Tells the server to end.
    pub(crate) fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Ends the server and waits for it.
    pub(crate) fn stop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}
