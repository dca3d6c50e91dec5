//! Models by name: loaded at first use, unloaded after an idle time, within a memory budget.

mod lease;
mod presets;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use fulmen_model::template::ChatTemplate;
use tokio::sync::watch;

pub use lease::Lease;
pub use presets::{PresetError, Presets};

use crate::error::ApiError;
use crate::generation::SamplingDefaults;
use crate::served::{ModelDescription, ModelInfo, ServedModel};

/// A model that can be served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSpec {
    /// The name in requests.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// A file, a folder or the name of a downloaded model; `None` for the embedded model.
    pub location: Option<PathBuf>,
    /// The device; `None` for the server's.
    pub device: Option<String>,
    /// Positions of prompt and answer together; `None` for the loader's default.
    pub context: Option<u32>,
    /// How long it stays loaded without requests; `None` for the server's time.
    pub keep_alive: Option<Duration>,
    /// Values for what requests leave open.
    pub defaults: SamplingDefaults,
    /// A system prompt for conversations without one.
    pub system: Option<String>,
}

/// Why a model was not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LoadError {
    /// A line for the client and the log.
    pub message: String,
    /// Whether the load may succeed when another model gives its memory back.
    pub out_of_memory: bool,
}

impl From<String> for LoadError {
    fn from(message: String) -> LoadError {
        LoadError { message, out_of_memory: false }
    }
}

/// Loads models. It is called on a thread that may block.
pub trait ModelLoader: Send + Sync + 'static {
    /// Loads a model.
    fn load(&self, spec: &ModelSpec) -> Result<Arc<dyn ServedModel>, LoadError>;

    /// Bytes of memory that the model will take, if that is known.
    fn bytes(&self, spec: &ModelSpec) -> Option<u64> {
        let _ = spec;
        None
    }

    /// What clients are told of a model without loading it; `None` if that is not known.
    fn describe(&self, spec: &ModelSpec) -> Option<ModelDescription> {
        let _ = spec;
        None
    }
}

impl<F> ModelLoader for F
where
    F: Fn(&ModelSpec) -> Result<Arc<dyn ServedModel>, String> + Send + Sync + 'static,
{
    fn load(&self, spec: &ModelSpec) -> Result<Arc<dyn ServedModel>, LoadError> {
        self(spec).map_err(LoadError::from)
    }
}

/// The longest time that a model can be told to stay loaded, 100 years: the time of its end can always be
/// computed and written.
pub(crate) const LONGEST_KEEP_ALIVE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A model that clients are told of.
pub(crate) enum Described {
    Loaded(Lease),
    Unloaded(Box<ModelDescription>),
}

impl Described {
    pub(crate) fn info(&self) -> &ModelInfo {
        match self {
            Described::Loaded(lease) => lease.info(),
            Described::Unloaded(description) => &description.info,
        }
    }

    pub(crate) fn template(&self) -> Option<&ChatTemplate> {
        match self {
            Described::Loaded(lease) => lease.chat_template(),
            Described::Unloaded(description) => description.template.as_ref(),
        }
    }

    pub(crate) fn context(&self) -> u32 {
        match self {
            Described::Loaded(lease) => lease.context(),
            Described::Unloaded(description) => description.context,
        }
    }
}

/// How models are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryOptions {
    /// How long a model stays loaded without requests; `None` for ever.
    pub keep_alive: Option<Duration>,
    /// Bytes that all loaded models together may take; `None` for no limit.
    pub memory: Option<u64>,
}

impl Default for RegistryOptions {
    fn default() -> RegistryOptions {
        RegistryOptions { keep_alive: Some(Duration::from_secs(300)), memory: None }
    }
}

/// The end of a load: `None` while it runs.
type Loading = watch::Receiver<Option<Result<(), ApiError>>>;

enum State {
    Unloaded,
    Loading(Loading),
    Loaded(Loaded),
}

struct Loaded {
    model: Arc<dyn ServedModel>,
    bytes: u64,
    /// Requests that use it.
    leases: usize,
    last_used: Instant,
    /// How long it stays without requests; `None` for ever.
    keep_alive: Option<Duration>,
}

struct Entry {
    spec: ModelSpec,
    state: Mutex<State>,
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model as `fulmen ps` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// Its name.
    pub name: String,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Requests that use it.
    pub active: usize,
    /// Positions of its context.
    pub context: u32,
    /// The device that it runs on.
    pub device: String,
    /// Time until it is unloaded if no request comes; `None` if it stays.
    pub expires_in: Option<Duration>,
}

/// All models that can be served.
pub struct Registry {
    entries: Vec<Arc<Entry>>,
    loader: Arc<dyn ModelLoader>,
    options: RegistryOptions,
    /// Held while room is made and a load begins, so that two loads do not take the same room.
    admission: tokio::sync::Mutex<()>,
    /// Seconds since 1970 when the registry was made: the `created` of its models.
    created: u64,
}

/// Two models with one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two models have the name {0:?}")]
pub struct DuplicateName(pub String);

impl Registry {
    /// A registry whose first model is the default.
    pub fn new(
        specs: Vec<ModelSpec>,
        loader: Arc<dyn ModelLoader>,
        options: RegistryOptions,
    ) -> Result<Registry, DuplicateName> {
        let mut names: Vec<&String> = specs.iter().flat_map(|s| s.aliases.iter().chain([&s.name])).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(DuplicateName(pair[0].clone()));
        }
        let entry = |spec| Arc::new(Entry { spec, state: Mutex::new(State::Unloaded) });
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let entries = specs.into_iter().map(entry).collect();
        Ok(Registry { entries, loader, options, admission: tokio::sync::Mutex::new(()), created })
    }

    /// The models that can be served.
    pub fn specs(&self) -> impl Iterator<Item = &ModelSpec> {
        self.entries.iter().map(|entry| &entry.spec)
    }

    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    fn find(&self, name: Option<&str>) -> Result<&Arc<Entry>, ApiError> {
        let found = match name {
            None | Some("") => self.entries.first(),
            Some(name) => self.entries.iter().find(|entry| {
                // Ollama's clients add the tag `latest`.
                let is = |known: &String| known == name || name.strip_suffix(":latest") == Some(known);
                is(&entry.spec.name) || entry.spec.aliases.iter().any(is)
            }),
        };
        let known = || self.specs().map(|spec| spec.name.clone()).collect::<Vec<_>>();
        found.ok_or_else(|| ApiError::no_model(name.unwrap_or_default(), &known()))
    }

    /// The description of a model; the first one without a name.
    pub fn spec(&self, name: Option<&str>) -> Result<&ModelSpec, ApiError> {
        self.find(name).map(|entry| &entry.spec)
    }

    /// What clients are told of a model. It is loaded only if that is not known otherwise.
    pub(crate) async fn describe(&self, name: Option<&str>) -> Result<Described, ApiError> {
        let entry = self.find(name)?;
        if let Some(lease) = Lease::take(entry) {
            return Ok(Described::Loaded(lease));
        }
        let (loader, described) = (Arc::clone(&self.loader), Arc::clone(entry));
        let described = tokio::task::spawn_blocking(move || loader.describe(&described.spec)).await;
        match described.map_err(|error| ApiError::internal(format!("the model's file: {error}")))? {
            Some(description) => Ok(Described::Unloaded(Box::new(description))),
            None => self.acquire(name).await.map(Described::Loaded),
        }
    }

    /// Bytes of memory that a model will take, if that is known.
    pub(crate) fn bytes(&self, spec: &ModelSpec) -> Option<u64> {
        self.loader.bytes(spec)
    }

    /// A model for one request, loaded if it is not.
    pub async fn acquire(&self, name: Option<&str>) -> Result<Lease, ApiError> {
        let entry = self.find(name)?;
        // A model may be unloaded again before a waiting request gets it, but not many times in a row.
        for _ in 0..8 {
            drop_model(entry.take_lost()).await;
            if let Some(lease) = Lease::take(entry) {
                return Ok(lease);
            }
            let mut loading = self.begin_load(entry).await?;
            let done = loading.wait_for(Option::is_some).await;
            let gone = || ApiError::internal("the load of the model was given up");
            done.map_err(|_| gone())?.clone().unwrap_or_else(|| Err(gone()))?;
        }
        Err(busy(&entry.spec.name))
    }

    /// Joins the load of a model, or begins one.
    async fn begin_load(&self, entry: &Arc<Entry>) -> Result<Loading, ApiError> {
        let _admission = self.admission.lock().await;
        let (done, loading) = watch::channel(None);
        match &*entry.lock() {
            State::Loading(loading) => return Ok(loading.clone()),
            State::Loaded(_) => {
                done.send_replace(Some(Ok(())));
                return Ok(loading);
            }
            State::Unloaded => {}
        }
        let needed = self.loader.bytes(&entry.spec).unwrap_or(0);
        self.make_room(&entry.spec.name, needed).await?;
        *entry.lock() = State::Loading(loading.clone());
        let (entry, loader, entries) = (Arc::clone(entry), Arc::clone(&self.loader), self.entries.clone());
        let keep_alive = entry.spec.keep_alive.or(self.options.keep_alive);
        let keep_alive = keep_alive.map(|time| time.min(LONGEST_KEEP_ALIVE));
        // The load goes on if the client that asked for it goes away: others may wait for it.
        tokio::task::spawn_blocking(move || {
            let (state, result) = match load(loader.as_ref(), &entry.spec, &entries) {
                Ok(model) => {
                    let bytes = needed.max(model.info().bytes);
                    let last_used = Instant::now();
                    (State::Loaded(Loaded { model, bytes, leases: 0, last_used, keep_alive }), Ok(()))
                }
                Err(error) => {
                    let message = format!("the model {:?} cannot be loaded: {error}", entry.spec.name);
                    let status = StatusCode::SERVICE_UNAVAILABLE;
                    (State::Unloaded, Err(ApiError::new(status, message).code("model_load_failed")))
                }
            };
            *entry.lock() = state;
            done.send_replace(Some(result));
        });
        Ok(loading)
    }

    /// Unloads models that no request uses, the longest unused first, until `needed` bytes fit.
    async fn make_room(&self, name: &str, needed: u64) -> Result<(), ApiError> {
        let Some(budget) = self.options.memory else { return Ok(()) };
        if needed > budget {
            let message =
                format!("the model {name:?} needs {needed} bytes, and the budget is {budget} bytes");
            // Another try would not help.
            return Err(ApiError::invalid(message).code("memory_budget"));
        }
        loop {
            let mut used = 0_u64;
            for entry in &self.entries {
                match &*entry.lock() {
                    State::Loaded(loaded) => {
                        used = used.saturating_add(loaded.bytes);
                    }
                    State::Loading(_) => {
                        used = used.saturating_add(self.loader.bytes(&entry.spec).unwrap_or(0));
                    }
                    State::Unloaded => {}
                }
            }
            if used.saturating_add(needed) <= budget {
                return Ok(());
            }
            match oldest_idle(&self.entries) {
                Some(entry) => drop_model(entry.unload()).await,
                None => return Err(busy(name)),
            }
        }
    }

    /// Loads a model without a request, so that the first one finds it.
    pub async fn preload(&self, name: Option<&str>) -> Result<(), ApiError> {
        self.acquire(name).await.map(drop)
    }

    /// Unloads a model when no request uses it any more. `false` if it is not loaded.
    pub async fn stop(&self, name: Option<&str>) -> Result<bool, ApiError> {
        let entry = self.find(name)?;
        self.set_keep_alive(name, Some(Duration::ZERO))?;
        let was_loaded = matches!(&*entry.lock(), State::Loaded(_));
        drop_model(entry.unload()).await;
        Ok(was_loaded)
    }

    /// How long a loaded model stays without requests, from now on.
    pub(crate) fn set_keep_alive(&self, name: Option<&str>, time: Option<Duration>) -> Result<(), ApiError> {
        if let State::Loaded(loaded) = &mut *self.find(name)?.lock() {
            loaded.keep_alive = time;
        }
        Ok(())
    }

    /// Unloads what has not been used for its time.
    pub(crate) async fn sweep(&self) {
        for entry in &self.entries {
            let expired = match &*entry.lock() {
                State::Loaded(loaded) => {
                    loaded.keep_alive.is_some_and(|time| loaded.last_used.elapsed() >= time)
                }
                _ => false,
            };
            if expired {
                drop_model(entry.unload()).await;
            }
        }
    }

    /// Unloads all models, whoever uses them.
    pub(crate) async fn clear(&self) {
        for entry in &self.entries {
            let state = std::mem::replace(&mut *entry.lock(), State::Unloaded);
            if let State::Loaded(loaded) = state {
                drop_model(Some(loaded.model)).await;
            }
        }
    }

    /// The loaded models with their names.
    pub fn loaded(&self) -> Vec<(String, Arc<dyn ServedModel>)> {
        let of = |entry: &Arc<Entry>| match &*entry.lock() {
            State::Loaded(loaded) => Some((entry.spec.name.clone(), Arc::clone(&loaded.model))),
            _ => None,
        };
        self.entries.iter().filter_map(of).collect()
    }

    /// The loaded models and what they take.
    pub fn status(&self) -> Vec<ModelStatus> {
        let of = |entry: &Arc<Entry>| match &*entry.lock() {
            State::Loaded(loaded) => Some(ModelStatus {
                name: entry.spec.name.clone(),
                bytes: loaded.bytes,
                active: loaded.leases,
                context: loaded.model.context(),
                device: loaded.model.info().device.clone(),
                expires_in: loaded.keep_alive.map(|time| match loaded.leases {
                    0 => time.saturating_sub(loaded.last_used.elapsed()),
                    _ => time,
                }),
            }),
            _ => None,
        };
        self.entries.iter().filter_map(of).collect()
    }
}

/// Loads a model. Where its memory is held by models that no request uses, they are unloaded, the longest
/// unused first, until it fits.
fn load(
    loader: &dyn ModelLoader,
    spec: &ModelSpec,
    entries: &[Arc<Entry>],
) -> Result<Arc<dyn ServedModel>, LoadError> {
    loop {
        let load = std::panic::AssertUnwindSafe(|| loader.load(spec));
        let loaded = std::panic::catch_unwind(load);
        let loaded = loaded.unwrap_or_else(|_| Err("the loader panicked".to_owned().into()));
        match loaded {
            Err(error) if error.out_of_memory => {
                match oldest_idle(entries).and_then(|entry| entry.unload()) {
                    // Dropping it waits until its memory is free.
                    Some(model) => drop(model),
                    None => return Err(error),
                }
            }
            loaded => return loaded,
        }
    }
}

/// The loaded model that no request has used for the longest time.
fn oldest_idle(entries: &[Arc<Entry>]) -> Option<&Arc<Entry>> {
    let idle = |entry: &Arc<Entry>| match &*entry.lock() {
        State::Loaded(loaded) if loaded.leases == 0 => Some(loaded.last_used),
        _ => None,
    };
    entries
        .iter()
        .filter_map(|entry| Some((idle(entry)?, entry)))
        .min_by_key(|(used, _)| *used)
        .map(|(_, entry)| entry)
}

impl Entry {
    /// Takes the model out if its device was lost, whoever uses it: its requests have ended or are about to.
    fn take_lost(&self) -> Option<Arc<dyn ServedModel>> {
        self.take_if(|loaded| loaded.model.stats().device_lost)
    }

    /// Takes the model out if no request uses it.
    fn unload(&self) -> Option<Arc<dyn ServedModel>> {
        self.take_if(|loaded| loaded.leases == 0)
    }

    fn take_if(&self, wanted: impl FnOnce(&Loaded) -> bool) -> Option<Arc<dyn ServedModel>> {
        let mut state = self.lock();
        match &*state {
            State::Loaded(loaded) if wanted(loaded) => {}
            _ => return None,
        }
        match std::mem::replace(&mut *state, State::Unloaded) {
            State::Loaded(loaded) => Some(loaded.model),
            _ => None,
        }
    }
}

/// Dropping an engine waits for its thread.
async fn drop_model(model: Option<Arc<dyn ServedModel>>) {
    if let Some(model) = model {
        let _ = tokio::task::spawn_blocking(move || drop(model)).await;
    }
}

fn busy(name: &str) -> ApiError {
    let message = format!("there is no room to load the model {name:?}: the others are in use");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(5).code("models_busy")
}
