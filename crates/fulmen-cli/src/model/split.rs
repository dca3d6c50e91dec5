//! Layers of a model on the GPU and on the CPU, or parts of every layer on several ranks: which, and how they
//! are loaded.

use std::sync::Arc;

use fulmen::OpenOptions;
use fulmen_core::device::{DeviceInfo, DeviceKind, DeviceSelector};
use fulmen_core::timeline;
#[cfg(feature = "server")]
use fulmen_engine::Collectives;
use fulmen_engine::{
    CollectivesInUse, Device, EngineOptions, FitFor, GpuLayers, LoadOptions, Model, TensorParallel,
    fit_layers, limit_memory,
};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, split_fused};
use fulmen_model::source::ModelSource;

use super::memory;
use super::ranks::RankOptions;
use crate::error::CommandError;
use crate::output::tell;
use crate::select::{CPU, SelectError, open};

/// Which layers run on the GPU, and on how many ranks.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SplitOptions {
    /// Layers on the GPU, the last ones of the model; the others run on the CPU. `auto` for as many as fit
    /// its free memory, with their KV cache. By default all.
    #[arg(long, value_name = "COUNT|auto")]
    gpu_layers: Option<GpuLayers>,

    /// Memory of the GPU that a model may take at most, such as 8GB. By default all that is free.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    gpu_memory: Option<u64>,

    #[command(flatten)]
    ranks: RankOptions,
}

/// Why the layers of a model were not placed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SplitError {
    #[error("{option} needs a GPU, and the device is {device}")]
    NoGpu { option: &'static str, device: DeviceSelector },
    #[error("--tensor-parallel {ranks} needs {ranks} devices, but --devices lists {devices}")]
    Ranks { ranks: u32, devices: usize },
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error("{error}{}", memory::options(error, *.splits))]
    Memory { error: ModelError, splits: bool },
    #[error(transparent)]
    Model(ModelError),
}

impl From<ModelError> for SplitError {
    fn from(error: ModelError) -> SplitError {
        match memory::is_short(&error) {
            true => SplitError::Memory { error, splits: false },
            false => SplitError::Model(error),
        }
    }
}

impl SplitError {
    /// The same with the advice to leave layers on the CPU, if memory is short.
    fn on_gpu(error: ModelError) -> SplitError {
        match SplitError::from(error) {
            SplitError::Memory { error, .. } => SplitError::Memory { error, splits: true },
            other => other,
        }
    }
}

impl CommandError for SplitError {
    fn is_usage(&self) -> bool {
        match self {
            SplitError::NoGpu { .. } | SplitError::Ranks { .. } => true,
            SplitError::Select(error) => error.is_usage(),
            SplitError::Memory { error, .. } | SplitError::Model(error) => error.is_usage(),
        }
    }
}

/// What a model is loaded for, and how.
pub(crate) struct Load<'a, 'p> {
    pub(crate) device: DeviceSelector,
    pub(crate) threads: Option<usize>,
    pub(crate) options: LoadOptions<'p>,
    /// The engine that will run it, if there will be one.
    pub(crate) engine: Option<&'a EngineOptions>,
    /// Whether nothing is said about what was chosen.
    pub(crate) quiet: bool,
}

impl SplitOptions {
    /// The arguments that select the same in another process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let layers = self.gpu_layers.map(|layers| ["--gpu-layers".to_owned(), layers.to_string()]);
        let memory = self.gpu_memory.map(|bytes| ["--gpu-memory".to_owned(), bytes.to_string()]);
        layers.into_iter().chain(memory).flatten().chain(self.ranks.arguments()).collect()
    }

    /// Opens the devices of the ranks of this process, at least one, and describes the first.
    #[cfg(feature = "server")]
    pub(crate) fn open_ranks(
        &self,
        device: DeviceSelector,
        threads: Option<usize>,
    ) -> Result<(DeviceInfo, Vec<Device>, Collectives), SplitError> {
        let collectives = self.ranks.collectives();
        if let Some((info, devices)) = self.ranks.open(device, threads)? {
            return Ok((info, devices, collectives));
        }
        let (info, device) = open(device, &OpenOptions { threads })?;
        Ok((info, vec![device], collectives))
    }

    /// Opens the device, and the CPU if that has layers, and loads the model.
    pub(crate) fn load(
        &self,
        source: Arc<dyn ModelSource>,
        load: Load<'_, '_>,
    ) -> Result<(Model, DeviceInfo), SplitError> {
        let Load { device, threads, options, engine, quiet } = load;
        if let Some((info, devices)) = self.ranks.open(device, threads)? {
            let collectives = self.ranks.collectives();
            let parallel = TensorParallel { collectives, ..TensorParallel::new(devices) };
            let load = || Model::from_source_sharded(source, parallel, options);
            let model = timeline::span("load the model", load)?;
            if let Some(CollectivesInUse::Host { instead: Some(reason) }) = model.collectives() {
                tell(&format!("collectives pass through the host: {reason}"));
            }
            return Ok((model, info));
        }
        let open_options = OpenOptions { threads };
        let (info, device) = timeline::span("open the device", || open(device, &open_options))?;
        if info.kind == DeviceKind::Cpu {
            self.refuse_without_gpu(info.selector())?;
            return Ok((whole(source, device, options)?, info));
        }
        let device = match self.gpu_memory {
            Some(bytes) => limit_memory(device, bytes),
            None => device,
        };
        let Some(asked) = self.gpu_layers else {
            return Ok((whole(source, device, options).map_err(SplitError::on_gpu)?, info));
        };
        let of = Config::read(split_fused(source.clone())?.as_ref())?.layers;
        let count = match asked {
            GpuLayers::Count(count) => count.min(of),
            GpuLayers::Auto => {
                let demand = match engine {
                    Some(engine) => FitFor::Engine(options.session, engine),
                    None => FitFor::Session(options.session),
                };
                let fit = fit_layers(source.clone(), device.as_ref(), demand)?;
                if !quiet {
                    tell(&format!("on {}: {fit}{}", info.selector(), rest(fit.layers, of)));
                }
                fit.layers
            }
        };
        if count == of {
            return Ok((whole(source, device, options)?, info));
        }
        let (cpu_info, cpu) = open(DeviceSelector::Backend(CPU), &open_options)?;
        if count == 0 {
            drop(device);
            return Ok((whole(source, cpu, options)?, cpu_info));
        }
        let devices = vec![(cpu, of - count), (device, count)];
        let load = || Model::from_source_split(source, devices, options);
        Ok((timeline::span("load the model", load).map_err(SplitError::on_gpu)?, info))
    }

    /// Without a GPU there is nothing to divide. `auto` takes what there is.
    fn refuse_without_gpu(&self, device: DeviceSelector) -> Result<(), SplitError> {
        let option = match (self.gpu_layers, self.gpu_memory) {
            (Some(GpuLayers::Count(1..)), _) => "--gpu-layers",
            (_, Some(_)) => "--gpu-memory",
            _ => return Ok(()),
        };
        Err(SplitError::NoGpu { option, device })
    }
}

fn whole(
    source: Arc<dyn ModelSource>,
    device: Device,
    options: LoadOptions<'_>,
) -> Result<Model, ModelError> {
    timeline::span("load the model", || Model::from_source(source, device, options))
}

/// Where the layers are that do not fit.
fn rest(layers: u32, of: u32) -> &'static str {
    match layers {
        0 => "; all are on the CPU",
        _ if layers < of => "; the others are on the CPU",
        _ => "",
    }
}

/// The device of a model as its selector: `cuda:0`, `cuda:0 (20 of 36 layers) and cpu`, or
/// `2 ranks, the first on cuda:0`.
pub(crate) fn device_of(model: &Model, device: &DeviceInfo) -> String {
    describe(model, device.selector().to_string())
}

/// The device of a model by its name, for the reports of a server.
#[cfg(feature = "server")]
pub(crate) fn device_name_of(model: &Model, device: &DeviceInfo) -> String {
    describe(model, device.name.clone())
}

fn describe(model: &Model, device: String) -> String {
    match model.placement().stages() {
        _ if model.ranks() > 1 => format!("{} ranks, the first on {device}", model.ranks()),
        [_, .., last] => format!("{device} ({} of {} layers) and {CPU}", last.len(), model.config().layers),
        _ => device,
    }
}

/// Bytes with a unit: `40GB`, `512MiB`, `1000`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let unit = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err("expected bytes such as 40GB, 512MiB or 1000".to_owned()),
    };
    let number: f64 = digits.parse().map_err(|_| "expected bytes such as 40GB, 512MiB or 1000".to_owned())?;
    let bytes = number * unit;
    if !(1.0..=1e18).contains(&bytes) {
        return Err("expected 1 byte to 1000000 TB".to_owned());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(parse_bytes("40GB"), Ok(40_000_000_000));
        assert_eq!(parse_bytes("1.5 MiB"), Ok(1_572_864));
        assert_eq!(parse_bytes("1000"), Ok(1000));
        for text in ["", "x", "-1", "0", "1XB", "1e30"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn layers_on_a_gpu_need_one() {
        let refused = |gpu_layers, gpu_memory| {
            let options = SplitOptions { gpu_layers, gpu_memory, ..SplitOptions::default() };
            options.refuse_without_gpu(DeviceSelector::Backend(CPU)).map_err(|error| error.to_string())
        };
        let error = |option| Err(format!("{option} needs a GPU, and the device is cpu"));
        assert_eq!(refused(Some(GpuLayers::Count(3)), None), error("--gpu-layers"));
        assert_eq!(refused(Some(GpuLayers::Auto), Some(5)), error("--gpu-memory"));
        for layers in [None, Some(GpuLayers::Auto), Some(GpuLayers::Count(0))] {
            assert_eq!(refused(layers, None), Ok(()));
        }
    }
}
