//! One projection of a matmul.

use fulmen_core::{BackendError, MulMatCall, Projection};

use super::CpuDispatcher;
use crate::kernels::mul_mat::{Activations, Epilogue, Out, Residual, Weight, mul_mat};

impl CpuDispatcher {
    pub(super) fn mul_mat_projection(
        &mut self,
        call: &MulMatCall,
        part: &Projection,
        x: &mut Activations<'_>,
    ) -> Result<(), BackendError> {
        let (n, bytes) = (part.weight.rows, self.weight("the weight", &part.weight, call.k)?);
        let out = self.f32_rows_mut("the output", part.output, call.m, n)?;
        let bias = part.bias.map(|ptr| self.f32_rows("the bias", ptr, 1, n)).transpose()?;
        let residual = call.residual.map(|ptr| self.f32_rows("the residual", ptr, call.m, n)).transpose()?;
        // SAFETY: looked up; `dispatch_mul_mat` checked that no output overlaps what is read.
        let (bytes, out_slice) = unsafe { (bytes.slice::<u8>(), out.slice_mut::<f32>()) };
        let epilogue = Epilogue {
            // SAFETY: as above.
            bias: bias.map(|bias| unsafe { bias.slice() }),
            residual: match residual {
                None => Residual::None,
                Some(residual) if residual.ptr == out.ptr => Residual::InPlace,
                // SAFETY: as above; it is not the output.
                Some(residual) => Residual::Rows { data: unsafe { residual.slice() }, stride: n as usize },
            },
        };
        let weight = Weight::new(part.weight.dtype, bytes, n as usize, call.k as usize);
        mul_mat(&self.pool, self.isa, weight, x, epilogue, Out::rows(out_slice, n as usize));
        Ok(())
    }
}
