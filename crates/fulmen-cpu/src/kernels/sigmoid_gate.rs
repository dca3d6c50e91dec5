//! Sigmoid gates: `x · sigmoid(gate)`, where a gate covers one element or several neighbors. One SIMD pass,
//! in parallel over rows; bound by memory bandwidth.

use super::parallel::{SharedPtr, rows};
use crate::{
    isa::Isa,
    lanes,
    simd::{Kernel, LaneIo, Simd, dispatch, math},
    threads::Pool,
};

/// Elements per task.
const GRAIN: usize = 8 * 1024;

/// Consecutive rows.
struct GateRows<'a> {
    x: *const f32,
    gate: &'a [f32],
    out: *mut f32,
    /// Elements of a gate.
    span: usize,
}

impl Kernel for GateRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.span == 1 {
            lanes!(S, self.gate.len(), |at, io| {
                // SAFETY: there are as many elements as gates.
                unsafe {
                    let x = io.load(s, self.x.add(at), 0.0);
                    let gate = math::sigmoid(s, io.load(s, self.gate.as_ptr().add(at), 0.0));
                    io.store(s, self.out.add(at), s.mul(x, gate));
                }
            });
            return;
        }
        for (number, gate) in self.gate.iter().enumerate() {
            let (first, gate) = (number * self.span, math::sigmoid(s, s.splat(*gate)));
            lanes!(S, self.span, |at, io| {
                // SAFETY: each gate has `span` elements.
                unsafe {
                    let x = io.load(s, self.x.add(first + at), 0.0);
                    io.store(s, self.out.add(first + at), s.mul(x, gate));
                }
            });
        }
    }
}

/// `out = x · sigmoid(gate)` for rows of `n` elements and `gates` gates.
///
/// # Safety
/// `x` must be readable and `out` writable for all rows, at the same address or disjoint.
pub(crate) unsafe fn sigmoid_gate(
    pool: &Pool,
    isa: Isa,
    x: *const f32,
    gate: &[f32],
    out: *mut f32,
    n: usize,
    gates: usize,
) {
    let (x, out) = (SharedPtr::read(x), SharedPtr::new(out));
    rows(pool, gate.len() / gates, n, GRAIN, &|rows| {
        let gate = &gate[rows.start * gates..rows.end * gates];
        // SAFETY: the rows are within the operands, and each is one task's.
        let (x, out) = unsafe { (x.at(rows.start * n), out.at(rows.start * n)) };
        dispatch(isa, GateRows { x, gate, out, span: n / gates });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_covers_neighbors() {
        let (x, gate) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0, f32::INFINITY]);
        for isa in Isa::available() {
            let mut out = [0.0; 6];
            // SAFETY: both have six elements.
            unsafe { sigmoid_gate(&Pool::new(2), isa, x.as_ptr(), &gate, out.as_mut_ptr(), 6, 2) };
            assert_eq!(out, [0.5, 1.0, 1.5, 4.0, 5.0, 6.0]);
            let gate = [0.0; 6];
            // SAFETY: as above.
            unsafe { sigmoid_gate(&Pool::new(2), isa, x.as_ptr(), &gate, out.as_mut_ptr(), 3, 3) };
            assert_eq!(out, x.map(|x| x / 2.0));
        }
    }
}
