//! Architectures: from a file's metadata and tensors to the graph of a model.
//!
//! Each architecture has a file that describes one layer in the order of computation; read `llama.rs` first.
//! Everything else is shared:
//!
//! - `config`: dimensions and constants from the metadata, each validated.
//! - `rope`: RoPE scaling.
//! - `experts`: mixtures of experts.
//! - `delta_net`: gated delta nets, and the attention of models that have them.
//! - `variant`: what deviates from the plain transformer: windows, scales, layers without RoPE.
//! - `split`: tensors that hold several weights, seen as one tensor each.
//! - `record`: the operations that layer descriptions are written in. Recording a weight looks it up in the
//!   file and checks its shape and type, so the description is also the list of tensors that a file must
//!   have.
//! - `graph`: a whole step: tokens in, layers, logits or drawn tokens out.
//! - `placement`: which layers run on which device.
//! - `host_segment`: what of a layer the host computes on another device.
//!
//! Nothing here depends on a backend: the recorded graph runs on any of them.

mod config;
mod delta_net;
mod experts;
mod gemma3;
mod gemma4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod graph;
mod host_segment;
mod llama;
mod mistral3;
mod olmo2;
mod olmoe;
mod phi3;
mod placement;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod record;
mod rope;
mod shard;
mod shard_delta;
mod shard_source;
mod smollm3;
mod split;
mod variant;

pub use config::Config;
pub use delta_net::DeltaNet;
pub use experts::Experts;
pub use graph::{Beside, GraphSpec, MIXED_LOGIT_BIASES, Results, Step, names};
pub use host_segment::HostSegment;
pub use placement::{Placement, Stage};

pub use rope::LongRope;
pub use shard::{Shard, Sharding};
pub use split::split_fused;
pub use variant::{RopeLayers, Variant, Window};

use std::fmt;

use fulmen_core::{KeyHeadOrder, RopePairing, RouteSpec, Tensor};

use crate::error::ModelError;
use crate::source::ModelSource;
use config::{Dimensions, Keys};
use record::Layer;

/// The architectures that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 2 and 3, Mistral, SmolLM2.
    Llama,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Qwen3-MoE.
    Qwen3Moe,
    /// Gemma 3.
    Gemma3,
    /// Gemma 4, dense and mixture of experts.
    Gemma4,
    /// Mistral 3, Ministral 3.
    Mistral3,
    /// Phi-3, Phi-3.5, Phi-4.
    Phi3,
    /// Granite 3.
    Granite,
    /// SmolLM3.
    Smollm3,
    /// OLMo 2 and 3.
    Olmo2,
    /// OLMoE.
    Olmoe,
    /// gpt-oss.
    GptOss,
    /// GLM-4.5 and 4.6.
    Glm4Moe,
    /// Qwen3-Next.
    Qwen3Next,
    /// Qwen3.5, dense.
    Qwen35,
    /// Qwen3.5, mixture of experts.
    Qwen35Moe,
}

/// What distinguishes one architecture from another.
struct Description {
    name: &'static str,
    pairing: RopePairing,
    /// How experts are chosen unless the file says otherwise; `None` without a mixture of experts.
    route: Option<RouteSpec>,
    /// Whether the feed-forward length is that of an expert, in files that do not say the latter.
    inner_of_expert: bool,
    /// The value heads of its delta net; `None` if all layers have attention.
    key_heads: Option<KeyHeadOrder>,
    /// Whether layers may differ in KV heads, in the width of the feed-forward layer and in the scale of
    /// their output, and models in whether they have experts at all.
    differs_by_layer: bool,
    layer: fn(&mut Layer<'_, '_>, Tensor) -> Result<Tensor, ModelError>,
    variant: fn(&Keys<'_>, &Dimensions) -> Result<Variant, ModelError>,
}

/// The variant of an architecture without deviations.
fn plain(_: &Keys<'_>, _: &Dimensions) -> Result<Variant, ModelError> {
    Ok(Variant::plain())
}

impl Architecture {
    /// Every architecture.
    pub const ALL: [Architecture; 17] = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Qwen3Moe,
        Architecture::Gemma3,
        Architecture::Gemma4,
        Architecture::Mistral3,
        Architecture::Phi3,
        Architecture::Granite,
        Architecture::Smollm3,
        Architecture::Olmo2,
        Architecture::Olmoe,
        Architecture::GptOss,
        Architecture::Glm4Moe,
        Architecture::Qwen3Next,
        Architecture::Qwen35,
        Architecture::Qwen35Moe,
    ];

    fn description(self) -> Description {
        // A row: name, pairing of RoPE, layer, what deviates from the plain transformer.
        let describe = |name, pairing, layer, variant| Description {
            name,
            pairing,
            route: None,
            inner_of_expert: false,
            key_heads: None,
            differs_by_layer: false,
            layer,
            variant,
        };
        match self {
            Architecture::Llama => describe("llama", llama::PAIRING, llama::layer, plain),
            Architecture::Qwen2 => describe("qwen2", qwen2::PAIRING, qwen2::layer, plain),
            Architecture::Qwen3 => describe("qwen3", qwen3::PAIRING, qwen3::layer, plain),
            Architecture::Qwen3Moe => Description {
                route: Some(qwen3moe::ROUTE),
                ..describe("qwen3moe", qwen3moe::PAIRING, qwen3moe::layer, plain)
            },
            Architecture::Gemma3 => describe("gemma3", gemma3::PAIRING, gemma3::layer, gemma3::variant),
            Architecture::Gemma4 => Description {
                route: Some(gemma4::ROUTE),
                differs_by_layer: true,
                ..describe("gemma4", gemma4::PAIRING, gemma4::layer, gemma4::variant)
            },
            Architecture::Mistral3 => describe("mistral3", llama::PAIRING, llama::layer, mistral3::variant),
            Architecture::Phi3 => describe("phi3", phi3::PAIRING, phi3::layer, phi3::variant),
            Architecture::Granite => describe("granite", llama::PAIRING, llama::layer, granite::variant),
            Architecture::Smollm3 => describe("smollm3", llama::PAIRING, llama::layer, smollm3::variant),
            Architecture::Olmo2 => describe("olmo2", olmo2::PAIRING, olmo2::layer, olmo2::variant),
            Architecture::Olmoe => Description {
                route: Some(olmoe::ROUTE),
                inner_of_expert: true,
                ..describe("olmoe", olmoe::PAIRING, olmoe::layer, plain)
            },
            Architecture::GptOss => Description {
                route: Some(gpt_oss::ROUTE),
                ..describe("gpt-oss", gpt_oss::PAIRING, gpt_oss::layer, gpt_oss::variant)
            },
            Architecture::Glm4Moe => Description {
                route: Some(glm4moe::ROUTE),
                ..describe("glm4moe", glm4moe::PAIRING, glm4moe::layer, plain)
            },
            Architecture::Qwen3Next => Description {
                route: Some(qwen3next::ROUTE),
                key_heads: Some(qwen3next::KEY_HEADS),
                ..describe("qwen3next", qwen3next::PAIRING, qwen3next::layer, plain)
            },
            Architecture::Qwen35 => Description {
                key_heads: Some(qwen35::KEY_HEADS),
                ..describe("qwen35", qwen35::PAIRING, qwen35::layer, qwen35::variant)
            },
            Architecture::Qwen35Moe => Description {
                route: Some(qwen35moe::ROUTE),
                key_heads: Some(qwen35moe::KEY_HEADS),
                ..describe("qwen35moe", qwen35moe::PAIRING, qwen35moe::layer, qwen35moe::variant)
            },
        }
    }

    /// Whether files may have layers that predict further tokens.
    fn has_draft_layers(self) -> bool {
        self == Architecture::Glm4Moe || self.description().key_heads.is_some()
    }

    /// The name used in GGUF files, which is also the prefix of the metadata keys.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Architecture::ALL.map(Architecture::name).join(", ")
    }

    /// The architecture of a file. Fails if it is not supported.
    pub fn of(source: &dyn ModelSource) -> Result<Architecture, ModelError> {
        let found = source.metadata().string("general.architecture")?;
        let known = Architecture::ALL.into_iter().find(|architecture| architecture.name() == found);
        known.ok_or_else(|| ModelError::Architecture { found: found.to_owned() })
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
