//! Mutated model files, importance matrices, tokenizers and chat templates: whatever the bytes, there must be
//! no panic, no hang and no large allocation.
//!
//! The files of `tests/corpus` are read unchanged and then mutated. The tests include a short run;
//! `scripts/fuzz` runs for hours, with `FULMEN_FUZZ_CASES` and another `FULMEN_FUZZ_SEED` each time. A
//! failing input is written to the target folder and its path is
//! printed; add it to the corpus with the fix, so that every run reads it.
//!
//! These are seeded mutations, not coverage-guided fuzzing: they run on stable Rust without another tool, are
//! reproducible, and the format has few enough fields that random overwrites reach them.

mod allocations;
mod corpus;
mod gguf;
mod importance;
mod json;
mod mutate;
mod safetensors;
mod template;
mod tokenizer;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Allocation limit for reading a small file, both at once and in total.
const MAX_BYTES: usize = 64 << 20;
/// Far longer than any of these files takes, even on a busy machine.
const MAX_TIME: Duration = Duration::from_secs(10);

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, is {text:?}")),
        Err(_) => default,
    }
}

/// Runs `check` on `cases` inputs, each from its own random sequence, so that cases are independent. `check`
/// returns whether it accepted its input.
fn fuzz(name: &str, cases: u64, make: impl Fn(&mut fastrand::Rng) -> Vec<u8>, check: impl Fn(&[u8]) -> bool) {
    let seed = number("FULMEN_FUZZ_SEED", 1);
    let (mut accepted, mut longest, mut largest) = (0u64, Duration::ZERO, 0);
    let began = Instant::now();
    // The first panic is reported with its input instead of a backtrace.
    for case in 0..cases {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ case);
        let input = make(&mut random);
        let start = Instant::now();
        let (result, peak) = allocations::peak(|| catch_unwind(AssertUnwindSafe(|| check(&input))));
        let time = start.elapsed();
        let failed = match result {
            Err(_) => Some("it panicked".to_owned()),
            Ok(_) if peak > MAX_BYTES => Some(format!("it allocated {peak} bytes")),
            Ok(_) if time > MAX_TIME => Some(format!("it took {time:?}")),
            Ok(taken) => {
                accepted += u64::from(taken);
                None
            }
        };
        if let Some(why) = failed {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{seed}-{case}.bin"));
            std::fs::write(&path, &input).expect("the target folder can be written to");
            panic!("{name}, seed {seed}, case {case}: {why}; the input is in {}", path.display());
        }
        (longest, largest) = (longest.max(time), largest.max(peak));
    }
    println!(
        "{name}: {cases} files in {:.1} s, {accepted} accepted, at most {largest} bytes allocated, \
         longest {longest:?}",
        began.elapsed().as_secs_f64(),
    );
    assert!(accepted > 0 && accepted < cases, "mutations that are all rejected or all accepted test little");
}
