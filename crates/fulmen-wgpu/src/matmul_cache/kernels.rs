//! Which kernels multiply by a weight of the cache, and how one is forced or remembered.

use super::{GpuMatmulCache, run::rows, weight::Weight};
use crate::{
    error::GpuError,
    kernel::Kernel,
    kernels::matmul::EpilogueSource,
    matmul_launches::{ChosenKernel, KernelChooser, WeightLaunches},
};

impl GpuMatmulCache {
    fn chooser<'a>(&'a self, weight: &'a Weight, m: u32) -> KernelChooser<'a> {
        KernelChooser {
            gpu: &self.gpu,
            weight: &weight.data,
            exact: self.options.exact_activations,
            batch_invariant: false,
            forced: self.forced.get(&(weight.number, m)).map(String::as_str),
        }
    }

    /// Chooses kernels for `m` rows of input.
    pub(super) fn launches(
        &self,
        call: &'static str,
        weight: &Weight,
        m: u32,
    ) -> Result<WeightLaunches, GpuError> {
        self.chooser(weight, m).launches(call, m, &EpilogueSource::none())
    }

    /// The names of all kernels that could multiply `m` rows by a weight, the table's own first. Some may not
    /// fit the device after all.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`], [`GpuError::Argument`] where `m` is 0.
    pub fn candidates(&self, weight_name: &str, m: usize) -> Result<Vec<String>, GpuError> {
        const CALL: &str = "candidates";
        let weight = self.weights.get(weight_name).ok_or_else(|| self.unknown(CALL, weight_name))?;
        let m = rows(CALL, m)?;
        let columns = weight.first_rows();
        Ok(self.chooser(weight, m).all_choices(m, &columns).iter().map(ChosenKernel::name).collect())
    }

    /// Those of the [`candidates`](Self::candidates) that run on tensor cores (cooperative matrices).
    ///
    /// # Errors
    /// As [`candidates`](Self::candidates).
    pub fn tensor_core_candidates(&self, weight_name: &str, m: usize) -> Result<Vec<String>, GpuError> {
        const CALL: &str = "tensor_core_candidates";
        let weight = self.weights.get(weight_name).ok_or_else(|| self.unknown(CALL, weight_name))?;
        let m = rows(CALL, m)?;
        let all = self.chooser(weight, m).all_choices(m, &weight.first_rows());
        Ok(all.iter().filter(|choice| choice.uses_tensor_cores()).map(ChosenKernel::name).collect())
    }

    /// The kernels that a candidate needs; none if it does not fit.
    pub(crate) fn kernels_by(&self, name: &str, m: usize, candidate: &str) -> Vec<Kernel> {
        let (Some(weight), Ok(m)) = (self.weights.get(name), rows("tune", m)) else { return Vec::new() };
        let columns = weight.first_rows();
        let all = self.chooser(weight, m).all_choices(m, &columns);
        let chosen = all.into_iter().find(|choice| choice.name() == candidate);
        let (none, caps) = (EpilogueSource::none(), self.gpu.caps());
        let all = chosen.and_then(|chosen| chosen.launches(&weight.data, m, columns, &none, &caps).ok());
        all.map_or(Vec::new(), |all| all.launches.into_iter().map(|step| step.launch.kernel).collect())
    }

    /// Has matmuls of `m` rows by a weight computed by one of its [`candidates`](Self::candidates), for
    /// measurements; by the usual kernel again with `None`. A name that is no candidate makes those matmuls
    /// fail.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`], [`GpuError::Argument`] where `m` is 0.
    pub fn set_kernel(&mut self, weight_name: &str, m: usize, kernel: Option<&str>) -> Result<(), GpuError> {
        const CALL: &str = "set_kernel";
        let number = self.weights.get(weight_name).ok_or_else(|| self.unknown(CALL, weight_name))?.number;
        let key = (number, rows(CALL, m)?);
        match kernel {
            Some(kernel) => self.forced.insert(key, kernel.to_owned()),
            None => self.forced.remove(&key),
        };
        self.runs.forget(number);
        Ok(())
    }

    /// Remembers the fastest kernel of a matmul.
    pub(crate) fn remember(
        &mut self,
        name: &str,
        m: usize,
        kernel: &str,
        micros: f64,
    ) -> Result<(), GpuError> {
        let weight = self.weights.get(name).ok_or_else(|| self.unknown("tune", name))?;
        let m = rows("tune", m)?;
        let key = self.chooser(weight, m).key(m, &weight.first_rows());
        self.gpu.tuned().remember(key, kernel.to_owned(), micros);
        let number = weight.number;
        self.runs.forget(number);
        Ok(())
    }
}
