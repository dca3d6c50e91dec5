//! Planned programs, with a backend that only notes what it is asked to run.

use std::collections::HashMap;
use std::ops::Range;

use fulmen_core::*;

const K: u32 = 64;
const M: u32 = 2;
/// Bytes of an f32 activation, and of one in the form of this backend.
const BYTES: u64 = 4 * (M * K) as u64;
const FORM_BYTES: usize = 100;

/// Matmuls take their input in one form, and norms and matmuls write it; a norm can be part of the matmul of
/// its result, and is then multiplied into the form of the norm's input.
#[derive(Default)]
struct Toy {
    ran: Vec<(Range<usize>, usize, usize)>,
    fuses_norms: bool,
    fuses_stores: bool,
    drains: bool,
    prefetches: bool,
    /// Matmuls keep the form of their input for others.
    keeps_inputs: bool,
    live: HashMap<u64, usize>,
    next: u64,
    /// Allocations that succeed.
    room: Option<usize>,
}

fn form(ptr: u64, gamma: Option<u64>) -> ActivationForm {
    let operand = gamma.map(|ptr| FormOperand { ptr, bytes: 4 * K as usize });
    ActivationForm {
        ptr,
        rows: M,
        width: K,
        form: Form { id: 7, name: "packed", bytes: FORM_BYTES, operand },
    }
}

macro_rules! one_launch {
    ($($method:ident($call:ty)),*) => {
        $(fn $method(&mut self, _: &$call) -> Result<usize, BackendError> {
            Ok(1)
        })*
    };
}

impl KernelDispatch for Toy {
    fn backend(&self) -> &'static str {
        "toy"
    }

    one_launch! {
        dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall), dispatch_add(BinaryCall),
        dispatch_rope(RopeCall), dispatch_attention(AttentionCall), dispatch_copy(CopyCall),
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall), dispatch_rope_store(RopeStoreCall),
        dispatch_kv_store(KvStoreCall)
    }

    fn fused_calls(&self, next: &[ProgramCall], unfinished: &[Extent]) -> usize {
        match next {
            [a, b, ..] => match (&a.call, &b.call) {
                (OpCall::RmsNorm(norm), OpCall::MulMat(call))
                    if self.fuses_norms && norm.output == call.input =>
                {
                    2
                }
                (OpCall::RopeStore(store), OpCall::Attention(_)) if self.fuses_stores => {
                    let cache = OpCall::KvStore(store.store.clone()).writes();
                    let busy = |range: &Extent| unfinished.iter().any(|other| other.overlaps(*range));
                    if cache.iter().any(busy) { 1 } else { 2 }
                }
                _ => 1,
            },
            _ => 1,
        }
    }

    fn drains(&self, call: &OpCall) -> bool {
        self.drains || matches!(call, OpCall::Copy(_))
    }

    fn accepted_forms(&self, calls: &[ProgramCall]) -> Vec<ActivationForm> {
        match calls {
            [only] => match &only.call {
                OpCall::MulMat(call) => vec![form(call.input, None)],
                _ => vec![],
            },
            [first, _] => match &first.call {
                OpCall::RmsNorm(norm) => vec![form(norm.input, Some(norm.gamma))],
                _ => vec![],
            },
            _ => vec![],
        }
    }

    fn forwards(&self, calls: &[ProgramCall], activation: &ActivationForm) -> bool {
        match calls.last().map(|step| &step.call) {
            Some(OpCall::RmsNorm(norm)) => *activation == form(norm.output, None),
            Some(OpCall::MulMat(call)) => {
                call.parts[0].output == activation.ptr
                    || self.keeps_inputs && calls.len() == 1 && *activation == form(call.input, None)
            }
            _ => false,
        }
    }

    fn prefetches(&self, calls: &[ProgramCall], next: &OpCall) -> bool {
        let matmul = calls.iter().any(|step| matches!(step.call, OpCall::MulMat(_)));
        self.prefetches && matmul && matches!(next, OpCall::RopeStore(_))
    }

    fn dispatch_planned(&mut self, program: &Program, planned: &PlannedCall) -> Result<usize, BackendError> {
        assert!(planned.calls.end <= program.calls().len());
        self.ran.push((planned.calls.clone(), planned.inputs.len(), planned.outputs.len()));
        Ok(1)
    }
}

impl DeviceMemory for Toy {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        if self.room == Some(self.live.len()) {
            return Err(BackendError::OutOfMemory { needed: bytes as u64, available: Some(0) });
        }
        self.next += 1 << 32;
        self.live.insert(self.next, bytes);
        Ok(self.next)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        assert!(self.live.remove(&ptr).is_some());
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn start_read(&mut self, _: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        Ok(ReadTicket::ready(vec![0; bytes]))
    }
}

/// The address of an activation, by number.
fn x(number: u64) -> u64 {
    0x1000 + number * BYTES
}

const GAIN: u64 = 0xF00_0000;
const OTHER_GAIN: u64 = 0xF10_0000;

fn norm(input: u64, gamma: u64, output: u64) -> OpCall {
    OpCall::RmsNorm(RmsNormCall {
        input: x(input),
        gamma,
        output: x(output),
        rows: M,
        width: K,
        epsilon: 0.1,
    })
}

fn matmul(input: u64, output: u64) -> OpCall {
    let weight = WeightArg { ptr: 0xE00_0000, dtype: DType::Q8_0, rows: K };
    let part = Projection { weight, bias: None, output: x(output) };
    OpCall::MulMat(MulMatCall {
        input: x(input),
        parts: vec![part],
        residual: None,
        m: M,
        k: K,
        batch_invariant: false,
    })
}

fn add(a: u64, b: u64, output: u64) -> OpCall {
    OpCall::Add(BinaryCall { a: x(a), b: x(b), output: x(output), n_elements: (M * K) as usize })
}

fn planned(toy: &mut Toy, calls: Vec<OpCall>) -> Program {
    let mut program = Program::check_calls(calls).unwrap();
    program.plan(toy).unwrap();
    program
}

/// Calls, number of forwarded inputs and of forwarded outputs.
fn summary(toy: &mut Toy, calls: Vec<OpCall>) -> Vec<(Range<usize>, usize, usize)> {
    let program = planned(toy, calls);
    toy.ran.clear();
    program.run(toy).unwrap();
    std::mem::take(&mut toy.ran)
}

#[test]
fn a_result_is_forwarded_to_every_later_call_that_takes_it() {
    let mut toy = Toy::default();
    let calls = vec![norm(0, GAIN, 1), matmul(1, 2), add(2, 3, 4), matmul(1, 5), matmul(2, 6)];
    let expected = [(0..1, 0, 1), (1..2, 1, 1), (2..3, 0, 0), (3..4, 1, 0), (4..5, 1, 0)];
    assert_eq!(summary(&mut toy, calls), expected);
}

#[test]
fn a_call_keeps_the_form_of_its_input_only_if_it_has_made_it() {
    let mut toy = Toy { keeps_inputs: true, ..Toy::default() };
    let calls = vec![matmul(0, 1), matmul(0, 2), matmul(0, 3)];
    assert_eq!(summary(&mut toy, calls), [(0..1, 0, 1), (1..2, 1, 0), (2..3, 1, 0)]);
    let calls = vec![norm(8, GAIN, 0), matmul(0, 1), matmul(0, 2), matmul(0, 3)];
    assert_eq!(summary(&mut toy, calls), [(0..1, 0, 1), (1..2, 1, 0), (2..3, 1, 0), (3..4, 1, 0)]);
}

#[test]
fn nothing_is_forwarded_once_the_values_were_overwritten() {
    let mut toy = Toy::default();
    // In place, partly, and by a call that is wrong and may write anywhere.
    let half = OpCall::Add(BinaryCall { a: x(8), b: x(8), output: x(1) + BYTES - 4, n_elements: 2 });
    let wrong = OpCall::Copy(CopyCall { input: x(8), output: x(8) + 1, bytes: 16 });
    for between in [add(1, 3, 1), half, wrong] {
        let calls = vec![norm(0, GAIN, 1), between, matmul(1, 2)];
        assert_eq!(summary(&mut toy, calls), [(0..1, 0, 0), (1..2, 0, 0), (2..3, 0, 0)]);
    }
    let beside = OpCall::Add(BinaryCall { a: x(8), b: x(8), output: x(2), n_elements: 2 });
    let calls = vec![norm(0, GAIN, 1), beside, matmul(1, 3)];
    assert_eq!(summary(&mut toy, calls), [(0..1, 0, 1), (1..2, 0, 0), (2..3, 1, 0)]);
}

#[test]
fn a_form_with_an_operand_is_for_that_operand_only() {
    let mut toy = Toy { fuses_norms: true, ..Toy::default() };
    let calls = |between: Option<OpCall>, gain: u64| {
        let mut calls = vec![matmul(0, 1)];
        calls.extend(between);
        calls.extend([norm(1, gain, 2), matmul(2, 3)]);
        calls
    };
    assert_eq!(summary(&mut toy, calls(None, GAIN)), [(0..1, 0, 1), (1..3, 1, 0)]);
    // The gain changes after the form was made with it, or while it is.
    let change = |ptr| OpCall::Copy(CopyCall { input: x(50), output: ptr, bytes: 4 });
    let changed = summary(&mut toy, calls(Some(change(GAIN + 8)), GAIN));
    assert_eq!(changed, [(0..1, 0, 0), (1..2, 0, 0), (2..4, 0, 0)]);
    assert_eq!(summary(&mut toy, calls(None, x(1)))[0], (0..1, 0, 0));
    // Only one form of a result is made: that of the first consumer.
    let mut two = calls(None, GAIN);
    two.extend([norm(1, OTHER_GAIN, 4), matmul(4, 5), norm(1, GAIN, 6), matmul(6, 7)]);
    assert_eq!(summary(&mut toy, two), [(0..1, 0, 1), (1..3, 1, 0), (3..5, 0, 0), (5..7, 1, 0)]);
}

#[test]
fn an_observer_gets_the_calls_that_run_as_one() {
    let mut toy = Toy { fuses_norms: true, ..Toy::default() };
    let program = planned(&mut toy, vec![norm(0, GAIN, 1), matmul(1, 2), add(2, 0, 3)]);
    let mut ran = Vec::new();
    let note = |_: &mut Toy, calls: Range<usize>, launches| {
        ran.push((calls, launches));
        Ok(true)
    };
    assert_eq!(program.run_observed(&mut toy, note).unwrap(), Some(2));
    assert_eq!(ran, [(0..0, 0), (0..2, 1), (2..3, 1)]);
    assert!(program.planned_calls()[0].first && !program.planned_calls()[1].first);
}

fn store(cache: u64) -> [OpCall; 2] {
    let heads = Heads { n_heads: 2, n_kv_heads: 2, head_dim: 32 };
    let cache = KvCache {
        k_ptr: cache,
        v_ptr: cache + 0x8000,
        dtype: DType::F32,
        n_pages: 1,
        table_ptr: 0xE00_0000,
        n_seqs: 1,
        seq_pages: 1,
    };
    let (positions, sequences) = (0xD00_0000, None);
    let store = KvStoreCall { k: x(20), v: x(21), cache, positions, sequences, m: M, heads };
    let rope = RopeSpec::new(RopePairing::NeoX, 32, 1e4);
    let (q_gamma, k_gamma, factors) = (None, None, None);
    let q = x(22);
    let store = RopeStoreCall { q, store, q_gamma, k_gamma, factors, output: q, epsilon: 0.1, rope };
    let kv = KvSource::Cache { cache, positions, sequences };
    let attention = AttentionCall {
        q,
        kv,
        output: x(23),
        m: M,
        heads,
        rows: AttentionRows::Any,
        scores: 1.0.into(),
        layer: 0,
        batch_invariant: false,
    };
    [OpCall::RopeStore(store), OpCall::Attention(attention)]
}

#[test]
fn a_cache_that_may_still_be_written_is_known_to_the_backend() {
    let (one, other) = (0x200_0000, 0x300_0000);
    let copy = || OpCall::Copy(CopyCall { input: x(50), output: x(52), bytes: 4 });
    let groups = |toy: &mut Toy, calls: Vec<OpCall>| -> Vec<usize> {
        planned(toy, calls).planned_calls().iter().map(|planned| planned.calls.len()).collect()
    };
    let mut toy = Toy { fuses_stores: true, ..Toy::default() };
    let calls = [store(one), store(other)].concat();
    assert_eq!(groups(&mut toy, calls), [2, 2]);
    // Keys of one are the values of the other.
    let calls = [store(one), store(other), store(one + 0x8000)].concat();
    assert_eq!(groups(&mut toy, calls), [2, 2, 1, 1]);
    let calls = [&store(one)[..], &[copy()], &store(one)].concat();
    assert_eq!(groups(&mut toy, calls), [2, 1, 2]);
    toy.drains = true;
    assert_eq!(groups(&mut toy, [store(one), store(one)].concat()), [2, 2]);
}

#[test]
fn a_matmul_prefetches_for_the_call_after_it() {
    let mut toy = Toy { prefetches: true, fuses_norms: true, ..Toy::default() };
    let [rotate, attend] = store(0x200_0000);
    let program = planned(&mut toy, vec![norm(0, GAIN, 1), matmul(1, 22), rotate, attend, matmul(23, 4)]);
    let prefetches: Vec<_> = program.planned_calls().iter().map(|planned| planned.prefetch).collect();
    assert_eq!(prefetches, [Some(2), None, None, None]);
}

#[test]
fn memory_is_freed_and_an_allocation_that_fails_leaves_none() {
    let mut toy = Toy::default();
    let chain: Vec<OpCall> = (0..6).map(|number| matmul(number, number + 1)).collect();
    let mut program = planned(&mut toy, chain.clone());
    // Each of two blocks holds one activation at a time.
    assert_eq!(toy.live.values().collect::<Vec<_>>(), [&FORM_BYTES, &FORM_BYTES]);
    assert_eq!(program.forward_memory().map(|(_, bytes)| bytes).sum::<usize>(), 2 * FORM_BYTES);
    program.plan(&mut toy).unwrap();
    assert_eq!(toy.live.len(), 2, "an old plan is freed");
    program.release_plan(&mut toy).unwrap();
    assert!(toy.live.is_empty() && program.forward_memory().next().is_none());
    assert!(program.planned_calls().iter().all(|planned| planned.inputs.is_empty()));
    for room in [0, 1] {
        toy.room = Some(room);
        let mut program = Program::check_calls(chain.clone()).unwrap();
        assert!(matches!(program.plan(&mut toy), Err(BackendError::OutOfMemory { .. })));
        assert!(toy.live.is_empty(), "{room}");
        assert!(program.planned_calls().iter().all(|planned| planned.outputs.is_empty()));
    }
}

/// In random programs whatever is read was written, nothing has changed it since, and it was not overwritten
/// in its block.
#[test]
fn random_plans_are_sound() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut toy = Toy { fuses_norms: rng.bool(), keeps_inputs: rng.bool(), ..Toy::default() };
        let mut calls = Vec::new();
        for _ in 0..rng.usize(1..40) {
            let mut tensor = || rng.u64(0..5);
            let (a, b, c) = (tensor(), tensor(), tensor());
            calls.push(match rng.u32(0..5) {
                0 => norm(a, if rng.bool() { GAIN } else { x(2) }, b),
                1 if a != b => matmul(a, b),
                2 if a != b => matmul(a, b),
                3 => norm(a, OTHER_GAIN, b),
                _ => add(a, b, c),
            });
        }
        let program = planned(&mut toy, calls);
        let blocks: Vec<(u64, usize)> = program.forward_memory().collect();
        let block_of =
            |ptr: u64| blocks.iter().position(|&(start, bytes)| (start..start + bytes as u64).contains(&ptr));
        let ranges = |a: u64, b: u64| Extent { what: "", ptr: a, bytes: b as usize };
        let planned = program.planned_calls();
        for (consumer, step) in planned.iter().enumerate() {
            for input in &step.inputs {
                let made = |step: &PlannedCall| step.outputs.contains(input);
                let producer = planned[..consumer].iter().rposition(made).expect("it was forwarded");
                let source = ranges(input.activation.ptr, BYTES);
                let place = ranges(input.ptr, FORM_BYTES as u64);
                for (number, other) in planned[producer + 1..consumer].iter().enumerate() {
                    for call in &program.calls()[other.calls.clone()] {
                        let writes = call.call.writes();
                        assert!(!writes.iter().any(|range| range.overlaps(source)), "{seed}: {number}");
                        let gain = input.activation.form.operand;
                        let gain = gain.map_or(ranges(0, 0), |gain| ranges(gain.ptr, 4 * u64::from(K)));
                        assert!(!writes.iter().any(|range| range.overlaps(gain)), "{seed}: {number}");
                    }
                    let over = |output: &Forwarded| ranges(output.ptr, FORM_BYTES as u64).overlaps(place);
                    assert!(!other.outputs.iter().any(over), "{seed}: {number}");
                }
                assert!(block_of(input.ptr).is_some());
                assert!(input.ptr.is_multiple_of(ALIGNMENT as u64));
                let same = |output: &Forwarded| output.activation == input.activation;
                assert!(!step.outputs.iter().any(same), "{seed}: it lies in memory already");
                let same_block = |output: &Forwarded| block_of(output.ptr) == block_of(input.ptr);
                assert!(!step.outputs.iter().any(same_block), "{seed}");
            }
        }
        // What nobody reads is not forwarded.
        for (producer, step) in planned.iter().enumerate() {
            for output in &step.outputs {
                assert!(planned[producer + 1..].iter().any(|step| step.inputs.contains(output)));
            }
        }
    }
}
