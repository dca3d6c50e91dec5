//! The device of a rank: a device, and its end of a communicator.

use std::sync::Arc;

use fulmen_core::{AllGatherCall, AllReduceCall, BackendError, Communicator, OpCall, Program};

use crate::Device;
use crate::segmented::{HostCalls, SegmentedDevice};

/// A device that runs collectives by reading their operands, exchanging them through a communicator of the
/// host and writing the results. Everything else is done by the device itself.
pub(crate) fn rank_device(device: Device, communicator: Arc<dyn Communicator>) -> Device {
    Box::new(SegmentedDevice::new(device, HostCollectives { communicator }))
}

/// A rank without the others, which is captured as a whole: see [`Program::of_rank_alone`].
pub(crate) fn rank_alone(device: Device) -> Device {
    Box::new(SegmentedDevice::new(device, RankAlone))
}

/// Collectives through a communicator.
struct HostCollectives {
    communicator: Arc<dyn Communicator>,
}

/// Copies of the own part in place of collectives.
struct RankAlone;

impl HostCalls for RankAlone {
    fn runs(&self, call: &OpCall) -> bool {
        // Tokens are sampled from candidates of all ranks.
        call.is_collective() || matches!(call, OpCall::Sample(_))
    }

    fn run(&mut self, device: &mut Device, call: &OpCall) -> Result<usize, BackendError> {
        device.dispatch(&call.of_rank_alone())
    }

    fn uncut(&self, program: &Program) -> Option<Program> {
        Some(program.of_rank_alone())
    }
}

impl HostCalls for HostCollectives {
    fn runs(&self, call: &OpCall) -> bool {
        call.is_collective()
    }

    fn run(&mut self, device: &mut Device, call: &OpCall) -> Result<usize, BackendError> {
        match call {
            OpCall::AllReduce(call) => self.all_reduce(device, call),
            OpCall::AllGather(call) => self.all_gather(device, call),
            call => device.dispatch(call),
        }
    }
}

impl HostCollectives {
    /// Fails unless the group has as many ranks as a collective.
    fn check(&self, device: &Device, ranks: u32) -> Result<(), BackendError> {
        match self.communicator.size() {
            size if size == ranks => Ok(()),
            size => {
                let what = format!("a collective of {ranks} ranks in a group of {size}");
                Err(BackendError::Unsupported { backend: device.backend(), what })
            }
        }
    }

    fn all_reduce(&self, device: &mut Device, call: &AllReduceCall) -> Result<usize, BackendError> {
        self.check(device, call.ranks)?;
        let mut values = read_f32(device, call.input, call.n_elements)?;
        self.communicator.all_reduce(&mut values)?;
        device.write(call.output, bytemuck::cast_slice(&values))?;
        Ok(1)
    }

    fn all_gather(&self, device: &mut Device, call: &AllGatherCall) -> Result<usize, BackendError> {
        self.check(device, call.ranks)?;
        let (m, width, ranks) = (call.m as usize, call.width as usize, call.ranks as usize);
        let values = read_f32(device, call.input, m * width)?;
        let gathered = self.communicator.all_gather(&values)?;
        let rows = beside_each_other(&gathered, ranks, m, width);
        device.write(call.output, bytemuck::cast_slice(&rows))?;
        Ok(1)
    }
}

fn read_f32(device: &mut Device, ptr: u64, count: usize) -> Result<Vec<f32>, BackendError> {
    let mut values = vec![0f32; count];
    device.read(ptr, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

/// Rows of all ranks beside each other, from the rows of one rank behind those of another.
fn beside_each_other(gathered: &[f32], ranks: usize, m: usize, width: usize) -> Vec<f32> {
    let mut rows = Vec::with_capacity(gathered.len());
    for row in 0..m {
        for rank in 0..ranks {
            let first = (rank * m + row) * width;
            rows.extend_from_slice(&gathered[first..first + width]);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_ranks_are_beside_each_other() {
        let gathered = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
        let rows = beside_each_other(&gathered, 2, 3, 2);
        assert_eq!(rows, [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0, 5.0, 6.0, 50.0, 60.0]);
        assert_eq!(beside_each_other(&gathered, 1, 6, 2), gathered);
    }
}
