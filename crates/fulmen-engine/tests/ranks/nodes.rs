//! A model on several nodes: they give the tokens of one device, and a node that fails or is killed ends the
//! steps of all with an error that names its rank.
//!
//! Nodes are threads here, or processes: this test's own executable, which the environment tells what to do.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_core::Communicator;
use fulmen_cpu::CpuDispatcher;
use fulmen_engine::model::ModelDevice;
use fulmen_engine::{
    Brings, Device, Driver, EngineOptions, Event, JoinError, LoadOptions, Model, Nodes, RankGroup,
    RequestError,
};
use fulmen_testkit::inject::{Failing, Injector};

use super::cpu;
use super::engine::{cpus, few_pages, goes_on_after_faults, requests};
use super::loopback::LoopbackRank;
use super::scenario::{Answer, Storm, answers, driver, small_file};

const ROLE: &str = "FULMEN_TEST_MODEL_NODE";

/// Longer than any step.
const TIMEOUT: Duration = Duration::from_secs(40);

/// How long nodes wait for each other to come.
const MEETING: Duration = Duration::from_secs(8);

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A node of `count` that meet at an address, as ranks that exchange values over the loopback device.
fn join(devices: Vec<Device>, (node, count): (u32, u32), address: &str) -> Result<RankGroup, JoinError> {
    let nodes = Nodes { count, node, address: address.to_owned(), timeout: MEETING };
    let ranks = devices.len() as u32;
    let mut host = None;
    let met = nodes.meet(Brings { ranks, runs: 1 }, |_| {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let id = listener.local_addr().map_err(|error| error.to_string())?.to_string();
        host = Some(listener);
        Ok(id.into_bytes())
    })?;
    let (first, all) = (met.first_rank, met.ranks);
    let group = String::from_utf8(met.id.clone()).unwrap();
    let visit = |rank| Ok(LoopbackRank::visit(&group, (rank, all), TIMEOUT)?);
    let own: Result<Vec<Arc<LoopbackRank>>, JoinError> = match host {
        None => (first..first + ranks).map(visit).collect(),
        Some(listener) => thread::scope(|scope| {
            let host = scope.spawn(|| LoopbackRank::host(&listener, (all, MEETING), TIMEOUT));
            let others: Result<Vec<_>, JoinError> = (1..ranks).map(visit).collect();
            let mut own = vec![host.join().unwrap()?];
            own.extend(others?);
            Ok(own)
        }),
    };
    let communicators = own?.into_iter().map(|rank| rank as Arc<dyn Communicator>).collect();
    Ok(RankGroup::with_communicators(devices, communicators, TIMEOUT, met))
}

fn load(recipe: &str, group: RankGroup) -> Result<Model, JoinError> {
    Model::from_source_nodes(Arc::new(small_file(recipe)), group, LoadOptions::default())
}

/// Node 1 of 2, with these devices, until node 0 ends.
fn follow(recipe: &'static str, devices: Vec<Device>, address: &str) -> JoinHandle<()> {
    let address = address.to_owned();
    thread::spawn(move || {
        let model = load(recipe, join(devices, (1, 2), &address).unwrap()).unwrap();
        model.follow().unwrap();
    })
}

/// A model on two nodes with so many ranks, and what ends when the model has been dropped.
fn on_nodes(recipe: &'static str, [first, second]: [usize; 2]) -> (Model, JoinHandle<()>) {
    let address = free_address();
    let follower = follow(recipe, cpus(second), &address);
    (load(recipe, join(cpus(first), (0, 2), &address).unwrap()).unwrap(), follower)
}

fn end((model, follower): (Model, JoinHandle<()>)) {
    let began = Instant::now();
    drop(model);
    follower.join().unwrap();
    assert!(began.elapsed() < TIMEOUT / 2, "the follower ends with the model");
}

#[test]
fn nodes_give_the_tokens_of_one_device() {
    let tokens = |model: &Model| -> Vec<Vec<u32>> {
        answers(&mut driver(model, &few_pages()), requests())
            .into_iter()
            .map(|answer| answer.tokens)
            .collect()
    };
    let whole = Model::from_source(Arc::new(small_file("f32")), cpu(), LoadOptions::default()).unwrap();
    let expected = tokens(&whole);
    for ranks in [[1, 1], [1, 3], [2, 2]] {
        let nodes = on_nodes("f32", ranks);
        assert_eq!(nodes.0.ranks(), ranks.iter().sum::<usize>() as u32);
        // An engine after another.
        for _ in 0..2 {
            assert_eq!(tokens(&nodes.0), expected, "{ranks:?}");
        }
        let refused = nodes.0.session().unwrap_err().to_string();
        assert!(refused.contains("several nodes"), "{refused}");
        end(nodes);
    }
}

#[test]
fn a_storm_gives_equal_bits_on_nodes() {
    let options = EngineOptions { batch_invariant: true, host_memory: 64 << 20, ..few_pages() };
    let nodes = on_nodes("q8_0", [1, 1]);
    let storm = Storm { requests: 24, max_tokens: 12, sampled: true, options, seed: 3 };
    let stats = storm.equal_bits(&nodes.0);
    assert!(stats.swapped_out > 0 && stats.cancelled > 0 && stats.prefix_cache.hits > 5, "{stats:?}");
    end(nodes);
}

/// With communicators that can go on after a failure.
#[test]
fn an_engine_goes_on_after_a_fault_of_a_node() {
    let injector = Injector::default();
    let failing = Failing::new(CpuDispatcher::with_threads(1), &injector);
    let address = free_address();
    let mut ends = fulmen_core::in_process_group(2, TIMEOUT).into_iter();
    let mut group = |devices: Vec<Device>, node, address: &str| {
        let communicators = vec![Arc::new(ends.next().unwrap()) as Arc<dyn Communicator>];
        let nodes = Nodes { count: 2, node, address: address.to_owned(), timeout: TIMEOUT };
        move || {
            let met = nodes.meet(Brings { ranks: 1, runs: 1 }, |_| Ok(vec![1])).unwrap();
            RankGroup::with_communicators(devices, communicators, TIMEOUT, met)
        }
    };
    let first = group(vec![cpu()], 0, &address);
    let second = group(vec![Box::new(failing.clone()) as Device], 1, &address);
    let follower = thread::spawn(move || load("f32", second()).unwrap().follow().unwrap());
    let model = load("f32", first()).unwrap();
    goes_on_after_faults(&model, &[injector], &EngineOptions { prefix_cache: false, ..few_pages() });
    end((model, follower));
    assert_eq!(failing.live(), 0);
}

/// Not a test by itself: the process of node 1 of 2, if the environment says so.
#[test]
fn model_node_process() {
    let Ok(address) = std::env::var(ROLE) else { return };
    let Ok(group) = join(cpus(1), (1, 2), &address) else { return };
    let Ok(model) = load("f32", group) else { return };
    let _ = model.follow();
}

fn start(address: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["nodes::model_node_process", "--exact", "--test-threads=1"]).env(ROLE, address);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// How a round ended on node 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The nodes did not meet, or the model was not loaded.
    Loading,
    /// The engine was not opened.
    Opening,
    /// Requests ended with an error.
    Running,
    /// All had come to their ends.
    Finished,
}

/// Node 0 with a process as node 1, which is killed at a moment, or not at all.
fn round(moment: Option<Duration>) -> End {
    let (address, began) = (free_address(), Instant::now());
    let mut process = start(&address);
    let device = Failing::new(CpuDispatcher::with_threads(1), &Injector::default());
    let boxed: Device = Box::new(device.clone());
    let ended = thread::scope(|scope| {
        let work = scope.spawn(|| run_node_0(boxed, &address));
        if let Some(moment) = moment {
            thread::sleep(moment.saturating_sub(began.elapsed()));
            process.kill().unwrap();
        }
        // Without a kill the process ends when node 0 has dropped the model.
        process.wait().unwrap();
        let killed = Instant::now();
        let ended = work.join().unwrap();
        assert!(killed.elapsed() < TIMEOUT / 2, "{moment:?}: {ended:?} {:?} after the end", killed.elapsed());
        ended
    });
    assert_eq!(device.live(), 0, "{moment:?}: {ended:?}");
    ended
}

fn run_node_0(device: Device, address: &str) -> End {
    let group = join(vec![device], (0, 2), address);
    let Ok(model) = group.and_then(|group| load("f32", group)) else { return End::Loading };
    let Ok((config, device)) = ModelDevice::open(&model, &few_pages()) else { return End::Opening };
    let mut driver = Driver::new(config, device).unwrap();
    let found = answers(&mut driver, requests());
    let failed = |answer: &&Answer| match &answer.end {
        Some(Event::Finished { .. }) => false,
        Some(Event::Failed(RequestError::DeviceLost { reason })) => {
            assert!(reason.contains("rank 1 of 2: node 1: its process has ended"), "{reason}");
            true
        }
        other => panic!("{other:?}"),
    };
    if found.iter().any(|answer| failed(&answer)) { End::Running } else { End::Finished }
}

#[test]
fn a_node_that_is_killed_at_any_moment_holds_nobody_up() {
    let rounds: u64 = if std::env::var_os("FULMEN_TEST_FULL").is_some() { 200 } else { 24 };
    // How long all of it takes here, on a machine that is busy with other tests, too.
    let began = Instant::now();
    assert_eq!(round(None), End::Finished);
    let whole = began.elapsed();
    let next = AtomicU64::new(0);
    let work = || {
        let mut ends = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= rounds {
                return ends;
            }
            // A multiplicative hash.
            let random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            // Loading takes a tenth of the time, and gets a quarter of the kills.
            let span = if number.is_multiple_of(4) { whole / 10 } else { whole };
            ends.push(round(Some(span * (random % 1000) as u32 / 1000)));
        }
    };
    let ends: Vec<End> = thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let count = |end| ends.iter().filter(|&&found| found == end).count();
    let [loading, opening, running] = [End::Loading, End::Opening, End::Running].map(count);
    println!(
        "killed nodes: {rounds} faults injected: {loading} loading, {opening} opening, {running} running"
    );
    assert!(loading + opening + running > ends.len() / 3, "{ends:?}");
}
