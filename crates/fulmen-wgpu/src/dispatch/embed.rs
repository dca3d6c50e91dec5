//! Token embedding.

use fulmen_core::{DType, EmbedCall, TablePart};

use super::{LaunchCount, WgpuDispatcher};
use crate::kernels::{
    Role,
    embed::{Embed, embed},
    matmul::WeightType,
};
use crate::weight::WeightKind;

impl WgpuDispatcher {
    /// One launch per slice of the table. The table may also be computed by the graph.
    pub(super) fn embed(&mut self, call: &EmbedCall) -> LaunchCount {
        let &EmbedCall { ref table, tokens, output, m, width, .. } = call;
        if m == 0 || width == 0 {
            return Ok(0);
        }
        self.writes(output);
        let (tokens, out) =
            (self.at("tokens", tokens, m as usize)?, self.matrix("the output", output, m, width)?);
        let mut launched = 0;
        let TablePart { first, of: rows } = call.whole();
        if table.rows == 0 {
            // Every token is out of range; the kernel reports it and reads no table, so any buffer can
            // be bound.
            let spec = Embed { dtype: DType::F32, rows, width, part: 0..0, slice: 0..0, m };
            let (launches, fault) = (embed(&spec, &self.queue.caps()), self.queue.fault());
            return self.queue.run_launches(launches, &[tokens.clone(), tokens], &[out, fault]);
        }
        let held = first..first + table.rows;
        let table = self.weight("the table", table, width)?;
        let dtype = match table.kind {
            WeightKind::Plain(WeightType::F32) => DType::F32,
            WeightKind::Plain(WeightType::F16) => DType::F16,
            WeightKind::Plain(WeightType::Bf16) => DType::BF16,
            WeightKind::Blocks(blocks) => blocks.dtype,
        };
        for part in &table.slices {
            let slice = first + part.rows.start..first + part.rows.end;
            let spec = Embed { dtype, rows, width, part: held.clone(), slice, m };
            let launches = embed(&spec, &self.queue.caps());
            let operands = [
                (Role::Input(0), part.slice.clone()),
                (Role::Input(1), tokens.clone()),
                (Role::Output(0), out.clone()),
                (Role::Output(1), self.queue.fault()),
            ];
            launched += self.queue.run_launches_with(launches, operands)?;
        }
        Ok(launched)
    }
}
