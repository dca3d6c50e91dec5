//! A model file that fails on purpose.

use fulmen_core::SharedBytes;
use fulmen_model::gguf::{GgufError, GgufProblem, Metadata};
use fulmen_model::source::{ModelSource, SourceError, TensorInfo};
use fulmen_testkit::inject::{Injector, Site};

/// A model whose tensors may fail to be read.
pub(crate) struct FailingSource {
    pub(crate) inner: Box<dyn ModelSource>,
    pub(crate) injector: Injector,
}

impl ModelSource for FailingSource {
    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.inner.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.inner.tensor(name)
    }

    fn data(&self, name: &str) -> Result<SharedBytes, SourceError> {
        self.injector.ask(Site::Read).map_err(|fault| GgufError {
            path: "injected".into(),
            problem: Box::new(GgufProblem::Io { call: "read it", error: std::io::Error::other(fault) }),
        })?;
        self.inner.data(name)
    }
}
