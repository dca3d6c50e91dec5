//! Small Hugging Face folders give PyTorch's logits, across windows and contexts.

#[path = "golden/compare.rs"]
mod compare;
#[path = "golden/transformers.rs"]
mod golden;

use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::sample::some_of;

use golden::{goldens, load};

#[test]
fn logits_are_those_of_pytorch() {
    for golden in goldens() {
        let folder = golden.folder();
        for case in &golden.cases {
            let device = || Box::new(CpuDispatcher::with_threads(2));
            case.compare_chunks(|chunk| load(folder.path(), case, device(), chunk));
        }
    }
}

/// On a software GPU a prompt takes seconds: one of each model.
#[test]
fn wgpu_gives_the_same_logits() {
    for golden in goldens() {
        let folder = golden.folder();
        let what = format!("PyTorch's prompts for {} on wgpu", golden.cases[0].model);
        for case in some_of(&what, 1, &golden.cases) {
            let device = fulmen_wgpu::WgpuDispatcher::open(0).unwrap();
            case.compare_last(&load(folder.path(), case, Box::new(device), 64), "wgpu");
        }
    }
}
