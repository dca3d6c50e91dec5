//! How many layers of a model fit a device.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fulmen_core::{Backend, Plan};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, GraphSpec, Placement, Stage, Step, split_fused};
use fulmen_model::source::ModelSource;

use super::load::Needs;
use super::session::SessionOptions;
use super::templates::Templates;
use super::weights;
use crate::model::EngineOptions;

/// How many layers are to run on a GPU; the others run on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit its free memory.
    Auto,
    /// This many; all of them if there are fewer.
    Count(u32),
}

impl fmt::Display for GpuLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuLayers::Auto => f.pad("auto"),
            GpuLayers::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<GpuLayers, String> {
        match text {
            "auto" => Ok(GpuLayers::Auto),
            _ => match text.parse() {
                Ok(count) => Ok(GpuLayers::Count(count)),
                Err(_) => Err("expected auto or a number of layers".to_owned()),
            },
        }
    }
}

/// What the layers of a device are to be used for, beside which the weights must fit.
#[derive(Clone, Copy, Debug)]
pub enum FitFor<'a> {
    /// Sessions with these options, one at a time.
    Session(SessionOptions),
    /// An engine with these options, for a model that is loaded with these session options. Unless the
    /// options say how much, KV pages get what all sequences need, but at most a quarter of the memory, and
    /// at least one sequence.
    Engine(SessionOptions, &'a EngineOptions),
}

/// The layers that fit a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerFit {
    /// The last so many layers of the model.
    pub layers: u32,
    /// All layers of the model.
    pub of: u32,
    /// Bytes that they need: weights, KV cache, activations and a reserve.
    pub needed: u64,
    /// Bytes that the device reports as available, if it does.
    pub available: Option<u64>,
}

impl fmt::Display for LayerFit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = fulmen_core::device::format_bytes;
        let LayerFit { layers, of, needed, .. } = *self;
        match self.available {
            Some(free) if layers == 0 => write!(f, "none of {of} layers fits {}", bytes(free)),
            Some(free) => write!(f, "{layers} of {of} layers need {} of {} free", bytes(needed), bytes(free)),
            None => write!(f, "{layers} of {of} layers, as the free memory is not known"),
        }
    }
}

/// Finds how many of a model's last layers fit the free memory of a device, with their KV cache, their
/// activations and the output matrix. If it does not report its memory, all of them.
///
/// With fewer than all layers, the token embedding and the first layers belong to another device: see
/// [`Model::from_source_split`](super::Model::from_source_split).
pub fn fit_layers(
    source: Arc<dyn ModelSource>,
    device: &dyn Backend,
    demand: FitFor<'_>,
) -> Result<LayerFit, ModelError> {
    let source = split_fused(source)?;
    let config = Config::read(source.as_ref())?;
    let fit = Fit::new(source.as_ref(), &config, device, demand)?;
    let (of, available) = (config.layers, device.available_bytes());
    let Some(room) = available else { return Ok(LayerFit { layers: of, of, needed: 0, available }) };
    let all = fit.needed(Stage::whole(of), room)?;
    if all <= room {
        return Ok(LayerFit { layers: of, of, needed: all, available });
    }
    // The first number of layers that fits, the most first: what they need grows with their number.
    let (mut layers, mut needed) = (0, 0);
    let (mut low, mut high) = (1, of);
    while low < high {
        let count = low + (high - low) / 2;
        let placement = Placement::split(&[of - count, count], of)?;
        let bytes = fit.needed(placement.stages()[1], room)?;
        match bytes <= room {
            true => (layers, needed, low) = (count, bytes, count + 1),
            false => high = count,
        }
    }
    Ok(LayerFit { layers, of, needed, available })
}

/// A search for what fits a device.
pub(super) struct Fit<'a> {
    source: &'a dyn ModelSource,
    config: &'a Config,
    session: SessionOptions,
    demand: FitFor<'a>,
    device: &'a dyn Backend,
    templates: Templates,
}

/// Of what is needed, one part in so many is kept free for what is not known beforehand: alignment, weights
/// that a device repacks, memory of captured steps.
const RESERVE: u64 = 16;

impl<'a> Fit<'a> {
    pub(super) fn new(
        source: &'a dyn ModelSource,
        config: &'a Config,
        device: &'a dyn Backend,
        demand: FitFor<'a>,
    ) -> Result<Fit<'a>, ModelError> {
        let (FitFor::Session(session) | FitFor::Engine(session, _)) = demand;
        let (session, templates) = (session.resolve(config)?, Templates::new(device.fusions()));
        Ok(Fit { source, config, session, demand, device, templates })
    }

    fn plan(&self, spec: &GraphSpec) -> Result<Plan, ModelError> {
        self.templates.plan(self.config, self.source, spec)
    }

    /// Bytes that a stage needs on a device with so many bytes available.
    pub(super) fn needed(&self, stage: Stage, available: u64) -> Result<u64, ModelError> {
        let Fit { source, config, session, demand, device, templates } = self;
        let decode =
            session.spec(Step::Decode { rows: 1, penalize: true, mask: true, candidates: None }).on(stage);
        let weights = weights::stored_bytes(&config.graph(*source, &decode)?.tensors, *device);
        // A session keeps the steps of a prefill chunk, of its rest and of decoding, and calls may have
        // memory of their own.
        let needs = Needs { source: *source, config, session, stage };
        let prefill = needs.activations(templates, needs.least_chunk())?;
        let results = needs.results(templates, needs.least_chunk())?;
        let activations = prefill + prefill.max(results) + self.plan(&decode)?.arena_bytes as u64;
        let of_session = session.stage_memory_bytes(config, stage).saturating_add(activations);
        let used = match demand {
            FitFor::Session(_) => of_session,
            FitFor::Engine(_, options) => {
                let plan = |spec: &GraphSpec| self.plan(spec);
                let rows = device.prefill_chunk();
                options.stage_bytes(config, plan, stage, rows, available)?.max(of_session)
            }
        };
        let needed = weights.saturating_add(used);
        Ok(needed.saturating_add(needed / RESERVE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_number_or_auto() {
        assert_eq!("auto".parse(), Ok(GpuLayers::Auto));
        assert_eq!("0".parse(), Ok(GpuLayers::Count(0)));
        assert_eq!("99".parse(), Ok(GpuLayers::Count(99)));
        for text in ["", "-1", "all", "1.5", "Auto"] {
            let error = text.parse::<GpuLayers>().unwrap_err();
            assert_eq!(error, "expected auto or a number of layers");
        }
    }

    #[test]
    fn a_fit_says_what_it_is() {
        let fit = LayerFit { layers: 3, of: 8, needed: 1 << 20, available: Some(3 << 20) };
        assert_eq!(fit.to_string(), "3 of 8 layers need 1 MiB of 3 MiB free");
        assert_eq!(LayerFit { layers: 0, ..fit }.to_string(), "none of 8 layers fits 3 MiB");
        let fit = LayerFit { available: None, ..fit };
        assert_eq!(fit.to_string(), "3 of 8 layers, as the free memory is not known");
    }
}
