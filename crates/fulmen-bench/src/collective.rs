//! Collectives of ranks, each as often in one captured program as in a step of a model.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_core::{
    AllGatherCall, AllReduceCall, BackendError, Communicator, ExecError, OpCall, Program, ReplayId,
};
use fulmen_engine::{Device, RankGroup};
use serde::Serialize;

use crate::BenchError;

/// What is timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveOptions {
    /// Bytes of a rank, of each collective.
    pub bytes: Vec<u64>,
    /// Collectives of a program.
    pub calls: usize,
    /// Timed runs of each program.
    pub repeat: usize,
}

impl CollectiveOptions {
    /// The same number for the same options: processes of one group must have the same.
    pub fn fingerprint(&self) -> u64 {
        let numbers = [self.calls as u64, self.repeat as u64].into_iter().chain(self.bytes.iter().copied());
        // FNV-1a of the bytes.
        numbers
            .flat_map(u64::to_le_bytes)
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

/// One collective. Field names are those of the JSON output: add, do not rename.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveTimes {
    /// Its name.
    pub op: &'static str,
    /// Bytes of a rank.
    pub bytes: u64,
    /// Ranks.
    pub ranks: u32,
    /// Launches of a program by the host: 1 if it is captured with its collectives.
    pub launches: usize,
    /// The median time of one.
    pub us: f64,
    /// Bytes per second that each link must move at least, as NCCL's tests count them.
    pub bus_bytes_per_second: f64,
}

#[derive(Clone, Copy)]
enum Kind {
    AllReduce,
    AllGather,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::AllGather => "all_gather",
        }
    }

    /// A collective of `elements` of a rank at `input`, whose result is at `output`.
    fn call(self, input: u64, output: u64, elements: usize, ranks: u32) -> OpCall {
        match self {
            Kind::AllReduce => {
                OpCall::AllReduce(AllReduceCall { input, output, n_elements: elements, ranks })
            }
            Kind::AllGather => {
                OpCall::AllGather(AllGatherCall { input, output, m: 1, width: elements as u32, ranks })
            }
        }
    }

    fn output_elements(self, elements: usize, ranks: u32) -> usize {
        match self {
            Kind::AllReduce => elements,
            Kind::AllGather => elements * ranks as usize,
        }
    }

    /// What an element of the result is if each rank brings its number plus one.
    fn expected(self, index: usize, elements: usize, ranks: u32) -> f32 {
        match self {
            Kind::AllReduce => (ranks * (ranks + 1) / 2) as f32,
            Kind::AllGather => (index / elements + 1) as f32,
        }
    }

    fn bus_bytes(self, bytes: u64, ranks: u32) -> f64 {
        let others = f64::from(ranks.saturating_sub(1));
        match self {
            Kind::AllReduce => 2.0 * others / f64::from(ranks) * bytes as f64,
            Kind::AllGather => others * bytes as f64,
        }
    }
}

/// Checks and times the collectives of a group; every process of it must ask for the same.
///
/// # Errors
/// What a device or the group reports, or a wrong result.
pub fn bench_collectives(
    group: &mut RankGroup,
    options: &CollectiveOptions,
) -> Result<Vec<CollectiveTimes>, BenchError> {
    let mut tests = Vec::new();
    for &bytes in &options.bytes {
        for kind in [Kind::AllReduce, Kind::AllGather] {
            tests.push(on_all_ranks(group, options, kind, bytes)?);
        }
    }
    Ok(tests)
}

/// Runs on the devices of this process, each on a thread of its own. Times are those of the first.
fn on_all_ranks(
    group: &mut RankGroup,
    options: &CollectiveOptions,
    kind: Kind,
    bytes: u64,
) -> Result<CollectiveTimes, BenchError> {
    let done = thread::scope(|scope| {
        let mut ranks = Vec::new();
        for (device, communicator) in group.devices.iter_mut().zip(&group.communicators) {
            let communicator = Arc::clone(communicator);
            ranks.push(scope.spawn(move || {
                let times = run_rank(device, communicator.as_ref(), options, kind, bytes);
                if let Err(error) = &times {
                    communicator.abort(&error.to_string());
                }
                times
            }));
        }
        let panicked = |_| BenchError::InvalidOption("the thread of a rank panicked".to_owned());
        ranks.into_iter().map(|rank| rank.join().map_err(panicked).and_then(|times| times)).collect()
    });
    let done: Vec<Result<CollectiveTimes, BenchError>> = done;
    // The error of the rank that failed by itself, not of those that it made fail.
    let of_others = |error: &BenchError| matches!(error, BenchError::Backend(BackendError::Collective(_)));
    let mut first = None;
    for times in done {
        match (times, &first) {
            (Err(error), Some(Err(earlier))) if of_others(earlier) && !of_others(&error) => {
                first = Some(Err(error));
            }
            (Err(error), None | Some(Ok(_))) => first = Some(Err(error)),
            (times, None) => first = Some(times),
            _ => {}
        }
    }
    first.unwrap_or_else(|| Err(BenchError::InvalidOption("there is no rank".to_owned())))
}

fn run_rank(
    device: &mut Device,
    communicator: &dyn Communicator,
    options: &CollectiveOptions,
    kind: Kind,
    bytes: u64,
) -> Result<CollectiveTimes, BenchError> {
    let ranks = communicator.size();
    let elements = usize::try_from(bytes / 4).unwrap_or(usize::MAX).max(1);
    let results = kind.output_elements(elements, ranks);
    let input = device.alloc(4 * elements)?;
    let output = device.alloc(4 * results)?;
    let times = time_calls(
        device,
        communicator,
        options,
        kind.call(input, output, elements, ranks),
        (kind, elements),
    );
    let freed = device.free(input).and(device.free(output));
    let (launches, time) = times?;
    freed?;
    let us = 1e6 * time.as_secs_f64() / options.calls.max(1) as f64;
    let bus_bytes_per_second = kind.bus_bytes(4 * elements as u64, ranks) / (us / 1e6);
    let (op, bytes) = (kind.name(), 4 * elements as u64);
    Ok(CollectiveTimes { op, bytes, ranks, launches, us, bus_bytes_per_second })
}

/// Checks and times a program of many of the same call: its launches, and the median of its times.
fn time_calls(
    device: &mut Device,
    communicator: &dyn Communicator,
    options: &CollectiveOptions,
    call: OpCall,
    (kind, elements): (Kind, usize),
) -> Result<(usize, Duration), BenchError> {
    let (OpCall::AllReduce(AllReduceCall { input, output, .. })
    | OpCall::AllGather(AllGatherCall { input, output, .. })) = call
    else {
        return Err(BenchError::InvalidOption(format!("{} is not a collective", call.op())));
    };
    let values = vec![communicator.rank() as f32 + 1.0; elements];
    device.write(input, bytemuck::cast_slice(&values))?;
    let program = Program::check_calls(std::iter::repeat_n(call, options.calls))
        .map_err(|error| BenchError::InvalidOption(error.to_string()))?;
    let captured = device.prepare(&program)?;
    let launches = run(device, &program, captured)?;
    check(device, output, (kind, elements, communicator.size()))?;
    let mut times = Vec::with_capacity(options.repeat);
    for _ in 0..options.repeat.max(1) {
        communicator.barrier().map_err(BackendError::from)?;
        let began = Instant::now();
        run(device, &program, captured)?;
        device.synchronize()?;
        times.push(began.elapsed());
    }
    if let Some(id) = captured {
        device.release(id);
    }
    Ok((launches, median(times)))
}

fn run(device: &mut Device, program: &Program, captured: Option<ReplayId>) -> Result<usize, BenchError> {
    match captured {
        Some(id) => Ok(device.replay(id)?),
        None => program.run(device.as_mut()).map_err(|error| match error {
            ExecError::Node { source, .. } | ExecError::Backend(source) => source.into(),
            other => BenchError::InvalidOption(other.to_string()),
        }),
    }
}

/// Compares the result with what it must be.
fn check(
    device: &mut Device,
    output: u64,
    (kind, elements, ranks): (Kind, usize, u32),
) -> Result<(), BenchError> {
    let mut found = vec![0f32; kind.output_elements(elements, ranks)];
    device.read(output, bytemuck::cast_slice_mut(&mut found))?;
    let wrong = (0..found.len()).find(|&index| found[index] != kind.expected(index, elements, ranks));
    match wrong {
        None => Ok(()),
        Some(index) => Err(BenchError::WrongResult {
            case: format!("{} of {ranks} ranks", kind.name()),
            index,
            expected: kind.expected(index, elements, ranks).into(),
            got: found[index],
        }),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
