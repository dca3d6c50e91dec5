//! Snapshots of recurrent states: the state of a sequence behind the first tokens of a page.
//!
//! A snapshot belongs to the node of its last token, so tokens and tenant are compared with those of the
//! page. Snapshots are evicted one by one, the least recently used first, or with their node.

use super::{NodeId, PrefixCache};
use crate::pages::PageId;

/// A recurrent state behind the first `offset` tokens of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) offset: u32,
    pub(super) page: PageId,
    pub(super) last_used: u64,
}

/// The deepest state of a chain of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHit {
    /// Pages of the chain before that of the state.
    pub before: usize,
    /// The node that it belongs to.
    pub node: NodeId,
    /// Tokens of the node that the state has seen.
    pub offset: u32,
    /// The page of the state.
    pub page: PageId,
}

impl PrefixCache {
    /// Adds the state behind the first `offset` tokens of a node. `false` if the node has one there already;
    /// otherwise the caller's reference passes to the cache.
    pub fn attach(&mut self, node: NodeId, offset: u32, page: PageId) -> bool {
        self.clock += 1;
        let last_used = self.clock;
        let holder = &mut self.nodes[node];
        assert!((1..=holder.tokens.len()).contains(&(offset as usize)), "a state lies inside its page");
        if holder.states.iter().any(|state| state.offset == offset) {
            return false;
        }
        holder.states.push(Snapshot { offset, page, last_used });
        self.states.insert((last_used, node, offset));
        true
    }

    /// The state with the most tokens of a chain of full pages, and of the first tokens of a page behind it.
    /// With `whole_pages`, only states at the ends of pages count.
    pub fn deepest(
        &self,
        nodes: &[NodeId],
        partial: Option<(NodeId, u32)>,
        whole_pages: bool,
    ) -> Option<StateHit> {
        let full = self.page_size as u32;
        let chain: Vec<(NodeId, u32)> = nodes.iter().map(|&node| (node, full)).chain(partial).collect();
        chain.iter().enumerate().rev().find_map(|(before, &(node, tokens))| {
            let usable = |offset: u32| offset <= tokens && (!whole_pages || offset == full);
            let states = self.nodes[node].states.iter().filter(|state| usable(state.offset));
            let state = states.max_by_key(|state| state.offset)?;
            Some(StateHit { before, node, offset: state.offset, page: state.page })
        })
    }

    /// Notes that a state is used.
    pub fn use_state(&mut self, node: NodeId, offset: u32) {
        self.clock += 1;
        let clock = self.clock;
        let states = &mut self.nodes[node].states;
        if let Some(state) = states.iter_mut().find(|state| state.offset == offset) {
            self.states.remove(&(state.last_used, node, offset));
            state.last_used = clock;
            self.states.insert((clock, node, offset));
        }
    }

    /// Removes the least recently used state whose page `wanted` accepts; the cache's reference passes to the
    /// caller.
    pub fn evict_state(&mut self, wanted: impl Fn(PageId) -> bool) -> Option<PageId> {
        let found = self.states.iter().find_map(|&(last_used, node, offset)| {
            let at = self.nodes[node].states.iter().position(|state| state.offset == offset)?;
            wanted(self.nodes[node].states[at].page).then_some((last_used, node, offset, at))
        });
        let (last_used, node, offset, at) = found?;
        self.states.remove(&(last_used, node, offset));
        self.counters.state_evictions += 1;
        Some(self.nodes[node].states.swap_remove(at).page)
    }

    /// The pages of all states.
    pub fn state_pages(&self) -> impl Iterator<Item = PageId> {
        let states = self.states.iter().map(|&(_, node, offset)| (node, offset));
        states.filter_map(|(node, offset)| {
            self.nodes[node].states.iter().find(|state| state.offset == offset).map(|state| state.page)
        })
    }

    /// States in the cache.
    pub fn states(&self) -> usize {
        self.states.len()
    }
}
