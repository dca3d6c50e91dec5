//! Where the time goes: each op timed alone, or each kernel by the device's own clock, and what is left.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fulmen_core::{ExecError, KernelDispatch, OpCall, Program, WeightArg};

/// Times of ops, summed over runs. Timing waits for the device after each op, so the sum is more than an untimed run
/// takes. A device that times the kernels of a replay itself gives their times instead, under their own names.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    ops: HashMap<String, (u64, Duration)>,
    /// From the start of the first run to the end of the last, as the session saw it.
    pub(super) wall: Duration,
}

/// One line of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRow {
    /// The op, with the shape and type of its weight, or the kernel; `[other]` for the time outside ops.
    pub name: String,
    /// How often it ran.
    pub count: u64,
    /// How long it took in all.
    pub time: Duration,
}

impl Profile {
    /// Runs a program call by call.
    pub(super) fn run<D: KernelDispatch + ?Sized>(
        &mut self,
        program: &Program,
        device: &mut D,
    ) -> Result<(), ExecError> {
        device.synchronize()?;
        for step in program.steps() {
            let start = Instant::now();
            let done = device.dispatch(&step.call).and_then(|_| device.synchronize());
            done.map_err(|source| ExecError::Node {
                node: step.node,
                op: step.call.op(),
                name: step.name.clone(),
                source,
            })?;
            let entry = self.ops.entry(label(&step.call)).or_default();
            *entry = (entry.0 + 1, entry.1 + start.elapsed());
        }
        Ok(())
    }

    /// Adds what a device has timed.
    pub(super) fn add(&mut self, times: Vec<(String, Duration)>) {
        for (name, time) in times {
            let entry = self.ops.entry(name).or_default();
            *entry = (entry.0 + 1, entry.1 + time);
        }
    }

    /// The ops, the longest first, and at the end what was not in any of them.
    pub fn rows(&self) -> Vec<ProfileRow> {
        let row = |(name, &(count, time)): (&String, &(u64, Duration))| ProfileRow {
            name: name.clone(),
            count,
            time,
        };
        let mut rows: Vec<ProfileRow> = self.ops.iter().map(row).collect();
        rows.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        let inside: Duration = rows.iter().map(|row| row.time).sum();
        rows.push(ProfileRow {
            name: "[other]".to_owned(),
            count: 0,
            time: self.wall.saturating_sub(inside),
        });
        rows
    }

    /// All the time, inside ops and outside.
    pub fn total(&self) -> Duration {
        self.rows().iter().map(|row| row.time).sum()
    }
}

fn label(call: &OpCall) -> String {
    let weight = |w: &WeightArg, k: u32| format!("{}x{k} {}", w.rows, w.dtype);
    let detail = match call {
        OpCall::MulMat(call) => {
            call.parts.iter().map(|part| weight(&part.weight, call.k)).collect::<Vec<_>>().join(" + ")
        }
        OpCall::GateUp(call) => weight(&call.gate, call.k),
        OpCall::Embed(call) => weight(&call.table, call.width),
        _ => return call.op().to_string(),
    };
    format!("{} {detail}", call.op())
}
