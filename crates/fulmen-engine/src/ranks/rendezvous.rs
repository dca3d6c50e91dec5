//! Where the processes of a group meet: one small exchange over TCP, after which devices talk to each other
//! by their own library.
//!
//! Node 0 listens. Every other node connects, says who it is and how many ranks it has, and is answered when
//! all are there: with the number of its first rank and the id of the group, or with the reason why not.
//!
//! ```text
//!  node → 0   "FULMEN RANKS 1\n", node, nodes, ranks (u32), what they run (u64), little-endian
//!  0 → node   0, first rank, ranks (u32), bytes of the id (u32), id
//!             1, bytes of the reason (u32), reason
//! ```
//!
//! The connections stay open. Where they stay silent, one that ends tells that a process has ended
//! ([`Met::watch`]); between the processes of a model they carry the orders of node 0.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fulmen_core::MAX_RANKS;

use super::group::OtherNodes;
use super::link::Link;
use super::node::Node;

const MAGIC: &[u8; 15] = b"FULMEN RANKS 1\n";
const HELLO_BYTES: usize = MAGIC.len() + 3 * 4 + 8;

/// How long whoever connects may take to say who it is.
const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// How often node 0 looks for connections, and others try to connect.
const RETRY: Duration = Duration::from_millis(20);

/// The largest answer that a node reads.
const MAX_ANSWER: u32 = 1 << 16;

/// The processes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// How many there are.
    pub count: u32,
    /// Which one this is, from 0.
    pub node: u32,
    /// Where they meet, `HOST:PORT`: an address of node 0.
    pub address: String,
    /// How long they wait for each other.
    pub timeout: Duration,
}

/// What a process brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brings {
    /// Its ranks.
    pub ranks: u32,
    /// A fingerprint of what the group runs, which must be that of node 0.
    pub runs: u64,
}

/// Why processes did not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Numbers that cannot be.
    #[error("node {node} of {count}: nodes are numbered from 0, and there are 2 to {MAX_RANKS}")]
    Numbers {
        /// The node.
        node: u32,
        /// How many there are.
        count: u32,
    },
    /// Node 0 cannot listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// Node 0 cannot be reached.
    #[error("node 0 was not reached at {address} within {timeout:?}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// How long it was tried.
        timeout: Duration,
        /// The last error.
        source: io::Error,
    },
    /// Nodes have not come.
    #[error("{nodes} did not come to {address} within {timeout:?}")]
    Missing {
        /// Which.
        nodes: String,
        /// The address.
        address: String,
        /// How long they were waited for.
        timeout: Duration,
    },
    /// Node 0 has refused this one.
    #[error("node 0 at {address} refuses this node: {reason}")]
    Refused {
        /// The address.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// Node 0 has gone away, or is not one.
    #[error("node 0 at {address} gave no answer: {source}")]
    Answer {
        /// The address.
        address: String,
        /// What happened.
        source: io::Error,
    },
    /// The id of the group could not be made.
    #[error("{0}")]
    Id(String),
}

/// What the processes have agreed on.
#[derive(Debug)]
pub struct Met {
    /// The id of the group.
    pub id: Vec<u8>,
    /// The first rank of this process.
    pub first_rank: u32,
    /// Ranks of all processes.
    pub ranks: u32,
    /// Connections to the others: from node 0 to all, from others to node 0.
    pub(super) peers: Vec<Peer>,
}

/// A connection to another node.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: u32,
    pub(super) first_rank: u32,
    pub(super) stream: TcpStream,
}

impl Met {
    /// Calls `ended` with the node of a process that has ended, from a thread, for as long as this process
    /// runs.
    pub fn watch(self, ended: impl Fn(u32) + Clone + Send + 'static) -> io::Result<()> {
        for Peer { node, mut stream, .. } in self.peers {
            let ended = ended.clone();
            stream.set_read_timeout(None)?;
            thread::Builder::new().name(format!("node-{node}")).spawn(move || {
                // Nothing is sent, so a read ends with the connection.
                let _ = stream.read(&mut [0]);
                ended(node);
            })?;
        }
        Ok(())
    }
}

impl Met {
    /// The connections, over which node 0 will give orders to the others and wait so long for answers.
    pub(super) fn others(self, timeout: Duration) -> io::Result<OtherNodes> {
        let Met { first_rank, ranks, peers, .. } = self;
        let mut nodes = Vec::new();
        for Peer { node, first_rank: first_of_node, stream } in peers {
            let link = Link::new(stream, timeout)?;
            if first_rank > 0 {
                return Ok(OtherNodes::Leader(Arc::new(link)));
            }
            nodes.push(Arc::new(Node::new(node, [first_of_node, ranks], link, timeout)));
        }
        Ok(OtherNodes::Led(nodes))
    }
}

impl Nodes {
    /// Whether there can be such nodes: for those who want to know before they open devices.
    ///
    /// # Errors
    /// [`RendezvousError::Numbers`].
    pub fn check(&self) -> Result<(), RendezvousError> {
        let Nodes { count, node, .. } = *self;
        match node < count && (2..=MAX_RANKS).contains(&count) {
            true => Ok(()),
            false => Err(RendezvousError::Numbers { node, count }),
        }
    }

    /// Meets the other processes. Node 0 makes the id, for this many ranks.
    ///
    /// # Errors
    /// Who did not come, or why they do not fit together. Nobody waits longer than the time-out.
    pub fn meet(
        &self,
        brings: Brings,
        make_id: impl FnOnce(u32) -> Result<Vec<u8>, String>,
    ) -> Result<Met, RendezvousError> {
        self.check()?;
        match self.node {
            0 => self.host(brings, make_id),
            _ => self.visit(brings),
        }
    }

    fn host(
        &self,
        brings: Brings,
        make_id: impl FnOnce(u32) -> Result<Vec<u8>, String>,
    ) -> Result<Met, RendezvousError> {
        let failed = |source| RendezvousError::Listen { address: self.address.clone(), source };
        let listener = TcpListener::bind(&self.address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let visitors = self.wait_for_all(&listener, brings)?;
        let ranks = visitors.iter().fold(brings.ranks, |sum, visitor| sum.saturating_add(visitor.ranks));
        let made = match ranks <= MAX_RANKS {
            true => make_id(ranks),
            false => Err(format!("there are {ranks} ranks, and at most {MAX_RANKS} are possible")),
        };
        let mut first_rank = brings.ranks;
        let mut peers = Vec::new();
        for mut visitor in visitors {
            let answer = match &made {
                Ok(id) => accept(first_rank, ranks, id),
                Err(reason) => refuse(reason),
            };
            // A node that has ended is missed when devices join.
            let _ = visitor.stream.write_all(&answer);
            peers.push(Peer { node: visitor.node, first_rank, stream: visitor.stream });
            first_rank += visitor.ranks;
        }
        let id = made.map_err(RendezvousError::Id)?;
        Ok(Met { id, first_rank: 0, ranks, peers })
    }

    /// All other nodes, in their order.
    fn wait_for_all(&self, listener: &TcpListener, brings: Brings) -> Result<Vec<Visitor>, RendezvousError> {
        let deadline = Instant::now() + self.timeout;
        let mut visitors: Vec<Visitor> = Vec::new();
        while visitors.len() + 1 < self.count as usize {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let came: Vec<u32> = visitors.iter().map(|visitor| visitor.node).collect();
                let missing = (1..self.count).filter(|node| !came.contains(node));
                let nodes: Vec<String> = missing.map(|node| format!("node {node}")).collect();
                let (nodes, address) = (nodes.join(", "), self.address.clone());
                visitors.iter_mut().for_each(|visitor| visitor.refuse(&format!("{nodes} did not come")));
                return Err(RendezvousError::Missing { nodes, address, timeout: self.timeout });
            }
            // One that has ended may come again.
            visitors.retain(Visitor::is_here);
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(RETRY);
                continue;
            };
            // Whoever does not say who it is, is not one of them.
            let Some((mut visitor, hello)) = Visitor::new(stream, left.min(HELLO_LIMIT)) else { continue };
            match self.check_visitor(&visitor, hello, brings, &visitors) {
                Ok(()) => visitors.push(visitor),
                Err(reason) => visitor.refuse(&reason),
            }
        }
        visitors.sort_by_key(|visitor| visitor.node);
        Ok(visitors)
    }

    /// Why a visitor does not fit the others.
    fn check_visitor(
        &self,
        visitor: &Visitor,
        (nodes, runs): (u32, u64),
        brings: Brings,
        others: &[Visitor],
    ) -> Result<(), String> {
        let node = visitor.node;
        if nodes != self.count {
            return Err(format!("it was started with {nodes} nodes, node 0 with {}", self.count));
        }
        if node == 0 || node >= self.count || others.iter().any(|other| other.node == node) {
            return Err(format!("there is a node {node} already, or there cannot be one"));
        }
        if visitor.ranks == 0 || runs != brings.runs {
            return Err("it was started with another model or with other options".to_owned());
        }
        Ok(())
    }

    fn visit(&self, brings: Brings) -> Result<Met, RendezvousError> {
        let deadline = Instant::now() + self.timeout;
        let mut stream = self.connect(deadline)?;
        let failed = |source| RendezvousError::Answer { address: self.address.clone(), source };
        let numbers = [self.node, self.count, brings.ranks].map(u32::to_le_bytes).concat();
        let hello = [&MAGIC[..], &numbers, &brings.runs.to_le_bytes()].concat();
        stream.write_all(&hello).map_err(failed)?;
        // Node 0 may still be waiting for others.
        let left = deadline.saturating_duration_since(Instant::now()) + HELLO_LIMIT;
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        match read_answer(&mut stream).map_err(failed)? {
            Ok((first_rank, ranks, id)) => {
                Ok(Met { id, first_rank, ranks, peers: vec![Peer { node: 0, first_rank: 0, stream }] })
            }
            Err(reason) => Err(RendezvousError::Refused { address: self.address.clone(), reason }),
        }
    }

    /// Connects to node 0, which may be started later.
    fn connect(&self, deadline: Instant) -> Result<TcpStream, RendezvousError> {
        loop {
            let source = match self.try_connect(deadline) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            if Instant::now() + RETRY >= deadline {
                let (address, timeout) = (self.address.clone(), self.timeout);
                return Err(RendezvousError::Connect { address, timeout, source });
            }
            thread::sleep(RETRY);
        }
    }

    fn try_connect(&self, deadline: Instant) -> io::Result<TcpStream> {
        let mut last = io::Error::other("it has no address");
        for address in self.address.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now()).max(RETRY);
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A node that has come.
struct Visitor {
    node: u32,
    ranks: u32,
    stream: TcpStream,
}

impl Visitor {
    /// Reads who has connected, with the number of nodes and what it runs.
    fn new(mut stream: TcpStream, limit: Duration) -> Option<(Visitor, (u32, u64))> {
        let mut hello = [0; HELLO_BYTES];
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(limit.max(RETRY))).ok()?;
        stream.set_write_timeout(Some(HELLO_LIMIT)).ok()?;
        stream.read_exact(&mut hello).ok()?;
        let numbers = hello.strip_prefix(MAGIC)?;
        let number = |at: usize| numbers.get(4 * at..4 * at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let runs = u64::from_le_bytes(numbers.get(12..20)?.try_into().ok()?);
        let visitor = Visitor { node: number(0)?, ranks: number(2)?, stream };
        Some((visitor, (number(1)?, runs)))
    }

    /// Whether its connection is open.
    fn is_here(&self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return false;
        }
        let waits = match self.stream.peek(&mut [0]) {
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            // It has ended, or says more than it should.
            Ok(_) => false,
        };
        waits && self.stream.set_nonblocking(false).is_ok()
    }

    fn refuse(&mut self, reason: &str) {
        // It may have ended.
        let _ = self.stream.write_all(&refuse(reason));
    }
}

fn accept(first_rank: u32, ranks: u32, id: &[u8]) -> Vec<u8> {
    let numbers = [first_rank, ranks, id.len() as u32].map(u32::to_le_bytes).concat();
    [&[0][..], &numbers, id].concat()
}

fn refuse(reason: &str) -> Vec<u8> {
    [&[1][..], &(reason.len() as u32).to_le_bytes(), reason.as_bytes()].concat()
}

type Answer = Result<(u32, u32, Vec<u8>), String>;

fn read_answer(stream: &mut TcpStream) -> io::Result<Answer> {
    fn number(stream: &mut TcpStream) -> io::Result<u32> {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
    fn bytes(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        let count = number(stream)?;
        if count > MAX_ANSWER {
            return Err(io::Error::other("it is no node of a group"));
        }
        let mut bytes = vec![0; count as usize];
        stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    match kind {
        [0] => Ok(Ok((number(stream)?, number(stream)?, bytes(stream)?))),
        [1] => Ok(Err(String::from_utf8_lossy(&bytes(stream)?).into_owned())),
        _ => Err(io::Error::other("it is no node of a group")),
    }
}
