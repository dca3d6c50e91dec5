//! Launches of the small-M GEMM: 2 to 32 rows of activations per launch with block-quantized weights
//! (`gemm_small_m.cu`, which explains the kernel).
//!
//! The activations come as f16 fragments: forwarded by the previous kernel, or packed by
//! [`pack_f16_fragments`](super::pack_f16_fragments). [`config`] chooses grid, clusters, warps and stages.

mod args;
mod config;

use fulmen_core::{ActivationForm, BackendError};

use self::args::{ForwardedInput, ForwardedOutput, GemmSmallMArgs};
use self::config::{SmallMConfig, choose};
use super::f16_fragments::{F16Fragments, padded_rows};
use super::small_m::{LaunchGroup, MatmulInput};
use super::{Launched, at_row, pack_f16_fragments};
use crate::device::Caps;
use crate::forward::Forwarding;
use crate::queue::{Launch, Queue};

/// With fewer consumer warps than this, 17 rows and more are faster in the mixed-input GEMM.
const MIN_FAST_WARPS: u32 = 8;

/// Launches all groups for all rows, if there is a configuration for each.
pub(super) fn run(
    queue: &mut Queue,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    forwarding: &Forwarding<'_>,
) -> Option<Launched> {
    let (rows, configs) = choose(queue.caps(), input.m, input.k, groups)?;
    Some(launch(queue, input, &configs, rows, forwarding))
}

/// Whether one launch per group takes all rows, with enough warps to be faster than the mixed-input GEMM.
pub(super) fn takes_at_once(caps: Caps, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> bool {
    choose(caps, input.m, input.k, groups).is_some_and(|(rows, configs)| {
        rows >= input.m && configs.iter().all(|config| config.args.consumer_warps >= MIN_FAST_WARPS)
    })
}

/// As [`run`], with the configuration of 16 rows for any number of rows: all that a row's sums depend on.
pub(super) fn run_batch_invariant(
    queue: &mut Queue,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
) -> Option<Launched> {
    let (rows, configs) = choose(queue.caps(), 16, input.k, groups)?;
    Some(launch(queue, input, &configs, rows, &Forwarding::default()))
}

/// The forms in which the activations can be forwarded: only if one launch takes all rows.
pub(super) fn accepted_forms(
    caps: Caps,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
) -> Vec<ActivationForm> {
    match choose(caps, input.m, input.k, groups) {
        Some((rows, _)) if Some(rows) == padded_rows(input.m) => {
            [by_matmul(input), scaled(input)].into_iter().flatten().collect()
        }
        _ => Vec::new(),
    }
}

/// Whether the result can be written in this form: that of gate-up as it is, and that of one weight matrix
/// multiplied by a gain.
pub(super) fn forwards(
    caps: Caps,
    input: &MatmulInput,
    groups: &[LaunchGroup<'_>],
    activation: &ActivationForm,
) -> bool {
    let Some((rows, configs)) = choose(caps, input.m, input.k, groups) else { return false };
    let [config] = configs.as_slice() else { return false };
    let weight = &config.args.weights[0];
    let gamma = activation.form.operand.map(|operand| operand.ptr);
    Some(rows) == padded_rows(input.m)
        && config.args.n_weights == 1
        && config.gate_up == gamma.is_none()
        && weight.can_vectorize()
        && gamma.unwrap_or(0).is_multiple_of(16)
        && Some(*activation) == F16Fragments::from_matmul(weight.out, input.m, weight.rows, gamma)
}

/// The activations as a GEMM forwards them.
fn by_matmul(input: &MatmulInput) -> Option<ActivationForm> {
    let x = input.norm.map_or(input.x, |norm| norm.input);
    F16Fragments::from_matmul(x, input.m, input.k, input.norm.map(|norm| norm.gamma))
}

/// The activations as attention forwards them, unless there is a norm to compute.
fn scaled(input: &MatmulInput) -> Option<ActivationForm> {
    F16Fragments::scaled(input.x, input.m, input.k).filter(|_| input.norm.is_none())
}

/// Where the fragments of x come from.
enum Source {
    /// They are packed from f32 before the GEMM.
    Packed(F16Fragments),
    /// Attention has forwarded them, with row scales.
    ForwardedScaled(F16Fragments),
    /// A GEMM has forwarded them, unscaled.
    ForwardedByMatmul(F16Fragments),
}

impl Source {
    fn of(
        queue: &mut Queue,
        input: &MatmulInput,
        rows: u32,
        forwarding: &Forwarding<'_>,
    ) -> Result<Source, BackendError> {
        let fragments = |at: u64| F16Fragments::at(at, rows, input.k);
        if let Some(at) = by_matmul(input).and_then(|form| forwarding.input(&form)) {
            return Ok(Source::ForwardedByMatmul(fragments(at)));
        }
        if let Some(at) = scaled(input).and_then(|form| forwarding.input(&form)) {
            return Ok(Source::ForwardedScaled(fragments(at)));
        }
        Ok(Source::Packed(fragments(queue.scratch(F16Fragments::bytes(rows, input.k))?)))
    }

    fn fragments(&self) -> &F16Fragments {
        match self {
            Source::Packed(x) | Source::ForwardedScaled(x) | Source::ForwardedByMatmul(x) => x,
        }
    }

    /// What the kernel reads besides the fragments; the first launch of a call writes the norm's result.
    fn forwarded_input(&self, input: &MatmulInput, first: bool) -> ForwardedInput {
        let Source::ForwardedByMatmul(x) = self else { return ForwardedInput::default() };
        match input.norm {
            None => ForwardedInput { flags: x.flags, x: input.x, ..ForwardedInput::default() },
            Some(norm) => ForwardedInput {
                flags: x.flags,
                squares: x.squares,
                x: norm.input,
                gamma: norm.gamma,
                normed: if first { norm.output } else { 0 },
            },
        }
    }
}

/// Where the result is to be written as fragments.
fn forwarded_output(forwarding: &Forwarding<'_>) -> ForwardedOutput {
    let [output] = forwarding.outputs else { return ForwardedOutput::default() };
    let ActivationForm { rows: m, width, form, .. } = output.activation;
    let Some(rows) = padded_rows(m) else { return ForwardedOutput::default() };
    let to = F16Fragments::at(output.ptr, rows, width);
    ForwardedOutput {
        fragments: to.fragments,
        flags: to.flags,
        squares: to.squares,
        gamma: form.operand.map_or(0, |operand| operand.ptr),
    }
}

fn launch(
    queue: &mut Queue,
    input: &MatmulInput,
    configs: &[SmallMConfig],
    rows: u32,
    forwarding: &Forwarding<'_>,
) -> Launched {
    let source = Source::of(queue, input, rows, forwarding)?;
    let x = source.fragments();
    let mut launched = 0;
    for first_row in (0..input.m).step_by(rows as usize) {
        let m = (input.m - first_row).min(rows);
        if matches!(source, Source::Packed(_)) {
            let orders = configs.iter().flat_map(|config| config.k_orders);
            pack_f16_fragments::launch(queue, input, (first_row, m, rows), x, orders)?;
            launched += 1;
        }
        for (index, config) in configs.iter().enumerate() {
            let (tensor_maps, n_tensor_maps) = config.tensor_maps(queue)?;
            let mut args = GemmSmallMArgs {
                tensor_maps,
                n_tensor_maps,
                x: config.k_orders.map(|order| x.fragments[order]),
                row_scales: x.row_scales,
                forwarded_in: source.forwarded_input(input, index == 0),
                forwarded_out: forwarded_output(forwarding),
                m,
                epsilon: input.norm.map_or(0.0, |norm| norm.epsilon),
                prefetch: forwarding.prefetch.filter(|_| first_row == 0 && index == 0).unwrap_or_default(),
                ..config.args
            };
            for weight in &mut args.weights {
                weight.out = at_row(weight.out, first_row, weight.rows);
                weight.residual = at_row(weight.residual, first_row, weight.rows);
                weight.vectorized = weight.can_vectorize().into();
            }
            let blocks = config.clusters * args.cluster_size;
            // The producer warp is one more.
            let threads = 32 * (args.consumer_warps + 1);
            let mut launch =
                Launch::new("gemm_small_m", &config.entry, blocks, threads).shared(config.shared);
            launch.cluster = args.cluster_size;
            queue.launch(&launch, &args)?;
        }
        launched += configs.len();
    }
    Ok(launched)
}
