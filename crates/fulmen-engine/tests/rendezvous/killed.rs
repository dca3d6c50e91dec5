//! A process that is killed at a random moment of the meeting of a group: before it has connected, while it
//! waits for the others, while it is answered, or afterwards. The others meet with a process that takes its
//! place, notice its end, or are told that it did not come; nobody waits longer than the time-out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fulmen_engine::{Met, RendezvousError};

use super::{free_address, meet, nodes, start};

const ROUNDS: u64 = 200;
const NODES: u32 = 3;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Node 0 reads for two seconds who has connected, and machines are busy.
const LIMIT: Duration = Duration::from_secs(8);

type Meeting = JoinHandle<Result<Met, RendezvousError>>;

fn begin(node: u32, address: &str, timeout: Duration) -> Meeting {
    let nodes = nodes(NODES, node, address, timeout.as_millis() as u64);
    thread::spawn(move || meet(&nodes, 1, 7))
}

/// How a round ended for those that were not killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All met, with one that took the place of the killed one.
    Met,
    /// They had met the killed one, and noticed its end.
    Noticed,
    /// They were told that they cannot meet.
    Told,
}

/// Starts a node as a process and the others as threads, and kills the process.
fn round(victim: u32, moment: Duration) -> End {
    let (address, began) = (free_address(), Instant::now());
    let mut process = start(victim, NODES, &address, 1);
    let others = (0..NODES).filter(|&node| node != victim);
    let mut meetings: Vec<(u32, Meeting)> =
        others.map(|node| (node, begin(node, &address, TIMEOUT))).collect();
    thread::sleep(moment.saturating_sub(began.elapsed()));
    process.kill().unwrap();
    process.wait().unwrap();
    thread::sleep(Duration::from_millis(40));
    if meetings.iter().any(|(_, meeting)| !meeting.is_finished()) {
        meetings.push((victim, begin(victim, &address, TIMEOUT)));
    }
    let ended = meetings.into_iter().map(|(node, meeting)| (node, meeting.join().unwrap()));
    let (met, told): (Vec<_>, Vec<_>) = ended.partition(|(_, met)| met.is_ok());
    assert!(began.elapsed() < LIMIT, "{:?}: {told:?}", began.elapsed());
    if told.is_empty() && met.len() == NODES as usize {
        return End::Met;
    }
    // Node 0 has connections to all, the others to node 0.
    let mut end = End::Told;
    for (node, met) in met.into_iter().filter(|(node, _)| *node == 0 || victim == 0) {
        let (sender, ended) = channel();
        let watched = met.unwrap().watch(move |node| {
            // Nobody listens when the killed one was noticed.
            let _ = sender.send(node);
        });
        watched.unwrap();
        let found = ended.iter().find(|&ended| ended == victim);
        assert_eq!(found, Some(victim), "node {node} did not notice");
        end = End::Noticed;
    }
    end
}

#[test]
fn a_process_that_is_killed_at_any_moment_holds_nobody_up() {
    let before = open_files_and_threads();
    // How long a meeting takes here.
    let address = free_address();
    let (mut process, began) = (start(1, NODES, &address, 1), Instant::now());
    let meetings = [0, 2].map(|node| begin(node, &address, 10 * TIMEOUT));
    meetings.into_iter().for_each(|meeting| drop(meeting.join().unwrap().unwrap()));
    let whole = began.elapsed();
    process.kill().unwrap();
    process.wait().unwrap();

    let next = AtomicU64::new(0);
    let rounds = || {
        let mut ends = Vec::new();
        loop {
            let round_number = next.fetch_add(1, Ordering::Relaxed);
            if round_number >= ROUNDS {
                return ends;
            }
            // A multiplicative hash.
            let random = round_number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
            let moment = whole * 2 * (random / 8 % 1000) as u32 / 1000;
            ends.push(round(random as u32 % NODES, moment));
        }
    };
    let ends: Vec<End> = thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(rounds)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let count = |end| ends.iter().filter(|&&found| found == end).count();
    let [met, noticed, told] = [End::Met, End::Noticed, End::Told].map(count);
    println!("killed processes: {ROUNDS} faults injected: {met} met, {noticed} noticed, {told} told");
    assert!(met > 0 && noticed > 0 && met + noticed > told, "{met} met, {noticed} noticed, {told} told");

    // Connections and the threads that watch them end with the processes.
    let began = Instant::now();
    while let (Some(before), Some(now)) = (before, open_files_and_threads())
        && (now.0 > before.0 + 20 || now.1 > before.1 + 20)
    {
        assert!(began.elapsed() < Duration::from_secs(30), "{before:?} before, {now:?} now");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Of this process, where the system tells.
fn open_files_and_threads() -> Option<(usize, usize)> {
    let count = |folder| std::fs::read_dir(folder).map(Iterator::count).ok();
    count("/proc/self/fd").zip(count("/proc/self/task"))
}
