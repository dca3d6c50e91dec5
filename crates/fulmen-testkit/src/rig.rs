//! A graph on a backend, with guard bytes around its tensors.
//!
//! The whole arena and the guards of every state are filled with `0xFF` before inputs are written: an element
//! that an op does not write reads as NaN, and a write outside a tensor is detected.

use std::sync::Arc;

use fulmen_core::{
    Backend, Bindings, BoundGraph, BuildError, DType, ExecError, LogicalGraph, Plan, PlanOptions, Problem,
    Role, SharedBytes, TensorDef, TensorId, q8_0_from_pages, q8_0_to_pages,
};

use crate::reference::DataSet;

/// Guard bytes before and after every tensor.
pub const GUARD: usize = 256;

/// The value of every byte that is not data.
pub const POISON: u8 = 0xFF;

/// A weight or state in device memory.
#[derive(Debug)]
struct External {
    tensor: TensorId,
    /// What was allocated or imported.
    base: u64,
    /// The data's address.
    ptr: u64,
    bytes: Arc<Vec<u8>>,
}

/// A write outside the outputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stray {
    /// Outside every tensor.
    #[error("byte {offset} {side} of {tensor} was written")]
    Outside {
        /// The nearest tensor.
        tensor: String,
        /// How far from it.
        offset: usize,
        /// Before it or after it.
        side: &'static str,
    },
    /// In an input or a weight.
    #[error("byte {byte} of {tensor}, which is only read, was changed")]
    Constant {
        /// The tensor.
        tensor: String,
        /// The first byte that changed.
        byte: usize,
    },
}

/// A graph bound to a backend with guards around its tensors.
#[derive(Debug)]
pub struct Rig {
    /// The plan that was bound.
    pub plan: Plan,
    /// The bound graph.
    pub bound: BoundGraph,
    weights: Vec<External>,
    states: Vec<External>,
    inputs: DataSet,
}

impl Rig {
    /// Plans and binds the graph, poisons its memory, writes its data, and plans its calls for the backend.
    /// [`release`](Rig::release) frees the memory; on an error it is freed here.
    pub fn new(
        backend: &mut dyn Backend,
        graph: LogicalGraph,
        options: &PlanOptions,
        data: &DataSet,
    ) -> Result<Rig, ExecError> {
        let plan = graph.plan(options)?;
        let mut allocated = Vec::new();
        let rig = Rig::build(backend, plan, data, &mut allocated);
        if rig.is_err() {
            for ptr in allocated {
                // The first error is the one to report.
                let _ = backend.free(ptr);
            }
        }
        rig
    }

    fn build(
        backend: &mut dyn Backend,
        plan: Plan,
        data: &DataSet,
        allocated: &mut Vec<u64>,
    ) -> Result<Rig, ExecError> {
        let mut bindings = Bindings::new();
        let (mut weights, mut states, mut inputs) = (Vec::new(), Vec::new(), DataSet::new());
        for (tensor, def) in plan.graph.tensors.iter().enumerate() {
            let name = def.name.as_deref().unwrap_or("");
            if def.role == Role::Computed {
                continue;
            }
            let missing = || BuildError { call: "rig", problem: Problem::Unbound(name.to_owned()) };
            let bytes = Arc::clone(data.get(name).ok_or_else(missing)?);
            match def.role {
                Role::Weight => {
                    let shared: SharedBytes = Arc::clone(&bytes) as SharedBytes;
                    let base = backend.import(shared)?;
                    allocated.push(base);
                    bindings.set(name, base);
                    weights.push(External { tensor, base, ptr: base, bytes });
                }
                Role::State => {
                    let base = backend.alloc(bytes.len() + 2 * GUARD)?;
                    allocated.push(base);
                    let ptr = base + GUARD as u64;
                    bindings.set(name, ptr);
                    states.push(External { tensor, base, ptr, bytes });
                }
                _ => {
                    inputs.insert(name.to_owned(), bytes);
                }
            }
        }
        let arena = backend.alloc(plan.arena_bytes.max(1))?;
        allocated.push(arena);
        let bound = plan.bind_at(arena, &bindings)?;
        let mut rig = Rig { plan, bound, weights, states, inputs };
        rig.reset(backend)?;
        rig.bound.plan_calls(backend)?;
        Ok(rig)
    }

    /// Poisons all memory, then restores inputs and initial states.
    pub fn reset(&mut self, backend: &mut dyn Backend) -> Result<(), ExecError> {
        backend.write(self.bound.arena(), &vec![POISON; self.plan.arena_bytes])?;
        for (ptr, bytes) in self.bound.program().forward_memory() {
            backend.write(ptr, &vec![POISON; bytes])?;
        }
        for state in &self.states {
            let mut bytes = vec![POISON; state.bytes.len() + 2 * GUARD];
            let def = &self.plan.graph.tensors[state.tensor];
            let device = &mut bytes[GUARD..GUARD + state.bytes.len()];
            if paged(def) {
                device.copy_from_slice(&q8_0_to_pages(def.width as usize, &state.bytes));
            } else {
                device.copy_from_slice(&state.bytes);
            }
            backend.write(state.base, &bytes)?;
        }
        for (name, bytes) in &self.inputs {
            self.bound.write(backend, name, bytes)?;
        }
        Ok(())
    }

    /// Changes an input.
    pub fn write(
        &mut self,
        backend: &mut dyn Backend,
        name: &str,
        bytes: Arc<Vec<u8>>,
    ) -> Result<(), ExecError> {
        self.bound.write(backend, name, &bytes)?;
        self.inputs.insert(name.to_owned(), bytes);
        Ok(())
    }

    /// Runs the graph and waits for it.
    pub fn run(&self, backend: &mut dyn Backend) -> Result<(), ExecError> {
        self.bound.run(backend)?;
        backend.synchronize()?;
        Ok(())
    }

    /// The bytes of a tensor; Q8_0 pages as rows of blocks.
    pub fn read(&self, backend: &mut dyn Backend, tensor: TensorId) -> Result<Vec<u8>, ExecError> {
        let def = &self.plan.graph.tensors[tensor];
        let bytes = def.bytes().map_err(|e| BuildError { call: "rig", problem: Problem::DType(e) })?;
        let mut data = vec![0; bytes];
        backend.read(self.bound.address(tensor), &mut data)?;
        Ok(if paged(def) { q8_0_from_pages(def.width as usize, &data) } else { data })
    }

    /// Checks that nothing outside the outputs and states was written.
    pub fn surroundings(&self, backend: &mut dyn Backend) -> Result<Result<(), Stray>, ExecError> {
        let mut arena = vec![0; self.plan.arena_bytes];
        backend.read(self.bound.arena(), &mut arena)?;
        if let Some(stray) = self.stray_in_arena(&arena) {
            return Ok(Err(stray));
        }
        for state in &self.states {
            let mut bytes = vec![0; state.bytes.len() + 2 * GUARD];
            backend.read(state.base, &mut bytes)?;
            let end = GUARD + state.bytes.len();
            let outside = (0..GUARD).chain(end..bytes.len()).find(|&at| bytes[at] != POISON);
            if let Some(at) = outside {
                let (offset, side) = if at < GUARD { (GUARD - at, "before") } else { (at - end, "after") };
                return Ok(Err(Stray::Outside { tensor: self.name(state.tensor), offset, side }));
            }
        }
        for weight in &self.weights {
            let mut bytes = vec![0; weight.bytes.len()];
            backend.read(weight.ptr, &mut bytes)?;
            if let Some(byte) = first_difference(&bytes, &weight.bytes) {
                return Ok(Err(Stray::Constant { tensor: self.name(weight.tensor), byte }));
            }
        }
        Ok(Ok(()))
    }

    fn stray_in_arena(&self, arena: &[u8]) -> Option<Stray> {
        let tensors = self.plan.placements.iter().enumerate();
        let mut placed: Vec<_> =
            tensors.filter_map(|(id, at)| at.map(|at| (at.offset, at.bytes, id))).collect();
        placed.sort_unstable();
        let mut end = 0;
        let mut last = None;
        for &(offset, bytes, id) in &placed {
            if offset > end
                && let Some(at) = arena[end..offset].iter().position(|&byte| byte != POISON)
            {
                let at = end + at;
                let (tensor, offset, side) = match last {
                    Some(last) if at - end < offset - at => (self.name(last), at - end, "after"),
                    _ => (self.name(id), offset - at, "before"),
                };
                return Some(Stray::Outside { tensor, offset, side });
            }
            if offset + bytes >= end {
                (end, last) = (offset + bytes, Some(id));
            }
        }
        if let Some(at) = arena[end..].iter().position(|&byte| byte != POISON) {
            let tensor = last.map_or_else(String::new, |id| self.name(id));
            return Some(Stray::Outside { tensor, offset: at, side: "after" });
        }
        for (name, bytes) in &self.inputs {
            let Some(placement) = self.bound.find(name).and_then(|id| self.plan.placements[id]) else {
                continue;
            };
            let held = &arena[placement.offset..placement.offset + bytes.len()];
            if let Some(byte) = first_difference(held, bytes) {
                return Some(Stray::Constant { tensor: name.clone(), byte });
            }
        }
        None
    }

    fn name(&self, id: TensorId) -> String {
        self.plan.graph.tensors[id].name.as_deref().map_or_else(|| format!("tensor %{id}"), str::to_owned)
    }

    /// Frees everything.
    pub fn release(self, backend: &mut dyn Backend) -> Result<(), ExecError> {
        for external in self.weights.iter().chain(&self.states) {
            backend.free(external.base)?;
        }
        self.bound.release(backend)?;
        Ok(())
    }
}

/// Whether the tensor is a Q8_0 cache, whose pages have values and scales apart.
fn paged(def: &TensorDef) -> bool {
    def.role == Role::State && def.dtype == DType::Q8_0
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    // The whole comparison first: it is as fast as memory.
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}
