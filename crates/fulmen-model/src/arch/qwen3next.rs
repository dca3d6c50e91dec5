//! Qwen3-Next: the layers of Qwen3.5-MoE with the value heads of a key head next to each other, and with
//! fused projections, which files store by key head.

use fulmen_core::KeyHeadOrder;

pub(super) use super::qwen3moe::ROUTE;
pub(super) use super::qwen35::PAIRING;
pub(super) use super::qwen35moe::layer;

/// Neighboring value heads share a key head.
pub(super) const KEY_HEADS: KeyHeadOrder = KeyHeadOrder::Grouped;
