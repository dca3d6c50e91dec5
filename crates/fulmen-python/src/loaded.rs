//! A model on a device, with what its calls share: idle sessions, the engine, the compiler of grammars.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen::constraint::{Compiler, Grammar};
use fulmen::core::DeviceInfo;
use fulmen::core::sampling::Constraint;
use fulmen::engine::{EngineOptions, TextEngine};
use fulmen::hub::{Cache, Reference, Settings};
use fulmen::prelude::{Model, ModelError, Session};

use crate::failure::{Failure, Kind};

/// A model on a device.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) device: DeviceInfo,
    engine_options: EngineOptions,
    /// A session that no call uses. Its KV cache serves the next prompt that begins as the last one.
    idle: Mutex<Option<Session>>,
    engine: Mutex<Option<Arc<TextEngine>>>,
    compiler: Mutex<Option<Arc<Compiler>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Loaded {
    pub(crate) fn new(model: Model, device: DeviceInfo, engine_options: EngineOptions) -> Loaded {
        let (idle, engine, compiler) = Default::default();
        Loaded { model, device, engine_options, idle, engine, compiler }
    }

    /// A session for one call: the idle one, or a new one.
    pub(crate) fn session(&self) -> Result<Session, ModelError> {
        let idle = lock(&self.idle).take();
        idle.map_or_else(|| self.model.session(), Ok)
    }

    /// Takes a session back. One is kept; where there is one already, this one is dropped.
    pub(crate) fn put_back(&self, session: Session) {
        let before = lock(&self.idle).replace(session);
        drop(before);
    }

    /// The engine for many sequences, which is started by its first use.
    pub(crate) fn engine(&self) -> Result<Arc<TextEngine>, Failure> {
        let mut engine = lock(&self.engine);
        if let Some(engine) = &*engine {
            return Ok(Arc::clone(engine));
        }
        let started = Arc::new(TextEngine::new(&self.model, &self.engine_options)?);
        Ok(Arc::clone(engine.insert(started)))
    }

    /// A constraint for one sequence.
    pub(crate) fn constraint(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, Failure> {
        let compiler = {
            let mut compiler = lock(&self.compiler);
            if compiler.is_none() {
                let tokenizer = self.model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
                let made = Compiler::new(tokenizer, self.model.config().vocabulary)?;
                *compiler = Some(Arc::new(made));
            }
            compiler.clone()
        };
        let compiler = compiler.ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(Box::new(compiler.compile(grammar)?))
    }

    /// The tokens of a prompt.
    pub(crate) fn encode(
        &self,
        text: &str,
        special: fulmen::model::tokenizer::Special,
    ) -> Result<Vec<u32>, ModelError> {
        let tokenizer = self.model.tokenizer().ok_or(ModelError::Without { what: "tokenizer" })?;
        Ok(tokenizer.encode_prompt(text, special))
    }
}

/// Where a model is: what exists is a path; otherwise it may be the name of a model in the download cache.
pub(crate) fn find(name: &str) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(name);
    let missing = match path.symlink_metadata() {
        Ok(_) => return Ok(path),
        Err(error) => error,
    };
    let ends_as_file = [".gguf", ".safetensors", ".json"].iter().any(|end| name.ends_with(end));
    let reference = name.parse::<Reference>().ok().filter(|reference| reference.repo().contains('/'));
    let Some(reference) = reference.filter(|_| !ends_as_file) else {
        return Err(Failure::new(Kind::File, format!("{name}: cannot open it: {missing}")));
    };
    let settings = Settings::from_env()?;
    Cache::of(&settings.cache, &reference).find(&reference)?.ok_or_else(|| {
        let message = format!(
            "no file or folder {name}, and no such model in the cache; Model.from_pretrained({name:?}) \
             downloads it"
        );
        Failure::new(Kind::File, message)
    })
}
