//! The other processes of a group, as node 0 sees them.
//!
//! Node 0 gives an order, which every rank of the group carries out at the same time, and each node answers
//! when its ranks have. If a rank fails meanwhile, node 0 tells all others to leave their collectives.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fulmen_core::{BackendError, Communicator, CommunicatorError, ExecError};
use fulmen_model::ModelError;
use serde::{Deserialize, Serialize};

use super::link::Link;

/// What node 0 says. `T` are the orders.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToNode<T> {
    /// An order, which is answered.
    Order(u64, T),
    /// Rank 0, or one of another node, has failed to carry out this order.
    Abort(u64, String),
}

/// What a node answers to an order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done(Vec<u32>),
    OutOfMemory {
        rank: u32,
        needed: u64,
        available: Option<u64>,
    },
    /// A collective says that a rank has failed, of any node.
    Collective {
        rank: u32,
        reason: String,
    },
    Failed {
        rank: u32,
        reason: String,
    },
}

impl Answer {
    /// What ranks from `first_rank` on have found.
    pub(crate) fn new(done: Result<Vec<u32>, ModelError>, first_rank: u32) -> Answer {
        let error = match done {
            Ok(done) => return Answer::Done(done),
            Err(error) => error,
        };
        let (rank, cause) = match &error {
            ModelError::Rank { rank, source, .. } => (*rank, source.as_ref()),
            other => (first_rank, other),
        };
        let (ModelError::Backend(backend)
        | ModelError::Exec(ExecError::Backend(backend) | ExecError::Node { source: backend, .. })) = cause
        else {
            return Answer::Failed { rank, reason: cause.to_string() };
        };
        match *backend {
            BackendError::OutOfMemory { needed, available } => {
                Answer::OutOfMemory { rank, needed, available }
            }
            BackendError::Collective(ref failed) => {
                let reason = match failed.as_ref() {
                    CommunicatorError::Rank { reason, .. } => reason.clone(),
                    other => other.to_string(),
                };
                Answer::Collective { rank: failed.rank(), reason }
            }
            _ => Answer::Failed { rank, reason: cause.to_string() },
        }
    }

    /// The same of a node among `ranks`.
    fn result(self, node: u32, ranks: u32) -> Result<Vec<u32>, ModelError> {
        let of_rank =
            |rank, source: ModelError| Err(ModelError::Rank { rank, ranks, source: Box::new(source) });
        match self {
            Answer::Done(done) => Ok(done),
            Answer::OutOfMemory { rank, needed, available } => {
                of_rank(rank, BackendError::OutOfMemory { needed, available }.into())
            }
            Answer::Collective { rank, reason } => {
                Err(BackendError::from(CommunicatorError::Rank { rank, reason }).into())
            }
            Answer::Failed { rank, reason } => of_rank(rank, ModelError::Node { node, reason }),
        }
    }
}

/// A node other than 0.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) node: u32,
    pub(crate) first_rank: u32,
    /// Ranks of all nodes.
    ranks: u32,
    link: Link,
    /// Held until an order is answered.
    asking: Mutex<()>,
    /// The number of the last order.
    number: AtomicU64,
    timeout: Duration,
}

impl Node {
    pub(super) fn new(node: u32, [first_rank, ranks]: [u32; 2], link: Link, timeout: Duration) -> Node {
        Node { node, first_rank, ranks, link, asking: Mutex::default(), number: AtomicU64::new(0), timeout }
    }

    /// Gives an order and waits for the answer.
    pub(crate) fn order<T: Serialize>(&self, order: &T) -> Result<Vec<u32>, ModelError> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let number = self.number.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = self.link.send(&ToNode::Order(number, order));
        match answer.and_then(|()| self.link.receive::<Answer>(Some(self.timeout))) {
            Ok(answer) => answer.result(self.node, self.ranks),
            Err(error) => {
                // An answer that comes later would be taken for that of another order.
                self.link.close();
                let reason = match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        format!("no answer within {:?}", self.timeout)
                    }
                    _ => "its process has ended, or cannot be reached any more".to_owned(),
                };
                let source = Box::new(ModelError::Node { node: self.node, reason });
                Err(ModelError::Rank { rank: self.first_rank, ranks: self.ranks, source })
            }
        }
    }

    /// Whether it cannot be given orders any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.link.is_closed()
    }

    fn abort(&self, reason: &str) {
        let number = self.number.load(Ordering::SeqCst);
        // One that cannot be reached has ended, or will notice.
        let _ = self.link.send(&ToNode::<()>::Abort(number, reason.to_owned()));
    }
}

/// The communicator of a rank of node 0, which tells the other nodes when a rank has failed.
#[derive(Debug)]
pub(super) struct TellsNodes {
    pub(super) own: Arc<dyn Communicator>,
    pub(super) nodes: Vec<Arc<Node>>,
}

impl Communicator for TellsNodes {
    fn rank(&self) -> u32 {
        self.own.rank()
    }

    fn size(&self) -> u32 {
        self.own.size()
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommunicatorError> {
        self.own.all_reduce(values)
    }

    fn all_gather(&self, values: &[f32]) -> Result<Vec<f32>, CommunicatorError> {
        self.own.all_gather(values)
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), CommunicatorError> {
        self.own.broadcast(bytes)
    }

    fn barrier(&self) -> Result<(), CommunicatorError> {
        self.own.barrier()
    }

    fn abort(&self, reason: &str) {
        self.own.abort(reason);
        self.nodes.iter().for_each(|node| node.abort(reason));
    }

    fn reset(&self) {
        self.own.reset();
    }

    fn is_lost(&self) -> bool {
        self.own.is_lost()
    }
}
