//! Causal convolution with a state (`causal_conv.cu`).

use fulmen_core::CausalConvCall;

use super::Launched;
use super::recurrent::{StateRows, WalkStarts};
use super::sequence_chunks::{RowKernels, SequenceChunks, launch_list, list_bytes};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

const THREADS: u32 = 128;

kernel_args! {
    file: "causal_conv.cu";

    struct CausalConvArgs {
        x: DevicePtr,
        weight: DevicePtr,
        state: DevicePtr,
        y: DevicePtr,
        rows: StateRows,
        starts: WalkStarts,
        chunks: SequenceChunks,
        channels: u32,
        unused: u32,
    }
}

/// A walk over the rows of each sequence, a kernel for all chunks of rows at once, or both.
pub(crate) fn launch(queue: &mut Queue, call: &CausalConvCall) -> Launched {
    let (m, taps) = (call.m, call.taps);
    if m == 0 {
        return Ok(0);
    }
    let rows = StateRows::new(queue, call.state, call.positions, call.sequences, m);
    let kernels = RowKernels::of(m, call.sequences, call.decode);
    let (starts, chunks) = match kernels {
        RowKernels::Walk | RowKernels::Chunks => (WalkStarts::ALL, SequenceChunks::of_one_sequence(m)),
        RowKernels::Listed => {
            let memory = queue.scratch(list_bytes(m))?;
            let chunks = launch_list(queue, rows, m, memory)?;
            (chunks.walk_starts(), chunks)
        }
    };
    let args = CausalConvArgs {
        x: call.input,
        weight: call.weight,
        state: call.state.ptr,
        y: call.output,
        rows,
        starts,
        chunks,
        channels: call.channels,
        unused: 0,
    };
    let blocks = queue.blocks("causal_conv", u64::from(call.channels).div_ceil(THREADS.into()))?;
    if kernels != RowKernels::Chunks {
        let (walks, entry) = (queue.rows("causal_conv", rows.walks(starts))?, format!("causal_conv_{taps}"));
        queue.launch(&Launch::new("causal_conv", &entry, blocks, THREADS).rows(walks), &args)?;
    }
    if kernels != RowKernels::Walk {
        let most = queue.rows("causal_conv_chunks", chunks.max_chunks().into())?;
        let entry = format!("causal_conv_chunks_{taps}");
        queue.launch(&Launch::new("causal_conv", &entry, blocks, THREADS).rows(most), &args)?;
    }
    Ok(kernels.launches())
}
