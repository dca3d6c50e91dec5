//! The compute graph: a list of nodes with device addresses, in the order in which they run.
//!
//! A graph is plain data. [`ComputeGraph::check`] lowers it to a [`Program`] of typed calls, or reports which
//! node is wrong and why; [`execute_graph`] checks it and runs it on anything that implements
//! [`KernelDispatch`]. To run it many times, keep the [`Program`].

mod attention_rows;
mod call;
mod call_check;
pub(crate) mod checks;
mod collective;
mod dispatch;
mod divided_norm;
mod execute;
mod experts;
mod forms;
mod forward;
mod host_segment;
mod kv;
mod operands;
mod ops;
mod params;
mod print;
mod recurrent;
mod resolve;
mod routing;
mod scores;
mod segments;
mod work;

pub use attention_rows::{AttentionRows, PrefillChunk, attention_work};
pub use call::*;
pub use collective::{AllGatherCall, AllReduceCall, MAX_RANKS};
pub(crate) use collective::{check_gathered_width, check_ranks};
pub use dispatch::{KernelDispatch, KernelTime, ReplayId};
pub(crate) use divided_norm::check_column;
pub use divided_norm::{MeanSquaresCall, RmsScaleCall};
pub use execute::{GraphExecResult, Program, ProgramCall, execute_graph, execute_graph_timed};
pub use experts::{
    ExpertDownCall, ExpertGateUpCall, GatedActivation, MAX_EXPERTS, MAX_EXPERTS_PER_ROW, NO_EXPERT,
    used_experts,
};
pub(crate) use experts::{check_experts, check_experts_per_row};
pub use forms::{ActivationForm, Form, FormOperand, Forwarded};
pub use forward::PlannedCall;
pub(crate) use host_segment::check_host_inputs;
pub use host_segment::{HostInput, HostSegmentCall, MAX_HOST_INPUTS};
pub use kv::{KV_PAGE, KvCache, KvPool, NO_PAGE, PageLayout, pages_of, q8_0_from_pages, q8_0_to_pages};
pub use ops::{OpCall, TensorOp};
pub use params::{ExtraWeight, Heads, LogitSlots, OpParams, RopePairing, RopeSpec, TokenHistory};
pub use recurrent::{
    CausalConvCall, DeltaHeads, GatedDeltaRuleCall, KeyHeadOrder, MAX_CONV_TAPS, MAX_DELTA_HEAD, NO_STATE,
    RecurrentState, SigmoidGateCall,
};
pub(crate) use recurrent::{check_gates, check_taps};
pub use routing::{
    ExpertGroups, ExpertPart, MAX_EXPERT_GROUPS, MIN_WEIGHT_SUM, RouteCall, RouteSpec, RouterScores,
};
pub use scores::{Scores, Temperature};
pub use segments::Segment;
pub use work::{CacheUse, Work};

use crate::DType;

/// One node: its op, the address of its result, and its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorNode {
    /// What it computes.
    pub op: TensorOp,
    /// Address of the result.
    pub data_ptr: u64,
    /// Shape; see [`TensorOp`].
    pub shape: [u32; 4],
    /// F32, or U32 for tokens, positions and sequence numbers.
    pub dtype: DType,
    /// Indices of the nodes it reads; all of them come before it.
    pub inputs: Vec<usize>,
    /// Everything else.
    pub params: OpParams,
    /// A name for messages and diagrams.
    pub name: Option<Box<str>>,
}

impl TensorNode {
    /// Rows.
    pub fn m(&self) -> u32 {
        self.shape[2]
    }

    /// Elements in a row of the result; saturates instead of wrapping.
    pub fn width(&self) -> u32 {
        match self.op {
            TensorOp::MulMat | TensorOp::GateUp | TensorOp::ExpertGateUp | TensorOp::ExpertDown => {
                self.shape[0]
            }
            _ => self.shape[0].saturating_mul(self.shape[1].max(1)),
        }
    }

    /// Elements of the result.
    pub fn n_elements(&self) -> usize {
        usize::try_from(u64::from(self.width()) * u64::from(self.m())).unwrap_or(usize::MAX)
    }
}

/// Nodes in the order in which they run.
///
/// ```
/// use fulmen_core::{ComputeGraph, OpParams, TensorOp};
///
/// let mut graph = ComputeGraph::new();
/// let x = graph.add_leaf(0x1000, [1536, 1, 4, 0]);
/// let params = OpParams { gamma_ptr: 0x3000, scalar: 1e-6, ..OpParams::default() };
/// graph.add_op(TensorOp::RmsNorm, 0x2000, [1536, 1, 4, 0], vec![x], params);
/// assert_eq!(graph.n_ops(), 1);
/// assert!(graph.check().is_ok());
///
/// graph.add_op(TensorOp::Silu, 0x2000, [1536, 1, 4, 0], vec![7], OpParams::default());
/// let error = graph.check().unwrap_err();
/// assert!(error.to_string().starts_with("node 2 (Silu): input 0 refers to node 7"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComputeGraph {
    /// The nodes.
    pub nodes: Vec<TensorNode>,
}

impl ComputeGraph {
    /// An empty graph.
    pub fn new() -> ComputeGraph {
        ComputeGraph::default()
    }

    /// Adds f32 data that is on the device already, and returns its index.
    pub fn add_leaf(&mut self, ptr: u64, shape: [u32; 4]) -> usize {
        self.push(TensorOp::None, ptr, shape, DType::F32, Vec::new(), OpParams::default())
    }

    /// Adds `m` unsigned integers (tokens, positions, sequence numbers) that are on the device already.
    pub fn add_index_leaf(&mut self, ptr: u64, m: u32) -> usize {
        self.push(TensorOp::None, ptr, [1, 1, m, 0], DType::U32, Vec::new(), OpParams::default())
    }

    /// Adds an op whose result goes to `ptr`, and returns its index. Nothing is checked here: see
    /// [`check`](ComputeGraph::check).
    pub fn add_op(
        &mut self,
        op: TensorOp,
        ptr: u64,
        shape: [u32; 4],
        inputs: Vec<usize>,
        params: OpParams,
    ) -> usize {
        let dtype = match op {
            TensorOp::ArgMax | TensorOp::Sample | TensorOp::GatherTokens | TensorOp::Advance => DType::U32,
            TensorOp::AllGather => {
                inputs.first().and_then(|&input| self.nodes.get(input)).map_or(DType::F32, |node| node.dtype)
            }
            _ => DType::F32,
        };
        self.push(op, ptr, shape, dtype, inputs, params)
    }

    /// Gives a node a name for messages and diagrams. An index that does not exist is ignored.
    pub fn set_name(&mut self, node: usize, name: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.name = Some(name.into());
        }
    }

    /// Nodes that run a kernel.
    pub fn n_ops(&self) -> usize {
        self.nodes.iter().filter(|node| node.op.launches()).count()
    }

    /// Checks the order, indices, arity, shapes, types and pointers of every node, and lowers the graph to a
    /// program.
    pub fn check(&self) -> Result<Program, crate::GraphError> {
        Program::new(self)
    }

    fn push(
        &mut self,
        op: TensorOp,
        data_ptr: u64,
        shape: [u32; 4],
        dtype: DType,
        inputs: Vec<usize>,
        params: OpParams,
    ) -> usize {
        self.nodes.push(TensorNode { op, data_ptr, shape, dtype, inputs, params, name: None });
        self.nodes.len() - 1
    }
}
