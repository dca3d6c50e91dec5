//! Graphs: built by name, printed, drawn and run on any device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fulmen::Registry;
use fulmen::core::{
    BinaryKind, BoundGraph, BuildError, LogicalGraph, Role, RopeSpec, Sharing, Tensor as CoreTensor,
    UnaryKind,
};
use fulmen::model::Device;
use fulmen::prelude::{Bindings, DType, GraphBuilder, Heads, PlanOptions, RopePairing, Rotation};
use numpy::{PyArray1, PyReadonlyArray1, ToPyArray};
use pyo3::prelude::*;

use crate::failure::{Failure, Kind};
use crate::process::OfProcess;
use crate::worker::detached;

/// A tensor of a graph.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct GraphTensor {
    tensor: CoreTensor,
}

/// A graph that is being built.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct Builder {
    builder: Mutex<GraphBuilder>,
}

type Built = Result<CoreTensor, BuildError>;

impl Builder {
    fn lock(&self) -> MutexGuard<'_, GraphBuilder> {
        self.builder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn build(&self, op: impl FnOnce(&mut GraphBuilder) -> Built) -> PyResult<GraphTensor> {
        let tensor = op(&mut self.lock()).map_err(Failure::from)?;
        Ok(GraphTensor { tensor })
    }

    /// What was built so far; the builder goes on.
    fn graph(&self) -> LogicalGraph {
        self.lock().graph().clone()
    }
}

/// A tensor that is there, or none.
fn optional(tensor: Option<&Bound<'_, GraphTensor>>) -> Option<CoreTensor> {
    tensor.map(|tensor| tensor.get().tensor)
}

#[pymethods]
impl Builder {
    #[new]
    fn new() -> Builder {
        Builder { builder: Mutex::new(GraphBuilder::new()) }
    }

    /// Rows and width of a tensor.
    fn shape(&self, tensor: &GraphTensor) -> PyResult<(u32, u32)> {
        Ok(self.lock().shape(tensor.tensor).map_err(Failure::from)?)
    }

    fn input(&self, name: &str, rows: u32, width: u32) -> PyResult<GraphTensor> {
        self.build(|b| b.input(name, rows, width))
    }

    fn indices(&self, name: &str, rows: u32) -> PyResult<GraphTensor> {
        self.build(|b| b.indices(name, rows))
    }

    fn weight(&self, name: &str, dtype: &str, rows: u32, k: u32) -> PyResult<GraphTensor> {
        let dtype: DType = dtype.parse().map_err(Failure::from)?;
        self.build(|b| b.weight(name, dtype, rows, k))
    }

    fn vector(&self, name: &str, len: u32) -> PyResult<GraphTensor> {
        self.build(|b| b.vector(name, len))
    }

    fn output(&self, name: &str, tensor: &GraphTensor) -> PyResult<()> {
        Ok(self.lock().output(name, tensor.tensor).map_err(Failure::from)?)
    }

    fn embed(&self, table: &GraphTensor, tokens: &GraphTensor) -> PyResult<GraphTensor> {
        self.build(|b| b.embed(table.tensor, tokens.tensor))
    }

    #[pyo3(signature = (x, weight, bias=None, residual=None))]
    fn linear(
        &self,
        x: &GraphTensor,
        weight: &GraphTensor,
        bias: Option<&Bound<'_, GraphTensor>>,
        residual: Option<&Bound<'_, GraphTensor>>,
    ) -> PyResult<GraphTensor> {
        self.build(|b| b.linear(x.tensor, weight.tensor, optional(bias), optional(residual)))
    }

    fn gate_up(&self, x: &GraphTensor, gate: &GraphTensor, up: &GraphTensor) -> PyResult<GraphTensor> {
        self.build(|b| b.gate_up(x.tensor, gate.tensor, up.tensor))
    }

    fn rms_norm(&self, x: &GraphTensor, gamma: &GraphTensor, eps: f32) -> PyResult<GraphTensor> {
        self.build(|b| b.rms_norm(x.tensor, gamma.tensor, eps))
    }

    fn binary(&self, op: &str, a: &GraphTensor, b: &GraphTensor) -> PyResult<GraphTensor> {
        let kind = match op {
            "add" => BinaryKind::Add,
            "mul" => BinaryKind::Mul,
            "swiglu" => BinaryKind::SwiGlu,
            other => return Err(unknown("binary", "add, mul or swiglu", other).into()),
        };
        self.build(|builder| builder.binary(kind, a.tensor, b.tensor))
    }

    #[pyo3(signature = (op, x, value=1.0))]
    fn unary(&self, op: &str, x: &GraphTensor, value: f32) -> PyResult<GraphTensor> {
        let kind = match op {
            "silu" => UnaryKind::Silu,
            "gelu" => UnaryKind::Gelu,
            "gelu_tanh" => UnaryKind::GeluTanh,
            "relu2" => UnaryKind::Relu2,
            "scale" => UnaryKind::Scale(value),
            "soft_cap" => UnaryKind::SoftCap(value),
            other => {
                let expected = "silu, gelu, gelu_tanh, relu2, scale or soft_cap";
                return Err(unknown("unary", expected, other).into());
            }
        };
        self.build(|builder| builder.unary(kind, x.tensor))
    }

    fn softmax(&self, x: &GraphTensor, scale: f32) -> PyResult<GraphTensor> {
        self.build(|b| b.softmax(x.tensor, scale))
    }

    fn argmax(&self, x: &GraphTensor) -> PyResult<GraphTensor> {
        self.build(|b| b.argmax(x.tensor))
    }

    fn rope(
        &self,
        x: &GraphTensor,
        positions: &GraphTensor,
        head_dim: u32,
        base: f32,
        neox: bool,
    ) -> PyResult<GraphTensor> {
        let pairing = if neox { RopePairing::NeoX } else { RopePairing::Interleaved };
        let spec = RopeSpec::new(pairing, head_dim, base);
        let rotation = Rotation { spec, positions: positions.tensor, factors: None };
        self.build(|b| b.rope(x.tensor, head_dim, rotation))
    }

    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        q: &GraphTensor,
        k: &GraphTensor,
        v: &GraphTensor,
        n_heads: u32,
        n_kv_heads: u32,
        head_dim: u32,
        scale: f32,
    ) -> PyResult<GraphTensor> {
        let heads = Heads { n_heads, n_kv_heads, head_dim };
        self.build(|b| b.attention(q.tensor, k.tensor, v.tensor, heads, scale))
    }

    /// The graph as text, or as a Graphviz drawing; fused and planned, or as it was built.
    fn print(&self, fused: bool, dot: bool) -> PyResult<String> {
        let mut graph = self.graph();
        if fused {
            graph = graph.plan(&PlanOptions::default()).map_err(Failure::from)?.graph;
        }
        Ok(if dot { graph.to_dot() } else { graph.to_string() })
    }

    /// Name, role, type, rows and width of each named tensor.
    fn tensors(&self) -> Vec<(String, &'static str, &'static str, u32, u32)> {
        let graph = self.graph();
        let named = graph.tensors.iter().filter_map(|tensor| {
            let role = match tensor.role {
                Role::Input => "input",
                Role::Weight => "weight",
                Role::State => "state",
                Role::Computed => "output",
            };
            let name = tensor.name.as_deref()?.to_owned();
            Some((name, role, tensor.dtype.name(), tensor.rows, tensor.width))
        });
        named.collect()
    }

    /// Fuses, plans and binds the graph to a device with its weights (bytes by name).
    fn compile(
        &self,
        py: Python<'_>,
        device: &str,
        weights: HashMap<String, PyReadonlyArray1<'_, u8>>,
        keep_all: bool,
    ) -> PyResult<Program> {
        let graph = self.graph();
        let mut data = HashMap::new();
        for (name, bytes) in &weights {
            data.insert(name.as_str(), bytes.as_slice()?);
        }
        detached(py, || Program::new(graph, device, &data, keep_all))
    }
}

fn unknown(call: &str, expected: &str, got: &str) -> Failure {
    Failure::argument(call, "the op", expected, format!("{got:?}"))
}

struct OnDevice {
    device: Device,
    graph: BoundGraph,
    imports: Vec<u64>,
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        // There is no caller to report an error to.
        let _ = self.graph.clone().release(self.device.as_mut());
        for &address in &self.imports {
            let _ = self.device.free(address);
        }
    }
}

/// A graph that is bound to a device.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct Program {
    bound: OfProcess<Mutex<OnDevice>>,
    text: String,
    arena_bytes: usize,
    device: String,
}

impl Program {
    fn new(
        graph: LogicalGraph,
        device: &str,
        weights: &HashMap<&str, &[u8]>,
        keep_all: bool,
    ) -> Result<Program, Failure> {
        let registry = Registry::builtin();
        let (info, mut device) = registry.open_with(registry.parse(device)?, &Default::default())?;
        let sharing = if keep_all { Sharing::Never } else { Sharing::default() };
        let options = PlanOptions { fusions: device.fusions(), sharing, ..PlanOptions::default() };
        let plan = graph.plan(&options)?;
        let (mut bindings, mut imports) = (Bindings::new(), Vec::new());
        let bound = (|| {
            for tensor in &plan.graph.tensors {
                let Some(name) = tensor.name.as_deref().filter(|_| tensor.role == Role::Weight) else {
                    continue;
                };
                let bytes = weights.get(name).ok_or_else(|| {
                    Failure::new(Kind::Graph, format!("compile: no tensor named {name:?} is bound"))
                })?;
                let expected = tensor.bytes()?;
                if bytes.len() != expected {
                    let what = format!("the number of bytes of {name:?}");
                    return Err(Failure::argument("compile", &what, expected, bytes.len()));
                }
                let shared = Arc::new(Aligned::copy(bytes));
                let address = device.import_weight(shared, tensor.dtype, tensor.rows, tensor.width)?;
                imports.push(address);
                bindings.set(name, address);
            }
            Ok(plan.bind(device.as_mut(), &bindings)?)
        })();
        let graph = match bound {
            Ok(graph) => graph,
            Err(failure) => {
                for address in imports {
                    let _ = device.free(address);
                }
                return Err(failure);
            }
        };
        Ok(Program {
            text: plan.graph.to_string(),
            arena_bytes: plan.arena_bytes,
            device: info.selector().to_string(),
            bound: OfProcess::new(Mutex::new(OnDevice { device, graph, imports })),
        })
    }

    fn lock(&self) -> Result<MutexGuard<'_, OnDevice>, Failure> {
        Ok(self.bound.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bytes at an address that suits every type.
struct Aligned(Vec<u128>, usize);

impl Aligned {
    fn copy(bytes: &[u8]) -> Aligned {
        let mut words = vec![0u128; bytes.len().div_ceil(size_of::<u128>())];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Aligned(words, bytes.len())
    }
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

#[pymethods]
impl Program {
    /// Writes an input.
    fn write(&self, py: Python<'_>, name: &str, data: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let data = data.as_slice()?;
        detached(py, || {
            let bound = &mut *self.lock()?;
            Ok(bound.graph.write(bound.device.as_mut(), name, data)?)
        })
    }

    /// Runs the graph and returns the number of kernels launched.
    fn run(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, || {
            let bound = &mut *self.lock()?;
            Ok(bound.graph.run(bound.device.as_mut())?)
        })
    }

    /// The bytes of a named tensor.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let bytes = detached(py, || {
            let bound = &mut *self.lock()?;
            Ok(bound.graph.read(bound.device.as_mut(), name)?)
        })?;
        Ok(bytes.to_pyarray(py))
    }

    /// The graph after fusion, as text.
    fn text(&self) -> &str {
        &self.text
    }

    /// Bytes of the activations.
    fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// The device that it runs on.
    fn device(&self) -> &str {
        &self.device
    }
}
