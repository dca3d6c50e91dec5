//! Layers of a model, or the experts of some, on the CPU and the rest on the GPU, or parts of every layer on
//! several ranks: which, and how they are loaded.

use std::sync::Arc;

use fulmen::OpenOptions;
use fulmen_core::device::{DeviceInfo, DeviceKind, DeviceSelector};
use fulmen_core::timeline;
#[cfg(feature = "server")]
use fulmen_engine::Collectives;
use fulmen_engine::{
    CollectivesInUse, CpuExperts, Device, EngineOptions, FitFor, GpuLayers, LoadOptions, Model,
    TensorParallel, fit_experts, fit_layers, limit_memory,
};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, split_fused};
use fulmen_model::source::ModelSource;

use super::memory::{self, Leaves};
use super::ranks::RankOptions;
use crate::error::CommandError;
use crate::output::tell;
use crate::select::{CPU, SelectError, open};

/// What runs on the GPU, and on how many ranks.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SplitOptions {
    /// Layers on the GPU, the last ones of the model; the others run on the CPU. `auto` for as many as fit
    /// its free memory, with their KV cache. By default all.
    #[arg(long, value_name = "COUNT|auto")]
    gpu_layers: Option<GpuLayers>,

    /// Mixtures of experts: the CPU computes the experts of the first COUNT layers that have some, or of
    /// `all`, and reads their weights from the mapped file. Attention, shared experts, the KV cache and
    /// everything else is on the GPU. `auto` leaves as few on the CPU as the free memory of the GPU allows.
    /// By default none. llama.cpp has --n-cpu-moe and --cpu-moe.
    #[arg(long, value_name = "COUNT|all|auto", conflicts_with = "gpu_layers")]
    cpu_experts: Option<CpuExperts>,

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
    #[error("--cpu-experts: {error}; --gpu-layers leaves whole layers there")]
    NoExperts { error: ModelError },
    #[error("{error}{}", memory::options(error, *.leaves))]
    Memory { error: ModelError, leaves: Leaves },
    #[error(transparent)]
    Model(ModelError),
}

impl From<ModelError> for SplitError {
    fn from(error: ModelError) -> SplitError {
        match memory::is_short(&error) {
            true => SplitError::Memory { error, leaves: Leaves::Nothing },
            false => SplitError::Model(error),
        }
    }
}

impl SplitError {
    /// The same with the advice what to leave on the CPU, if memory is short.
    fn on_gpu(leaves: Leaves) -> impl FnOnce(ModelError) -> SplitError {
        move |error| match SplitError::from(error) {
            SplitError::Memory { error, .. } => SplitError::Memory { error, leaves },
            other => other,
        }
    }
}

impl CommandError for SplitError {
    fn is_usage(&self) -> bool {
        match self {
            SplitError::NoGpu { .. } | SplitError::Ranks { .. } | SplitError::NoExperts { .. } => true,
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
        let experts = self.cpu_experts.map(|experts| ["--cpu-experts".to_owned(), experts.to_string()]);
        layers.into_iter().chain(experts).chain(memory).flatten().chain(self.ranks.arguments()).collect()
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
        let config = Config::read(split_fused(source.clone())?.as_ref())?;
        if self.cpu_experts.is_some() && config.expert_layers().is_empty() {
            let error = ModelError::NotAMixture { architecture: config.architecture };
            return Err(SplitError::NoExperts { error });
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
        let demand = match engine {
            Some(engine) => FitFor::Engine(options.session, engine),
            None => FitFor::Session(options.session),
        };
        let placed = Placed { source, config, info, device, open_options, demand, quiet };
        match (self.gpu_layers, self.cpu_experts) {
            (Some(layers), _) => placed.load_layers(layers, options),
            (None, Some(experts)) => placed.load_experts(experts, options),
            (None, None) => {
                let leaves = placed.leaves();
                let Placed { source, device, info, .. } = placed;
                Ok((whole(source, device, options).map_err(SplitError::on_gpu(leaves))?, info))
            }
        }
    }

    /// Without a GPU there is nothing to divide. `auto` takes what there is.
    fn refuse_without_gpu(&self, device: DeviceSelector) -> Result<(), SplitError> {
        let option = match self.cpu_experts {
            _ if matches!(self.gpu_layers, Some(GpuLayers::Count(1..))) => "--gpu-layers",
            Some(CpuExperts::Count(1..) | CpuExperts::All) => "--cpu-experts",
            _ if self.gpu_memory.is_some() => "--gpu-memory",
            _ => return Ok(()),
        };
        Err(SplitError::NoGpu { option, device })
    }
}

/// A GPU, and the model that a part of goes there.
struct Placed<'a> {
    source: Arc<dyn ModelSource>,
    config: Config,
    info: DeviceInfo,
    device: Device,
    open_options: OpenOptions,
    demand: FitFor<'a>,
    quiet: bool,
}

impl Placed<'_> {
    /// What can be left on the CPU.
    fn leaves(&self) -> Leaves {
        if self.config.expert_layers().is_empty() { Leaves::Layers } else { Leaves::Experts }
    }

    /// Says what was chosen.
    fn tell(&self, chosen: impl std::fmt::Display) {
        if !self.quiet {
            tell(&format!("on {}: {chosen}", self.info.selector()));
        }
    }

    /// The last layers on the GPU, the others on the CPU.
    fn load_layers(
        self,
        asked: GpuLayers,
        options: LoadOptions<'_>,
    ) -> Result<(Model, DeviceInfo), SplitError> {
        let of = self.config.layers;
        let count = match asked {
            GpuLayers::Count(count) => count.min(of),
            GpuLayers::Auto => {
                let fit = fit_layers(self.source.clone(), self.device.as_ref(), self.demand)?;
                self.tell(format_args!("{fit}{}", rest(fit.layers, of)));
                fit.layers
            }
        };
        let Placed { source, info, device, open_options, .. } = self;
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
        Ok((timeline::span("load the model", load).map_err(SplitError::on_gpu(Leaves::Layers))?, info))
    }

    /// The experts of the first layers on the CPU, everything else on the GPU.
    fn load_experts(
        self,
        asked: CpuExperts,
        options: LoadOptions<'_>,
    ) -> Result<(Model, DeviceInfo), SplitError> {
        let of = self.config.expert_layers().len() as u32;
        let count = match asked {
            CpuExperts::Count(count) => count.min(of),
            CpuExperts::All => of,
            CpuExperts::Auto => {
                let fit = fit_experts(self.source.clone(), self.device.as_ref(), self.demand)?;
                let rest = match fit.on_host {
                    0 => "",
                    all if all == of => "; all experts are on the CPU",
                    _ => "; the other experts are on the CPU",
                };
                self.tell(format_args!("{fit}{rest}"));
                fit.on_host
            }
        };
        // With the experts of all layers on the CPU, there is nothing but whole layers left.
        let leaves = if count == of { Leaves::Layers } else { Leaves::Experts };
        let Placed { source, info, device, open_options, .. } = self;
        if count == 0 {
            return Ok((whole(source, device, options).map_err(SplitError::on_gpu(leaves))?, info));
        }
        let (_, cpu) = open(DeviceSelector::Backend(CPU), &open_options)?;
        let load = || Model::from_source_experts_on(source, device, (cpu, count), options);
        Ok((timeline::span("load the model", load).map_err(SplitError::on_gpu(leaves))?, info))
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

/// Layers whose experts are on the CPU, while the rest of them is on the GPU.
pub(crate) fn cpu_expert_layers(model: &Model) -> usize {
    let stages = model.placement().stages();
    let on_cpu = |&layer: &u32| stages.iter().any(|stage| stage.has_experts_on_host(layer));
    model.config().expert_layers().filter(on_cpu).count()
}

/// The device of a model as its selector: `cuda:0`, `cuda:0 (20 of 36 layers) and cpu`,
/// `cuda:0 and cpu (the experts of 30 of 48 layers)`, or `2 ranks, the first on cuda:0`.
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
        [only] if only.is_cut() => {
            let (mixtures, on_cpu) = (model.config().expert_layers(), cpu_expert_layers(model));
            format!("{device} and {CPU} (the experts of {on_cpu} of {} layers)", mixtures.len())
        }
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
        let refused = |experts: &str| {
            let cpu_experts = Some(experts.parse().unwrap());
            let options = SplitOptions { cpu_experts, ..SplitOptions::default() };
            let refused = options.refuse_without_gpu(DeviceSelector::Backend(CPU));
            (options.arguments().join(" "), refused.is_err())
        };
        for (experts, expected) in [("0", false), ("auto", false), ("3", true), ("all", true)] {
            assert_eq!(refused(experts), (format!("--cpu-experts {experts}"), expected));
        }
    }
}
