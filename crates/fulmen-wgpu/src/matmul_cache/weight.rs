//! The weights of a cache: uploaded, replaced, removed, and evicted where there is a budget.

use std::ops::Range;

use fulmen_core::DType;

use super::{GpuMatmulCache, WeightInfo};
use crate::{
    error::GpuError,
    weight::{DeviceWeight, NewWeight},
};

/// A weight of a cache.
#[derive(Debug)]
pub(super) struct Weight {
    /// No other weight has or had it.
    pub(super) number: u64,
    pub(super) data: DeviceWeight,
    /// The call that used it last.
    pub(super) used: u64,
}

impl Weight {
    /// The rows of its first slice.
    pub(super) fn first_rows(&self) -> Range<u32> {
        self.data.slices.first().map_or(0..self.data.n, |part| part.rows.clone())
    }

    pub(super) fn info(&self) -> WeightInfo {
        let DeviceWeight { dtype, n, k, bytes, ref slices, .. } = self.data;
        WeightInfo { dtype, rows: n as usize, cols: k as usize, bytes, parts: slices.len() }
    }
}

impl GpuMatmulCache {
    /// Uploads a weight of f32: `rows` (n) rows of `cols` (k) elements.
    ///
    /// # Errors
    /// [`GpuError::WeightExists`], [`GpuError::Argument`] where the sizes do not fit each other or are 0,
    /// [`GpuError::TooLarge`], [`GpuError::OutOfMemory`] with what is needed and what there is,
    /// [`GpuError::DeviceLost`]. The cache is as it was before then.
    pub fn upload_weight(
        &mut self,
        name: &str,
        data: &[f32],
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        self.insert("upload_weight", name, DType::F32, bytemuck::cast_slice(data), rows, cols, false)
    }

    /// Uploads a weight as it is stored: F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4.
    ///
    /// # Errors
    /// As [`upload_weight`](Self::upload_weight), and [`GpuError::Argument`] for other types and for rows
    /// that are not whole blocks.
    pub fn upload_weight_as(
        &mut self,
        name: &str,
        dtype: DType,
        bytes: &[u8],
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        self.insert("upload_weight_as", name, dtype, bytes, rows, cols, false)
    }

    /// Puts another weight, of any type and size, in the place of one.
    ///
    /// # Errors
    /// As [`upload_weight_as`](Self::upload_weight_as), and [`GpuError::UnknownWeight`]. The old weight stays
    /// then.
    pub fn replace_weight(
        &mut self,
        name: &str,
        dtype: DType,
        bytes: &[u8],
        rows: usize,
        cols: usize,
    ) -> Result<(), GpuError> {
        if !self.weights.contains_key(name) {
            return Err(self.unknown("replace_weight", name));
        }
        self.insert("replace_weight", name, dtype, bytes, rows, cols, true)
    }

    /// Takes a weight off the device.
    ///
    /// # Errors
    /// [`GpuError::UnknownWeight`].
    pub fn remove_weight(&mut self, name: &str) -> Result<(), GpuError> {
        let weight = self.weights.remove(name).ok_or_else(|| self.unknown("remove_weight", name))?;
        self.forced.retain(|(number, _), _| *number != weight.number);
        self.runs.forget(weight.number);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn insert(
        &mut self,
        call: &'static str,
        name: &str,
        dtype: DType,
        bytes: &[u8],
        rows: usize,
        cols: usize,
        replace: bool,
    ) -> Result<(), GpuError> {
        self.gpu.check_alive()?;
        if !replace && self.weights.contains_key(name) {
            return Err(GpuError::WeightExists { call, name: name.to_owned() });
        }
        let new = NewWeight::check(&self.gpu, call, name, dtype, bytes, rows, cols)?;
        self.make_room(call, name, new.needed())?;
        let data = new.upload(&self.gpu)?;
        self.uploaded += 1;
        let weight = Weight { number: self.uploaded, data, used: self.clock };
        self.evicted.remove(name);
        if let Some(old) = self.weights.insert(name.to_owned(), weight) {
            self.runs.forget(old.number);
        }
        Ok(())
    }

    /// Makes the budget hold `needed` more bytes, beside all weights but `name`.
    fn make_room(&mut self, call: &'static str, name: &str, needed: u64) -> Result<(), GpuError> {
        let Some(budget) = self.options.budget else { return Ok(()) };
        let others: u64 =
            self.weights.iter().filter(|(other, _)| *other != name).map(|(_, w)| w.data.bytes).sum();
        let free = budget.bytes.saturating_sub(others);
        let most = if budget.evict { budget.bytes } else { free };
        if needed > most {
            return Err(GpuError::OutOfMemory { call, needed: Some(needed), available: Some(most) });
        }
        let mut missing = needed.saturating_sub(free);
        let mut by_age: Vec<(u64, u64, String)> = self
            .weights
            .iter()
            .filter(|(other, _)| *other != name)
            .map(|(name, weight)| (weight.used, weight.number, name.clone()))
            .collect();
        by_age.sort();
        for (_, _, oldest) in by_age {
            if missing == 0 {
                break;
            }
            if let Some(weight) = self.weights.remove(&oldest) {
                missing = missing.saturating_sub(weight.data.bytes);
                self.runs.forget(weight.number);
                self.evicted.insert(oldest);
            }
        }
        Ok(())
    }
}
