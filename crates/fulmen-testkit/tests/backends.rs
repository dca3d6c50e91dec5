//! The table on every backend. A further backend is one more line.

use fulmen_cpu::{CpuDispatcher, isa::Isa};
use fulmen_testkit::{Filter, Size, run_table, seed};

fulmen_testkit::enrol!(cpu, CpuDispatcher::new());

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
