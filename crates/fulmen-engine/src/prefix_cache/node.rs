//! Nodes of the prefix cache.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::states::Snapshot;
use crate::pages::{PageId, Writer};

/// A page in the prefix cache. Valid until the page is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

#[derive(Debug)]
pub(super) struct Node {
    /// The hash of `before` and `tokens`.
    pub(super) key: u64,
    /// The key of the parent.
    pub(super) before: u64,
    pub(super) parent: Option<NodeId>,
    pub(super) tenant: Arc<str>,
    /// The tokens of the page; fewer than a page holds if it is partial.
    pub(super) tokens: Box<[u32]>,
    /// The page in each group of layers: always that of full attention, while that of a window is kept as
    /// long as there is room.
    pub(super) pages: Box<[Option<PageId>]>,
    /// When the pages of windows were last used.
    pub(super) windows_used: u64,
    pub(super) writer: Writer,
    /// Recurrent states behind the first tokens of the page.
    pub(super) states: Vec<Snapshot>,
    /// Sequences that use the page.
    pub(super) users: u32,
    pub(super) children: u32,
    pub(super) last_used: u64,
}

/// Nodes by number; numbers of removed nodes are used again.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
}

impl Nodes {
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> {
        (0..).map(NodeId).zip(&self.nodes).filter_map(|(id, node)| node.as_ref().map(|_| id))
    }

    pub(super) fn insert(&mut self, node: Node) -> NodeId {
        if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = Some(node);
            return NodeId(at);
        }
        self.nodes.push(Some(node));
        NodeId(self.nodes.len() as u32 - 1)
    }

    pub(super) fn remove(&mut self, id: NodeId) -> Node {
        let node = self.nodes[id.0 as usize].take().expect("a node of the prefix cache is removed once");
        self.free.push(id.0);
        node
    }
}

impl Index<NodeId> for Nodes {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        self.nodes[id.0 as usize].as_ref().expect("a node of the prefix cache that is in use exists")
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0 as usize].as_mut().expect("a node of the prefix cache that is in use exists")
    }
}
