//! The table on every backend. A further backend is one more line.

use fulmen_cpu::{CpuDispatcher, isa::Isa};
use fulmen_cuda::CudaDispatcher;
use fulmen_testkit::{Filter, LARGE_ROWS, Sample, Size, device_or_say_so, run_sample, seed, this_test};

fulmen_testkit::enroll!(cpu, CpuDispatcher::new());

/// With `FULMEN_REQUIRE_CUDA=1` it fails where there is no device.
#[test]
fn cuda() {
    let Some(mut cuda) = device_or_say_so(CudaDispatcher::open(0), "FULMEN_REQUIRE_CUDA") else { return };
    let sample = Sample::of_large_rows(LARGE_ROWS);
    let report = run_sample(&mut cuda, &Filter::default(), &sample, seed());
    report.assert_good(&[], this_test!("cuda"));
}

/// The processor's kernels exist once for each instruction set. One thread: the test above has them all.
#[test]
fn every_instruction_set() {
    let (filter, sample) =
        (Filter { up_to: Some(Size::Quick), ..Filter::default() }, Sample::of_large_rows(0));
    for isa in Isa::available() {
        let mut cpu = CpuDispatcher::with_threads(1).with_isa(isa).expect("it is available");
        println!("{isa}:");
        let report = run_sample(&mut cpu, &filter, &sample, seed());
        report.assert_good(&[], this_test!("every_instruction_set"));
    }
}
