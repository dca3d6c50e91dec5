//! Pages that sequences share through the prefix cache.

use std::sync::Arc;

use super::memory::KvMemory;
use crate::pages::{PageEntry, PageId, SequencePages, Writer};
use crate::prefix_cache::{Inserted, NodeId, StateHit};
use crate::request::RequestId;

/// The first tokens of a prompt, found in the cache.
#[derive(Debug, Default)]
pub(super) struct PrefixHit {
    pub(super) nodes: Vec<NodeId>,
    pub(super) partial: Option<PartialSource>,
    /// The recurrent state behind these tokens.
    pub(super) state: Option<StateHit>,
}

impl PrefixHit {
    pub(super) fn tokens(&self, page_size: u32) -> u32 {
        self.nodes.len() as u32 * page_size + self.partial.as_ref().map_or(0, PartialSource::tokens)
    }
}

/// A page whose first tokens continue a hit.
#[derive(Debug)]
pub(super) enum PartialSource {
    /// The last page of a finished sequence goes on where it ended.
    TakeOver { node: NodeId, tokens: u32 },
    /// A page of the cache is copied.
    Cached { node: NodeId, tokens: u32 },
    /// A page of a sequence that runs is copied.
    Live { pages: Vec<PageId>, writer: Writer, tokens: u32 },
}

impl PartialSource {
    pub(super) fn tokens(&self) -> u32 {
        match *self {
            PartialSource::TakeOver { tokens, .. }
            | PartialSource::Cached { tokens, .. }
            | PartialSource::Live { tokens, .. } => tokens,
        }
    }
}

impl KvMemory {
    /// Looks up the first tokens of a prompt. With `whole_pages`, partial pages are not looked for.
    pub(super) fn find_prefix(&self, tenant: &str, tokens: &[u32], whole_pages: bool) -> PrefixHit {
        let Some(cache) = &self.cache else { return PrefixHit::default() };
        let nodes = cache.find(tenant, None, tokens);
        let rest = &tokens[nodes.len() * self.page_size() as usize..];
        let partial =
            if whole_pages { None } else { cache.find_partial(tenant, nodes.last().copied(), rest) };
        let partial = partial.map(|found| match found.whole {
            true => PartialSource::TakeOver { node: found.node, tokens: found.tokens },
            false => PartialSource::Cached { node: found.node, tokens: found.tokens },
        });
        self.cut_to_state(PrefixHit { nodes, partial, state: None }, whole_pages)
    }

    /// Pages that a hit brings, and pages of it that are counted as available now and not afterwards.
    pub(super) fn hit_pages(&self, hit: &PrefixHit) -> (u32, u32) {
        let Some(cache) = &self.cache else { return (0, 0) };
        let unused = |node: &NodeId| cache.is_unused(*node);
        let mut brought = hit.nodes.len() as u32;
        let mut occupied = hit.nodes.iter().filter(|node| unused(node)).count() as u32;
        match &hit.partial {
            Some(PartialSource::TakeOver { .. }) => (brought, occupied) = (brought + 1, occupied + 1),
            Some(PartialSource::Cached { node, .. }) => occupied += u32::from(unused(node)),
            Some(PartialSource::Live { .. }) | None => {}
        }
        (brought, occupied)
    }

    /// The pages of a hit for a sequence, and how many tokens they hold.
    pub(super) fn adopt(&mut self, id: RequestId, hit: PrefixHit) -> (SequencePages, u32) {
        let mut pages = self.allocator.empty();
        let mut tokens = 0;
        let (state, all) = (hit.state, hit.tokens(self.page_size()));
        for group in self.groups() {
            pages.list_mut(group).start_at(self.allocator.first_seen(group, all));
        }
        if let Some(state) = state {
            self.put_state(&mut pages, state);
        }
        for (index, &node) in (0..).zip(&hit.nodes) {
            let Some(cache) = &mut self.cache else { break };
            cache.acquire(node);
            let (ids, writer) = cache.page(node);
            let seen =
                |(group, id): (usize, &Option<PageId>)| id.filter(|_| index >= pages.list(group).first());
            let ids: Vec<Option<PageId>> = ids.iter().enumerate().map(seen).collect();
            if ids.iter().skip(1).any(Option::is_some) {
                cache.use_windows(node);
            }
            self.retain_ids(&ids);
            push_page(&mut pages, &ids, writer, Some(node));
            tokens += self.page_size();
        }
        if let Some(partial) = hit.partial {
            tokens += self.adopt_partial(id, &mut pages, partial);
        }
        if (state.is_some() || self.caches_windows()) && tokens != all {
            // The state has seen more tokens than there are pages for, or the windows begin too late.
            self.release(&mut pages);
            tokens = 0;
        }
        (pages, tokens)
    }

    fn adopt_partial(&mut self, id: RequestId, pages: &mut SequencePages, source: PartialSource) -> u32 {
        let copied = match (source, &mut self.cache) {
            (PartialSource::TakeOver { node, tokens }, Some(cache)) => {
                let writer = cache.page(node).1;
                let removed = cache.remove(node);
                self.leave_cache(&removed.pages);
                // Its states are that of the sequence, and some before it: the cache gets them back.
                let first = pages.list(0).end() * self.page_size();
                let states = removed.states.into_iter().map(|(offset, page)| ((id, first + offset), page));
                self.frozen.extend(states);
                push_page(pages, &removed.pages, writer, None);
                return tokens;
            }
            (PartialSource::Cached { node, tokens }, Some(cache)) => {
                let (ids, writer) = cache.page(node);
                let ids = ids.to_vec();
                // Not to be evicted while room is made for the copy.
                cache.acquire(node);
                self.retain_ids(&ids);
                let whole: Option<Vec<PageId>> = ids.iter().copied().collect();
                let copied = whole.and_then(|whole| self.copy_page(&whole)).map(|to| (to, writer, tokens));
                self.release_ids(&ids);
                if let Some(cache) = &mut self.cache {
                    cache.release(node);
                }
                copied
            }
            (PartialSource::Live { pages, writer, tokens }, _) => {
                self.copy_page(&pages).map(|to| (to, writer, tokens))
            }
            _ => None,
        };
        let Some((ids, writer, tokens)) = copied else { return 0 };
        push_page(pages, &ids, writer, None);
        tokens
    }

    /// A copy of a page in all groups with attention, or `None` if there is no room for it.
    fn copy_page(&mut self, from: &[PageId]) -> Option<Vec<Option<PageId>>> {
        let (mut to, mut copies) = (Vec::new(), Vec::new());
        for (group, &page) in from.iter().enumerate() {
            self.make_room(group, 1);
            let Ok((id, copy)) = self.allocator.snapshot(group, page) else {
                self.release_ids(&to);
                return None;
            };
            to.push(Some(id));
            copies.push(copy);
        }
        self.transfers.extend(copies);
        Some(to)
    }

    /// Adds the full pages of a running sequence to the cache. Where it has an equal page, the sequence uses
    /// that one from its next row on.
    pub(super) fn cache_full_pages(
        &mut self,
        tenant: &Arc<str>,
        tokens: &[u32],
        completed: u32,
        pages: &mut SequencePages,
    ) {
        let size = self.page_size();
        for index in pages.list(0).cached_pages()..completed / size {
            let own = page_ids(pages, index, self.states);
            let Some(cache) = &mut self.cache else { return };
            let writer = pages.list(0).get(index).map_or(Writer::Decode, |entry| entry.writer);
            let range = (index * size) as usize..((index + 1) * size) as usize;
            match cache.insert(tenant, parent_of(pages, index), &tokens[range], &own, writer) {
                None => return,
                Some(Inserted::New(node)) => {
                    cache.acquire(node);
                    self.retain_ids(&own);
                    self.enter_cache(&own);
                    if let Some(entry) = pages.list_mut(0).get_mut(index) {
                        entry.node = Some(node);
                    }
                }
                Some(Inserted::Existing(node)) => self.use_cached(pages, index, node),
            }
        }
    }

    /// Puts a page of the cache in the place of a sequence's own, or behind its last one. In a group with a
    /// window the cache gets the page if it has none, and the sequence one only in the place of another.
    fn use_cached(&mut self, pages: &mut SequencePages, index: u32, node: NodeId) {
        let own = page_ids(pages, index, self.states);
        let Some(cache) = &mut self.cache else { return };
        cache.acquire(node);
        let (shared, writer) = cache.page(node);
        let shared = shared.to_vec();
        for (group, own) in own.into_iter().enumerate() {
            let window = self.has_window(group);
            let shared = shared.get(group).copied().flatten();
            match (shared, own) {
                (None, Some(own)) if window => self.add_window(node, group, own),
                (Some(_), None) if window => {}
                (Some(id), own) => {
                    let pool = self.allocator.pool_mut(group);
                    pool.retain(id);
                    own.into_iter().for_each(|own| pool.release(own));
                    let node = Some(node).filter(|_| group == 0);
                    pages.list_mut(group).put(index, PageEntry { id, writer, node });
                }
                (None, _) => {}
            }
        }
    }

    /// Looks up the next pages of a sequence whose pages so far are in the cache: another may have computed
    /// them since it was admitted. Returns the number of tokens that it has then.
    pub(super) fn extend_prefix(&mut self, tenant: &str, tokens: &[u32], pages: &mut SequencePages) -> u32 {
        let (size, first) = (self.page_size(), pages.list(0).cached_pages());
        if let Some(cache) = &self.cache {
            let rest = tokens.get((first * size) as usize..).unwrap_or_default();
            let nodes = cache.find(tenant, parent_of(pages, first), rest);
            let mut hit = self.cut_to_state(PrefixHit { nodes, ..PrefixHit::default() }, true);
            hit.nodes.truncate(self.window_reach(first, &hit.nodes).pages);
            if let Some(state) = hit.state {
                self.put_state(pages, state);
            }
            self.move_windows(pages, first, &hit.nodes);
            for (index, node) in (first..).zip(hit.nodes) {
                self.use_cached(pages, index, node);
            }
        }
        pages.list(0).cached_pages() * size
    }

    /// Adds the last, partial page of a sequence that ends. With recurrent states it is of use only if one of
    /// them is kept behind a token of it.
    pub(super) fn cache_last_page(
        &mut self,
        id: RequestId,
        tenant: &Arc<str>,
        tokens: &[u32],
        completed: u32,
        pages: &SequencePages,
    ) -> Option<(u32, NodeId)> {
        let (index, size) = (completed / self.page_size(), self.page_size());
        let entry = pages.list(0).get(index)?;
        let useful = self.states.is_none() || self.has_frozen(id, index, completed);
        if pages.list(0).cached_pages() != index || !useful {
            return None;
        }
        let tokens = &tokens[(index * size) as usize..completed as usize];
        let ids = page_ids(pages, index, self.states);
        let cache = self.cache.as_mut()?;
        match cache.insert(tenant, parent_of(pages, index), tokens, &ids, entry.writer)? {
            Inserted::New(node) => {
                self.retain_ids(&ids);
                self.enter_cache(&ids);
                Some((index, node))
            }
            Inserted::Existing(node) => Some((index, node)),
        }
    }
}

fn push_page(pages: &mut SequencePages, ids: &[Option<PageId>], writer: Writer, node: Option<NodeId>) {
    for (group, id) in ids.iter().enumerate() {
        let node = node.filter(|_| group == 0);
        id.iter().for_each(|&id| pages.list_mut(group).push(PageEntry { id, writer, node }));
    }
}

/// The page at `index` in each group of layers but for that of states, if the sequence has it.
pub(super) fn page_ids(pages: &SequencePages, index: u32, states: Option<usize>) -> Vec<Option<PageId>> {
    let lists = pages.lists().take(states.unwrap_or(usize::MAX));
    lists.map(|list| list.get(index).map(|entry| entry.id)).collect()
}

fn parent_of(pages: &SequencePages, index: u32) -> Option<NodeId> {
    pages.list(0).get(index.checked_sub(1)?)?.node
}
