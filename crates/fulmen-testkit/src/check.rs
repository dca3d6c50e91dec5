//! Runs one case on one backend and checks the results.

use fulmen_core::{Backend, BackendError, DTypeError, ExecError, Role, TensorId};

use crate::case::{Case, Size, Tolerance};
use crate::compare::{Agreement, Mismatch, compare};
use crate::draw::Pools;
use crate::reference::{Interpreter, ReferenceError};
use crate::rig::{Rig, Stray};

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A result that differs from the reference.
    #[error("{tensor}: {mismatch}")]
    Wrong {
        /// The output or state.
        tensor: String,
        /// Its worst element.
        mismatch: Mismatch,
    },
    /// A write outside the outputs.
    #[error(transparent)]
    Stray(#[from] Stray),
    /// A second run with the same inputs that gave different bits.
    #[error("{tensor}: a second run gave different bits, from byte {byte} on")]
    Unrepeatable {
        /// The output.
        tensor: String,
        /// The first byte that differs.
        byte: usize,
    },
    /// The backend failed.
    #[error("the run failed: {0}")]
    Run(#[from] ExecError),
    /// The reference could not run: the case itself is wrong.
    #[error("the reference failed: {0}")]
    Reference(#[from] ReferenceError),
    /// A GPU call failed.
    #[cfg(feature = "wgpu")]
    #[error("the run failed: {0}")]
    Gpu(#[from] fulmen_wgpu::GpuError),
    /// A result of the wrong length.
    #[error("the result has {got} elements, expected {expected}")]
    Length {
        /// Elements that it should have.
        expected: u64,
        /// Elements that it has.
        got: u64,
    },
    /// Data of the wrong length: the case itself is wrong.
    #[error("the data cannot be drawn or read: {0}")]
    Data(#[from] DTypeError),
}

/// The outcome of a case.
#[derive(Debug)]
pub enum Outcome {
    /// Everything is within tolerance; the result that was closest to it.
    Passed(Agreement),
    /// Something was wrong.
    Failed(Failure),
    /// The backend has no kernel for this.
    Unsupported(String),
}

/// Runs a case, compares every output and every state with the reference, and checks that all other memory is
/// unchanged.
pub fn check_case(backend: &mut dyn Backend, case: &Case, pools: &mut Pools) -> Outcome {
    match run(backend, case, pools) {
        Ok(agreement) => Outcome::Passed(agreement),
        Err(failure) => match unsupported(&failure) {
            Some(reason) => Outcome::Unsupported(reason),
            None => Outcome::Failed(failure),
        },
    }
}

fn unsupported(failure: &Failure) -> Option<String> {
    match failure {
        Failure::Run(ExecError::Node { source, .. } | ExecError::Backend(source)) => {
            matches!(source, BackendError::Unsupported { .. }).then(|| source.to_string())
        }
        _ => None,
    }
}

fn run(backend: &mut dyn Backend, case: &Case, pools: &mut Pools) -> Result<Agreement, Failure> {
    let data = pools.draw_case(case)?;
    let mut rig = Rig::new(backend, case.graph.clone(), &case.plan_options(), &data)?;
    let result = rig.run(backend).map_err(Failure::from).and_then(|()| {
        let mut reference = Interpreter::new(&case.graph, &data)?;
        reference.run()?;
        let agreement = compare_all(backend, &rig, &reference, case.tolerance)?;
        rig.surroundings(backend)??;
        if case.size == Size::Quick {
            repeat(backend, &mut rig)?;
        }
        Ok(agreement)
    });
    let released = rig.release(backend);
    let agreement = result?;
    released?;
    Ok(agreement)
}

/// Compares every output and every state; returns the one that was closest to its tolerance.
pub fn compare_all(
    backend: &mut dyn Backend,
    rig: &Rig,
    reference: &Interpreter,
    tolerance: Tolerance,
) -> Result<Agreement, Failure> {
    let mut closest = Agreement::default();
    for tensor in results(rig) {
        let def = &rig.plan.graph.tensors[tensor];
        let got = rig.read(backend, tensor)?;
        let agreement = compare(def.dtype, &got, reference.data(tensor)?, tolerance)?;
        let wrong =
            |mismatch| Failure::Wrong { tensor: def.name.clone().unwrap_or_default().into(), mismatch };
        let agreement = agreement.map_err(wrong)?;
        if agreement.share() >= closest.share() {
            closest = agreement;
        }
    }
    Ok(closest)
}

/// Outputs and states.
fn results(rig: &Rig) -> Vec<TensorId> {
    let graph = &rig.plan.graph;
    let states = (0..graph.tensors.len()).filter(|&id| graph.tensors[id].role == Role::State);
    let mut results: Vec<TensorId> = graph.outputs.iter().copied().chain(states).collect();
    results.dedup();
    results
}

/// A second run from the same state must give the same bits.
fn repeat(backend: &mut dyn Backend, rig: &mut Rig) -> Result<(), Failure> {
    let tensors = results(rig);
    let read = |rig: &Rig, backend: &mut dyn Backend| -> Result<Vec<Vec<u8>>, ExecError> {
        tensors.iter().map(|&tensor| rig.read(backend, tensor)).collect()
    };
    let first = read(rig, backend)?;
    rig.reset(backend)?;
    rig.run(backend)?;
    let second = read(rig, backend)?;
    for ((&tensor, a), b) in tensors.iter().zip(&first).zip(&second) {
        if let Some(byte) = a.iter().zip(b).position(|(a, b)| a != b) {
            let tensor = rig.plan.graph.tensors[tensor].name.clone().unwrap_or_default().into();
            return Err(Failure::Unrepeatable { tensor, byte });
        }
    }
    Ok(())
}
