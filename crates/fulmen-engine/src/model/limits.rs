//! What the devices of all ranks allow an engine, on this node and on the others.

use fulmen_model::ModelError;
use serde::{Deserialize, Serialize};

use super::nodes::NodeOrder;
use super::options::EngineOptions;
use crate::Model;

/// What devices prefer and have room for: the least of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankLimits {
    /// Rows of a prefill.
    pub(super) preferred_rows: u32,
    /// Rows of a decode step that run at once; 0 if it makes no difference.
    pub(super) rows_at_once: u32,
    /// Recurrent states beside those of sequences.
    pub(super) kept_states: u32,
}

impl RankLimits {
    fn least(self, other: RankLimits) -> RankLimits {
        RankLimits {
            preferred_rows: self.preferred_rows.min(other.preferred_rows),
            rows_at_once: self.rows_at_once.min(other.rows_at_once),
            kept_states: self.kept_states.min(other.kept_states),
        }
    }

    /// The answer of a node.
    pub(super) fn to_words(self) -> Vec<u32> {
        vec![self.preferred_rows, self.rows_at_once, self.kept_states]
    }

    fn from_words(words: &[u32]) -> Result<RankLimits, ModelError> {
        match *words {
            [preferred_rows, rows_at_once, kept_states] => {
                Ok(RankLimits { preferred_rows, rows_at_once, kept_states })
            }
            _ => Err(ModelError::Without { what: "limits of another node" }),
        }
    }
}

/// The ranks of this process.
pub(super) fn ranks_of(model: &Model) -> Vec<Model> {
    let followers = model.followers().map_or_else(Vec::new, |(_, models)| models);
    std::iter::once(model.clone()).chain(followers).collect()
}

impl EngineOptions {
    /// The limits of the ranks of this process.
    pub(super) fn limits(&self, model: &Model) -> RankLimits {
        let stages = 0..model.placement().stages().len();
        let of_rank = |rank: &Model| {
            let prefers = |stage| rank.with_stage(stage, |device| device.prefill_chunk());
            let at_once = |stage| rank.with_stage(stage, |device| device.rows_at_once()).unwrap_or(0);
            RankLimits {
                preferred_rows: stages.clone().map(prefers).min().unwrap_or(1),
                rows_at_once: stages.clone().map(at_once).min().unwrap_or(0),
                kept_states: self.kept_on_rank(rank),
            }
        };
        let none = RankLimits { preferred_rows: 1, rows_at_once: 0, kept_states: 0 };
        ranks_of(model).iter().map(of_rank).reduce(RankLimits::least).unwrap_or(none)
    }

    /// The limits of the ranks of all processes.
    pub(super) fn limits_of_all_nodes(&self, model: &Model) -> Result<RankLimits, ModelError> {
        let mut limits = self.limits(model);
        for words in ask_nodes(model, &NodeOrder::Limits(self.clone()))? {
            limits = limits.least(RankLimits::from_words(&words)?);
        }
        Ok(limits)
    }

    /// The KV pages that fit the devices of all processes.
    pub(super) fn pages_on_all_nodes(&self, model: &Model, limits: RankLimits) -> Result<u32, ModelError> {
        let pages = self.pages_on_node(model, limits)?;
        let others = ask_nodes(model, &NodeOrder::Pages(self.clone(), limits))?;
        Ok(others.into_iter().flatten().fold(pages, u32::min))
    }
}

/// The answers of all other nodes, if this is node 0.
fn ask_nodes(model: &Model, order: &NodeOrder) -> Result<Vec<Vec<u32>>, ModelError> {
    let Some((group, _)) = model.followers() else { return Ok(Vec::new()) };
    group.led().iter().map(|node| node.order(order)).collect()
}
