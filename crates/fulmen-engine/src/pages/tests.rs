use super::*;

fn allocator(groups: &[GroupConfig]) -> PageAllocator {
    PageAllocator::new(4, groups).expect("the groups are valid")
}

fn ids(pages: &SequencePages, group: usize) -> Vec<u32> {
    pages.list(group).iter().map(|(_, entry)| entry.id.0).collect()
}

#[test]
fn a_pool_counts_references() {
    let mut pool = PagePool::new(2);
    let page = pool.allocate().unwrap();
    pool.retain(page);
    pool.release(page);
    assert_eq!((pool.references(page), pool.free()), (1, 1));
    let leak = pool.counted_back("pages").unwrap_err();
    assert_eq!(leak.to_string(), "not counted back: pages: 1 of 2 are still held");
    pool.release(page);
    pool.counted_back("pages").unwrap();
    assert_eq!(
        [pool.allocate(), pool.allocate(), pool.allocate()].map(|page| page.is_ok()),
        [true, true, false]
    );
}

#[test]
#[should_panic(expected = "page 0 is released and not in use")]
fn a_page_is_not_released_twice() {
    let mut pool = PagePool::new(1);
    let page = pool.allocate().unwrap();
    pool.release(page);
    pool.release(page);
}

#[test]
fn the_nth_allocation_fails_once() {
    let mut pool = PagePool::new(4);
    pool.fail_allocation(2);
    assert_eq!([(); 4].map(|()| pool.allocate().is_ok()), [true, false, true, true]);
}

#[test]
fn lists_grow_by_whole_pages_and_keep_what_they_got() {
    let mut allocator = allocator(&[GroupConfig::full(3)]);
    let mut pages = allocator.empty();
    for (positions, held) in [(0, 0), (1, 1), (4, 1), (5, 2), (12, 3)] {
        allocator.grow(&mut pages, 0, positions).unwrap();
        assert_eq!(pages.held(), held, "{positions} positions");
    }
    assert_eq!(allocator.grow(&mut pages, 0, 13), Err(OutOfPages));
    assert_eq!(pages.held(), 3);
    allocator.release(&mut pages);
    allocator.counted_back().unwrap();
}

#[test]
fn a_shared_page_is_copied_by_whoever_writes_first() {
    let mut allocator = allocator(&[GroupConfig::full(4)]);
    let mut first = allocator.empty();
    allocator.grow(&mut first, 0, 6).unwrap();
    let (mut second, copies) = allocator.fork(&first).unwrap();
    assert_eq!((copies.len(), ids(&second, 0)), (0, vec![0, 1]));

    let copy = allocator.make_writable(&mut second, 0, 1).unwrap();
    assert_eq!(copy, Some(Transfer::Copy { group: 0, from: PageId(1), to: PageId(2) }));
    assert_eq!((ids(&first, 0), ids(&second, 0)), (vec![0, 1], vec![0, 2]));
    // The other one is alone with its page now.
    assert_eq!(allocator.make_writable(&mut first, 0, 1), Ok(None));

    allocator.release(&mut first);
    assert_eq!(allocator.free(0), 2);
    allocator.release(&mut second);
    allocator.counted_back().unwrap();
}

#[test]
fn copy_on_write_without_a_free_page_changes_nothing() {
    let mut allocator = allocator(&[GroupConfig::full(1)]);
    let mut first = allocator.empty();
    allocator.grow(&mut first, 0, 1).unwrap();
    let (mut second, _) = allocator.fork(&first).unwrap();
    assert_eq!(allocator.make_writable(&mut second, 0, 0), Err(OutOfPages));
    assert_eq!(ids(&second, 0), [0]);
    allocator.release(&mut first);
    allocator.release(&mut second);
    allocator.counted_back().unwrap();
}

#[test]
fn pages_behind_a_window_are_freed() {
    let window = GroupConfig { kind: GroupKind::Window { positions: 6 }, pages: 10, host_pages: 0 };
    let mut allocator = allocator(&[GroupConfig::full(10), window]);
    let mut pages = allocator.empty();
    for group in [0, 1] {
        allocator.grow(&mut pages, group, 20).unwrap();
    }
    // A row at position 8 sees positions 3 to 8, one at 9 sees 4 to 9.
    allocator.free_behind(&mut pages, 8);
    assert_eq!((pages.list(1).first(), pages.list(0).first()), (0, 0));
    allocator.free_behind(&mut pages, 9);
    assert_eq!((pages.list(1).first(), pages.list(1).held(), pages.list(0).held()), (1, 4, 5));
    assert_eq!(pages.list(1).get(0), None);
    assert_eq!(pages.list(1).get(1).map(|entry| entry.id), Some(PageId(1)));
    allocator.free_behind(&mut pages, 1000);
    assert_eq!(pages.list(1).held(), 0);
    allocator.release(&mut pages);
    allocator.counted_back().unwrap();
}

#[test]
fn a_recurrent_state_is_one_page_and_its_snapshot_another() {
    let state = GroupConfig { kind: GroupKind::Recurrent, pages: 3, host_pages: 0 };
    let mut allocator = allocator(&[state]);
    let mut pages = allocator.empty();
    allocator.grow(&mut pages, 0, 1000).unwrap();
    assert_eq!(pages.held(), 1);
    let (snapshot, copy) = allocator.snapshot(0, PageId(0)).unwrap();
    assert_eq!(copy, Transfer::Copy { group: 0, from: PageId(0), to: snapshot });
    let (mut forked, copies) = allocator.fork(&pages).unwrap();
    assert_eq!(copies, [Transfer::Copy { group: 0, from: PageId(0), to: PageId(2) }]);
    assert_eq!(allocator.fork(&pages), Err(OutOfPages));
    allocator.pool_mut(0).release(snapshot);
    allocator.release(&mut forked);
    allocator.release(&mut pages);
    allocator.counted_back().unwrap();
}

#[test]
fn swapping_out_and_in_keeps_order_and_writers() {
    let group = GroupConfig { kind: GroupKind::Full, pages: 4, host_pages: 3 };
    let mut allocator = allocator(&[group]);
    let mut pages = allocator.empty();
    allocator.grow(&mut pages, 0, 12).unwrap();
    pages.list_mut(0).get_mut(1).unwrap().writer = Writer::Decode;

    // Only pages that were written are copied: 8 positions are 2 pages.
    let (mut swapped, out) = allocator.swap_out(&pages, 8).unwrap();
    assert_eq!((swapped.held(0), out.len(), allocator.host_free(0)), (2, 2, 1));
    assert_eq!(allocator.swap_out(&pages, 8), Err(OutOfPages), "the host has one page left");
    assert_eq!(allocator.host_free(0), 1);
    allocator.release(&mut pages);

    let mut other = allocator.empty();
    allocator.grow(&mut other, 0, 12).unwrap();
    assert_eq!(allocator.swap_in(&mut swapped).err(), Some(OutOfPages));
    assert_eq!(swapped.held(0), 2);
    allocator.release(&mut other);
    let (mut pages, back) = allocator.swap_in(&mut swapped).unwrap();
    let host = |transfer: &Transfer| match *transfer {
        Transfer::SwapOut { to, .. } => to,
        Transfer::SwapIn { from, .. } => from,
        Transfer::Copy { .. } => panic!("a copy"),
    };
    assert_eq!(out.iter().map(host).collect::<Vec<_>>(), back.iter().map(host).collect::<Vec<_>>());
    let writers: Vec<Writer> = pages.list(0).iter().map(|(_, entry)| entry.writer).collect();
    assert_eq!(writers, [Writer::Prefill, Writer::Decode]);
    allocator.release(&mut pages);
    allocator.counted_back().unwrap();
}

#[test]
fn pools_that_cannot_work_are_refused() {
    let refused =
        |page_size, groups: &[GroupConfig]| PageAllocator::new(page_size, groups).unwrap_err().to_string();
    assert_eq!(refused(0, &[GroupConfig::full(1)]), "positions of a KV page: expected at least 1, got 0");
    assert_eq!(refused(4, &[]), "groups of layers: expected at least 1, got 0");
    assert_eq!(refused(4, &[GroupConfig::full(0)]), "KV pages of a group: expected at least 1, got 0");
}

/// Random forks, growth, copies on write and releases against a model that knows the contents.
#[test]
fn random_operations_never_mix_pages_up() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut allocator = allocator(&[GroupConfig::full(rng.u32(1..12))]);
        // What each page holds, and what each sequence expects to find.
        let mut memory = [[0u32; 4]; 12];
        let mut sequences: Vec<(SequencePages, Vec<u32>)> = Vec::new();
        for step in 1..200 {
            match rng.u32(..10) {
                0 => sequences.push((allocator.empty(), Vec::new())),
                1 if !sequences.is_empty() => {
                    let (pages, tokens) = &sequences[rng.usize(..sequences.len())];
                    let tokens = tokens.clone();
                    sequences.push((allocator.fork(pages).unwrap().0, tokens));
                }
                2 if !sequences.is_empty() => {
                    let (mut pages, _) = sequences.swap_remove(rng.usize(..sequences.len()));
                    allocator.release(&mut pages);
                }
                _ if !sequences.is_empty() => {
                    let at = rng.usize(..sequences.len());
                    let (pages, tokens) = &mut sequences[at];
                    let position = tokens.len() as u32;
                    if allocator.grow(pages, 0, position + 1).is_err() {
                        continue;
                    }
                    let Ok(copy) = allocator.make_writable(pages, 0, position / 4) else { continue };
                    if let Some(Transfer::Copy { from, to, .. }) = copy {
                        memory[to.0 as usize] = memory[from.0 as usize];
                    }
                    let page = pages.list(0).get(position / 4).unwrap().id;
                    memory[page.0 as usize][position as usize % 4] = step;
                    tokens.push(step);
                }
                _ => {}
            }
            for (pages, tokens) in &sequences {
                let found = (0..tokens.len()).map(|at| {
                    let page = pages.list(0).get(at as u32 / 4).unwrap().id;
                    memory[page.0 as usize][at % 4]
                });
                assert!(found.eq(tokens.iter().copied()), "seed {seed}, step {step}");
            }
        }
        sequences.iter_mut().for_each(|(pages, _)| allocator.release(pages));
        allocator.counted_back().unwrap();
    }
}
