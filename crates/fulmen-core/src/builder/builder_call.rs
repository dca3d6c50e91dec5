//! Checks of the arguments of builder methods.

use super::build::{Built, Cache, GraphBuilder, Rotation, Tensor};
use super::{Role, TensorDef, TensorId};
use crate::graph::checks::{check_history, check_rope, weight_type};
use crate::{BuildError, DType, Heads, Problem, Scores};

/// The checks of one builder method, which their errors name.
pub(super) struct BuilderCall<'a> {
    pub(super) name: &'static str,
    pub(super) builder: &'a GraphBuilder,
}

impl<'a> BuilderCall<'a> {
    pub(super) fn fail<T>(&self, problem: Problem) -> Built<T> {
        Err(BuildError { call: self.name, problem })
    }

    pub(super) fn check<T>(&self, result: Result<T, Problem>) -> Built<T> {
        result.map_err(|problem| BuildError { call: self.name, problem })
    }

    pub(super) fn def(&self, what: &'static str, tensor: Tensor) -> Built<&'a TensorDef> {
        if tensor.owner != self.builder.owner {
            return self.fail(Problem::Foreign { what });
        }
        Ok(&self.builder.graph.tensors[tensor.id()])
    }

    pub(super) fn size(&self, what: &'static str, expected: u32, got: u32) -> Built<()> {
        if expected == got {
            return Ok(());
        }
        self.fail(Problem::Size { what, expected: expected.into(), got: got.into() })
    }

    /// An f32 tensor; returns (rows, width).
    pub(super) fn rows(&self, what: &'static str, tensor: Tensor) -> Built<(u32, u32)> {
        let def = self.def(what, tensor)?;
        if def.dtype != DType::F32 {
            return self.fail(Problem::Type { what, expected: "F32", got: def.dtype });
        }
        Ok((def.rows, def.width))
    }

    pub(super) fn rows_of(&self, what: &'static str, tensor: Tensor, rows: u32, width: u32) -> Built<()> {
        let got = self.rows(what, tensor)?;
        self.size(what, rows, got.0)?;
        self.size(what, width, got.1)
    }

    pub(super) fn indices(&self, what: &'static str, tensor: Tensor, rows: u32) -> Built<()> {
        let def = self.def(what, tensor)?;
        if def.dtype != DType::U32 {
            return self.fail(Problem::Type { what, expected: "U32", got: def.dtype });
        }
        self.size(what, rows, def.rows)?;
        self.size(what, 1, def.width)
    }

    /// A tensor of words; returns (rows, width).
    pub(super) fn words(&self, what: &'static str, tensor: Tensor) -> Built<(u32, u32)> {
        let def = self.def(what, tensor)?;
        match def.dtype {
            DType::U32 => Ok((def.rows, def.width)),
            got => self.fail(Problem::Type { what, expected: "U32", got }),
        }
    }

    /// A tensor that the op updates.
    pub(super) fn state(&self, what: &'static str, tensor: Tensor) -> Built<()> {
        match self.def(what, tensor)?.role {
            Role::State => Ok(()),
            _ => self.fail(Problem::NotAState { what }),
        }
    }

    /// Tokens by sequence and position.
    pub(super) fn history(&self, tensor: Tensor) -> Built<()> {
        let def = self.def("the history", tensor)?;
        if def.dtype != DType::U32 {
            return self.fail(Problem::Type { what: "the history", expected: "U32", got: def.dtype });
        }
        self.check(check_history(def.rows, def.width))
    }

    /// The pages of each sequence; returns the sequences and the pages of each.
    pub(super) fn page_table(&self, tensor: Tensor) -> Built<(u32, u32)> {
        let def = self.def("the page table", tensor)?;
        if def.dtype != DType::U32 {
            return self.fail(Problem::Type { what: "the page table", expected: "U32", got: def.dtype });
        }
        self.state("the page table", tensor)?;
        Ok((def.rows, def.width))
    }

    /// A weight `[n, k]`; returns n.
    pub(super) fn weight(&self, what: &'static str, tensor: Tensor, k: u32) -> Built<u32> {
        let def = self.def(what, tensor)?;
        self.size(what, k, def.width)?;
        self.check(weight_type(what, def.dtype, def.rows, k))?;
        Ok(def.rows)
    }

    pub(super) fn bias(&self, tensor: Option<Tensor>, n: u32) -> Built<()> {
        tensor.map_or(Ok(()), |bias| self.rows_of("the bias", bias, 1, n))
    }

    pub(super) fn rotation(&self, rotation: Rotation, head_dim: u32, rows: u32) -> Built<()> {
        self.check(check_rope(rotation.spec, head_dim))?;
        self.indices("positions", rotation.positions, rows)?;
        match rotation.factors {
            Some(factors) => self.rows_of("the frequency factors", factors, 1, rotation.spec.n_rot / 2),
            None => Ok(()),
        }
    }

    /// Scores of attention, with the sinks by number.
    pub(super) fn scores(&self, scores: Scores<Tensor>, heads: Heads) -> Built<Scores<TensorId>> {
        self.check(scores.check())?;
        if let Some(sinks) = scores.sinks {
            self.rows_of("the sinks", sinks, 1, heads.n_heads)?;
        }
        Ok(scores.map(Tensor::id))
    }

    /// The work list of a mixed step.
    pub(super) fn work_list(&self, tensor: Tensor, max_chunks: u32) -> Built<()> {
        let def = self.def("the work list", tensor)?;
        if def.dtype != DType::U32 {
            return self.fail(Problem::Type { what: "the work list", expected: "U32", got: def.dtype });
        }
        self.size("the columns of the work list", 4, def.width)?;
        self.size("the rows of the work list", max_chunks.saturating_add(1), def.rows)
    }

    /// Positions and sequences of `rows` rows, and a cache of this builder.
    pub(super) fn slots(
        &self,
        cache: Cache,
        positions: Tensor,
        sequences: Option<Tensor>,
        rows: u32,
    ) -> Built<()> {
        self.def("the cache", cache.k)?;
        self.indices("positions", positions, rows)?;
        sequences.map_or(Ok(()), |sequences| self.indices("sequences", sequences, rows))
    }
}
