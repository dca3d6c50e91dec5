//! The plan of a program for one backend: which calls run as one kernel, and which results are forwarded to
//! a later call in another form than f32.
//!
//! The backend answers what its kernels can do, call by call ([`KernelDispatch::fused_calls`],
//! [`accepted_forms`](KernelDispatch::accepted_forms), [`forwards`](KernelDispatch::forwards),
//! [`prefetches`](KernelDispatch::prefetches)). This pass matches producers with consumers and reserves
//! memory. A result is always written in f32 as well, so a plan changes how a value is passed on, not which
//! values there are; but a form may be rounded differently than the consumer itself would round it, so the
//! plan is made once and every run follows it.
//!
//! A form stands for the f32 values from its producer on until they, or what the form was combined with, are
//! overwritten. What a call forwards lies in another block of memory than what is forwarded to it, so that an
//! API that tracks whole buffers can bind what a kernel reads as read-only.

use std::ops::Range;

use super::{ActivationForm, Forwarded, KernelDispatch, OpCall, ProgramCall};
use crate::{ALIGNMENT, BackendError, DType, Extent, LookUp};

/// Blocks of memory for forwarded activations.
pub(super) const BLOCKS: usize = 2;

/// Calls of a program that run as one, and what they exchange with others beside f32 values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCall {
    /// The calls, by their numbers in the program.
    pub calls: Range<usize>,
    /// Activations that earlier calls forward to them.
    pub inputs: Vec<Forwarded>,
    /// Activations that they forward to later calls.
    pub outputs: Vec<Forwarded>,
    /// The call whose data they prefetch, by its number in the program.
    pub prefetch: Option<usize>,
    /// Whether they are the first of a planned program: kernels that were launched before it have finished
    /// when theirs start, on a device whose kernels overlap.
    pub first: bool,
}

impl PlannedCall {
    /// One call, to which nothing is forwarded.
    pub(super) fn alone(call: usize) -> PlannedCall {
        PlannedCall {
            calls: call..call + 1,
            inputs: Vec::new(),
            outputs: Vec::new(),
            prefetch: None,
            first: false,
        }
    }

    /// Replaces the numbers of placements by addresses in blocks that start at `blocks`.
    fn place(&mut self, blocks: [u64; BLOCKS], placements: &[Placement]) {
        for forwarded in self.inputs.iter_mut().chain(&mut self.outputs) {
            let Placement { block, offset, .. } = placements[forwarded.ptr as usize];
            forwarded.ptr = blocks[block] + offset as u64;
        }
    }
}

/// Where a forwarded activation lies, and from its producer to its last consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placement {
    bytes: usize,
    block: usize,
    offset: usize,
    /// Numbers of planned calls, both inclusive.
    live: (usize, usize),
}

/// A plan without addresses: until [`placed`](ForwardPlan::placed), what is forwarded has its number in
/// `placements` as its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForwardPlan {
    planned: Vec<PlannedCall>,
    placements: Vec<Placement>,
}

impl ForwardPlan {
    /// Plans calls for a backend.
    pub(super) fn new<D: KernelDispatch + ?Sized>(backend: &D, calls: &[ProgramCall]) -> ForwardPlan {
        let written: Vec<Vec<Extent>> = calls.iter().map(|step| step.call.writes()).collect();
        let planned = group(backend, calls, &written);
        let mut plan = ForwardPlan { planned, placements: Vec::new() };
        for consumer in 0..plan.planned.len() {
            plan.prefetch(backend, calls, consumer);
            let accepted = backend.accepted_forms(&calls[plan.planned[consumer].calls.clone()]);
            for activation in accepted {
                plan.match_input(backend, calls, &written, consumer, activation);
            }
        }
        plan.arrange();
        plan
    }

    /// Bytes of each block.
    pub(super) fn block_bytes(&self) -> [usize; BLOCKS] {
        std::array::from_fn(|block| {
            let inside = self.placements.iter().filter(|placement| placement.block == block);
            inside.map(|placement| placement.offset + placement.bytes).max().unwrap_or(0)
        })
    }

    /// The planned calls, with blocks at these addresses.
    pub(super) fn placed(mut self, blocks: [u64; BLOCKS]) -> Vec<PlannedCall> {
        for planned in &mut self.planned {
            planned.place(blocks, &self.placements);
        }
        self.planned
    }

    fn prefetch<D: KernelDispatch + ?Sized>(&mut self, backend: &D, calls: &[ProgramCall], at: usize) {
        let planned = &mut self.planned[at];
        let later = planned.calls.end;
        if let Some(call) = calls.get(later)
            && backend.prefetches(&calls[planned.calls.clone()], &call.call)
        {
            planned.prefetch = Some(later);
        }
    }

    /// Finds the producer of a form that a consumer accepts: the nearest earlier planned call that can write
    /// it, or to which it was forwarded, if nothing in between changes the values.
    fn match_input<D: KernelDispatch + ?Sized>(
        &mut self,
        backend: &D,
        calls: &[ProgramCall],
        written: &[Vec<Extent>],
        consumer: usize,
        activation: ActivationForm,
    ) {
        let same_source = |other: &Forwarded| other.activation.source() == activation.source();
        if self.planned[consumer].inputs.iter().any(same_source) {
            return;
        }
        for producer in (0..consumer).rev() {
            let PlannedCall { calls: range, inputs, outputs, .. } = &self.planned[producer];
            let changes = |by: fn(&ActivationForm, &[Extent]) -> bool| {
                written[range.clone()].iter().any(|written| by(&activation, written))
            };
            let changed = changes(ActivationForm::is_changed_by);
            let read = inputs.iter().find(|input| input.activation == activation && !changed);
            let number = match read.or_else(|| outputs.iter().find(|output| same_source(output))) {
                Some(forwarded) if forwarded.activation == activation => forwarded.ptr as usize,
                None if !changes(ActivationForm::operand_is_changed_by)
                    && backend.forwards(&calls[range.clone()], &activation) =>
                {
                    self.forward(producer, activation)
                }
                _ if changed => return,
                _ => continue,
            };
            self.placements[number].live.1 = consumer;
            self.planned[consumer].inputs.push(Forwarded { activation, ptr: number as u64 });
            return;
        }
    }

    /// Lets a planned call forward an activation, and returns the number of its placement.
    fn forward(&mut self, producer: usize, activation: ActivationForm) -> usize {
        let number = self.placements.len();
        let live = (producer, producer);
        self.placements.push(Placement { bytes: activation.form.bytes, block: 0, offset: 0, live });
        self.planned[producer].outputs.push(Forwarded { activation, ptr: number as u64 });
        number
    }

    /// Chooses block and offset of everything forwarded, in the order of its producers: the other block than
    /// that of the producer's input, and the lowest offset that nothing alive at the same time uses.
    fn arrange(&mut self) {
        let mut order: Vec<usize> = (0..self.placements.len()).collect();
        order.sort_by_key(|&number| self.placements[number].live);
        let mut arranged: Vec<usize> = Vec::with_capacity(order.len());
        for number in order {
            let Placement { bytes, live, .. } = self.placements[number];
            let read = |block: usize| {
                let inputs = self.planned[live.0].inputs.iter();
                inputs.clone().any(|input| self.placements[input.ptr as usize].block == block)
            };
            let block = (0..BLOCKS).find(|&block| !read(block)).unwrap_or(0);
            let mut taken: Vec<(usize, usize)> = arranged
                .iter()
                .map(|&other| &self.placements[other])
                .filter(|other| other.block == block && other.live.0 <= live.1 && live.0 <= other.live.1)
                .map(|other| (other.offset, other.offset + other.bytes))
                .collect();
            taken.sort_unstable();
            let offset = taken.iter().fold(0usize, |offset, &(start, end)| match offset + bytes > start {
                true => offset.max(end.next_multiple_of(ALIGNMENT)),
                false => offset,
            });
            self.placements[number] = Placement { block, offset, ..self.placements[number].clone() };
            arranged.push(number);
        }
    }
}

/// The calls that run as one, without forwarding.
fn group<D: KernelDispatch + ?Sized>(
    backend: &D,
    calls: &[ProgramCall],
    written: &[Vec<Extent>],
) -> Vec<PlannedCall> {
    let mut planned: Vec<PlannedCall> = Vec::new();
    let mut unfinished: Vec<Extent> = Vec::new();
    let mut at = 0;
    while at < calls.len() {
        let count = backend.fused_calls(&calls[at..], &unfinished).clamp(1, calls.len() - at);
        let range = at..at + count;
        for call in range.clone() {
            match backend.drains(&calls[call].call) {
                true => unfinished.clear(),
                false => unfinished.extend(&written[call]),
            }
        }
        let first = planned.is_empty();
        planned.push(PlannedCall { calls: range, first, ..PlannedCall::alone(at) });
        at += count;
    }
    planned
}

impl OpCall {
    /// The ranges that the call writes; all memory if its operands are invalid.
    pub fn writes(&self) -> Vec<Extent> {
        let noted = NotedWrites::default();
        match self.check_operands(&noted) {
            Ok(()) => noted.0.into_inner(),
            Err(_) => vec![Extent { what: "any memory", ptr: 0, bytes: usize::MAX }],
        }
    }
}

/// Accepts every operand, and notes those that are written.
#[derive(Default)]
struct NotedWrites(std::cell::RefCell<Vec<Extent>>);

impl LookUp for NotedWrites {
    fn look_up(
        &self,
        what: &'static str,
        ptr: u64,
        bytes: usize,
        _align: usize,
        write: bool,
    ) -> Result<Extent, BackendError> {
        let extent = Extent { what, ptr, bytes };
        if write {
            self.0.borrow_mut().push(extent);
        }
        Ok(extent)
    }

    fn alignment(&self, _dtype: DType) -> usize {
        1
    }
}
