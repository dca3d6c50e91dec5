//! Recorded graphs of steps. A graph is recorded and checked against the model's tensors once per kind of
//! step; each use fills in its row counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fulmen_core::{Fusions, LogicalGraph, Plan, PlanOptions};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, GraphSpec};
use fulmen_model::source::ModelSource;

/// Templates that are kept. A session has at most eleven, and fifteen on ranks, which draw from candidates;
/// an engine has some for each kind of edits to logits and of outputs beside tokens; those with other caches
/// have their own.
const MAX_TEMPLATES: usize = 64;

/// The fused graphs of one model for one device.
pub(super) struct Templates {
    fusions: Fusions,
    recorded: Mutex<HashMap<GraphSpec, Arc<LogicalGraph>>>,
}

impl Templates {
    pub(super) fn new(fusions: Fusions) -> Templates {
        Templates { fusions, recorded: Mutex::default() }
    }

    /// The memory plan of a step.
    pub(super) fn plan(
        &self,
        config: &Config,
        source: &dyn ModelSource,
        spec: &GraphSpec,
    ) -> Result<Plan, ModelError> {
        let graph = self.template(config, source, spec)?.with_rows(|name| spec.step.rows_of(name))?;
        // The template is fused already.
        Ok(graph.plan(&PlanOptions { fusions: Fusions::none(), ..PlanOptions::default() })?)
    }

    fn template(
        &self,
        config: &Config,
        source: &dyn ModelSource,
        spec: &GraphSpec,
    ) -> Result<Arc<LogicalGraph>, ModelError> {
        let key = GraphSpec { step: spec.step.with_one_row(), ..*spec };
        let mut recorded = self.recorded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(template) = recorded.get(&key) {
            return Ok(Arc::clone(template));
        }
        let template = Arc::new(config.graph(source, &key)?.fuse(&self.fusions));
        if recorded.len() >= MAX_TEMPLATES {
            recorded.clear();
        }
        recorded.insert(key, Arc::clone(&template));
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use fulmen_core::DType;

    use super::*;
    use fulmen_model::arch::{Beside, Results, Step};
    use fulmen_model::synth::{ModelShape, Synth};

    #[test]
    fn a_plan_of_a_template_is_that_of_the_recorded_graph() {
        let fusions = Fusions { add_rms_norm: false, ..Fusions::all() };
        let kinds = [[false, false], [true, false], [false, true], [true, true]];
        let draw = |beside| {
            let results =
                |[penalize, mask]: [bool; 2]| Results::Draw { penalize, mask, candidates: None, beside };
            kinds.map(|kind| Some((1, results(kind))))
        };
        let beside = [Beside::default(), Beside { log_probs: Some(3), hidden: true }];
        let draws = beside.map(draw).concat();
        for preset in ["qwen3-0.6b", "llama3.2-1b"] {
            let shape = ModelShape { layers: 2, vocabulary: 300, ..ModelShape::preset(preset).unwrap() };
            let source = Synth::new(shape, "Q4_K".parse().unwrap(), 1).source().unwrap();
            let config = Config::read(&source).unwrap();
            for sequences in [1, 3] {
                let templates = Templates::new(fusions);
                for rows in [1, 2, 7, 33] {
                    let decode =
                        |[penalize, mask]: [bool; 2]| Step::Decode { rows, penalize, mask, candidates: None };
                    let mut steps = kinds.map(decode).to_vec();
                    let results = [None, Some((1, Results::Hidden)), Some((rows, Results::Logits))];
                    for results in results.into_iter().chain(draws.clone()) {
                        steps.push(Step::Prefill { rows, results });
                        steps.extend([0, 3].map(|chunks| Step::Mixed { rows, chunks, results }));
                    }
                    for step in steps {
                        let spec = GraphSpec::contiguous(step, DType::F16, sequences, 64);
                        let options = PlanOptions { fusions, ..PlanOptions::default() };
                        let expected = config.graph(&source, &spec).unwrap().plan(&options).unwrap();
                        let made = templates.plan(&config, &source, &spec).unwrap();
                        assert_eq!(made.arena_bytes, expected.arena_bytes, "{spec:?}");
                        assert_eq!(made.graph.ops, expected.graph.ops, "{spec:?}");
                        assert_eq!(made.placements, expected.placements, "{spec:?}");
                    }
                }
                assert_eq!(templates.recorded.lock().unwrap().len(), 37, "one template per kind of step");
            }
        }
    }
}
