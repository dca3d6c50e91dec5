//! Recording of collectives: what the ranks of a group exchange.

use super::build::{Built, GraphBuilder, Tensor};
use super::op::Op;
use crate::DType;
use crate::graph::checks::{at_least_1, epsilon};
use crate::graph::{check_column, check_gathered_width, check_ranks};

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

    /// The means of the squares of each row of `a` and of `b`, `[m, 2]`: for the norm of rows whose columns
    /// are divided among ranks, `all_reduce` adds them up for [`rms_scale`](GraphBuilder::rms_scale).
    pub fn mean_squares(&mut self, a: Tensor, b: Tensor) -> Built<Tensor> {
        let call = self.call("mean_squares");
        let ((rows, a_width), (b_rows, b_width)) =
            (call.rows("the first input", a)?, call.rows("the second input", b)?);
        call.size("the rows of the second input", rows, b_rows)?;
        for width in [a_width, b_width] {
            call.check(at_least_1("the width of an input", width))?;
        }
        Ok(self.emit(Op::MeanSquares { a: a.id(), b: b.id() }, rows, 2))
    }

    /// The RMS norm of rows whose mean squares are column `column` of `means`, sums over as many `ranks`.
    pub fn rms_scale(
        &mut self,
        x: Tensor,
        (means, column): (Tensor, u32),
        gamma: Tensor,
        ranks: u32,
        eps: f32,
    ) -> Built<Tensor> {
        let call = self.call("rms_scale");
        let (rows, width) = call.rows("the input", x)?;
        let (mean_rows, columns) = call.rows("the means", means)?;
        call.size("the rows of the means", rows, mean_rows)?;
        call.check(check_column(column, columns))?;
        call.rows_of("the gain", gamma, 1, width)?;
        call.check(check_ranks(ranks))?;
        let (x, means, gamma, epsilon) = (x.id(), means.id(), gamma.id(), call.check(epsilon(eps))?);
        Ok(self.emit(Op::RmsScale { x, means, column, gamma, ranks, epsilon }, rows, width))
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
    fn norms_of_divided_rows_refuse_what_does_not_fit() {
        let mut b = GraphBuilder::new();
        let (q, k) = (b.input("q", 3, 8).unwrap(), b.input("k", 3, 4).unwrap());
        let means = b.mean_squares(q, k).unwrap();
        assert_eq!(b.shape(means).unwrap(), (3, 2));
        let (gain, other) = (b.vector("gain", 8).unwrap(), b.input("other", 2, 8).unwrap());
        let y = b.rms_scale(q, (means, 1), gain, 2, 1e-6).unwrap();
        assert_eq!(b.shape(y).unwrap(), (3, 8));
        assert_eq!(
            b.mean_squares(q, other).unwrap_err().to_string(),
            "mean_squares: the rows of the second input must be 3, got 2"
        );
        assert_eq!(
            b.rms_scale(q, (means, 2), gain, 2, 1e-6).unwrap_err().to_string(),
            "rms_scale: the column of the means must be less than the columns that there are, got 2"
        );
        for (x, ranks, epsilon) in [(k, 2, 1e-6), (other, 2, 1e-6), (q, 0, 1e-6), (q, 2, -1.0)] {
            assert!(b.rms_scale(x, (means, 0), gain, ranks, epsilon).is_err());
        }
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
