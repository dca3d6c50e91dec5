//! Recorded graphs as templates: the same graph for other row counts.

use super::op::OperandRows;
use super::{LogicalGraph, OpNode, Role, TensorDef};
use crate::{BuildError, Problem};

impl LogicalGraph {
    /// The same graph for other row counts, without recording it again. `rows` gives the rows of an input or
    /// state by its name; `None` keeps them. A computed tensor gets as many rows as what it is computed from.
    ///
    /// ```
    /// use fulmen_core::GraphBuilder;
    ///
    /// let mut b = GraphBuilder::new();
    /// let x = b.input("x", 1, 64)?;
    /// let y = b.silu(x)?;
    /// b.output("y", y)?;
    /// let template = b.finish();
    /// let batch = template.with_rows(|name| (name == "x").then_some(16))?;
    /// assert_eq!(batch.tensors[y.id()].rows, 16);
    /// # Ok::<(), fulmen_core::BuildError>(())
    /// ```
    pub fn with_rows(&self, rows: impl Fn(&str) -> Option<u32>) -> Result<LogicalGraph, BuildError> {
        let mut graph = self.clone();
        let tensors = &mut graph.tensors;
        for tensor in tensors.iter_mut().filter(|tensor| matches!(tensor.role, Role::Input | Role::State)) {
            if let Some(rows) = tensor.name.as_deref().and_then(&rows) {
                resize(tensor, rows)?;
            }
        }
        for OpNode { op, outputs } in &self.ops {
            let (mut batch, mut wrong) = (None, None);
            op.visit_operands(|id, rows| {
                let (before, now) = (self.tensors[id].rows, tensors[id].rows);
                let expected = match rows {
                    OperandRows::Batch => *batch.get_or_insert(now),
                    OperandRows::Fixed => before,
                    OperandRows::Any => now,
                };
                if expected != now {
                    wrong = Some((expected, now));
                }
            });
            if let Some((expected, got)) = wrong {
                let (expected, got) = (expected.into(), got.into());
                return Err(refused(Problem::Size { what: "the rows of an operand", expected, got }));
            }
            for &output in outputs {
                resize(&mut tensors[output], batch.unwrap_or(0))?;
            }
        }
        Ok(graph)
    }
}

fn refused(problem: Problem) -> BuildError {
    BuildError { call: "with_rows", problem }
}

fn resize(tensor: &mut TensorDef, rows: u32) -> Result<(), BuildError> {
    tensor.rows = rows;
    tensor.bytes().map(|_| ()).map_err(|error| refused(Problem::DType(error)))
}

#[cfg(test)]
mod tests {
    use crate::{
        CacheSpec, DType, Fusions, GraphBuilder, Heads, LogicalGraph, Problem, RopePairing, RopeSpec,
        Rotation,
    };

    /// A layer with every kind of operand, and results for some of its rows.
    fn layer(rows: u32, output_rows: u32) -> LogicalGraph {
        let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 8 };
        let mut b = GraphBuilder::new();
        let [tokens, positions, sequences] =
            ["tokens", "positions", "sequences"].map(|name| b.indices(name, rows).unwrap());
        let table = b.weight("table", DType::Q8_0, 32, 32).unwrap();
        let [w, narrow] =
            [("w", 16), ("narrow", 8)].map(|(name, n)| b.weight(name, DType::F32, n, 32).unwrap());
        let [gain, head_gain] = [("gain", 32), ("head", 8)].map(|(name, n)| b.vector(name, n).unwrap());
        let back = b.weight("back", DType::F32, 32, 16).unwrap();
        let pages = b.page_table("pages", 2, 1).unwrap();
        let spec = CacheSpec { dtype: DType::F16, n_pages: 2, table: pages, heads };
        let cache = b.kv_cache("cache", spec).unwrap();
        let spec = RopeSpec::new(RopePairing::NeoX, 8, 1e4);
        let rotation = Rotation { spec, positions, factors: None };

        let x = b.embed(table, tokens).unwrap();
        let h = b.rms_norm(x, gain, 1e-5).unwrap();
        let (q, k) = (b.mul_mat(h, w).unwrap(), b.mul_mat(h, narrow).unwrap());
        let q = b.rms_norm(q, head_gain, 1e-5).unwrap();
        let (q, rotated) = (b.rope(q, 8, rotation).unwrap(), b.rope(k, 8, rotation).unwrap());
        b.kv_store(rotated, k, cache, positions, Some(sequences)).unwrap();
        let attended = b.cache_attention(q, cache, positions, Some(sequences), 0.3).unwrap();
        let out = b.mul_mat(attended, back).unwrap();
        let x = b.add(x, out).unwrap();
        let selected = b.indices("output_rows", output_rows).unwrap();
        let x = b.embed(x, selected).unwrap();
        let logits = b.mul_mat(x, table).unwrap();
        let [next, places] = ["next", "places"].map(|name| b.index_state(name, output_rows, 1).unwrap());
        let history = b.index_state("history", 2, 8).unwrap();
        let (penalties, states) =
            (b.penalties("penalties", output_rows).unwrap(), b.sample_states("states", output_rows).unwrap());
        let logits = b.penalize(logits, penalties, history, places, None).unwrap();
        let drawn = b.sample(logits, states).unwrap();
        b.output("drawn", drawn).unwrap();
        b.advance(drawn, next, places, history, None).unwrap();
        b.finish()
    }

    fn rows_of(name: &str, rows: u32, output_rows: u32) -> Option<u32> {
        match name {
            "tokens" | "positions" | "sequences" => Some(rows),
            "output_rows" | "next" | "places" | "penalties" | "states" => Some(output_rows),
            _ => None,
        }
    }

    #[test]
    fn a_template_with_rows_is_the_graph_recorded_for_them() {
        let template = layer(1, 1);
        for (rows, output_rows) in [(1, 1), (2, 1), (7, 3), (33, 33), (0, 0), (5, 0)] {
            let recorded = layer(rows, output_rows);
            let made = template.with_rows(|name| rows_of(name, rows, output_rows)).unwrap();
            assert_eq!(made, recorded, "{rows} rows");
            // Fusion does not look at rows, so a fused graph is a template as well.
            for fusions in [Fusions::all(), Fusions { add_rms_norm: false, ..Fusions::all() }] {
                let fused = template.clone().fuse(&fusions);
                let made = fused.with_rows(|name| rows_of(name, rows, output_rows)).unwrap();
                assert_eq!(made.ops, recorded.clone().fuse(&fusions).ops);
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_each_other_are_refused() {
        let wrong = |rows: fn(&str) -> Option<u32>| layer(2, 1).with_rows(rows).unwrap_err().to_string();
        let error = wrong(|name| (name == "tokens").then_some(3));
        assert_eq!(error, "with_rows: the rows of an operand must be 3, got 2");
        let error = wrong(|name| (name == "history").then_some(3));
        assert_eq!(error, "with_rows: the rows of an operand must be 2, got 3");

        let mut b = GraphBuilder::new();
        b.input("wide", 1, u32::MAX).unwrap();
        let error = b.finish().with_rows(|_| Some(u32::MAX)).unwrap_err();
        assert!(matches!(error.problem, Problem::DType(_)), "{error}");

        // With one row a computed tensor can be a bias; with more it cannot.
        let mut b = GraphBuilder::new();
        let x = b.input("x", 1, 8).unwrap();
        let w = b.weight("w", DType::F32, 8, 8).unwrap();
        let y = b.linear(x, w, Some(x), None).unwrap();
        b.output("y", y).unwrap();
        let error = b.finish().with_rows(|_| Some(2)).unwrap_err().to_string();
        assert_eq!(error, "with_rows: the rows of an operand must be 1, got 2");
    }
}
