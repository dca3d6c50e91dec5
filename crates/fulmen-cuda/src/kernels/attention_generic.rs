//! Attention of any shape, with sliding windows, chunks, soft capping, attention temperature and sinks
//! (`attention_generic.cu`).

use fulmen_core::{AttentionCall, BackendError};

use super::{Launched, attention, type_name};
use crate::BACKEND;
use crate::queue::{Launch, Queue};

const THREADS: u32 = 128;

/// Shortest split of the positions.
const MIN_SPLIT: u32 = 128;

const MAX_SPLITS: u32 = 64;

/// Splits of a batch-invariant attention, whatever the number of rows.
const BATCH_INVARIANT_SPLITS: u64 = 8;

/// Elements of a head per lane: the kernels that exist.
const PER_LANE: [u32; 5] = [1, 2, 4, 8, 16];

pub(super) fn launch(queue: &mut Queue, call: &AttentionCall) -> Launched {
    let (heads, m) = (call.heads, call.m);
    if m == 0 {
        return Ok(0);
    }
    let per_lane = PER_LANE.into_iter().find(|per_lane| heads.head_dim <= 32 * per_lane);
    let per_lane = per_lane.ok_or_else(|| BackendError::Unsupported {
        backend: BACKEND,
        what: format!("attention with heads of {}", heads.head_dim),
    })?;
    let queries = u64::from(m) * u64::from(heads.n_heads);
    let blocks = queue.blocks("attention", queries)?;
    let (mut args, dtype) = attention::args(queue, call)?;
    // Enough blocks to fill the device, with splits that are not too short.
    let wanted = match call.batch_invariant {
        true => BATCH_INVARIANT_SPLITS,
        false => u64::from(4 * queue.caps().multiprocessors).div_ceil(queries),
    };
    let positions = args.capacity.min(call.scores.most_visible().unwrap_or(u32::MAX));
    let splits = u64::from(positions.div_ceil(MIN_SPLIT)).min(wanted).clamp(1, MAX_SPLITS.into());
    args.splits = u32::try_from(splits).unwrap_or(1);
    if args.splits > 1 {
        let n_floats = queries as usize * args.splits as usize * (heads.head_dim as usize + 2);
        args.partials = queue.scratch(n_floats * size_of::<f32>())?;
    }
    let entry = format!("attention_{}_{per_lane}", type_name(dtype));
    let launch = Launch::new("attention_generic", &entry, blocks, THREADS).rows(args.splits);
    queue.launch(&launch, &args)?;
    if args.splits == 1 {
        return Ok(1);
    }
    queue.launch(&Launch::new("attention_generic", "attention_combine", blocks, THREADS), &args)?;
    Ok(2)
}
