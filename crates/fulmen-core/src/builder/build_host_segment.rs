//! Recording of what the host computes on another device.

use super::build::{Built, GraphBuilder, Tensor};
use super::op::Op;
use crate::graph::check_host_inputs;
use crate::{DType, Problem};

impl GraphBuilder {
    /// `[m, n]` f32 values that the host computes from `inputs`, f32 or u32 tensors of `m` rows, between two
    /// segments of the program. What it computes is said by a graph of its own, which `segment` names: the
    /// device that runs the program must be one that knows it.
    pub fn host_segment(&mut self, segment: u32, inputs: &[Tensor], n: u32) -> Built<Tensor> {
        let call = self.call("host_segment");
        call.check(check_host_inputs(inputs.len()))?;
        let m = call.def("an input", inputs[0])?.rows;
        for &input in inputs {
            let def = call.def("an input", input)?;
            call.size("the rows of an input", m, def.rows)?;
            if !matches!(def.dtype, DType::F32 | DType::U32) {
                return call.fail(Problem::Type { what: "an input", expected: "F32 or U32", got: def.dtype });
            }
        }
        let inputs = inputs.iter().map(|input| input.id()).collect();
        Ok(self.emit(Op::HostSegment { segment, inputs }, m, n))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Bindings, DType, GraphBuilder, HostInput, HostSegmentCall, OpCall, PlanOptions};

    #[test]
    fn a_host_segment_reads_rows_of_32_bit_values() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 1, 8).unwrap();
        let ids = b.index_rows("ids", 1, 3).unwrap();
        let y = b.host_segment(7, &[x, ids], 5).unwrap();
        let y = b.silu(y).unwrap();
        b.output("y", y).unwrap();
        let graph = b.finish().with_rows(|_| Some(4)).unwrap();
        let plan = graph.plan(&PlanOptions { batch_invariant: true, ..PlanOptions::default() }).unwrap();
        let bound = plan.bind_at(0x1000, &Bindings::new()).unwrap();
        let at = |tensor| bound.address(bound.find(tensor).unwrap());
        let OpCall::HostSegment(call) = &bound.program().calls()[0].call else {
            panic!("{:?}", bound.program().calls())
        };
        let inputs = vec![HostInput { ptr: at("x"), width: 8 }, HostInput { ptr: at("ids"), width: 3 }];
        let expected =
            HostSegmentCall { segment: 7, inputs, output: call.output, m: 4, n: 5, batch_invariant: true };
        assert_eq!(*call, expected);
        assert_eq!((call.inputs[1].bytes(4), call.output_bytes()), (48, 80));
    }

    #[test]
    fn wrong_inputs_are_refused() {
        let mut b = GraphBuilder::new();
        let (x, other) = (b.input("x", 2, 8).unwrap(), b.input("other", 3, 8).unwrap());
        let half = b.weight("w", DType::F16, 2, 8).unwrap();
        let mut refused = |inputs: &[_]| b.host_segment(0, inputs, 4).unwrap_err().to_string();
        for inputs in [&[][..], &[x; 5]] {
            let expected = format!("host_segment: takes 1, 2, 3 or 4 inputs, got {}", inputs.len());
            assert_eq!(refused(inputs), expected);
        }
        assert_eq!(refused(&[x, other]), "host_segment: the rows of an input must be 2, got 3");
        assert_eq!(refused(&[x, half]), "host_segment: an input must be F32 or U32, got F16");
    }
}
