//! Processes that meet to form a group: real ones, on the loopback device, some of which fail.
//!
//! A process is this test's own executable, which the environment tells what to do.

mod killed;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_engine::{Brings, Met, Nodes, RendezvousError};

const ROLE: &str = "FULMEN_TEST_NODE";

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn nodes(count: u32, node: u32, address: &str, timeout_ms: u64) -> Nodes {
    Nodes { count, node, address: address.to_owned(), timeout: Duration::from_millis(timeout_ms) }
}

fn meet(nodes: &Nodes, ranks: u32, runs: u64) -> Result<Met, RendezvousError> {
    nodes.meet(Brings { ranks, runs }, |ranks| Ok(vec![ranks as u8; 128]))
}

/// Starts this executable as a node that prints what it has met, and then waits to be killed.
fn start(node: u32, count: u32, address: &str, ranks: u32) -> Child {
    let role = format!("{node} {count} {address} {ranks}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["node_process", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// What a node prints when it has met the others.
fn line_of(child: &mut Child) -> String {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map_while(Result::ok).find(|line| line.contains("node:")).unwrap_or_default()
}

/// Not a test by itself: the process of a node, if the environment says so.
#[test]
fn node_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [node, count, address, ranks] = words[..] else { panic!("{role}") };
    let nodes = nodes(count.parse().unwrap(), node.parse().unwrap(), address, 20_000);
    let met = meet(&nodes, ranks.parse().unwrap(), 7);
    match met {
        Ok(met) => {
            println!("\nnode: {} of {}, id {}", met.first_rank, met.ranks, met.id[0]);
            met.watch(|_| std::process::exit(0)).unwrap();
            thread::sleep(Duration::from_secs(30));
        }
        Err(error) => println!("\nnode: {error}"),
    }
}

#[test]
fn processes_meet_and_notice_one_that_is_killed() {
    let address = free_address();
    // The others may be started before node 0, and have different numbers of ranks.
    let mut second = start(2, 3, &address, 4);
    let mut first = start(1, 3, &address, 2);
    let met = meet(&nodes(3, 0, &address, 20_000), 3, 7).unwrap();
    assert_eq!((met.first_rank, met.ranks, &met.id[..]), (0, 9, &[9; 128][..]));
    assert_eq!(line_of(&mut first), "node: 3 of 9, id 9");
    assert_eq!(line_of(&mut second), "node: 5 of 9, id 9");
    let (sender, ended) = std::sync::mpsc::channel();
    met.watch(move |node| sender.send(node).unwrap()).unwrap();
    second.kill().unwrap();
    second.wait().unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(2));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(1));
}

#[test]
fn a_process_that_is_killed_while_it_waits_may_come_again() {
    let address = free_address();
    let mut killed = start(1, 3, &address, 1);
    let host = {
        let address = address.clone();
        thread::spawn(move || meet(&nodes(3, 0, &address, 20_000), 1, 7).map(|met| met.ranks))
    };
    // It has connected by then, or has not; both must end well.
    thread::sleep(Duration::from_millis(150));
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut again = [start(1, 3, &address, 1), start(2, 3, &address, 1)];
    assert_eq!(host.join().unwrap().unwrap(), 3);
    again.iter_mut().for_each(|child| {
        assert!(line_of(child).ends_with("of 3, id 3"));
        child.kill().unwrap();
        child.wait().unwrap();
    });
}

#[test]
fn nodes_that_do_not_come_are_named_within_the_timeout() {
    let (address, began) = (free_address(), Instant::now());
    let visitor = {
        let nodes = nodes(3, 1, &address, 5_000);
        thread::spawn(move || meet(&nodes, 1, 7).unwrap_err().to_string())
    };
    let error = meet(&nodes(3, 0, &address, 400), 1, 7).unwrap_err().to_string();
    assert_eq!(error, format!("node 2 did not come to {address} within 400ms"));
    let told = visitor.join().unwrap();
    assert_eq!(told, format!("node 0 at {address} refuses this node: node 2 did not come"));
    // Nobody listens any more.
    let error = meet(&nodes(2, 1, &address, 100), 1, 7).unwrap_err().to_string();
    assert!(error.starts_with(&format!("node 0 was not reached at {address} within 100ms")), "{error}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn nodes_that_do_not_fit_are_refused_and_strangers_are_ignored() {
    let address = free_address();
    let host = {
        let nodes = nodes(2, 0, &address, 10_000);
        thread::spawn(move || meet(&nodes, 1, 7).map(|met| met.ranks))
    };
    let stranger = loop {
        match TcpStream::connect(&address) {
            Ok(mut stream) => {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
                break stream;
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let refused = |count, node, runs| {
        let error = meet(&nodes(count, node, &address, 5_000), 1, runs).unwrap_err().to_string();
        error.strip_prefix(&format!("node 0 at {address} refuses this node: ")).unwrap_or(&error).to_owned()
    };
    assert_eq!(refused(3, 1, 7), "it was started with 3 nodes, node 0 with 2");
    assert_eq!(refused(2, 1, 8), "it was started with another model or with other options");
    assert_eq!(meet(&nodes(2, 1, &address, 5_000), 2, 7).unwrap().first_rank, 1);
    assert_eq!(host.join().unwrap().unwrap(), 3);
    drop(stranger);
    for (count, node) in [(1, 0), (2, 2), (65, 0), (0, 0)] {
        let error = meet(&nodes(count, node, &address, 50), 1, 7).unwrap_err().to_string();
        assert!(error.starts_with(&format!("node {node} of {count}: ")), "{error}");
    }
    let error = meet(&nodes(2, 0, "no-such-host.invalid:1", 50), 1, 7).unwrap_err().to_string();
    assert!(error.starts_with("cannot listen on no-such-host.invalid:1: "), "{error}");
}

#[test]
fn an_id_that_cannot_be_made_is_told_to_all() {
    let address = free_address();
    let visitor = {
        let nodes = nodes(2, 1, &address, 5_000);
        thread::spawn(move || meet(&nodes, 1, 7).unwrap_err().to_string())
    };
    let brings = Brings { ranks: 1, runs: 7 };
    let error = nodes(2, 0, &address, 5_000).meet(brings, |_| Err("NCCL was not found".to_owned()));
    assert_eq!(error.unwrap_err().to_string(), "NCCL was not found");
    let told = visitor.join().unwrap();
    assert_eq!(told, format!("node 0 at {address} refuses this node: NCCL was not found"));
}
