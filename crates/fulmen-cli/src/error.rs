//! How a failed command ends: its message and its exit code.

use std::error::Error;
use std::process::ExitCode;

use fulmen_bench::BenchError;
use fulmen_engine::EngineError;
use fulmen_model::ModelError;
use fulmen_model::template::TemplateError;
#[cfg(feature = "wgpu")]
use fulmen_wgpu::GpuError;

use crate::output::TextWriter;
use crate::select::SelectError;

/// The exit code for wrong usage, also of clap.
const USAGE: u8 = 2;

/// An error of a command that knows whether the arguments are at fault.
pub(crate) trait CommandError: Error {
    /// Whether an argument has a bad value: exit code 2, as for arguments that clap refuses. Otherwise 1.
    fn is_usage(&self) -> bool {
        false
    }
}

/// A failed command.
pub(crate) struct Failure {
    message: String,
    exit_code: u8,
}

impl<E: CommandError> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure { message: error.to_string(), exit_code: if error.is_usage() { USAGE } else { 1 } }
    }
}

impl Failure {
    /// Prints the message in the style of clap. It may quote a file, so control characters are escaped.
    pub(crate) fn report(&self) -> ExitCode {
        let style = clap::builder::Styles::styled();
        let style = style.get_error();
        let mut stderr = TextWriter::stderr();
        // Nothing can be reported if stderr is closed.
        let _ = stderr
            .styled(&format!("{style}error:{style:#} "))
            .and_then(|()| stderr.text(&self.message))
            .and_then(|()| stderr.text("\n"));
        ExitCode::from(self.exit_code)
    }
}

impl CommandError for ModelError {
    fn is_usage(&self) -> bool {
        match self {
            ModelError::Context { .. } | ModelError::Option { .. } | ModelError::Sampling(_) => true,
            ModelError::Sharding { .. } => true,
            ModelError::Template(error) => error.is_usage(),
            _ => false,
        }
    }
}

impl CommandError for TemplateError {
    fn is_usage(&self) -> bool {
        matches!(self, TemplateError::UnknownFamily { .. })
    }
}

#[cfg(feature = "wgpu")]
impl CommandError for GpuError {
    fn is_usage(&self) -> bool {
        matches!(self, GpuError::AdapterNotFound { .. })
    }
}

impl CommandError for SelectError {
    fn is_usage(&self) -> bool {
        matches!(self, SelectError::NoSuchIndex { .. } | SelectError::Unknown { .. })
    }
}

impl CommandError for BenchError {
    fn is_usage(&self) -> bool {
        match self {
            BenchError::InvalidOption(_) | BenchError::NoCases => true,
            BenchError::Model(error) => error.is_usage(),
            BenchError::Engine(EngineError::Model(error)) => error.is_usage(),
            #[cfg(feature = "wgpu")]
            BenchError::Gpu(error) => error.is_usage(),
            _ => false,
        }
    }
}
