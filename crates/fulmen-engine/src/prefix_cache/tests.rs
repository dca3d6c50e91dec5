use super::*;

const A: &[u32] = &[1, 2, 3, 4];
const B: &[u32] = &[5, 6, 7, 8];
const C: &[u32] = &[9, 10, 11, 12];

fn cache() -> PrefixCache {
    PrefixCache::new(4, &Namespace::default(), false)
}

/// Every page has the same key.
fn colliding() -> PrefixCache {
    PrefixCache::with_hash(4, false, 0, Box::new(|_, _| 0))
}

fn tenant(name: &str) -> Arc<str> {
    name.into()
}

fn add(cache: &mut PrefixCache, parent: Option<NodeId>, tokens: &[u32], page: u32) -> NodeId {
    match cache.insert(&tenant("t"), parent, tokens, &[Some(PageId(page))], Writer::Prefill) {
        Some(Inserted::New(node)) => node,
        other => panic!("{other:?}"),
    }
}

fn evict(cache: &mut PrefixCache) -> Option<Box<[Option<PageId>]>> {
    cache.evict().map(|removed| removed.pages)
}

fn pages(cache: &PrefixCache, nodes: &[NodeId]) -> Vec<u32> {
    nodes.iter().map(|&node| cache.page(node).0[0].unwrap().0).collect()
}

#[test]
fn full_pages_are_found_in_chains() {
    for mut cache in [cache(), colliding()] {
        let a = add(&mut cache, None, A, 10);
        let ab = add(&mut cache, Some(a), B, 11);
        add(&mut cache, Some(ab), C, 12);
        let b = add(&mut cache, None, B, 13);
        add(&mut cache, Some(b), C, 14);
        let find = |tokens: &[&[u32]]| pages(&cache, &cache.find("t", None, &tokens.concat()));
        assert_eq!(find(&[A, B, C]), [10, 11, 12]);
        assert_eq!(find(&[A, B, &[1]]), [10, 11]);
        assert_eq!(find(&[B, C]), [13, 14]);
        assert_eq!(find(&[A, C]), [10], "the page of C follows other tokens");
        assert_eq!(find(&[C]), [0; 0]);
        assert_eq!(find(&[&A[..3]]), [0; 0]);
        let after =
            |parent, tokens: &[&[u32]]| pages(&cache, &cache.find("t", Some(parent), &tokens.concat()));
        assert_eq!((after(a, &[B, C]), after(ab, &[C]), after(a, &[C])), (vec![11, 12], vec![12], vec![]));
    }
}

#[test]
fn tokens_and_tenants_are_compared_and_not_only_keys() {
    let mut cache = colliding();
    add(&mut cache, None, A, 10);
    assert!(cache.find("other tenant", None, A).is_empty());
    assert_eq!(cache.find_partial("other tenant", None, A), None);
    assert!(cache.find("t", None, B).is_empty());
    let other = cache.insert(&tenant("other tenant"), None, A, &[Some(PageId(11))], Writer::Prefill);
    assert!(matches!(other, Some(Inserted::New(_))));
    assert_eq!(pages(&cache, &cache.find("other tenant", None, A)), [11]);
    assert_eq!(pages(&cache, &cache.find("t", None, A)), [10]);
}

#[test]
fn the_key_depends_on_model_cache_type_tenant_and_what_came_before() {
    let state = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
    let root = |model: &str, cache_type: &str| {
        state.hash_one(Namespace { model: model.into(), cache_type: cache_type.into() })
    };
    let keys = BTreeSet::from([root("m", "f16"), root("m", "q8_0"), root("n", "f16"), root("mf", "16")]);
    assert_eq!(keys.len(), 4);
    let cache = cache();
    assert_ne!(cache.root_key("a"), cache.root_key("b"));
    assert_ne!((cache.hash)(1, A), (cache.hash)(2, A));
}

#[test]
fn an_equal_page_is_added_once() {
    let mut cache = cache();
    let a = add(&mut cache, None, A, 10);
    let again = cache.insert(&tenant("t"), None, A, &[Some(PageId(11))], Writer::Decode);
    assert_eq!(again, Some(Inserted::Existing(a)));
    let prefix = cache.insert(&tenant("t"), None, &A[..2], &[Some(PageId(11))], Writer::Decode);
    assert_eq!(prefix, Some(Inserted::Existing(a)), "a page that begins with these tokens is enough");
    assert_eq!(cache.pages(), 1);
}

#[test]
fn the_longest_partial_match_wins() {
    for mut cache in [cache(), colliding()] {
        let a = add(&mut cache, None, A, 10);
        let short = add(&mut cache, Some(a), &[5, 6], 11);
        let full = add(&mut cache, Some(a), &[5, 6, 9, 9], 12);
        add(&mut cache, Some(a), &[5, 8], 13);
        let find = |cache: &PrefixCache, tokens: &[u32]| cache.find_partial("t", Some(a), tokens);
        let matched = |node, tokens, whole| Some(PartialMatch { node, tokens, whole });
        assert_eq!(find(&cache, &[5, 6, 9, 1]), matched(full, 3, false));
        assert_eq!(find(&cache, &[5, 6, 7]), matched(short, 2, true), "it ends where the page ends");
        assert_eq!(find(&cache, &[6]), None);
        assert_eq!(find(&cache, &[]), None);
        assert_eq!(cache.find_partial("t", None, &[5, 6]), None, "the pages follow A");
        cache.acquire(short);
        assert_eq!(find(&cache, &[5, 6]).map(|found| found.whole), Some(false), "somebody uses it");
    }
}

#[test]
fn eviction_takes_the_least_recently_used_and_children_first() {
    let mut cache = cache();
    let a = add(&mut cache, None, A, 10);
    let ab = add(&mut cache, Some(a), B, 11);
    let c = add(&mut cache, None, C, 12);
    // A sequence uses A and B, which makes them the newest; C is used and released before.
    cache.acquire(c);
    cache.release(c);
    cache.acquire(a);
    cache.acquire(ab);
    assert_eq!(cache.evictable(), 1);
    assert_eq!(evict(&mut cache).as_deref(), Some(&[Some(PageId(12))][..]));
    assert_eq!(evict(&mut cache), None, "A and B are in use");
    cache.release(ab);
    cache.release(a);
    assert_eq!(cache.evictable(), 2);
    assert_eq!(evict(&mut cache).as_deref(), Some(&[Some(PageId(11))][..]), "the child before its parent");
    assert_eq!(pages(&cache, &cache.find("t", None, &[A, B].concat())), [10]);
    assert_eq!(evict(&mut cache).as_deref(), Some(&[Some(PageId(10))][..]));
    assert_eq!((cache.pages(), cache.evictable(), cache.counters.evictions), (0, 0, 3));
    assert!(cache.by_key.is_empty() && cache.by_first_token.is_empty());
}

#[test]
fn batch_invariant_caches_hold_what_prefill_wrote() {
    let mut cache = PrefixCache::new(4, &Namespace::default(), true);
    let mut insert = |tokens, writer| cache.insert(&tenant("t"), None, tokens, &[Some(PageId(1))], writer);
    assert_eq!(insert(A, Writer::Decode), None);
    assert_eq!(insert(&A[..2], Writer::Prefill), None);
    assert!(matches!(insert(A, Writer::Prefill), Some(Inserted::New(_))));
}

#[test]
fn the_deepest_state_of_a_chain_is_found() {
    for mut cache in [cache(), colliding()] {
        let a = add(&mut cache, None, A, 10);
        let ab = add(&mut cache, Some(a), B, 11);
        let abc = add(&mut cache, Some(ab), &C[..3], 12);
        assert_eq!(cache.deepest(&[a, ab], Some((abc, 3)), false), None);
        assert!(cache.attach(a, 4, PageId(0)) && cache.attach(ab, 1, PageId(1)));
        assert!(cache.attach(abc, 2, PageId(2)) && cache.attach(abc, 3, PageId(3)));
        assert!(!cache.attach(abc, 3, PageId(4)), "there is one already");
        let hit = |before, node, offset, page| Some(StateHit { before, node, offset, page: PageId(page) });
        let deepest = |nodes: &[NodeId], partial| cache.deepest(nodes, partial, false);
        assert_eq!(deepest(&[a, ab], Some((abc, 3))), hit(2, abc, 3, 3));
        assert_eq!(deepest(&[a, ab], Some((abc, 2))), hit(2, abc, 2, 2));
        assert_eq!(deepest(&[a, ab], Some((abc, 1))), hit(1, ab, 1, 1), "a state inside the page before");
        assert_eq!(deepest(&[a], Some((ab, 3))), hit(1, ab, 1, 1));
        assert_eq!(deepest(&[a], None), hit(0, a, 4, 0));
        assert_eq!(cache.deepest(&[a, ab], Some((abc, 3)), true), hit(0, a, 4, 0), "at the end of a page");
        assert_eq!((cache.states(), cache.state_pages().count()), (4, 4));
    }
}

#[test]
fn states_are_evicted_one_by_one_or_with_their_page() {
    let mut cache = cache();
    let a = add(&mut cache, None, A, 10);
    let b = add(&mut cache, Some(a), &B[..3], 11);
    for (node, offset, page) in [(a, 2, 0), (a, 4, 1), (b, 1, 2), (b, 3, 3)] {
        assert!(cache.attach(node, offset, PageId(page)));
    }
    cache.use_state(a, 2);
    assert_eq!(cache.evict_state(|page| page != PageId(1)), Some(PageId(2)), "the second oldest, as wanted");
    assert_eq!(cache.evict_state(|_| true), Some(PageId(1)), "the oldest; the one before it was used again");
    assert_eq!(cache.evict_state(|_| false), None);
    assert_eq!((cache.states(), cache.counters.state_evictions, cache.pages()), (2, 2, 2));
    let removed = cache.evict().unwrap();
    assert_eq!((&removed.pages[..], &removed.states[..]), (&[Some(PageId(11))][..], &[(3, PageId(3))][..]));
    assert_eq!(cache.remove(a).states, [(2, PageId(0))]);
    assert_eq!((cache.states(), cache.evict_state(|_| true)), (0, None));
}

#[test]
fn pages_of_windows_are_evicted_alone_and_come_back() {
    let mut cache = cache().with_windows_from(1, 0);
    let add = |cache: &mut PrefixCache, parent, tokens, page: u32| {
        let pages = [Some(PageId(page)), Some(PageId(page + 100))];
        match cache.insert(&tenant("t"), parent, tokens, &pages, Writer::Prefill) {
            Some(Inserted::New(node)) => node,
            other => panic!("{other:?}"),
        }
    };
    let a = add(&mut cache, None, A, 10);
    let ab = add(&mut cache, Some(a), B, 11);
    let c = add(&mut cache, None, C, 12);
    cache.use_windows(a);
    assert_eq!(cache.window_pages(1), 3);
    let wanted = |page: PageId| page != PageId(111);
    assert_eq!(cache.evict_window(1, wanted), Some(PageId(112)), "the oldest but one that is not wanted");
    assert_eq!(cache.evict_window(1, |_| true), Some(PageId(111)));
    assert_eq!(cache.evict_window(2, |_| true), None);
    assert_eq!(cache.page(ab).0, [Some(PageId(11)), None]);
    assert!(!cache.add_window(a, 1, PageId(7)), "it has one");
    assert!(cache.add_window(ab, 1, PageId(7)));
    assert_eq!((cache.window_pages(1), cache.counters.window_evictions), (2, 2));
    // With its node a page of a window goes, too.
    cache.use_windows(ab);
    assert_eq!(cache.remove(c).pages[..], [Some(PageId(12)), None]);
    assert_eq!(cache.remove(ab).pages[..], [Some(PageId(11)), Some(PageId(7))]);
    assert_eq!((cache.window_pages(1), cache.evict_window(1, |_| true)), (1, Some(PageId(110))));
}

#[test]
fn pages_of_windows_that_were_used_stay_longer() {
    for (bonus, first) in [(0, 110), (100, 111)] {
        let mut cache = cache().with_windows_from(1, bonus);
        for (tokens, page) in [(A, 10), (B, 11), (C, 12)] {
            let pages = [Some(PageId(page)), Some(PageId(page + 100))];
            let added = cache.insert(&tenant("t"), None, tokens, &pages, Writer::Prefill);
            let Some(Inserted::New(node)) = added else { panic!("{added:?}") };
            if page == 10 {
                cache.use_windows(node);
            }
        }
        assert_eq!(cache.evict_window(1, |_| true), Some(PageId(first)), "{bonus}");
    }
}
