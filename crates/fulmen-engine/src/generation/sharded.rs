//! A model that is divided among several devices by tensor parallelism.

use std::iter;
use std::ops::ControlFlow;
use std::sync::{Arc, MutexGuard};

use fulmen_core::timeline;
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, Placement, Sharding, Step, split_fused};
use fulmen_model::source::{Description, ModelSource};
use fulmen_model::tokenizer::Tokenizer;

use super::load::{self, Devices};
use super::model::{Device, LoadOptions, LoadProgress, Model, Shared};
use crate::ranks::{
    Collectives, CollectivesInUse, Group, JoinError, RankGroup, TensorParallel, rank_alone, rank_device,
};

/// What the first rank of this process has for all ranks.
pub(super) struct Ranks {
    /// The dimensions of the whole model.
    pub(super) config: Config,
    /// Its metadata and tensors.
    pub(super) source: Arc<dyn ModelSource>,
    /// The next ranks of this process.
    pub(super) followers: Vec<Arc<Shared>>,
    pub(super) group: Arc<Group>,
}

impl Model {
    /// Loads a model onto several devices of one backend, each of which has a part of every layer: some of
    /// the heads, a part of the feed-forward layers and of the vocabulary, and the KV cache of its heads.
    /// They run each step together, each on its own thread, and exchange sums after attention and
    /// feed-forward. A weight is read once: each device gets its part of it.
    ///
    /// # Errors
    /// [`ModelError::Sharding`] if the heads, the layers or the blocks of quantized weights do not divide.
    /// [`ModelError::Rank`] names the rank whose device failed, now or in a step.
    pub fn from_source_sharded(
        source: Arc<dyn ModelSource>,
        parallel: TensorParallel,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let TensorParallel { mut devices, timeout, collectives } = parallel;
        let source = split_fused(source)?;
        let config = Config::read(source.as_ref())?;
        let sharding = Sharding::new(&config, source.as_ref(), devices.len() as u32)?;
        let sharding = match collectives {
            Collectives::Device => sharding.with_collectives(),
            _ => sharding,
        };
        check_backends(&devices)?;
        // The ranks see parts of the tensors only.
        let decode = options.session.resolve(&config)?;
        config.graph(source.as_ref(), &decode.spec(Step::decode(1)))?;
        let group = Arc::new(Group::join(&mut devices, timeout, collectives)?);
        let tokenizer = || timeline::span("build the tokenizer", || Tokenizer::from_source(source.as_ref()));
        let load = || load_ranks(&source, &config, &sharding, &group, devices, options);
        let (tokenizer, ranks) = load::beside(tokenizer, load);
        let (tokenizer, mut ranks) = (tokenizer?, ranks?);
        let first = Shared { tokenizer, ..ranks.remove(0) };
        if ranks.is_empty() {
            return Ok(Model::of(first));
        }
        let source: Arc<dyn ModelSource> =
            if first.in_place { source } else { Arc::new(Description::of(source.as_ref())) };
        let followers = ranks.into_iter().map(Arc::new).collect();
        Ok(Model::of(Shared { ranks: Some(Ranks { config, source, followers, group }), ..first }))
    }

    /// Loads the ranks of this process of a model that is divided among several nodes. Every node does so,
    /// with the same model and options. An engine runs the model on node 0; the others
    /// [follow](Model::follow).
    ///
    /// # Errors
    /// As [`Model::from_source_sharded`]. A node that fails ends its connections, by which the others notice.
    pub fn from_source_nodes(
        source: Arc<dyn ModelSource>,
        ranks: RankGroup,
        options: LoadOptions<'_>,
    ) -> Result<Model, JoinError> {
        let source = split_fused(source)?;
        let config = Config::read(source.as_ref())?;
        check_backends(&ranks.devices)?;
        let (group, devices) = Group::of_nodes(ranks)?;
        let sharding = Sharding::new(&config, source.as_ref(), group.ranks())?;
        let group = Arc::new(group);
        let tokenizer = Tokenizer::from_source(source.as_ref()).map_err(ModelError::from)?;
        let mut loaded = load_ranks(&source, &config, &sharding, &group, devices, options)?;
        let first = Shared { tokenizer, ..loaded.remove(0) };
        let source: Arc<dyn ModelSource> =
            if first.in_place { source } else { Arc::new(Description::of(source.as_ref())) };
        let followers = loaded.into_iter().map(Arc::new).collect();
        Ok(Model::of(Shared { ranks: Some(Ranks { config, source, followers, group }), ..first }))
    }

    /// Loads rank 0 of a model that is divided among `ranks`, without the others: to measure how long its
    /// part of a step takes. In place of a collective it copies its own part, so what it computes is of no
    /// use.
    ///
    /// # Errors
    /// As [`Model::from_source_sharded`].
    pub fn from_source_rank_alone(
        source: Arc<dyn ModelSource>,
        device: Device,
        ranks: u32,
        options: LoadOptions<'_>,
    ) -> Result<Model, ModelError> {
        let source = split_fused(source)?;
        let config = Config::read(source.as_ref())?;
        let sharding = Sharding::new(&config, source.as_ref(), ranks)?;
        let group = Group::in_process(1, TensorParallel::TIMEOUT);
        let device: Device = rank_alone(device);
        let mut loaded = load_ranks(&source, &config, &sharding, &group, vec![device], options)?;
        let tokenizer = Tokenizer::from_source(source.as_ref())?;
        Ok(Model::of(Shared { tokenizer, ..loaded.remove(0) }))
    }

    /// On how many ranks each layer runs: 1 unless the model is divided by tensor parallelism.
    pub fn ranks(&self) -> u32 {
        self.shared().ranks.as_ref().map_or(1, |ranks| ranks.group.ranks())
    }

    /// What runs the collectives of its ranks; `None` for a single rank.
    pub fn collectives(&self) -> Option<&CollectivesInUse> {
        self.shared().ranks.as_ref().map(|ranks| ranks.group.collectives())
    }

    /// Bytes of the weights of each rank of this process.
    pub fn rank_weight_bytes(&self) -> Vec<u64> {
        self.all_ranks().map(|rank| rank.stages.iter().map(|stage| stage.weights.bytes).sum()).collect()
    }

    /// The dimensions of the part of the model that this rank has; of several ranks, of rank 0.
    pub(crate) fn rank_config(&self) -> &Config {
        &self.shared().config
    }

    /// The ranks of the model, if there are several: their group, and the model of each after the first of
    /// this process.
    pub(crate) fn followers(&self) -> Option<(Arc<Group>, Vec<Model>)> {
        let ranks = self.shared().ranks.as_ref()?;
        let models = ranks.followers.iter().map(|shared| Model::sharing(Arc::clone(shared))).collect();
        Some((Arc::clone(&ranks.group), models))
    }

    /// The right to use the devices of all ranks, between steps. A rank that did not return from a step may
    /// have its device locked for ever: then this is an error.
    pub(crate) fn between_steps(&self) -> Result<Option<MutexGuard<'_, ()>>, ModelError> {
        self.shared().ranks.as_ref().map(|ranks| ranks.group.turn()).transpose()
    }

    /// An error of the first rank of this process, named as such if there are several ranks.
    pub(crate) fn error_of_first_rank(&self, error: ModelError) -> ModelError {
        match &self.shared().ranks {
            Some(ranks) => ranks.group.of_rank(ranks.group.first_rank(), error),
            None => error,
        }
    }

    pub(super) fn all_ranks(&self) -> impl Iterator<Item = &Shared> {
        let followers = self.shared().ranks.iter().flat_map(|ranks| &ranks.followers);
        iter::once(self.shared()).chain(followers).map(Arc::as_ref)
    }
}

/// The devices of all ranks must compute the same bits, so that all draw the same tokens.
fn check_backends(devices: &[Device]) -> Result<(), ModelError> {
    let backends: Vec<&str> = devices.iter().map(|device| device.backend()).collect();
    match backends.iter().all(|backend| *backend == backends[0]) {
        true => Ok(()),
        false => Err(ModelError::Option {
            what: "the devices of ranks",
            expected: "of one backend".to_owned(),
            found: backends.join(", "),
        }),
    }
}

/// Loads the ranks one after the other. On failure, those that were loaded are dropped, which frees them.
fn load_ranks(
    source: &Arc<dyn ModelSource>,
    config: &Config,
    sharding: &Sharding,
    group: &Group,
    devices: Vec<Device>,
    mut options: LoadOptions<'_>,
) -> Result<Vec<Shared>, ModelError> {
    let session = options.session.resolve(config)?;
    let (count, placement) = (devices.len() as u64, Placement::whole(config.layers));
    let mut ranks: Vec<Shared> = Vec::new();
    for (rank, device) in (group.first_rank()..).zip(devices) {
        let device: Device = match group.ranks() {
            1 => device,
            // Those of several nodes have joined before.
            _ if group.is_on_devices() || group.has_other_nodes() => device,
            _ => rank_device(device, Arc::clone(group.communicator(rank))),
        };
        let config = sharding.config(rank);
        let source = sharding.source(Arc::clone(source), rank)?;
        // All ranks have the same sizes.
        let before = u64::from(rank - group.first_rank());
        let mut report = |LoadProgress { done, total }| {
            let Some(progress) = &mut options.progress else { return ControlFlow::Continue(()) };
            let done = done.saturating_add(total.saturating_mul(before));
            progress(LoadProgress { done, total: total.saturating_mul(count) })
        };
        let check_weights = options.check_weights;
        let mut of_rank = LoadOptions { session, check_weights, progress: Some(&mut report) };
        let (devices, mut session) = (Devices::of_stages(vec![device]), session);
        let stages = load::stages(source.as_ref(), &config, &placement, devices, &mut session, &mut of_rank)
            .map_err(|error| group.of_rank(rank, error))?;
        let in_place = stages.iter().any(|stage| stage.device().reads_imports_in_place());
        let source = if in_place { source } else { Arc::new(Description::of(source.as_ref())) };
        let (placement, tokenizer) = (placement.clone(), None);
        ranks.push(Shared { config, source, placement, stages, session, tokenizer, in_place, ranks: None });
    }
    // The prefill chunk of the rank that wants the smallest.
    let chunk = ranks.iter().map(|rank| rank.session.chunk).min().unwrap_or(session.chunk);
    ranks.iter_mut().for_each(|rank| rank.session.chunk = chunk);
    Ok(ranks)
}
