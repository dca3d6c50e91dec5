//! Environment variables that override device options, for troubleshooting without a rebuild.

use wgpu::Features;

use super::options::{DeviceOptions, RecordMode};
use crate::error::GpuError;

const RECORD: &str = "FULMEN_WGPU_RECORD";
const WITHOUT: &str = "FULMEN_WGPU_WITHOUT";

/// Names of optional features.
const FEATURES: [(&str, Features); 7] = [
    ("all", Features::all()),
    ("subgroups", Features::SUBGROUP),
    ("f16", Features::SHADER_F16),
    ("immediates", Features::IMMEDIATES),
    ("timestamps", Features::TIMESTAMP_QUERY),
    ("pipeline-cache", Features::PIPELINE_CACHE),
    ("matrices", Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
];

impl DeviceOptions {
    /// These options, with the environment's overrides where they are not set explicitly.
    pub(super) fn with_environment(&self) -> Result<DeviceOptions, GpuError> {
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let mut options = self.clone();
        if let (Some(value), RecordMode::Auto) = (variable(RECORD), self.record) {
            options.record = record(&value)?;
        }
        if let Some(value) = variable(WITHOUT) {
            options.without |= features(&value)?;
        }
        Ok(options)
    }
}

fn record(value: &str) -> Result<RecordMode, GpuError> {
    match value {
        "" => Ok(RecordMode::Auto),
        "0" => Ok(RecordMode::Never),
        "1" => Ok(RecordMode::Always),
        _ => Err(refused(RECORD, "0 (never) or 1 (from the third run on)".to_owned(), value)),
    }
}

fn features(value: &str) -> Result<Features, GpuError> {
    let mut features = Features::empty();
    for name in value.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let known = FEATURES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let names = FEATURES.map(|(name, _)| name).join(", ");
            refused(WITHOUT, format!("names out of {names}, with commas between them"), name)
        })?;
        features |= known.1;
    }
    Ok(features)
}

fn refused(variable: &str, expected: String, got: &str) -> GpuError {
    let what = format!("the environment variable {variable}");
    GpuError::Argument { call: "GpuDevice::with_options", what, expected, got: format!("{got:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_left_out_by_name() {
        assert_eq!(features("").unwrap(), Features::empty());
        assert_eq!(features("all").unwrap(), Features::all());
        assert_eq!(features("f16, subgroups").unwrap(), Features::SHADER_F16 | Features::SUBGROUP);
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let error = features("f16,warp").unwrap_err().to_string();
        assert!(
            error.contains(WITHOUT) && error.contains("pipeline-cache") && error.contains("\"warp\""),
            "{error}"
        );
        let error = record("yes").unwrap_err().to_string();
        assert!(error.contains(RECORD) && error.contains("\"yes\""), "{error}");
        assert_eq!(record("1").unwrap(), RecordMode::Always);
    }
}
