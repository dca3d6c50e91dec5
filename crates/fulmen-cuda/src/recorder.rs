//! A queue's launches in a list, without a device: tests see which kernels a program launches, with which
//! grid and arguments.

use crate::device::Caps;
use crate::error::CudaError;
use crate::queue::{Arg, Launch};

/// Addresses that a recording queue gives out.
pub(crate) const FAULT: u64 = 0x6000_0000_0000;
pub(crate) const SCRATCH: u64 = 0x6100_0000_0000;

/// Where tests put the blocks of forwarded activations.
pub(crate) const FORWARD: u64 = 0x6200_0000_0000;
const FORWARD_END: u64 = 0x6300_0000_0000;

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct RecordedLaunch {
    /// Kernel, grid, block, dynamic shared memory and cluster.
    pub(crate) shape: String,
    /// The arguments, in words of eight bytes.
    pub(crate) words: Vec<u64>,
}

impl RecordedLaunch {
    /// The kernel with its launch dimensions and the argument words that are addresses of forwarded
    /// activations, by number.
    pub(crate) fn line(&self) -> String {
        let forwarded: Vec<String> = (0..self.words.len())
            .filter(|&at| (FORWARD..FORWARD_END).contains(&self.words[at]))
            .map(|at| at.to_string())
            .collect();
        match forwarded.is_empty() {
            true => self.shape.clone(),
            false => format!("{} forwarded[{}]", self.shape, forwarded.join(" ")),
        }
    }
}

/// The launches of a queue.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) caps: Caps,
    pub(crate) launches: Vec<RecordedLaunch>,
}

impl Recorder {
    pub(crate) fn new(caps: Caps) -> Recorder {
        Recorder { caps, launches: Vec::new() }
    }

    pub(crate) fn launch(&mut self, launch: &Launch<'_>, args: &[Arg<'_>]) -> Result<(), CudaError> {
        let Launch { entry, grid: [x, y, _], block, shared, cluster, .. } = launch;
        let shape = format!("{entry} grid {x}x{y} block {block} shared {shared} cluster {cluster}");
        let words = args.iter().flat_map(|arg| arg.bytes().chunks(8)).map(word).collect();
        self.launches.push(RecordedLaunch { shape, words });
        Ok(())
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
