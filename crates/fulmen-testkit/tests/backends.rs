//! The table on every backend. Another backend is one more line.

use fulmen_core::DType;
use fulmen_cpu::{CpuDispatcher, isa::Isa};
use fulmen_cuda::CudaDispatcher;
use fulmen_testkit::{
    Filter, LARGE_ROWS, QUICK_ROWS, Sample, Size, device_or_say_so, run_sample, seed, this_test,
};

fulmen_testkit::enroll!(cpu, CpuDispatcher::new());

/// Types of weights that CUDA refuses by name.
const WITHOUT_KERNELS: [DType; 5] =
    [DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS, DType::IQ3_S];

/// With `FULMEN_REQUIRE_CUDA=1` it fails without a device.
#[test]
fn cuda() {
    let Some(mut cuda) = device_or_say_so(CudaDispatcher::open(0), "FULMEN_REQUIRE_CUDA") else { return };
    let sample = Sample::of_large_rows(LARGE_ROWS);
    let report = run_sample(&mut cuda, &Filter::default(), &sample, seed());
    report.assert_good(&[], this_test!("cuda"));
    assert_eq!(report.unsupported_weights, WITHOUT_KERNELS);
}

/// Some quick rows on every instruction set but the widest, which the test above uses, on one thread.
#[test]
fn other_instruction_sets() {
    let filter = Filter { up_to: Some(Size::Quick), ..Filter::default() };
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::best()) {
        let mut cpu = CpuDispatcher::with_threads(1).with_isa(isa).expect("it is available");
        println!("{isa}:");
        let report = run_sample(&mut cpu, &filter, &Sample::of_all_rows(QUICK_ROWS), seed());
        report.assert_good(&[], this_test!("other_instruction_sets"));
    }
}
