//! Tensor parallelism: the devices of the ranks of a model.

use fulmen::OpenOptions;
use fulmen_core::device::{DeviceInfo, DeviceKind, DeviceSelector};
use fulmen_engine::{Collectives, Device};

use super::split::SplitError;
use crate::select::{hardware_threads, open, parse_device};

/// On how many ranks every layer runs, and on which devices.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct RankOptions {
    /// Ranks of tensor parallelism: each has a part of every layer. With --device cpu they share its threads;
    /// with a backend, such as cuda, they are its first devices; with one device, all are on it. `fulmen
    /// inspect` says which numbers a model can be divided by.
    #[arg(long, value_name = "RANKS", conflicts_with_all = ["gpu_layers", "cpu_experts", "gpu_memory"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    tensor_parallel: Option<u32>,

    /// Devices of the ranks of tensor parallelism, one for each, such as cuda:0,cuda:1.
    #[arg(long, value_name = "DEVICE,…", value_delimiter = ',', value_parser = parse_device)]
    #[arg(conflicts_with_all = ["gpu_layers", "cpu_experts", "gpu_memory"])]
    devices: Vec<DeviceSelector>,

    /// What runs the collectives of ranks: the host, which a step is cut for, or NCCL on CUDA devices, inside
    /// captured steps. By default NCCL if it is there and each rank has a GPU of its own. With `nccl`, also
    /// for one rank, and for several on one GPU (NCCL 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1).
    #[arg(long, value_name = "auto|host|nccl", value_enum, default_value_t, hide_default_value = true)]
    #[arg(hide_possible_values = true)]
    collectives: CollectivesOption,
}

/// What runs the collectives of ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CollectivesOption {
    #[default]
    Auto,
    Host,
    Nccl,
}

impl CollectivesOption {
    fn name(self) -> &'static str {
        match self {
            CollectivesOption::Auto => "auto",
            CollectivesOption::Host => "host",
            CollectivesOption::Nccl => "nccl",
        }
    }
}

impl RankOptions {
    /// Ranks, or devices for them, and what runs their collectives.
    pub(crate) fn new(
        ranks: Option<u32>,
        devices: Vec<DeviceSelector>,
        collectives: CollectivesOption,
    ) -> RankOptions {
        RankOptions { tensor_parallel: ranks, devices, collectives }
    }

    /// The arguments that select the same in another process.
    pub(super) fn arguments(&self) -> Vec<String> {
        let ranks = self.tensor_parallel.map(|ranks| ["--tensor-parallel".to_owned(), ranks.to_string()]);
        let devices: Vec<String> = self.devices.iter().map(DeviceSelector::to_string).collect();
        let devices = (!devices.is_empty()).then(|| ["--devices".to_owned(), devices.join(",")]);
        let collectives = Some(self.collectives).filter(|&option| option != CollectivesOption::Auto);
        let collectives = collectives.map(|option| ["--collectives".to_owned(), option.name().to_owned()]);
        ranks.into_iter().chain(devices).chain(collectives).flatten().collect()
    }

    /// What runs the collectives.
    pub(crate) fn collectives(&self) -> Collectives {
        match self.collectives {
            CollectivesOption::Auto => Collectives::Auto,
            CollectivesOption::Host => Collectives::Host,
            CollectivesOption::Nccl => Collectives::Device,
        }
    }

    /// Opens the devices of all ranks and describes the first; `None` if there are no ranks.
    pub(crate) fn open(
        &self,
        device: DeviceSelector,
        threads: Option<usize>,
    ) -> Result<Option<(DeviceInfo, Vec<Device>)>, SplitError> {
        let (ranks, listed) = (self.tensor_parallel, self.devices.len());
        let count = match (ranks, listed) {
            (Some(ranks), 1..) if ranks as usize != listed => {
                return Err(SplitError::Ranks { ranks, devices: listed });
            }
            (Some(ranks), _) => ranks as usize,
            (None, 0) => return Ok(None),
            (None, listed) => listed,
        };
        // The ranks run at the same time.
        let threads = threads.unwrap_or_else(hardware_threads).div_ceil(count);
        let options = OpenOptions { threads: Some(threads) };
        let (info, first) = open(self.devices.first().copied().unwrap_or(device), &options)?;
        let mut devices = vec![first];
        for rank in 1..count {
            let selector = match self.devices.get(rank) {
                Some(&listed) => listed,
                None => of_rank(device, &info, rank),
            };
            devices.push(open(selector, &options)?.1);
        }
        Ok(Some((info, devices)))
    }
}

/// The device of a rank beside that of rank 0, where none are listed.
fn of_rank(asked: DeviceSelector, first: &DeviceInfo, rank: usize) -> DeviceSelector {
    match asked {
        DeviceSelector::Device(..) => asked,
        _ if first.kind == DeviceKind::Cpu => first.selector(),
        // The others in the order of their numbers.
        _ => {
            let next = if rank <= first.index { rank - 1 } else { rank };
            DeviceSelector::Device(first.backend, next)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{CPU, CUDA};

    fn info(kind: DeviceKind, index: usize) -> DeviceInfo {
        let backend = if kind == DeviceKind::Cpu { CPU } else { CUDA };
        DeviceInfo {
            backend,
            index,
            name: String::new(),
            kind,
            driver: String::new(),
            memory_bytes: None,
            free_bytes: None,
            facts: Vec::new(),
            runs_graphs: Ok(()),
        }
    }

    #[test]
    fn ranks_have_the_devices_of_a_backend() {
        let of = |asked: &str, first: &DeviceInfo| -> Vec<String> {
            (1..4).map(|rank| of_rank(asked.parse().unwrap(), first, rank).to_string()).collect()
        };
        assert_eq!(of("cpu", &info(DeviceKind::Cpu, 0)), ["cpu", "cpu", "cpu"]);
        assert_eq!(of("cuda", &info(DeviceKind::DiscreteGpu, 0)), ["cuda:1", "cuda:2", "cuda:3"]);
        assert_eq!(of("auto", &info(DeviceKind::DiscreteGpu, 2)), ["cuda:0", "cuda:1", "cuda:3"]);
        assert_eq!(of("cuda:2", &info(DeviceKind::DiscreteGpu, 2)), ["cuda:2", "cuda:2", "cuda:2"]);
    }

    #[test]
    fn the_arguments_are_those_given() {
        let options = RankOptions { tensor_parallel: Some(2), ..RankOptions::default() };
        assert_eq!(options.arguments(), ["--tensor-parallel", "2"]);
        let options = RankOptions { collectives: CollectivesOption::Nccl, ..options };
        let expected = ["--tensor-parallel", "2", "--collectives", "nccl"];
        assert_eq!(options.arguments(), expected);
        let devices = ["cuda:0", "cuda:3"].map(|text| text.parse().unwrap()).to_vec();
        let options = RankOptions { tensor_parallel: Some(3), devices, ..RankOptions::default() };
        assert_eq!(options.arguments(), ["--tensor-parallel", "3", "--devices", "cuda:0,cuda:3"]);
        let refused = options.open(DeviceSelector::Auto, None).map(drop).unwrap_err();
        let expected = "--tensor-parallel 3 needs 3 devices, but --devices lists 2";
        assert_eq!(refused.to_string(), expected);
    }
}
