//! What the experts of a mixture need, and what the rest of the model does.

use std::sync::Arc;

use fulmen_core::{DType, Role};
use fulmen_model::arch::{Config, GraphSpec, Step, split_fused};
use fulmen_model::source::ModelSource;
use fulmen_model::summary::Memory;

/// The memory of the two sides of `--cpu-experts`.
pub(super) struct ExpertNeeds {
    /// Mixture layers.
    pub(super) layers: u32,
    /// Bytes of the experts of all of them.
    pub(super) experts: u64,
    /// Bytes of all other weights.
    pub(super) rest: u64,
}

/// `None` if the model is no mixture of experts, or cannot be run.
pub(super) fn needs(source: &Arc<dyn ModelSource>, memory: Option<&Memory>) -> Option<ExpertNeeds> {
    let source = split_fused(Arc::clone(source)).ok()?;
    let config = Config::read(source.as_ref()).ok()?;
    let layers = config.expert_layers().len() as u32;
    let stage = config.with_experts_on_host(layers).ok()?.stages()[0];
    let step = Step::decode(1);
    let spec = GraphSpec::contiguous(step, DType::F16, 1, 1).on(stage);
    let segments = config.host_segments(source.as_ref(), &spec).ok()?;
    let weights = segments.iter().flat_map(|segment| &segment.graph.tensors);
    let weights = weights.filter(|tensor| tensor.role == Role::Weight);
    let experts = weights.map(|tensor| tensor.bytes().map_or(0, |bytes| bytes as u64)).sum();
    Some(ExpertNeeds { layers, experts, rest: memory?.weights.saturating_sub(experts) })
}
