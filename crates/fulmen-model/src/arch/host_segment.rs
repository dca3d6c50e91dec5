//! What of a layer the host computes on another device: the experts of a mixture, where the placement says
//! so.
//!
//! ```text
//!  graph of the stage:  … router ─► HostSegment(layer) ─► + residual ─► …
//!                                     │ x, expert ids, routing weights      ▲ rows of hidden states
//!  graph of its own:                  └──► gate, up, activation, down ──────┘
//! ```
//!
//! Both are recorded by the same description of the layer.

use std::ops::Range;

use fulmen_core::{DType, GraphBuilder, LogicalGraph, Tensor};

use super::graph::{GraphSpec, names};
use super::placement::{Placement, Stage};
use super::record::Recorder;
use super::{Config, graph};
use crate::error::ModelError;
use crate::source::ModelSource;

/// A part of the graph of a stage that the host computes.
#[derive(Clone, Debug)]
pub struct HostSegment {
    /// Its number in [`HostSegmentCall`](fulmen_core::HostSegmentCall)s: that of its layer.
    pub number: u32,
    /// From [`host_input`](names::host_input) 0, 1, … to [`HOST_OUTPUT`](names::HOST_OUTPUT).
    pub graph: LogicalGraph,
}

impl Config {
    /// The layers that are a mixture of experts; none of a model without.
    pub fn expert_layers(&self) -> Range<u32> {
        self.experts.map_or(0..0, |experts| experts.leading_dense..self.layers)
    }

    /// All layers on one device, but for the experts of the first `count` mixture layers, which the host has;
    /// of all of them, if there are fewer.
    ///
    /// # Errors
    /// [`ModelError::NotAMixture`] if no layer has experts.
    pub fn with_experts_on_host(&self, count: u32) -> Result<Placement, ModelError> {
        let layers = self.expert_layers();
        if layers.is_empty() {
            return Err(ModelError::NotAMixture { architecture: self.architecture });
        }
        let end = layers.start.saturating_add(count).min(layers.end);
        Ok(Placement::whole(self.layers).with_experts_on_host(if count == 0 { 0 } else { end }))
    }

    /// What the host computes of a step: see [`Stage::with_experts_on_host`]. The number of rows is that of
    /// the step.
    pub fn host_segments(
        &self,
        source: &dyn ModelSource,
        spec: &GraphSpec,
    ) -> Result<Vec<HostSegment>, ModelError> {
        let stage = spec.stage.unwrap_or(Stage::whole(self.layers));
        stage.check(self.layers)?;
        let mut recorder = Recorder::new(self, source, stage);
        graph::record(&mut recorder, spec, stage)?;
        Ok(recorder.host_segments)
    }
}

impl Recorder<'_> {
    /// Records what `body` computes from `inputs` as a graph of its own, which the host runs, and an op in
    /// its place.
    pub(super) fn on_host<const N: usize>(
        &mut self,
        number: u32,
        inputs: [Tensor; N],
        body: impl FnOnce(&mut Self, [Tensor; N]) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, ModelError> {
        let mut host = GraphBuilder::new();
        let mut own = inputs;
        for (at, tensor) in own.iter_mut().enumerate() {
            let (name, dtype) = (names::host_input(at), self.builder.dtype(*tensor)?);
            let (rows, width) = self.builder.shape(*tensor)?;
            *tensor = match dtype {
                DType::U32 => host.index_rows(&name, rows, width)?,
                _ => host.input(&name, rows, width)?,
            };
        }
        let device = std::mem::replace(&mut self.builder, host);
        let computed = body(self, own).and_then(|output| {
            self.builder.output(names::HOST_OUTPUT, output)?;
            Ok(self.builder.shape(output)?)
        });
        let host = std::mem::replace(&mut self.builder, device);
        let (_, width) = computed?;
        self.host_segments.push(HostSegment { number, graph: host.finish() });
        Ok(self.builder.host_segment(number, &inputs, width)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use fulmen_core::{Role, TensorOp};

    use super::*;
    use crate::arch::Step;
    use crate::synth::{ModelShape, Synth};

    fn weights(graph: &LogicalGraph) -> HashSet<&str> {
        let weights = graph.tensors.iter().filter(|tensor| tensor.role == Role::Weight);
        weights.filter_map(|tensor| tensor.name.as_deref()).collect()
    }

    /// A decode step of one sequence.
    fn spec() -> GraphSpec {
        let step = Step::decode(1);
        GraphSpec::contiguous(step, DType::F16, 1, 128)
    }

    #[test]
    fn each_weight_is_on_one_side() {
        for preset in ["tiny-gpt-oss", "tiny-glm4moe", "tiny-gemma4moe", "tiny-qwen35moe"] {
            let shape = ModelShape::preset(preset).unwrap();
            let source = Synth::new(shape, "q8_0".parse().unwrap(), 1).source().unwrap();
            let source = crate::arch::split_fused(std::sync::Arc::new(source)).unwrap();
            let config = Config::read(source.as_ref()).unwrap();
            let whole = config.graph(source.as_ref(), &spec()).unwrap();
            let mixtures = config.expert_layers();
            for count in [0, 1, 99] {
                let placement = config.with_experts_on_host(count).unwrap();
                let spec = spec().on(placement.stages()[0]);
                let device = config.graph(source.as_ref(), &spec).unwrap();
                let segments = config.host_segments(source.as_ref(), &spec).unwrap();
                let numbers: Vec<u32> = segments.iter().map(|segment| segment.number).collect();
                let expected: Vec<u32> = mixtures.clone().take(count as usize).collect();
                assert_eq!(numbers, expected, "{preset} {count}");
                let ops = device.ops.iter().filter(|node| node.op.op() == TensorOp::HostSegment).count();
                assert_eq!(ops, segments.len());
                let mut all = weights(&device);
                for segment in &segments {
                    for name in weights(&segment.graph) {
                        assert!(name.contains("_exps.") && all.insert(name), "{preset} {count}: {name}");
                    }
                }
                assert_eq!(all, weights(&whole), "{preset} {count}");
            }
        }
    }

    #[test]
    fn a_model_without_experts_has_none_on_the_host() {
        let shape = ModelShape::preset("tiny-qwen3").unwrap();
        let source = Synth::new(shape, "q8_0".parse().unwrap(), 1).source().unwrap();
        let config = Config::read(&source).unwrap();
        assert!(config.expert_layers().is_empty());
        let refused = config.with_experts_on_host(3).unwrap_err().to_string();
        let expected = "this qwen3 model is not a mixture of experts: it has none to leave on the CPU";
        assert_eq!(refused, expected);
        assert!(config.host_segments(&source, &spec()).unwrap().is_empty());
    }
}
