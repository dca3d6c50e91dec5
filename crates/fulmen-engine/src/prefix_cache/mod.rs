//! Pages that outlive their sequences, found by the tokens that they hold.
//!
//! A node of the cache is a page with its tokens and the node of the page before it, so nodes form trees: one
//! per tenant, with a page at each node. A full page is found by its key, the hash of (key of the page before
//! it, its tokens); the first key of a chain is the hash of (model, cache type, tenant). A key only finds
//! candidates: parent, tenant and tokens are compared before a page is used.
//!
//! The last page of a finished sequence may be partial. It is found through its first token, like any page
//! that shares only its first tokens with a prompt; see [`PrefixCache::find_partial`].
//!
//! The cache holds page numbers and counts the sequences that use a node ([`PrefixCache::acquire`]); the
//! references of the pool are kept by the caller. Who uses a node uses all nodes above it, too. Evicted is
//! the least recently used node that nobody uses and that has no children. The pages of layers with a window
//! can be evicted alone.

mod node;
mod states;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pages::{PageId, Writer};
pub use node::NodeId;
use node::{Node, Nodes};
pub use states::StateHit;

/// What a page is a page of. Pages of different namespaces are never shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Namespace {
    /// Identifies the model and its adapters.
    pub model: Arc<str>,
    /// The type of the KV cache, such as `f16`.
    pub cache_type: Arc<str>,
}

/// Counters of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Prompts that were looked up.
    pub lookups: u64,
    /// Prompts that shared at least one token.
    pub hits: u64,
    /// Tokens that did not have to be computed again.
    pub tokens_hit: u64,
    /// Pages that were evicted to make room.
    pub evictions: u64,
    /// Recurrent states that were evicted one by one.
    pub state_evictions: u64,
    /// Pages of layers with a window that were evicted without the others.
    pub window_evictions: u64,
}

/// What a page that was removed leaves to the caller: the cache's references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The page in each group of layers, if the cache had it.
    pub pages: Box<[Option<PageId>]>,
    /// The pages of recurrent states, each behind so many tokens of the page.
    pub states: Vec<(u32, PageId)>,
}

/// What [`PrefixCache::insert`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The cache has taken the page.
    New(NodeId),
    /// The cache has a page with these tokens already.
    Existing(NodeId),
}

/// A page that shares its first tokens with a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialMatch {
    /// The page.
    pub node: NodeId,
    /// Tokens that are equal.
    pub tokens: u32,
    /// Whether all tokens of the page are equal, the page is not full and nobody uses it: then it may be
    /// taken over instead of copied.
    pub whole: bool,
}

/// Computes the key of a page from the key before it and its tokens.
type HashChain = Box<dyn Fn(u64, &[u32]) -> u64 + Send>;

/// At most this many pages with the same first token are compared with a prompt.
const PARTIAL_CANDIDATES: usize = 16;

/// The prefix cache.
pub struct PrefixCache {
    page_size: usize,
    batch_invariant: bool,
    hash: HashChain,
    root: u64,
    nodes: Nodes,
    /// Full pages by their key. Several may have the same key.
    by_key: HashMap<u64, Vec<NodeId>>,
    /// All pages by the key of the page before them and their first token.
    by_first_token: HashMap<(u64, u32), Vec<NodeId>>,
    /// Nodes that nobody uses and that have no children, the least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Recurrent states by their nodes and offsets, the least recently used first.
    states: BTreeSet<(u64, NodeId, u32)>,
    /// Pages of windows by their nodes and groups, the least recently used first.
    windows: BTreeSet<(u64, NodeId, usize)>,
    /// The groups from this one on have windows.
    first_window: usize,
    window_bonus: u64,
    /// Nodes that nobody uses.
    unused: usize,
    clock: u64,
    /// Lookups, hits and evictions so far.
    pub counters: CacheCounters,
}

impl PrefixCache {
    /// An empty cache. In batch-invariant mode it refuses pages that decode rows have written.
    pub fn new(page_size: u32, namespace: &Namespace, batch_invariant: bool) -> PrefixCache {
        // Keys of their own for every cache: nobody can prepare prompts that collide.
        let state = RandomState::new();
        let root = state.hash_one(namespace);
        PrefixCache::with_hash(
            page_size,
            batch_invariant,
            root,
            Box::new(move |key, tokens| state.hash_one((key, tokens))),
        )
    }

    fn with_hash(page_size: u32, batch_invariant: bool, root: u64, hash: HashChain) -> PrefixCache {
        PrefixCache {
            page_size: page_size as usize,
            batch_invariant,
            hash,
            root,
            nodes: Nodes::default(),
            by_key: HashMap::new(),
            by_first_token: HashMap::new(),
            leaves: BTreeSet::new(),
            states: BTreeSet::new(),
            windows: BTreeSet::new(),
            first_window: usize::MAX,
            window_bonus: 0,
            unused: 0,
            clock: 0,
            counters: CacheCounters::default(),
        }
    }

    /// Pages in the cache.
    pub fn pages(&self) -> usize {
        self.nodes.len()
    }

    /// Pages that can be evicted: those that no sequence uses.
    pub fn evictable(&self) -> usize {
        self.unused
    }

    /// The longest chain of full pages after `parent` with the first of these tokens.
    pub fn find(&self, tenant: &str, mut parent: Option<NodeId>, tokens: &[u32]) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut key = self.key_of(tenant, parent);
        for page in tokens.chunks_exact(self.page_size) {
            key = (self.hash)(key, page);
            let Some(node) = self.candidate(key, parent, tenant, page) else { break };
            found.push(node);
            parent = Some(node);
        }
        found
    }

    fn candidate(&self, key: u64, parent: Option<NodeId>, tenant: &str, tokens: &[u32]) -> Option<NodeId> {
        let candidates = self.by_key.get(&key)?;
        candidates.iter().copied().find(|&id| {
            let node = &self.nodes[id];
            node.parent == parent && *node.tenant == *tenant && *node.tokens == *tokens
        })
    }

    /// The page after `parent` that shares the most first tokens with `tokens`, at least one.
    pub fn find_partial(&self, tenant: &str, parent: Option<NodeId>, tokens: &[u32]) -> Option<PartialMatch> {
        let candidates = self.by_first_token.get(&(self.key_of(tenant, parent), *tokens.first()?))?;
        let matches = candidates.iter().rev().take(PARTIAL_CANDIDATES).filter_map(|&id| {
            let node = &self.nodes[id];
            let same = node.parent == parent && *node.tenant == *tenant;
            let shared = node.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            let whole = shared == node.tokens.len() && shared < self.page_size && node.users == 0;
            (same && shared > 0).then_some(PartialMatch { node: id, tokens: shared as u32, whole })
        });
        matches.max_by_key(|found| (found.tokens, found.whole))
    }

    /// Adds the page after `parent`, full or partial, which nobody uses yet. A page must have been written
    /// and its results must have been read.
    ///
    /// `None` if the page is not for this cache: in batch-invariant mode only full pages that prefill has
    /// written are.
    pub fn insert(
        &mut self,
        tenant: &Arc<str>,
        parent: Option<NodeId>,
        tokens: &[u32],
        pages: &[Option<PageId>],
        writer: Writer,
    ) -> Option<Inserted> {
        let full = tokens.len() == self.page_size;
        if tokens.is_empty() || self.batch_invariant && (!full || writer == Writer::Decode) {
            return None;
        }
        let before = self.key_of(tenant, parent);
        let key = (self.hash)(before, tokens);
        if full {
            if let Some(existing) = self.candidate(key, parent, tenant, tokens) {
                return Some(Inserted::Existing(existing));
            }
        } else if let Some(found) = self.find_partial(tenant, parent, tokens)
            && found.tokens as usize == tokens.len()
        {
            // Some page begins with all of these tokens.
            return Some(Inserted::Existing(found.node));
        }
        self.clock += 1;
        let node = Node {
            key,
            before,
            parent,
            tenant: Arc::clone(tenant),
            tokens: tokens.into(),
            pages: pages.into(),
            writer,
            windows_used: self.clock,
            states: Vec::new(),
            users: 0,
            children: 0,
            last_used: self.clock,
        };
        let id = self.nodes.insert(node);
        self.list_windows(id, true);
        if full {
            self.by_key.entry(key).or_default().push(id);
        }
        self.by_first_token.entry((before, tokens[0])).or_default().push(id);
        if let Some(parent) = parent {
            self.leaves.remove(&(self.nodes[parent].last_used, parent));
            self.nodes[parent].children += 1;
        }
        self.unused += 1;
        self.leaves.insert((self.clock, id));
        Some(Inserted::New(id))
    }

    /// The pages of a node, one per group of layers with attention where the cache has it, and what wrote
    /// them.
    pub fn page(&self, node: NodeId) -> (&[Option<PageId>], Writer) {
        let node = &self.nodes[node];
        (&node.pages, node.writer)
    }

    /// Counts a sequence that uses a node. It must use the node's parent already.
    pub fn acquire(&mut self, id: NodeId) {
        self.clock += 1;
        let node = &mut self.nodes[id];
        if node.users == 0 {
            self.unused -= 1;
            self.leaves.remove(&(node.last_used, id));
        }
        node.users += 1;
        node.last_used = self.clock;
    }

    /// A sequence no longer uses a node. It must have released the node's children before.
    pub fn release(&mut self, id: NodeId) {
        self.clock += 1;
        let node = &mut self.nodes[id];
        assert!(node.users > 0, "a node of the prefix cache is released that nobody uses");
        node.users -= 1;
        node.last_used = self.clock;
        if node.users == 0 {
            self.unused += 1;
            if node.children == 0 {
                self.leaves.insert((self.clock, id));
            }
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.ids()
    }

    /// The node of the page before a page.
    pub fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.nodes[id].parent
    }

    /// Sequences that use a node.
    pub fn users(&self, id: NodeId) -> u32 {
        self.nodes[id].users
    }

    /// Whether nobody uses a node.
    pub fn is_unused(&self, id: NodeId) -> bool {
        self.nodes[id].users == 0
    }

    /// Removes the page that was not used for the longest time to make room; the caller releases it in the
    /// pool.
    pub fn evict(&mut self) -> Option<Removed> {
        let evicted = self.pop()?;
        self.counters.evictions += 1;
        Some(evicted)
    }

    /// Like [`evict`](PrefixCache::evict) without counting it, to empty the cache.
    pub fn pop(&mut self) -> Option<Removed> {
        let &(_, id) = self.leaves.first()?;
        Some(self.remove(id))
    }

    /// Removes a page without children that nobody uses; the cache's references pass to the caller.
    pub fn remove(&mut self, id: NodeId) -> Removed {
        self.list_windows(id, false);
        let node = self.nodes.remove(id);
        assert!(node.users == 0 && node.children == 0, "a node of the prefix cache is removed while in use");
        self.unused -= 1;
        self.leaves.remove(&(node.last_used, id));
        remove_from(&mut self.by_key, node.key, id);
        remove_from(&mut self.by_first_token, (node.before, node.tokens[0]), id);
        if let Some(parent) = node.parent {
            let above = &mut self.nodes[parent];
            above.children -= 1;
            if above.children == 0 && above.users == 0 {
                self.leaves.insert((above.last_used, parent));
            }
        }
        for state in &node.states {
            self.states.remove(&(state.last_used, id, state.offset));
        }
        let states = node.states.iter().map(|state| (state.offset, state.page)).collect();
        Removed { pages: node.pages, states }
    }

    fn root_key(&self, tenant: &str) -> u64 {
        // A page of tokens is hashed with its length, so no page collides with a tenant by construction.
        let bytes: Vec<u32> = tenant.bytes().map(u32::from).collect();
        (self.hash)(self.root, &bytes)
    }

    fn key_of(&self, tenant: &str, parent: Option<NodeId>) -> u64 {
        parent.map_or_else(|| self.root_key(tenant), |parent| self.nodes[parent].key)
    }
}

fn remove_from<K: Eq + std::hash::Hash>(index: &mut HashMap<K, Vec<NodeId>>, key: K, id: NodeId) {
    if let Some(ids) = index.get_mut(&key) {
        ids.retain(|&other| other != id);
        if ids.is_empty() {
            index.remove(&key);
        }
    }
}
