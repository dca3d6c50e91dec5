//! Fault injection: backends that are wrong on purpose, to check that the table detects it.

use fulmen_core::{
    AttentionCall, Backend, BackendError, BinaryCall, CopyCall, DType, DeviceMemory, KV_PAGE, KernelDispatch,
    KvStoreCall, MulMatCall, OpCall, ReadTicket, RmsNormCall, RopeCall, SharedBytes, TensorOp, UnaryCall,
};

/// What a [`Broken`] backend does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Changes the last element of an output.
    WrongElement,
    /// Does not run the op at all.
    Skipped,
    /// Writes a byte after an output.
    StrayAfter,
    /// Writes a byte before an output.
    StrayBefore,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 4] = [Fault::WrongElement, Fault::Skipped, Fault::StrayAfter, Fault::StrayBefore];
}

/// A backend that does one op wrong, in one way, and everything else as the backend it wraps.
#[derive(Debug)]
pub struct Broken<B> {
    inner: B,
    op: TensorOp,
    fault: Fault,
}

impl<B: Backend> Broken<B> {
    /// Wraps a backend.
    pub fn new(inner: B, op: TensorOp, fault: Fault) -> Broken<B> {
        Broken { inner, op, fault }
    }

    /// Injects the fault at the end of an output.
    fn spoil(&mut self, output: Output) -> Result<(), BackendError> {
        let Output { ptr, bytes, dtype } = output;
        let mut last = [0; 4];
        match (self.fault, dtype) {
            (Fault::StrayAfter, _) => self.inner.write(ptr + bytes as u64, &[0x55]),
            (Fault::StrayBefore, _) => self.inner.write(ptr - 1, &[0x55]),
            (_, DType::F32) => {
                let mut all = vec![0; bytes];
                self.inner.read(ptr, &mut all)?;
                let mut values = all.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
                let largest = values.clone().filter(|x| x.is_finite()).fold(1.0f32, |a, x| a.max(x.abs()));
                let changed = values.next_back().unwrap_or(0.0) + largest;
                // NaN and infinities are replaced.
                let changed = if changed.is_finite() { changed } else { 0.0 };
                self.inner.write(ptr + bytes as u64 - 4, &changed.to_le_bytes())
            }
            (_, DType::U32) => {
                let at = ptr + bytes as u64 - 4;
                self.inner.read(at, &mut last)?;
                self.inner.write(at, &u32::from_le_bytes(last).wrapping_add(1).to_le_bytes())
            }
            _ => {
                // The high byte of an f16, the last quant of a block.
                let at = ptr + bytes as u64 - 1;
                self.inner.read(at, &mut last[..1])?;
                self.inner.write(at, &[last[0] ^ 0x40])
            }
        }
    }
}

/// A range that a call writes.
#[derive(Clone, Copy, Debug)]
struct Output {
    ptr: u64,
    bytes: usize,
    dtype: DType,
}

fn floats(ptr: u64, elements: usize) -> Vec<Output> {
    vec![Output { ptr, bytes: 4 * elements, dtype: DType::F32 }]
}

fn store(call: &KvStoreCall) -> Vec<Output> {
    let (cache, heads) = (&call.cache, call.heads);
    let rows = cache.n_pages as usize * heads.n_kv_heads as usize * KV_PAGE as usize;
    let bytes = rows * cache.dtype.bytes(heads.head_dim as usize).unwrap_or(0);
    [cache.k_ptr, cache.v_ptr].map(|ptr| Output { ptr, bytes, dtype: cache.dtype }).into()
}

/// What a call writes; the whole cache for those that write somewhere in it.
fn outputs(call: &OpCall) -> Vec<Output> {
    let area = |rows: u32, width: u32| rows as usize * width as usize;
    match call {
        OpCall::Embed(c) => floats(c.output, area(c.m, c.width)),
        OpCall::MulMat(c) => {
            let parts = c.parts.iter().filter(|part| part.weight.rows > 0);
            parts.flat_map(|part| floats(part.output, area(c.m, part.weight.rows))).collect()
        }
        OpCall::GateUp(c) => floats(c.output, area(c.m, c.gate.rows)),
        OpCall::Route(c) => {
            let count = area(c.m, c.route.top);
            let mut outputs = floats(c.weights, count);
            outputs.push(Output { ptr: c.ids, bytes: 4 * count, dtype: DType::U32 });
            outputs
        }
        OpCall::ExpertGateUp(c) => floats(c.output, area(c.m, c.top * c.n())),
        OpCall::ExpertDown(c) => floats(c.output, area(c.m, c.n())),
        OpCall::RmsNorm(c) => floats(c.output, area(c.rows, c.width)),
        OpCall::AddRmsNorm(c) => {
            [c.output, c.sum].into_iter().flat_map(|ptr| floats(ptr, area(c.rows, c.width))).collect()
        }
        OpCall::Rope(c) => floats(c.output, area(c.m, c.n_heads * c.head_dim)),
        OpCall::SoftMax(c) => floats(c.output, area(c.rows, c.width)),
        OpCall::Attention(c) => floats(c.output, area(c.m, c.heads.q_width())),
        OpCall::KvStore(c) => store(c),
        OpCall::RopeStore(c) => {
            let mut outputs = floats(c.output, area(c.store.m, c.store.heads.q_width()));
            outputs.extend(store(&c.store));
            outputs
        }
        OpCall::AllReduce(c) => floats(c.output, c.n_elements),
        OpCall::AllGather(c) => floats(c.output, area(c.m, c.gathered_width())),
        OpCall::MeanSquares(c) => floats(c.output, area(c.m, 2)),
        OpCall::RmsScale(c) => floats(c.output, area(c.m, c.width)),
        OpCall::CausalConv(c) => {
            let mut outputs = floats(c.output, area(c.m, c.channels));
            outputs.extend(floats(c.state.ptr, c.state.n_seqs as usize * c.state_width()));
            outputs
        }
        OpCall::GatedDeltaRule(c) => {
            let mut outputs = floats(c.output, area(c.m, c.heads.value_width()));
            outputs.extend(floats(c.state.ptr, area(c.state.n_seqs, c.heads.state_width())));
            outputs
        }
        OpCall::SigmoidGate(c) => floats(c.output, area(c.m, c.n)),
        OpCall::Copy(c) => floats(c.output, c.bytes / 4),
        OpCall::ArgMax(c) => vec![Output { ptr: c.output, bytes: 4 * c.m as usize, dtype: DType::U32 }],
        OpCall::TopK(c) => {
            let mut outputs = floats(c.values, area(c.m, c.k));
            outputs.push(Output { ptr: c.indices, bytes: 4 * area(c.m, c.k), dtype: DType::U32 });
            outputs
        }
        OpCall::Sample(c) => vec![Output { ptr: c.output, bytes: 4 * c.m as usize, dtype: DType::U32 }],
        OpCall::GatherTokens(c) => {
            vec![Output { ptr: c.output, bytes: 4 * c.m as usize, dtype: DType::U32 }]
        }
        OpCall::Penalize(c) => floats(c.output, area(c.m, c.n)),
        OpCall::MaskLogits(c) => floats(c.output, area(c.m, c.n)),
        OpCall::LogProbs(c) => {
            let count = area(c.m, 1 + c.top);
            let mut outputs = floats(c.values, count);
            outputs.push(Output { ptr: c.indices, bytes: 4 * count, dtype: DType::U32 });
            outputs
        }
        OpCall::Advance(c) => {
            let words = |ptr, n: usize| Output { ptr, bytes: 4 * n, dtype: DType::U32 };
            let history = area(c.history.n_seqs, c.history.capacity);
            let m = c.m as usize;
            vec![words(c.tokens, m), words(c.positions, m), words(c.history.ptr, history)]
        }
        call => {
            let unary = call.as_type().map(|c: &UnaryCall| (c.output, c.n_elements));
            let output = unary.or_else(|| call.as_type().map(|c: &BinaryCall| (c.output, c.n_elements)));
            output.map_or_else(Vec::new, |(output, n_elements)| floats(output, n_elements))
        }
    }
}

macro_rules! delegate {
    ($($method:ident($call:ty)),* $(,)?) => {
        $(fn $method(&mut self, call: &$call) -> Result<usize, BackendError> {
            self.inner.$method(call)
        })*
    };
}

impl<B: Backend> KernelDispatch for Broken<B> {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn batch_invariant(&self, call: &OpCall) -> bool {
        self.inner.batch_invariant(call)
    }

    delegate! {
        dispatch_mul_mat(MulMatCall), dispatch_rms_norm(RmsNormCall), dispatch_add(BinaryCall),
        dispatch_rope(RopeCall), dispatch_attention(AttentionCall), dispatch_copy(CopyCall),
        dispatch_mul(BinaryCall), dispatch_silu(UnaryCall),
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.inner.synchronize()
    }

    fn dispatch(&mut self, call: &OpCall) -> Result<usize, BackendError> {
        let broken = call.op() == self.op;
        if broken && self.fault == Fault::Skipped {
            return Ok(0);
        }
        let launches = self.inner.dispatch(call)?;
        if broken {
            self.inner.synchronize()?;
            for output in outputs(call) {
                self.spoil(output)?;
            }
        }
        Ok(launches)
    }
}

impl<B: Backend> DeviceMemory for Broken<B> {
    fn alloc(&mut self, bytes: usize) -> Result<u64, BackendError> {
        self.inner.alloc(bytes)
    }

    fn free(&mut self, ptr: u64) -> Result<(), BackendError> {
        self.inner.free(ptr)
    }

    fn write(&mut self, ptr: u64, data: &[u8]) -> Result<(), BackendError> {
        self.inner.write(ptr, data)
    }

    fn start_read(&mut self, ptr: u64, bytes: usize) -> Result<ReadTicket, BackendError> {
        self.inner.start_read(ptr, bytes)
    }

    fn read(&mut self, ptr: u64, out: &mut [u8]) -> Result<(), BackendError> {
        self.inner.read(ptr, out)
    }

    fn import(&mut self, bytes: SharedBytes) -> Result<u64, BackendError> {
        self.inner.import(bytes)
    }

    fn reads_imports_in_place(&self) -> bool {
        self.inner.reads_imports_in_place()
    }
}
