//! Recording of collectives: what the ranks of a group exchange.

use super::build::{Built, GraphBuilder, Tensor};
use super::op::Op;
use crate::DType;
use crate::graph::{check_gathered_width, check_ranks};

impl GraphBuilder {
    /// The sum of `x` over all `ranks`, element by element, on every rank. Each rank must run the same
    /// collectives in the same order.
    pub fn all_reduce(&mut self, x: Tensor, ranks: u32) -> Built<Tensor> {
        let call = self.call("all_reduce");
        let (rows, width) = call.rows("the input", x)?;
        call.check(check_ranks(ranks))?;
        Ok(self.emit(Op::AllReduce { x: x.id(), ranks }, rows, width))
    }

    /// The columns of `x`, floats or integers, of all `ranks` beside each other, rank 0 first, on every rank:
    /// `[m, n]` to `[m, ranks · n]`.
    pub fn all_gather(&mut self, x: Tensor, ranks: u32) -> Built<Tensor> {
        let call = self.call("all_gather");
        let dtype = call.def("the input", x)?.dtype;
        let (rows, width) = match dtype {
            DType::U32 => call.words("the input", x)?,
            _ => call.rows("the input", x)?,
        };
        call.check(check_ranks(ranks))?;
        call.check(check_gathered_width(width, ranks))?;
        let gathered = self.emit(Op::AllGather { x: x.id(), ranks }, rows, width * ranks);
        self.graph.tensors[gathered.id()].dtype = dtype;
        Ok(gathered)
    }
}

#[cfg(test)]
mod tests {
    use crate::GraphBuilder;

    #[test]
    fn collectives_have_the_rows_of_their_input() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 1, 8).unwrap();
        let sum = b.all_reduce(x, 4).unwrap();
        let all = b.all_gather(sum, 4).unwrap();
        assert_eq!((b.shape(sum).unwrap(), b.shape(all).unwrap()), ((1, 8), (1, 32)));
        b.output("all", all).unwrap();
        let graph = b.finish().with_rows(|_| Some(5)).unwrap();
        assert_eq!((graph.tensors[sum.id()].rows, graph.tensors[all.id()].rows), (5, 5));
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", 1, u32::MAX / 2).unwrap();
        for ranks in [0, 65] {
            let expected = format!("all_reduce: ranks must be from 1 to 64, got {ranks}");
            assert_eq!(b.all_reduce(x, ranks).unwrap_err().to_string(), expected);
            assert!(b.all_gather(x, ranks).is_err());
        }
        let wide = b.all_gather(x, 3).unwrap_err().to_string();
        assert_eq!(wide, "all_gather: the width of all ranks must be less than 2^32, got 6442450941");
        let tokens = b.indices("tokens", 3).unwrap();
        let wrong = b.all_reduce(tokens, 2).unwrap_err().to_string();
        assert_eq!(wrong, "all_reduce: the input must be F32, got U32");
    }
}
