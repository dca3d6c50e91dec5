//! Tensor parallelism: which part of each weight a rank has, and the collectives of its graph.
//!
//! ```text
//!              column-parallel              row-parallel
//!  x ─┬─► Q, K, V of some heads ─► attention ─► output ─┐
//!     │   (rank 0: heads 0–3, rank 1: heads 4–7, …)     ├─► all-reduce ─► + residual ─► …
//!     └─► the same on the other ranks ──────────────────┘
//! ```
//!
//! A column-parallel weight is divided by its rows, the columns of its result; the row-parallel weight behind
//! it by its columns, so that each rank has a part of every sum. An all-reduce adds the parts. The bias of a
//! row-parallel weight is added by rank 0; the others have zeros. Where there are fewer KV heads than ranks,
//! several ranks have the same KV head. A delta net is divided by its key heads. Everything else is on every
//! rank.
//!
//! Where a norm is one of all query heads together and one of all key heads (OLMo), ranks add up the mean
//! squares of their parts, both in one all-reduce.
//!
//! The embedding and the output matrix are divided by the vocabulary if that divides. A rank looks up the
//! tokens that it has, with zeros for others, and an all-reduce adds the rows. Each rank has the logits of
//! its part of the vocabulary. Where rows draw one of a few most likely tokens, an all-gather of each rank's
//! most likely ones is enough; otherwise it is one of all logits. Either way each rank draws the same token.
//!
//! The weights of experts are divided by columns and rows, too, if that is possible: then every rank has a
//! part of each expert. Otherwise, such as where the width of an expert is not whole blocks for each rank, a
//! rank has whole experts. The router is on every rank; a row skips the experts of other ranks, and the
//! all-reduce adds what each rank has computed of it.
//!
//! All ranks have the same sizes and run the same program, but for the first token and the first expert of
//! their parts.

use std::sync::Arc;

use fulmen_core::sampling::{MAX_TOP_K, SampleState};
use fulmen_core::{ExpertPart, Heads, MAX_RANKS, RouteSpec, Routed, TablePart, Tensor};

use super::record::Recorder;
use super::shard_delta::DeltaRanges;
use super::shard_source::{Part, ShardSource, Slices};
use super::{Architecture, Config, Experts};
use crate::error::ModelError;
use crate::source::{ModelSource, TensorInfo};

/// The output matrix, and the embedding, which is one if there is no other.
const HEAD: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";

/// A rank of a model that is divided among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The rank, from 0.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// The part of the vocabulary of each rank, if it is divided: rows of the embedding and of the output
    /// matrix.
    pub vocabulary: Option<u32>,
    /// Experts of each rank, if it has whole ones; those of the model, if it has a part of each.
    pub experts: Option<u32>,
}

/// How the experts of mixtures are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpertDivision {
    /// A rank has a part of the columns of each.
    Columns,
    /// A rank has some of them.
    Experts,
}

/// How a weight is divided, by its name in a layer of any architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// By rows, evenly.
    Column,
    /// By the rows of the KV heads.
    KvHeads,
    /// By columns.
    Row,
    /// Not at all.
    Whole,
}

fn division(name: &str) -> Division {
    match name {
        "attn_k" | "attn_v" => Division::KvHeads,
        "attn_q" | "attn_sinks" | "ffn_gate" | "ffn_up" | "ffn_gate_shexp" | "ffn_up_shexp"
        | "ffn_gate_exps" | "ffn_up_exps" | "attn_q_gate" => Division::Column,
        "attn_output" | "ffn_down" | "ffn_down_shexp" | "ffn_down_exps" | "ssm_out" => Division::Row,
        _ => Division::Whole,
    }
}

/// Whether an architecture norms all query heads together and all key heads together, by gains as wide.
fn norms_rows(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Olmo2 | Architecture::Olmoe)
}

/// How a weight of this architecture is divided.
fn division_in(architecture: Architecture, name: &str) -> Division {
    match name {
        "attn_q_norm" if norms_rows(architecture) => Division::Column,
        "attn_k_norm" if norms_rows(architecture) => Division::KvHeads,
        _ => division(name),
    }
}

/// Whether the layers of an architecture divide by the rules of [`division`]. Others may compute something
/// from all heads at once, or have weights that are not named there.
fn divides(architecture: Architecture) -> bool {
    use Architecture::*;
    matches!(
        architecture,
        Llama
            | Qwen2
            | Qwen3
            | Qwen3Moe
            | Gemma3
            | Mistral3
            | Phi3
            | Granite
            | Smollm3
            | Olmo2
            | Olmoe
            | GptOss
            | Glm4Moe
            | Qwen3Next
            | Qwen35
            | Qwen35Moe
    )
}

/// How a model is divided among a number of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharding {
    config: Config,
    ranks: u32,
    experts: ExpertDivision,
    /// Whether a single rank has collectives, too.
    always: bool,
}

impl Sharding {
    /// Divides a model, whose source is that of [`split_fused`](super::split_fused).
    ///
    /// # Errors
    /// [`ModelError::Sharding`] says what does not divide, and which numbers of ranks are possible.
    pub fn new(config: &Config, source: &dyn ModelSource, ranks: u32) -> Result<Sharding, ModelError> {
        match check(config, source, ranks) {
            Ok(experts) => Ok(Sharding { config: config.clone(), ranks, experts, always: false }),
            Err(reason) => {
                let possible: Vec<String> =
                    Sharding::possible(config, source).iter().map(u32::to_string).collect();
                Err(ModelError::Sharding { ranks, reason, possible: possible.join(", ") })
            }
        }
    }

    /// The numbers of ranks that a model can be divided among; 1 is always one of them.
    pub fn possible(config: &Config, source: &dyn ModelSource) -> Vec<u32> {
        (1..=MAX_RANKS).filter(|&ranks| check(config, source, ranks).is_ok()).collect()
    }

    /// With collectives also for a single rank, to whom they change nothing. For tests and measurements on
    /// one device.
    pub fn with_collectives(self) -> Sharding {
        Sharding { always: true, ..self }
    }

    fn is_whole(&self) -> bool {
        self.ranks == 1 && !self.always
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The sizes of a rank.
    pub fn config(&self, rank: u32) -> Config {
        let (whole, ranks) = (&self.config, self.ranks);
        if self.is_whole() {
            return whole.clone();
        }
        let divided = |size: u32| if size.is_multiple_of(ranks) { size / ranks } else { size };
        let vocabulary = whole.vocabulary.is_multiple_of(ranks).then_some(whole.vocabulary / ranks);
        let by_expert = whole.experts.filter(|_| self.experts == ExpertDivision::Experts);
        let experts = by_expert.map(|experts| experts.count / ranks);
        Config {
            heads: heads(whole.heads, ranks),
            // Of a mixture without leading dense layers nothing has this width.
            inner: divided(whole.inner),
            experts: whole.experts.map(|experts| Experts {
                inner: if self.experts == ExpertDivision::Columns {
                    divided(experts.inner)
                } else {
                    experts.inner
                },
                shared_inner: divided(experts.shared_inner),
                ..experts
            }),
            delta_net: whole.delta_net.map(|net| net.of_ranks(ranks)),
            shard: Some(Shard { rank, ranks, vocabulary, experts }),
            ..whole.clone()
        }
    }

    /// The source as a rank reads it: the parts of the tensors that it has.
    pub fn source(
        &self,
        source: Arc<dyn ModelSource>,
        rank: u32,
    ) -> Result<Arc<dyn ModelSource>, ModelError> {
        if self.is_whole() {
            return Ok(source);
        }
        let parts = parts(&self.config, source.as_ref(), (rank, self.ranks), self.experts);
        let parts = parts.map_err(|reason| {
            let possible = self.ranks.to_string();
            ModelError::Sharding { ranks: self.ranks, reason, possible }
        })?;
        Ok(Arc::new(ShardSource::new(source, parts)))
    }

    /// Bytes of the tensors that each rank has.
    pub fn rank_bytes(&self, source: &dyn ModelSource) -> u64 {
        let bytes = |info: &TensorInfo| info.bytes() as u64;
        match parts(&self.config, source, (0, self.ranks), self.experts) {
            Ok(parts) if !self.is_whole() => parts.iter().map(|part| bytes(&part.info)).sum(),
            _ => source.tensors().iter().map(bytes).sum(),
        }
    }
}

/// The heads of each rank.
fn heads(all: Heads, ranks: u32) -> Heads {
    Heads { n_heads: all.n_heads / ranks, n_kv_heads: (all.n_kv_heads / ranks).max(1), ..all }
}

/// How experts are divided, or what prevents a division of the model.
fn check(config: &Config, source: &dyn ModelSource, ranks: u32) -> Result<ExpertDivision, String> {
    if ranks == 1 {
        return Ok(ExpertDivision::Columns);
    }
    if !(1..=MAX_RANKS).contains(&ranks) {
        return Err(format!("there can be 1 to {MAX_RANKS}"));
    }
    if !divides(config.architecture) {
        return Err(format!("tensor parallelism of {} is not supported", config.architecture));
    }
    let Heads { n_heads, n_kv_heads, .. } = config.heads;
    if !n_heads.is_multiple_of(ranks) {
        return Err(format!("its {n_heads} query heads are not a multiple of {ranks}"));
    }
    if !n_kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(n_kv_heads) {
        return Err(format!("its {n_kv_heads} KV heads are no multiple of {ranks}, nor the reverse"));
    }
    if let Some(net) = config.delta_net.filter(|net| !net.heads.n_k_heads.is_multiple_of(ranks)) {
        let heads = net.heads.n_k_heads;
        return Err(format!("the {heads} key heads of its delta nets are not a multiple of {ranks}"));
    }
    let columns = parts(config, source, (0, ranks), ExpertDivision::Columns).map(drop);
    let (Err(reason), Some(Experts { count, route, .. })) = (&columns, config.experts) else {
        return columns.map(|()| ExpertDivision::Columns);
    };
    if count.is_multiple_of(ranks) && count / ranks >= route.top {
        return parts(config, source, (0, ranks), ExpertDivision::Experts).map(|_| ExpertDivision::Experts);
    }
    let each = (f64::from(count) * 100.0 / f64::from(ranks)).round() / 100.0;
    let whole = format!("{each} of {count} for each rank, where a row has {}", route.top);
    Err(format!("{reason}, and whole experts are not possible: {whole}"))
}

/// The tensors of a rank, in file order.
fn parts(
    config: &Config,
    source: &dyn ModelSource,
    shard: (u32, u32),
    experts: ExpertDivision,
) -> Result<Vec<Part>, String> {
    source.tensors().iter().map(|info| part(config, info, shard, experts)).collect()
}

/// The part of a tensor that a rank has.
fn part(
    config: &Config,
    info: &TensorInfo,
    shard: (u32, u32),
    experts: ExpertDivision,
) -> Result<Part, String> {
    if matches!(info.name(), HEAD | EMBEDDING) && config.vocabulary.is_multiple_of(shard.1) {
        return by_rows(info, shard);
    }
    if let Some(part) = delta_part(config, info, shard) {
        return part;
    }
    let mut words = info.name().split('.');
    let (Some("blk"), Some(layer), Some(name), Some(kind), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Ok(Part::whole(info));
    };
    // Layers behind the last one are not run.
    if layer.parse().is_ok_and(|layer: u32| layer >= config.layers) {
        return Ok(Part::whole(info));
    }
    if experts == ExpertDivision::Experts && name.ends_with("_exps") {
        // The last dimension: `[k, n, experts]` of weights, `[n, experts]` of biases.
        return by_last(info, shard);
    }
    // Vectors have one dimension.
    let rows = usize::from(kind == "weight" && info.dims().len() > 1);
    match (division_in(config.architecture, name), kind) {
        (Division::Whole, _) => Ok(Part::whole(info)),
        (Division::Row, "bias") if shard.0 == 0 => Ok(Part::whole(info)),
        (Division::Row, "bias") => Ok(Part::zeros(info)),
        (Division::Row, _) => {
            let size = even(info, 0, shard.1)?;
            Part::new(info, 0, (shard.0 as usize * size, size))
        }
        (Division::Column, _) => {
            let size = even(info, rows, shard.1)?;
            Part::new(info, rows, (shard.0 as usize * size, size))
        }
        (Division::KvHeads, _) => {
            let Heads { n_kv_heads, head_dim, .. } = config.heads;
            let local = heads(config.heads, shard.1).kv_width() as usize;
            let first = u64::from(shard.0) * u64::from(n_kv_heads) / u64::from(shard.1);
            let first = first as usize * head_dim as usize;
            Part::new(info, rows, (first, local))
        }
    }
}

/// The part of a tensor of a delta net; `None` if it is none, or on every rank.
fn delta_part(config: &Config, info: &TensorInfo, shard: (u32, u32)) -> Option<Result<Part, String>> {
    let (layer, name) = info.name().strip_prefix("blk.")?.split_once('.')?;
    let recurrent = layer.parse().is_ok_and(|layer| layer < config.layers && config.is_recurrent(layer));
    let DeltaRanges { axis, ranges } = config.delta_net.filter(|_| recurrent)?.ranges(name, shard)?;
    Some(Part::of_ranges(info, axis, &ranges))
}

/// An even part of the rows of a tensor.
fn by_rows(info: &TensorInfo, (rank, ranks): (u32, u32)) -> Result<Part, String> {
    let size = even(info, 1, ranks)?;
    Part::new(info, 1, (rank as usize * size, size))
}

/// An even part of the last dimension of a tensor.
fn by_last(info: &TensorInfo, (rank, ranks): (u32, u32)) -> Result<Part, String> {
    let axis = info.dims().len().saturating_sub(1);
    let size = even(info, axis, ranks)?;
    Part::new(info, axis, (rank as usize * size, size))
}

/// The size of each rank's part of a dimension.
fn even(info: &TensorInfo, axis: usize, ranks: u32) -> Result<usize, String> {
    let size = info.dims().get(axis).copied().unwrap_or(1);
    match size.is_multiple_of(ranks as usize) {
        true => Ok(size / ranks as usize),
        false => {
            let what = ["columns", "rows"].get(axis).copied().unwrap_or("experts");
            Err(format!("the {size} {what} of {:?} are not a multiple of {ranks}", info.name()))
        }
    }
}

impl Part {
    /// `(first, size)` of dimension `axis` of a tensor, 0 for columns, 1 for rows and 2 for experts.
    fn new(info: &TensorInfo, axis: usize, (first, size): (usize, usize)) -> Result<Part, String> {
        Part::of_ranges(info, axis, &[(first, size)])
    }

    /// Several such parts, which follow each other.
    fn of_ranges(info: &TensorInfo, axis: usize, ranges: &[(usize, usize)]) -> Result<Part, String> {
        let (dims, dtype) = (info.dims(), info.dtype());
        let inside = |all: usize| ranges.iter().all(|&(first, size)| first + size <= all);
        let Some(&all) = dims.get(axis).filter(|&&all| inside(all)) else {
            return Err(format!("{:?} has the shape {dims:?}", info.name()));
        };
        let block = dtype.block_len();
        let whole =
            |&(first, size): &(usize, usize)| first.is_multiple_of(block) && size.is_multiple_of(block);
        if let Some((_, size)) = ranges.iter().find(|range| axis == 0 && !whole(range)) {
            return Err(format!(
                "{size} columns of {:?} for each rank are not whole {dtype} blocks of {block}",
                info.name()
            ));
        }
        let refused = |error: fulmen_core::DTypeError| format!("{:?}: {error}", info.name());
        // Bytes of what is divided: elements of a row, rows, or matrices.
        let bytes = |count: usize| match axis {
            0 => dtype.bytes(count).map_err(refused),
            _ => {
                let rows = dims[1..axis].iter().product::<usize>().saturating_mul(count);
                Ok(dtype.bytes(dims[0]).map_err(refused)?.saturating_mul(rows))
            }
        };
        let mut slices =
            Slices { count: dims[axis + 1..].iter().product(), stride: bytes(all)?, ranges: Vec::new() };
        for &(first, size) in ranges {
            slices.ranges.push(bytes(first)?..bytes(first + size)?);
        }
        let mut dims = dims.to_vec();
        dims[axis] = ranges.iter().map(|(_, size)| size).sum();
        let local = TensorInfo::new(info.name(), &dims, dtype).map_err(refused)?;
        Ok(Part::slices(info, local, slices))
    }
}

/// The most likely tokens that a rank offers, where rows draw one of several.
const CANDIDATES: u32 = MAX_TOP_K;

impl Config {
    /// Rows of the embedding and of the output matrix.
    pub(super) fn vocabulary_rows(&self) -> u32 {
        self.shard.and_then(|shard| shard.vocabulary).unwrap_or(self.vocabulary)
    }

    /// How many of the most likely tokens are enough to draw from for rows with these parameters, if ranks
    /// that have a part of the vocabulary each send less for it than all their logits; see
    /// [`Results::Draw`](super::Results::Draw).
    pub fn candidates(&self, rows: impl IntoIterator<Item = SampleState>) -> Option<u32> {
        let part = self.shard?.vocabulary?;
        let mut most = 1;
        for SampleState { temperature, top_k, .. } in rows {
            most = most.max(match top_k {
                _ if temperature == 0.0 => 1,
                0 => return None,
                1 => 1,
                _ if top_k <= CANDIDATES => CANDIDATES,
                _ => return None,
            });
        }
        // A candidate is a logit and a token.
        (2 * most < part).then_some(most)
    }
}

impl Recorder<'_> {
    /// The sum over all ranks of what the row-parallel weight `name` gave on each; other results as they are.
    pub(super) fn reduce(&mut self, x: Tensor, name: &str) -> Result<Tensor, ModelError> {
        match self.config.shard {
            Some(Shard { ranks, .. }) if division(name) == Division::Row => {
                Ok(self.builder.all_reduce(x, ranks)?)
            }
            _ => Ok(x),
        }
    }

    /// The embeddings of tokens, from a table that may be a part of that of all ranks.
    pub(super) fn embed(&mut self, table: Tensor, tokens: Tensor) -> Result<Tensor, ModelError> {
        let Some(Shard { rank, ranks, vocabulary: Some(rows), .. }) = self.config.shard else {
            return Ok(self.builder.embed(table, tokens)?);
        };
        let part = TablePart { first: rank * rows, of: self.config.vocabulary };
        let own = self.builder.embed_part(table, tokens, part)?;
        Ok(self.builder.all_reduce(own, ranks)?)
    }

    /// The experts of each row, among those that this rank has.
    pub(super) fn route(
        &mut self,
        logits: Tensor,
        bias: Option<Tensor>,
        route: RouteSpec,
    ) -> Result<Routed, ModelError> {
        match self.config.shard {
            Some(Shard { rank, experts: Some(count), .. }) => {
                let part = ExpertPart { first: rank * count, count };
                Ok(self.builder.route_part(logits, bias, route, part)?)
            }
            _ => Ok(self.builder.route(logits, bias, route)?),
        }
    }

    /// All logits, where each rank has computed those of a part of the vocabulary.
    pub(super) fn gather_logits(&mut self, logits: Tensor) -> Result<Tensor, ModelError> {
        match self.config.shard {
            Some(Shard { ranks, vocabulary: Some(_), .. }) => Ok(self.builder.all_gather(logits, ranks)?),
            _ => Ok(logits),
        }
    }

    /// The largest `count` logits of each rank, in the order of the ranks, and their tokens. Of equal logits
    /// the lowest token comes first, since ranks have rising parts of the vocabulary. `None` if logits are
    /// not divided.
    pub(super) fn gather_candidates(
        &mut self,
        logits: Tensor,
        count: u32,
    ) -> Result<Option<(Tensor, Tensor)>, ModelError> {
        let Some(Shard { rank, ranks, vocabulary: Some(rows), .. }) = self.config.shard else {
            return Ok(None);
        };
        let (values, tokens) = self.builder.top_k(logits, count, rank * rows)?;
        let values = self.builder.all_gather(values, ranks)?;
        Ok(Some((values, self.builder.all_gather(tokens, ranks)?)))
    }

    /// Refuses what a rank cannot compute from its own part.
    pub(super) fn refuse_on_ranks(&self, what: &str) -> Result<(), ModelError> {
        match self.config.shard {
            None => Ok(()),
            Some(Shard { ranks, .. }) => {
                let reason = format!("{what} is not supported");
                Err(ModelError::Sharding { ranks, reason, possible: "1".to_owned() })
            }
        }
    }
}
