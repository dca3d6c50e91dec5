//! The table detects faults: a backend with a fault injected into one op fails, for every op and every fault.

use fulmen_core::TensorOp;
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::check::check_case;
use fulmen_testkit::draw::Pools;
use fulmen_testkit::faults::{Broken, Fault};
use fulmen_testkit::{Case, Failure, Outcome, Size, table};

/// The names of an op in the table. Attention among rows and over a cache run as one op.
fn names(op: TensorOp) -> Vec<&'static str> {
    match op {
        TensorOp::Attention => vec!["attention", "cache_attention"],
        op => vec![op.name()],
    }
}

/// Some of an op's quick rows, on a backend with the fault.
fn rows(op: TensorOp, name: &str, fault: Fault) -> Vec<(Case, Outcome)> {
    let (mut broken, mut pools) = (Broken::new(CpuDispatcher::with_threads(1), op, fault), Pools::new(1));
    let cases = table().into_iter().filter(|case| case.op == name && case.size == Size::Quick).step_by(5);
    cases
        .map(|case| {
            let outcome = check_case(&mut broken, &case, &mut pools);
            (case, outcome)
        })
        .collect()
}

/// Rows without elements, in which no fault can be injected.
fn is_empty(case: &Case) -> bool {
    let shape =
        case.name.split('/').any(|part| matches!(part, "m0" | "empty" | "none") || part.starts_with("0x"));
    shape || case.name.ends_with("m3/0x256")
}

fn caught(fault: Fault, right: impl Fn(&Failure) -> bool) {
    let of_host = |op: &TensorOp| *op == TensorOp::HostSegment;
    for op in TensorOp::ALL.into_iter().filter(|op| op.launches() && !of_host(op)) {
        for name in names(op) {
            let rows = rows(op, name, fault);
            assert!(!rows.is_empty(), "{name} has no rows");
            for (case, outcome) in rows.iter().filter(|(case, _)| !is_empty(case)) {
                let caught = matches!(outcome, Outcome::Failed(failure) if right(failure));
                assert!(caught, "{fault:?} in {op} was not caught by {}: {outcome:?}", case.name);
            }
        }
    }
}

#[test]
fn a_wrong_element_is_caught_in_every_op() {
    caught(Fault::WrongElement, |failure| matches!(failure, Failure::Wrong { .. }));
}

#[test]
fn an_output_that_is_not_written_is_caught_in_every_op() {
    caught(Fault::Skipped, |failure| matches!(failure, Failure::Wrong { .. }));
}

#[test]
fn a_write_behind_an_output_is_caught_in_every_op() {
    caught(Fault::StrayAfter, |failure| matches!(failure, Failure::Stray(_)));
}

#[test]
fn a_write_before_an_output_is_caught_in_every_op() {
    caught(Fault::StrayBefore, |failure| matches!(failure, Failure::Stray(_)));
}
