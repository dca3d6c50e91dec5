//! Errors of the engine as exceptions of Python.
//!
//! The exceptions are classes of Python (`fulmen/_errors.py`), so that they can also be built-in ones: an
//! out-of-memory error is a `MemoryError`, a wrong argument a `ValueError`. Messages are those of Rust.

use fulmen::SelectError;
use fulmen::constraint::ConstraintError;
use fulmen::core::{BackendError, BuildError, DTypeError, ExecError};
use fulmen::engine::{EngineError, RequestError};
use fulmen::hub::{HubError, ReferenceError};
use fulmen::model::gguf::{GgufError, GgufProblem, GgufWriteError};
use fulmen::model::quantize::{QuantizeError, UnknownRecipe};
use fulmen::model::source::SourceError;
use fulmen::model::template::TemplateError;
use fulmen::model::tokenizer::TokenizerError;
use fulmen::prelude::{GpuError, ModelError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Which exception an error becomes. The class is called so, with `Error` behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Argument,
    Cancelled,
    Closed,
    Constraint,
    Context,
    Device,
    DeviceLost,
    DeviceNotFound,
    Engine,
    File,
    Fork,
    Format,
    Graph,
    Hub,
    Internal,
    Model,
    OutOfMemory,
    Template,
    Tokenizer,
    Unsupported,
}

/// An error that can be sent between threads.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl ToString) -> Failure {
        Failure { kind, message: message.to_string() }
    }

    /// An argument that cannot be used, in the words of the engine.
    pub(crate) fn argument(
        call: &str,
        what: &str,
        expected: impl std::fmt::Display,
        got: impl std::fmt::Display,
    ) -> Failure {
        Failure::new(Kind::Argument, format!("{call}: {what} must be {expected}, got {got}"))
    }

    /// A panic of the engine, which is a defect.
    pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Failure::new(Kind::Internal, format!("a defect of fulmen, please report it: {text}"))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| {
            static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
            let module = ERRORS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("fulmen._errors")?.unbind()));
            let class = module.and_then(|module| {
                let class = module.bind(py).getattr(format!("{:?}Error", failure.kind))?;
                class.cast_into::<PyType>().map_err(PyErr::from)
            });
            match class {
                Ok(class) => PyErr::from_type(class, failure.message),
                Err(error) => error,
            }
        })
    }
}

/// Implements `From` for errors whose exception depends on the variant.
macro_rules! kinds {
    ($($error:ty: $pattern:ident => $kind:expr;)*) => {$(
        impl From<$error> for Failure {
            fn from($pattern: $error) -> Failure {
                let kind = $kind;
                Failure::new(kind, $pattern)
            }
        }
    )*};
}

kinds! {
    BackendError: error => of_backend(&error);
    BuildError: error => Kind::Graph;
    ConstraintError: error => Kind::Constraint;
    DTypeError: error => match error {
        DTypeError::Memory { .. } => Kind::OutOfMemory,
        DTypeError::Unsupported { .. } => Kind::Unsupported,
        _ => Kind::Argument,
    };
    EngineError: error => match &error {
        EngineError::Model(error) => of_model(error),
        EngineError::Config(_) => Kind::Argument,
        _ => Kind::Engine,
    };
    ExecError: error => of_exec(&error);
    GgufError: error => of_gguf(&error);
    GgufWriteError: error => match &error {
        GgufWriteError::Content(_) | GgufWriteError::Type(_) => Kind::Format,
        GgufWriteError::Order { .. } | GgufWriteError::Length { .. } | GgufWriteError::Unfinished { .. } => {
            Kind::Argument
        }
        _ => Kind::File,
    };
    GpuError: error => of_gpu(&error);
    HubError: error => Kind::Hub;
    ModelError: error => of_model(&error);
    QuantizeError: error => match &error {
        QuantizeError::Read(error) => of_source(error),
        QuantizeError::Stopped => Kind::Cancelled,
        QuantizeError::Tokenizer(_) => Kind::Tokenizer,
        QuantizeError::Tensor { .. } | QuantizeError::Importance { .. } => Kind::Format,
        _ => Kind::File,
    };
    ReferenceError: error => Kind::Argument;
    RequestError: error => of_request(&error);
    SelectError: error => match error {
        SelectError::Unknown { .. } => Kind::Argument,
        _ => Kind::DeviceNotFound,
    };
    SourceError: error => of_source(&error);
    TemplateError: error => Kind::Template;
    TokenizerError: error => Kind::Tokenizer;
    UnknownRecipe: error => Kind::Argument;
}

fn of_gguf(error: &GgufError) -> Kind {
    match &*error.problem {
        GgufProblem::Io { .. } | GgufProblem::NotAFile { .. } => Kind::File,
        _ => Kind::Format,
    }
}

fn of_source(error: &SourceError) -> Kind {
    match error {
        SourceError::Gguf(error) => of_gguf(error),
        SourceError::Safetensors(_) => Kind::Format,
        SourceError::Folder { .. } => Kind::File,
        _ => Kind::Argument,
    }
}

fn of_gpu(error: &GpuError) -> Kind {
    match error {
        GpuError::NoAdapter { .. } | GpuError::AdapterNotFound { .. } => Kind::DeviceNotFound,
        GpuError::OutOfMemory { .. } => Kind::OutOfMemory,
        GpuError::DeviceLost { .. } => Kind::DeviceLost,
        GpuError::Unsupported { .. } => Kind::Unsupported,
        GpuError::TooLarge { .. }
        | GpuError::Argument { .. }
        | GpuError::UnknownWeight { .. }
        | GpuError::WeightExists { .. }
        | GpuError::Aliased { .. }
        | GpuError::ForeignDevice { .. } => Kind::Argument,
        _ => Kind::Device,
    }
}

fn of_backend(error: &BackendError) -> Kind {
    match error {
        BackendError::OutOfMemory { .. } => Kind::OutOfMemory,
        BackendError::Unsupported { .. } => Kind::Unsupported,
        BackendError::Index { .. } | BackendError::Parameter { .. } => Kind::Argument,
        BackendError::Device { source, .. } => match source.downcast_ref::<GpuError>() {
            Some(error) => of_gpu(error),
            None => Kind::Device,
        },
        _ => Kind::Device,
    }
}

fn of_exec(error: &ExecError) -> Kind {
    match error {
        ExecError::Graph(_) | ExecError::Build(_) => Kind::Graph,
        ExecError::Node { source, .. } => of_backend(source),
        ExecError::Backend(error) => of_backend(error),
        _ => Kind::Device,
    }
}

fn of_model(error: &ModelError) -> Kind {
    match error {
        ModelError::Source(error) => of_source(error),
        ModelError::Tokenizer(_) => Kind::Tokenizer,
        ModelError::Template(_) => Kind::Template,
        ModelError::Memory { .. } | ModelError::CacheMemory { .. } => Kind::OutOfMemory,
        ModelError::Context { .. } | ModelError::PromptTooLong { .. } => Kind::Context,
        ModelError::Option { .. }
        | ModelError::Sampling(_)
        | ModelError::EmptyPrompt
        | ModelError::Token { .. }
        | ModelError::Sequence { .. } => Kind::Argument,
        ModelError::Constraint(_) => Kind::Constraint,
        ModelError::Cancelled => Kind::Cancelled,
        ModelError::Exec(error) => of_exec(error),
        ModelError::Backend(error) => of_backend(error),
        _ => Kind::Model,
    }
}

fn of_request(error: &RequestError) -> Kind {
    match error {
        RequestError::EmptyPrompt | RequestError::Limit { .. } | RequestError::Token { .. } => Kind::Argument,
        RequestError::PromptTooLong { .. } | RequestError::PoolTooSmall { .. } => Kind::Context,
        RequestError::Cancelled => Kind::Cancelled,
        RequestError::Constraint { .. } => Kind::Constraint,
        RequestError::OutOfPages { .. } | RequestError::DeviceOutOfMemory { .. } => Kind::OutOfMemory,
        RequestError::DeviceLost { .. } => Kind::DeviceLost,
        _ => Kind::Engine,
    }
}
