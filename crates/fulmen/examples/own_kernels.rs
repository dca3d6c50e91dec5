//! Your own kernels behind a compute graph: implement [`KernelDispatch`] for the ops you have, and
//! [`execute_graph`] checks the graph and calls them in order. An op without a kernel is an error.
//!
//! ```text
//! cargo run --release -p fulmen --example own_kernels
//! ```

use fulmen::core::{AttentionCall, BinaryCall, CopyCall, MulMatCall, RmsNormCall, RopeCall, UnaryCall};
use fulmen::prelude::*;

/// Prints what it would launch.
struct Printing;

type Launched = Result<usize, BackendError>;

impl KernelDispatch for Printing {
    fn backend(&self) -> &'static str {
        "printing"
    }
    fn dispatch_mul_mat(&mut self, call: &MulMatCall) -> Launched {
        for part in &call.parts {
            println!(
                "mul_mat   {}x{} by {} {}x{}",
                call.m, call.k, part.weight.dtype, part.weight.rows, call.k
            );
        }
        Ok(call.parts.len())
    }
    fn dispatch_rms_norm(&mut self, call: &RmsNormCall) -> Launched {
        println!("rms_norm  {} rows of {}", call.rows, call.width);
        Ok(1)
    }
    fn dispatch_add(&mut self, call: &BinaryCall) -> Launched {
        println!("add       {} elements", call.n_elements);
        Ok(1)
    }
    fn dispatch_rope(&mut self, call: &RopeCall) -> Launched {
        println!("rope      {} rows of {} heads", call.m, call.n_heads);
        Ok(1)
    }
    fn dispatch_attention(&mut self, call: &AttentionCall) -> Launched {
        println!("attention {} rows of {} heads", call.m, call.heads.n_heads);
        Ok(1)
    }
    fn dispatch_copy(&mut self, call: &CopyCall) -> Launched {
        println!("copy      {} bytes", call.bytes);
        Ok(1)
    }
    fn dispatch_mul(&mut self, call: &BinaryCall) -> Launched {
        println!("mul       {} elements", call.n_elements);
        Ok(1)
    }
    fn dispatch_silu(&mut self, call: &UnaryCall) -> Launched {
        println!("silu      {} elements", call.n_elements);
        Ok(1)
    }
}

fn main() {
    // Addresses are whatever your device uses; these are made up.
    let row = [1536, 1, 4, 0];
    let mut graph = ComputeGraph::new();
    let x = graph.add_leaf(0x1000, row);
    let norm = OpParams { gamma_ptr: 0x2000, scalar: 1e-6, ..OpParams::default() };
    let h = graph.add_op(TensorOp::RmsNorm, 0x3000, row, vec![x], norm);
    let weight = OpParams { weight_ptr: 0x4000, weight_qtype: Some(DType::Q4_K), ..OpParams::default() };
    let h = graph.add_op(TensorOp::MulMat, 0x5000, [1536, 1536, 4, 0], vec![h], weight);
    graph.add_op(TensorOp::Add, 0x6000, row, vec![x, h], OpParams::default());

    match execute_graph(&graph, &mut Printing) {
        Ok(launches) => println!("{launches} launches"),
        Err(error) => println!("error: {error}"),
    }

    // Two errors: an op without a kernel, and a node that reads a later node.
    graph.add_op(TensorOp::Gelu, 0x7000, row, vec![x], OpParams::default());
    println!("error: {}", execute_graph(&graph, &mut Printing).unwrap_err());
    graph.nodes[2].inputs[0] = 3;
    println!("error: {}", execute_graph(&graph, &mut Printing).unwrap_err());
}
