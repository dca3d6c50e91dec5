//! The groups of layers of a model, and how their KV pages share the memory.
//!
//! Layers with a sliding window need the pages of the window only, so they have pages of their own where the
//! context is longer than the window. How many there are follows from those of the other layers: what a
//! sequence with the whole context needs, and for each further sequence two windows, its own and one in the
//! prefix cache, but at least a page for every four, since requests are mostly shorter than the context.

use fulmen_core::{DType, KV_PAGE, KvPool, PageLayout, pages_of};
use fulmen_model::ModelError;
use fulmen_model::arch::{Config, Stage};

use crate::pages::{GroupConfig, GroupKind, PageAllocator};

/// Full pages for each page of a window, at most.
const FULL_PER_WINDOW: u32 = 4;

/// KV pages by group of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvPages {
    /// Of layers that see everything, or of all layers.
    pub(super) full: u32,
    /// Of layers with a window; 0 if they have no pages of their own.
    pub(super) window: u32,
}

/// How many pages of a window go with so many full pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageGroups {
    /// The window of a group of its own.
    pub(super) window: Option<u32>,
    /// Pages of one sequence with the whole context.
    least: KvPages,
    /// Pages of the window of a sequence that decodes.
    steady: u32,
    /// Pages of the window that were asked for; 0 for none.
    asked: u32,
}

impl PageGroups {
    /// Those of an engine for sequences of `context` positions and steps of `max_rows` rows, with so many
    /// pages of a window unless that is 0.
    pub(super) fn new(config: &Config, context: u32, max_rows: u32, asked: u32) -> PageGroups {
        let whole = Stage::whole(config.layers);
        let window = config.cached_layers(whole).find_map(|layer| config.variant.window_of(layer));
        let window = window.filter(|_| config.delta_net.is_none());
        PageGroups { asked, ..PageGroups::with_window(window, context, max_rows) }
    }

    fn with_window(window: Option<u32>, context: u32, max_rows: u32) -> PageGroups {
        let full = pages_of(context);
        let none = PageGroups { window: None, least: KvPages { full, window: 0 }, steady: 0, asked: 0 };
        let Some(positions) = window else { return none };
        let group = GroupConfig { kind: GroupKind::Window { positions }, ..GroupConfig::full(1) };
        let Ok(allocator) = PageAllocator::new(KV_PAGE, &[group]) else { return none };
        let demand = |chunk| allocator.demand(0, context, chunk);
        match demand(1) < full {
            true => PageGroups {
                window: Some(positions),
                least: KvPages { full, window: demand(max_rows) },
                steady: demand(1),
                asked: 0,
            },
            false => none,
        }
    }

    /// The pages that go with so many full ones: those that were asked for, else never more of a window than
    /// of the others.
    pub(super) fn pages(&self, full: u32) -> KvPages {
        if self.window.is_none() {
            return KvPages { full, window: 0 };
        }
        if self.asked > 0 {
            return KvPages { full, window: self.asked };
        }
        let further = u64::from(full.saturating_sub(self.least.full));
        let of_sequences =
            further.saturating_mul(2 * u64::from(self.steady)) / u64::from(self.least.full + 1);
        let beside = of_sequences.max(further / u64::from(FULL_PER_WINDOW));
        let window = u32::try_from(beside).unwrap_or(u32::MAX).saturating_add(self.least.window);
        KvPages { full, window: window.min(full) }
    }
}

/// The KV pages of a stage of a model, by group.
pub(super) struct StagePools {
    /// Of layers that see everything, or of all layers.
    pub(super) full: KvPool,
    /// Of layers with a window, if they have pages of their own.
    pub(super) window: KvPool,
}

impl StagePools {
    pub(super) fn new(
        config: &Config,
        cache: DType,
        stage: Stage,
        groups: &PageGroups,
    ) -> Result<StagePools, ModelError> {
        let of = |window: bool| {
            let layers = config.cached_layers(stage).filter(|&layer| groups.has(config, layer) == window);
            let layers = layers.map(|layer| layout(config, cache, layer)).collect::<Result<_, ModelError>>();
            layers.map(|layers| KvPool { layers, n_pages: 0 })
        };
        Ok(StagePools { full: of(false)?, window: of(true)? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.full.layers.is_empty() && self.window.layers.is_empty()
    }

    /// Bytes of so many pages and of `beside` more in each group.
    pub(super) fn bytes(&self, pages: KvPages, beside: u32) -> u64 {
        let bytes = |pool: &KvPool, pages: u32| {
            (pool.page_bytes() as u64).saturating_mul(u64::from(pages) + u64::from(beside))
        };
        bytes(&self.full, pages.full).saturating_add(bytes(&self.window, pages.window))
    }

    /// The most full pages that fit into `bytes` with the pages of windows that go with them and `beside`
    /// more in each group.
    pub(super) fn pages_in(&self, groups: &PageGroups, bytes: u64, beside: u32) -> u32 {
        let (mut fits, mut too_many) = (0, u32::MAX - 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            match self.bytes(groups.pages(middle), beside) <= bytes {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        fits
    }
}

impl PageGroups {
    /// Whether a layer has the pages of the window.
    pub(super) fn has(&self, config: &Config, layer: u32) -> bool {
        self.window.is_some() && config.variant.window_of(layer).is_some()
    }
}

/// The KV page of a layer.
pub(super) fn layout(config: &Config, cache: DType, layer: u32) -> Result<PageLayout, ModelError> {
    PageLayout::new(cache, config.heads_of(layer)).map_err(|problem| ModelError::Option {
        what: "the type of the KV cache",
        expected: "F16, Q8_0 or F32".to_owned(),
        found: problem.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_pages_of_its_own_if_the_context_is_longer() {
        let groups = |window, context| PageGroups::with_window(window, context, 512);
        assert_eq!(groups(None, 8192).pages(1000), KvPages { full: 1000, window: 0 });
        assert_eq!(groups(Some(1024), 1152).window, None, "ten pages, which a decoding sequence may have");
        assert_eq!(groups(Some(1024), 1408).window, Some(1024));
    }

    #[test]
    fn windows_get_what_their_sequences_need_and_never_more_than_the_others() {
        // 10 pages of a sequence that decodes, 13 of one with a chunk.
        let groups = PageGroups::with_window(Some(1024), 8192, 512);
        assert_eq!((groups.steady, groups.least), (10, KvPages { full: 64, window: 13 }));
        assert_eq!(groups.pages(64), groups.least);
        assert_eq!(groups.pages(64 + 650), KvPages { full: 714, window: 13 + 200 });
        // A short window, or a long context: a quarter.
        let groups = PageGroups::with_window(Some(128), 8192, 512);
        assert_eq!((groups.steady, groups.pages(464)), (3, KvPages { full: 464, window: 6 + 100 }));
        assert_eq!(groups.pages(4), KvPages { full: 4, window: 4 });
    }

    #[test]
    fn as_many_pages_as_fit_are_found() {
        let heads = fulmen_core::Heads { n_heads: 1, n_kv_heads: 1, head_dim: 32 };
        let layout = PageLayout::new(DType::F32, heads).unwrap();
        let pool = |layers| KvPool { layers: vec![layout; layers], n_pages: 0 };
        for (window, layers) in [(Some(128), [1, 5]), (Some(128), [0, 3]), (None, [2, 0])] {
            let groups = PageGroups::with_window(window, 4096, 256);
            let pools = StagePools { full: pool(layers[0]), window: pool(layers[1]) };
            for bytes in [40 << 20, 999_999_999] {
                let pages = pools.pages_in(&groups, bytes, 1);
                assert!(pools.bytes(groups.pages(pages), 1) <= bytes);
                assert!(pools.bytes(groups.pages(pages + 1), 1) > bytes || layers[0] == 0, "{pages}");
            }
        }
    }
}
