//! Attention: chooses between the decode, prefill and generic kernels.

use bytemuck::Zeroable;
use fulmen_core::{AttentionCall, BackendError, DType, KvSource};

use super::attention_scores::ScoreArgs;
use super::kv::{KV_PAGE, KvSlots, head_bytes};
use super::{Launched, attention_decode, attention_generic, attention_prefill};
use crate::forward::Forwarding;
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::Queue;

kernel_args! {
    file: "attention_args.cuh";

    pub(super) struct AttentionArgs {
        q: DevicePtr,
        out: DevicePtr,
        pub(super) partials: DevicePtr,
        k: DevicePtr,
        v: DevicePtr,
        pages: DevicePtr,
        slots: KvSlots,
        page_bytes: u64,
        head_bytes: u64,
        pos_bytes: u64,
        n_pages: u32,
        n_seqs: u32,
        pub(super) capacity: u32,
        n_heads: u32,
        group: u32,
        head_dim: u32,
        pub(super) splits: u32,
        scale: f32,
        work: DevicePtr,
        max_chunks: u32,
        unused: u32,
        scores: ScoreArgs,
    }
}

pub(crate) fn launch(queue: &mut Queue, call: &AttentionCall) -> Launched {
    launch_planned(queue, call, &Forwarding::default())
}

/// Forwards the output of the call.
pub(crate) fn launch_planned(
    queue: &mut Queue,
    call: &AttentionCall,
    forwarding: &Forwarding<'_>,
) -> Launched {
    if let Some(launched) = launch_on_tensor_cores(queue, call, forwarding) {
        return launched;
    }
    attention_generic::launch(queue, call)
}

/// Launches the decode and prefill kernels, if they take the call.
fn launch_on_tensor_cores(
    queue: &mut Queue,
    call: &AttentionCall,
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    if call.rows.work().is_none() {
        // Without a work list they are chosen by the number of rows.
        return if call.batch_invariant {
            None
        } else {
            attention_decode::launch(queue, call, forwarding)
                .or_else(|| attention_prefill::launch(queue, call))
        };
    }
    // A mixed step: a launch for its decode rows and one for its chunks.
    if !attention_decode::supports(queue.caps(), call) || !attention_prefill::supports(queue.caps(), call) {
        return None;
    }
    let launches =
        [attention_decode::launch(queue, call, forwarding), attention_prefill::launch(queue, call)];
    Some(launches.into_iter().flatten().sum())
}

/// The arguments of a call, without splits, and the type of its keys and values.
pub(super) fn args(queue: &Queue, call: &AttentionCall) -> Result<(AttentionArgs, DType), BackendError> {
    let heads = call.heads;
    let mut args = AttentionArgs {
        q: call.q,
        out: call.output,
        slots: KvSlots { fault: queue.fault(), m: call.m, ..KvSlots::zeroed() },
        n_heads: heads.n_heads,
        group: heads.n_heads / heads.n_kv_heads.max(1),
        head_dim: heads.head_dim,
        scale: call.scores.scale,
        scores: call.scores().into(),
        ..AttentionArgs::zeroed()
    };
    if let Some((&work, max_chunks)) = call.rows.work() {
        (args.work, args.max_chunks) = (work, max_chunks);
    }
    match call.kv {
        KvSource::Rows { k, v } => {
            (args.k, args.v) = (k, v);
            (args.n_seqs, args.capacity) = (1, call.m);
            args.head_bytes = 4 * u64::from(heads.head_dim);
            args.pos_bytes = 4 * u64::from(heads.kv_width());
            Ok((args, DType::F32))
        }
        KvSource::Cache { cache, positions, sequences } => {
            (args.k, args.v) = (cache.k_ptr, cache.v_ptr);
            (args.slots.positions, args.slots.sequences) = (positions, sequences.unwrap_or(0));
            (args.pages, args.n_pages) = (cache.table_ptr, cache.n_pages);
            (args.n_seqs, args.capacity) = (cache.n_seqs, cache.capacity());
            args.head_bytes = head_bytes(cache.dtype, heads)?.into();
            args.page_bytes = args.head_bytes * u64::from(heads.n_kv_heads);
            args.pos_bytes = match cache.dtype {
                // The scales are behind the values of all positions.
                DType::Q8_0 => heads.head_dim.into(),
                _ => args.head_bytes / u64::from(KV_PAGE),
            };
            Ok((args, cache.dtype))
        }
    }
}
