//! Binding of a plan to addresses.

use std::collections::HashMap;

use super::lower::Lowering;
use super::{Plan, Role, TensorId};
use crate::{Backend, BackendError, BuildError, DeviceMemory, ExecError, KernelDispatch, Problem, Program};

/// Addresses of weights and states, by name.
#[derive(Clone, Debug, Default)]
pub struct Bindings(HashMap<String, u64>);

impl Bindings {
    /// No addresses.
    pub fn new() -> Bindings {
        Bindings::default()
    }

    /// Sets the address of a weight or state.
    pub fn set(&mut self, name: &str, ptr: u64) {
        self.0.insert(name.to_owned(), ptr);
    }

    /// The address of a weight or state.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}

/// A graph with addresses, checked and ready to run on one device.
#[derive(Clone, Debug)]
pub struct BoundGraph {
    program: Program,
    arena: u64,
    addresses: Vec<u64>,
    bytes: Vec<usize>,
    names: HashMap<Box<str>, TensorId>,
}

impl Plan {
    /// Allocates the arena on the device, binds to it, and plans the calls for the device; see
    /// [`Program::plan`].
    pub fn bind<B: Backend + ?Sized>(
        &self,
        backend: &mut B,
        bindings: &Bindings,
    ) -> Result<BoundGraph, ExecError> {
        let arena = backend.alloc(self.arena_bytes.max(1))?;
        let bound = self.bind_at(arena, bindings).and_then(|mut bound| {
            bound.plan_calls(backend)?;
            Ok(bound)
        });
        bound.inspect_err(|_| {
            // The first error is the one to report.
            let _ = backend.free(arena);
        })
    }

    /// Binds to an arena that the caller has allocated: [`arena_bytes`](Plan::arena_bytes) bytes at `arena`.
    /// The calls are not planned for a device: see [`BoundGraph::plan_calls`].
    pub fn bind_at(&self, arena: u64, bindings: &Bindings) -> Result<BoundGraph, ExecError> {
        let mut addresses = Vec::with_capacity(self.graph.tensors.len());
        let mut bytes = Vec::with_capacity(self.graph.tensors.len());
        let mut names = HashMap::new();
        for (id, (tensor, placement)) in self.graph.tensors.iter().zip(&self.placements).enumerate() {
            let name = tensor.name.as_deref().unwrap_or("");
            let size = tensor.bytes().map_err(|e| refused(Problem::DType(e)))?;
            addresses.push(match (tensor.role, placement) {
                (Role::Weight | Role::State, _) => {
                    bindings.get(name).ok_or_else(|| refused(Problem::Unbound(name.to_owned())))?
                }
                (_, Some(placement)) => arena + placement.offset as u64,
                (_, None) => 0,
            });
            bytes.push(size);
            if !name.is_empty() {
                names.insert(name.into(), id);
            }
        }
        let program = Lowering {
            tensors: &self.graph.tensors,
            addresses: &addresses,
            batch_invariant: self.batch_invariant,
        }
        .run(&self.graph.ops)?;
        Ok(BoundGraph { program, arena, addresses, bytes, names })
    }
}

fn refused(problem: Problem) -> ExecError {
    ExecError::Build(BuildError { call: "bind", problem })
}

impl BoundGraph {
    /// Runs it and returns the number of kernels launched. Does not wait for the device.
    pub fn run<D: KernelDispatch + ?Sized>(&self, dispatcher: &mut D) -> Result<usize, ExecError> {
        self.program.run(dispatcher)
    }

    /// Plans the calls for the device that it is bound to; see [`Program::plan`].
    pub fn plan_calls<B: Backend + ?Sized>(&mut self, backend: &mut B) -> Result<(), BackendError> {
        self.program.plan(backend)
    }

    /// The checked calls.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Address of the arena.
    pub fn arena(&self) -> u64 {
        self.arena
    }

    /// Address of a tensor; 0 if fusion removed it.
    pub fn address(&self, tensor: TensorId) -> u64 {
        self.addresses.get(tensor).copied().unwrap_or(0)
    }

    /// The tensor of this name: an input, weight, state or output.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.names.get(name).copied()
    }

    /// Writes an input.
    pub fn write<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
        data: &[u8],
    ) -> Result<(), ExecError> {
        let (ptr, bytes) = self.named(name)?;
        if bytes != data.len() {
            let (expected, got) = (bytes as u64, data.len() as u64);
            return Err(refused(Problem::Size { what: "the bytes written", expected, got }));
        }
        Ok(memory.write(ptr, data)?)
    }

    /// Reads a tensor.
    pub fn read<M: DeviceMemory + ?Sized>(&self, memory: &mut M, name: &str) -> Result<Vec<u8>, ExecError> {
        let (ptr, bytes) = self.named(name)?;
        let mut data = vec![0; bytes];
        memory.read(ptr, &mut data)?;
        Ok(data)
    }

    /// Writes an f32 input.
    pub fn write_f32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
        data: &[f32],
    ) -> Result<(), ExecError> {
        self.write(memory, name, bytemuck::cast_slice(data))
    }

    /// Writes a u32 input.
    pub fn write_u32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
        data: &[u32],
    ) -> Result<(), ExecError> {
        self.write(memory, name, bytemuck::cast_slice(data))
    }

    /// Reads an f32 tensor.
    pub fn read_f32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
    ) -> Result<Vec<f32>, ExecError> {
        Ok(bytemuck::pod_collect_to_vec(&self.read(memory, name)?))
    }

    /// Reads a u32 tensor.
    pub fn read_u32<M: DeviceMemory + ?Sized>(
        &self,
        memory: &mut M,
        name: &str,
    ) -> Result<Vec<u32>, ExecError> {
        Ok(bytemuck::pod_collect_to_vec(&self.read(memory, name)?))
    }

    /// Frees the memory of the planned calls; the arena is the caller's, as after
    /// [`bind_at`](Plan::bind_at).
    pub fn release_calls<M: DeviceMemory + ?Sized>(mut self, memory: &mut M) -> Result<(), BackendError> {
        self.program.release_plan(memory)
    }

    /// Frees the arena and the memory of the planned calls. Weights and states belong to the caller.
    pub fn release<M: DeviceMemory + ?Sized>(mut self, memory: &mut M) -> Result<(), BackendError> {
        let released = self.program.release_plan(memory);
        memory.free(self.arena).and(released)
    }

    fn named(&self, name: &str) -> Result<(u64, usize), ExecError> {
        let id = self.find(name).ok_or_else(|| refused(Problem::Unbound(name.to_owned())))?;
        Ok((self.addresses[id], self.bytes[id]))
    }
}
