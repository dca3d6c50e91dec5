//! The table on every backend. A further backend is one more line.

use fulmen_cpu::{CpuDispatcher, isa::Isa};
use fulmen_cuda::CudaDispatcher;
use fulmen_testkit::{Filter, Size, device_or_say_so, run_table, seed};

fulmen_testkit::enrol!(cpu, CpuDispatcher::new());

/// With `FULMEN_REQUIRE_CUDA=1` it fails where there is no device.
#[test]
fn cuda() {
    let Some(mut cuda) = device_or_say_so(CudaDispatcher::open(0), "FULMEN_REQUIRE_CUDA") else { return };
    let report = run_table(&mut cuda, &Filter::default(), seed());
    println!("{report}");
    assert!(report.is_good(&[]), "rows of the table fail: see above");
}

/// The processor's kernels exist once for each instruction set. One thread: the test above has them all.
#[test]
fn every_instruction_set() {
    let filter = Filter { up_to: Some(Size::Quick), ..Filter::default() };
    for isa in Isa::available() {
        let mut cpu = CpuDispatcher::with_threads(1).with_isa(isa).expect("it is available");
        let report = run_table(&mut cpu, &filter, seed());
        println!("{isa}: {report}");
        assert!(report.is_good(&[]), "rows of the table fail: see above");
    }
}
