//! The built-in model on every device: the same tokens must come out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fulmen::OpenOptions;
use fulmen_core::device::{BackendReport, DeviceSelector};
use fulmen_engine::{GenerateOptions, LoadOptions, Model};
use fulmen_model::ModelError;
use fulmen_model::source::{self, ModelSource};
use serde_json::{Value, json};

use crate::model::builtin::builtin_model;
use crate::progress::step_bar;
use crate::select;

/// Its greedy continuation has no choice that is nearly tied, so every device must find the same tokens.
const PROMPT: &str = "Everybody knew Clara, the brave girl. In a cave on the mountain lived a terrible \
                      dragon. At least, that was what everybody said.";
const EXPECTED: &str = " At night, one could hear strange sounds. One day";
const TOKENS: usize = 12;

/// What the test of a device came to.
pub(super) enum Tested {
    Passed {
        load: Duration,
        run: Duration,
    },
    /// Other tokens came out.
    Differs {
        text: String,
    },
    Failed {
        error: String,
    },
}

impl Tested {
    pub(super) fn passed(&self) -> bool {
        matches!(self, Tested::Passed { .. })
    }

    pub(super) fn as_json(&self) -> Value {
        match self {
            Tested::Passed { load, run } => json!({
                "passed": true,
                "load_seconds": load.as_secs_f64(),
                "run_seconds": run.as_secs_f64(),
            }),
            Tested::Differs { .. } | Tested::Failed { .. } => {
                json!({ "passed": false, "reason": self.to_string() })
            }
        }
    }
}

impl std::fmt::Display for Tested {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tested::Passed { load, run } => {
                let seconds = (*load + *run).as_secs_f64();
                write!(f, "works ({TOKENS} tokens of the built-in model in {seconds:.1} s)")
            }
            Tested::Differs { text } => {
                write!(f, "computes wrong results: the built-in model says {text:?} instead of {EXPECTED:?}")
            }
            Tested::Failed { error } => write!(f, "fails: {error}"),
        }
    }
}

/// Tests every device that can run models.
pub(super) fn all(backends: &[BackendReport]) -> Vec<(DeviceSelector, Tested)> {
    let devices = backends.iter().flat_map(|backend| &backend.devices);
    let devices: Vec<DeviceSelector> =
        devices.filter(|device| device.runs_graphs.is_ok()).map(|device| device.selector()).collect();
    let bar = step_bar(devices.len());
    let mut tested = Vec::new();
    for device in devices {
        bar.set_message(format!("testing {device}"));
        tested.push((device, test(device)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    tested
}

fn test(device: DeviceSelector) -> Tested {
    let start = Instant::now();
    let (_, backend) = match select::open(device, &OpenOptions::default()) {
        Ok(opened) => opened,
        Err(error) => return Tested::Failed { error: error.to_string() },
    };
    let generate = || -> Result<(Duration, String), ModelError> {
        let source: Arc<dyn ModelSource> = Arc::from(source::from_bytes(builtin_model())?);
        let model = Model::from_source(source, backend, LoadOptions::default())?;
        let load = start.elapsed();
        let options = GenerateOptions { max_tokens: TOKENS, ..GenerateOptions::default() };
        Ok((load, model.generate(PROMPT, &options, |_| ())?.text))
    };
    match generate() {
        Ok((load, text)) if text == EXPECTED => Tested::Passed { load, run: start.elapsed() - load },
        Ok((_, text)) => Tested::Differs { text },
        Err(error) => Tested::Failed { error: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_computes_what_is_expected() {
        let tested = test("cpu".parse().unwrap());
        assert!(tested.passed(), "{tested}");
        let tested = test("wgpu:99".parse().unwrap());
        assert!(tested.to_string().contains("wgpu:99 does not exist"), "{tested}");
    }
}
