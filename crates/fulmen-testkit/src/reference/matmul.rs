//! Matmul and embedding.

use fulmen_core::{GateActivation, Linear, TablePart, TensorDef, TensorId};

use super::{Data, Interpreter, ReferenceError, Result, Values, gelu_tanh, silu};

/// `x · wᵀ` at some columns: values and sizes, `[m, columns]`.
struct Matmul {
    values: Vec<f64>,
    sizes: Vec<f64>,
}

impl Interpreter {
    /// Rows of a table. If it is a part of a larger one, rows that it does not have are zeros.
    pub(super) fn embed(
        &self,
        table: TensorId,
        tokens: TensorId,
        part: Option<TablePart>,
    ) -> Result<Vec<f64>> {
        let TensorDef { rows, width, .. } = self.graph.tensors[table];
        let TablePart { first, of: limit } = part.unwrap_or(TablePart { first: 0, of: rows });
        let mut out = Vec::new();
        for value in self.ints(tokens)? {
            if value >= limit {
                return Err(ReferenceError::Index { what: "token", value, limit });
            }
            match value.checked_sub(first).filter(|&row| row < rows) {
                Some(row) => out.extend(self.weight_row(table, row as usize)?),
                None => out.extend(vec![0.0; width as usize]),
            }
        }
        Ok(out)
    }

    pub(super) fn mul_mat(
        &self,
        x: TensorId,
        weights: &[Linear],
        residual: Option<TensorId>,
        outputs: &[TensorId],
    ) -> Result<Vec<Data>> {
        let input = self.floats(x)?;
        let residual = self.optional_floats(residual)?;
        let mut results = Vec::new();
        for (at, linear) in weights.iter().enumerate() {
            let (m, n) = (self.rows(x), self.rows(linear.weight));
            let columns = self.columns(&outputs[at..=at], m, n, self.width(x));
            let mut result = self.matmul(&input, m, linear.weight, &columns)?;
            let bias = self.optional_floats(linear.bias)?;
            for (i, (value, size)) in result.values.iter_mut().zip(&mut result.sizes).enumerate() {
                let (row, column) = (i / columns.len(), columns[i % columns.len()]);
                let terms =
                    [bias.as_ref().map(|b| b[column]), residual.as_ref().map(|r| r[row * n + column])];
                for term in terms.into_iter().flatten() {
                    *value += term;
                    *size = size.hypot(term);
                }
            }
            results.push(scatter(result, m, n, &columns));
        }
        Ok(results)
    }

    pub(super) fn gate_up(
        &self,
        x: TensorId,
        [gate, up]: [TensorId; 2],
        activation: GateActivation,
        outputs: &[TensorId],
    ) -> Result<Vec<Data>> {
        let activation = match activation {
            GateActivation::Silu => silu,
            GateActivation::GeluTanh => gelu_tanh,
        };
        let (input, m, n) = (self.floats(x)?, self.rows(x), self.rows(gate));
        let columns = self.columns(outputs, m, n, 2 * self.width(x));
        let gate = self.matmul(&input, m, gate, &columns)?;
        let mut result = self.matmul(&input, m, up, &columns)?;
        for (i, (up, size)) in result.values.iter_mut().zip(&mut result.sizes).enumerate() {
            let (g, u) = (gate.values[i], *up);
            *up = activation(g) * u;
            // The sensitivity to either matmul; the slopes of silu and gelu are at most 1.13.
            *size = (1.13 * gate.sizes[i] * u).hypot(activation(g) * *size);
        }
        Ok(vec![scatter(result, m, n, &columns)])
    }

    /// All columns of the outputs, or some of them for a large matmul that no op reads: always the first and
    /// the last, the others spread evenly with a step that is not a multiple of a tile.
    pub(super) fn columns(&self, outputs: &[TensorId], m: usize, n: usize, k: usize) -> Vec<usize> {
        let per_column = (m as u64 * k as u64).max(1);
        let count = usize::try_from(self.matmul_limit / per_column).unwrap_or(n).max(4);
        if count >= n || outputs.iter().any(|&output| self.is_read(output)) {
            return (0..n).collect();
        }
        let mut columns: Vec<usize> = (0..count).map(|i| i * (n - 1) / (count - 1)).collect();
        // An even step of a power of two would always hit the same lane.
        for (i, column) in columns.iter_mut().enumerate().take(count - 1).skip(1) {
            *column = (*column + i % 7).min(n - 1);
        }
        columns.dedup();
        columns
    }

    pub(super) fn weight_row(&self, weight: TensorId, row: usize) -> Result<Vec<f64>> {
        let row = self.data(weight)?.rows(row..row + 1, self.width(weight))?;
        row.ok_or_else(|| ReferenceError::Kind(self.name(weight)))
    }

    fn matmul(&self, input: &[f64], m: usize, weight: TensorId, columns: &[usize]) -> Result<Matmul> {
        let k = self.width(weight);
        let count = columns.len();
        let mut result = Matmul { values: vec![0.0; m * count], sizes: vec![0.0; m * count] };
        for (at, &column) in columns.iter().enumerate() {
            let w = self.weight_row(weight, column)?;
            for (row, x) in input.chunks(k.max(1)).take(m).enumerate() {
                let (sum, squares) = dot(x, &w);
                result.values[row * count + at] = sum;
                result.sizes[row * count + at] = squares.sqrt();
            }
        }
        Ok(result)
    }
}

/// `Σ w x` and `Σ (w x)²`, in four partial sums each for speed.
pub(super) fn dot(x: &[f64], w: &[f64]) -> (f64, f64) {
    let (mut sums, mut squares) = ([0.0; 4], [0.0; 4]);
    let (x4, x_rest) = x.as_chunks::<4>();
    let (w4, w_rest) = w.as_chunks::<4>();
    for (x, w) in x4.iter().zip(w4) {
        for lane in 0..4 {
            let term = x[lane] * w[lane];
            sums[lane] += term;
            squares[lane] += term * term;
        }
    }
    for (x, w) in x_rest.iter().zip(w_rest) {
        sums[0] += x * w;
        squares[0] += (x * w) * (x * w);
    }
    (sums.iter().sum(), squares.iter().sum())
}

/// The computed columns at their positions in `[m, n]`.
fn scatter(result: Matmul, m: usize, n: usize, columns: &[usize]) -> Data {
    if columns.len() == n {
        return Data::Floats(Values { data: result.values, sizes: Some(result.sizes), known: None });
    }
    let (mut data, mut sizes) = (vec![f64::NAN; m * n], vec![f64::NAN; m * n]);
    let mut known = Vec::with_capacity(m * columns.len());
    for row in 0..m {
        for (at, column) in columns.iter().enumerate() {
            let (to, from) = (row * n + column, row * columns.len() + at);
            (data[to], sizes[to]) = (result.values[from], result.sizes[from]);
            known.push(to);
        }
    }
    Data::Floats(Values { data, sizes: Some(sizes), known: Some(known) })
}
