//! Layers with a sliding window: their pages are freed behind it, and the prefix cache keeps them as long as
//! there is room.

use fulmen_engine::mock::MockSampling;
use fulmen_engine::pages::{GroupConfig, GroupKind};
use fulmen_engine::step::TableEdit;
use fulmen_engine::{GroupStats, SamplingParams};

use super::caching::run;
use super::*;

/// A window of 6 positions with so many pages of its own, beside 64 pages of full attention.
fn windows(pages: u32) -> SchedulerConfig {
    let window = GroupConfig { kind: GroupKind::Window { positions: 6 }, pages, host_pages: 0 };
    SchedulerConfig { groups: vec![GroupConfig::full(64), window], ..config(64) }
}

fn group(driver: &Driver<MockDevice>) -> GroupStats {
    driver.scheduler().stats().window_group().expect("there is a group with a window")
}

#[test]
fn a_prompt_holds_its_window_and_a_chunk_and_a_decoding_sequence_its_window() {
    let config = SchedulerConfig { prefix_cache: false, buckets: vec![1, 2, 4, 8], ..windows(5) };
    let mut driver = driver(&config);
    driver.submit(Request::new(prompt(40), 20), ms(0)).unwrap();
    let (mut prefilling, mut decoding) = (0, 0);
    while driver.step(ms(0)) == Progress::Busy {
        let used = group(&driver).pages - group(&driver).free;
        match driver.scheduler().stats().decode_rows {
            0 => prefilling = prefilling.max(used),
            _ => decoding = decoding.max(used),
        }
    }
    // Chunks of 8 rows are two pages, and the window before them lies in up to two.
    assert_eq!((prefilling, decoding), (4, 3));
    driver.scheduler().counted_back().unwrap();
}

/// Pages that were freed are taken out of the table with the next page that enters it.
#[test]
fn the_table_forgets_pages_behind_the_window() {
    let mut scheduler = scheduler(SchedulerConfig { prefix_cache: false, ..windows(20) });
    scheduler.submit(Request::new(prompt(16), 20), ms(0)).unwrap();
    let mut table = [None; 16];
    for step in 0..12 {
        let plan = scheduler.plan(ms(0)).unwrap();
        for &TableEdit { group, index, page, .. } in &plan.prologue.table {
            if group == 1 {
                table[index as usize] = page;
            }
        }
        let position = plan.rows.positions[0];
        let first = (position + 1).saturating_sub(6) / 4;
        let last = plan.rows.positions[plan.rows.active as usize - 1] / 4;
        for (index, page) in (0..).zip(table) {
            let new = (first..=last).contains(&index);
            assert!(page.is_some() || !new, "step {step}: the page at {index} is missing");
            // One more may be left until the next page comes.
            assert!(page.is_none() || new || index + 1 == first, "step {step}: the page at {index} is left");
        }
        answer(&mut scheduler, &plan, 5);
    }
}

#[test]
fn prefixes_with_windows_are_found_like_others_while_there_is_room() {
    let mut driver = driver(&windows(64));
    assert_eq!(run(&mut driver, Request::new(prompt(30), 4)).0, 0);
    assert_eq!(run(&mut driver, Request::new(prompt(30), 4)).0, 29, "the same prompt");
    // A common beginning of 17 tokens: the window before it was kept, too, and the page at its end is copied.
    let other: Vec<u32> = prompt(17).into_iter().chain(60..70).collect();
    assert_eq!(run(&mut driver, Request::new(other, 4)).0, 17);
    let mut conversation = (70..90).collect::<Vec<u32>>();
    for turn in 0..4 {
        let (cached, tokens) = run(&mut driver, Request::new(conversation.clone(), 7));
        assert_eq!(cached, if turn == 0 { 0 } else { conversation.len() - 3 }, "turn {turn}");
        conversation.extend(tokens);
        conversation.extend([50, 51]);
    }
    driver.scheduler().audit().unwrap();
}

/// What was evicted is computed again from the last border whose window is there, and enters the cache again.
#[test]
fn without_its_window_a_prefix_is_found_up_to_an_earlier_border_or_not_at_all() {
    // A prompt of 24 tokens takes 6 pages and is done in one chunk.
    let config = windows(11);
    let mut driver = driver(&config);
    assert_eq!(run(&mut driver, Request::new(prompt(24), 1)).0, 0);
    let cached = driver.scheduler().stats();
    assert_eq!((cached.cached_pages, cached.cached_window_pages), (6, 6));
    // Another prompt takes 9 pages: the first 4 of the others go, those at its end stay longest.
    assert_eq!(run(&mut driver, Request::new((40..73).collect(), 1)).0, 0);
    let stats = driver.scheduler().stats();
    assert!(stats.prefix_cache.window_evictions > 0 && stats.prefix_cache.evictions == 0, "{stats:?}");
    assert_eq!(run(&mut driver, Request::new([prompt(12), vec![30]].concat(), 1)).0, 0, "behind page 2");
    assert_eq!(run(&mut driver, Request::new([prompt(24), vec![30]].concat(), 1)).0, 24);
    // The pages of the short prompt came back.
    assert_eq!(run(&mut driver, Request::new([prompt(12), vec![31]].concat(), 1)).0, 12);
    driver.scheduler().audit().unwrap();
}

#[test]
fn of_many_equal_prompts_with_windows_few_are_computed() {
    for batch_invariant in [false, true] {
        let mut driver = driver(&SchedulerConfig { batch_invariant, ..windows(60) });
        let requests = (0..8).map(|last| {
            let mut prompt = prompt(41);
            prompt[40] = last;
            Request::new(prompt, 3)
        });
        check_answers(&mut driver, requests.collect());
        let stats = driver.scheduler().stats();
        assert!(stats.prefill_rows <= 3 * 41 + 8, "{stats:?}");
    }
}

/// Each holds 3 pages of the window at most, whatever its length, and prefill takes 4 chunks of two pages.
#[test]
fn windows_that_fit_are_admitted_and_others_wait() {
    let mut driver = driver(&SchedulerConfig { buckets: vec![1, 2, 4, 8], max_sequences: 8, ..windows(14) });
    for seed in 0..6 {
        let sampling = SamplingParams::new(MockSampling { seed });
        driver.submit(Request { sampling, ..Request::new(prompt(8 + seed as u32), 30) }, ms(0)).unwrap();
    }
    let mut most = 0;
    while driver.step(ms(0)) == Progress::Busy {
        most = most.max(driver.scheduler().stats().running);
    }
    let stats = driver.scheduler().stats();
    assert!((3..6).contains(&most), "{most} at a time");
    assert_eq!((stats.finished, stats.dropped), (6, 0), "nobody is admitted in vain: {stats:?}");
    driver.scheduler().counted_back().unwrap();
}

#[test]
fn a_window_that_has_too_few_pages_for_its_chunks_bounds_the_context() {
    let driver = driver(&SchedulerConfig { context: 4096, ..windows(5) });
    assert_eq!(driver.scheduler().context(), 20, "a chunk of 32 rows does not fit beside the window");
}
