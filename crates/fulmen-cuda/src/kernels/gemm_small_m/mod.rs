//! Launches of the small-M GEMM: 2 to 16 rows of activations per launch with block-quantized weights
//! (`gemm_small_m.cu`, which explains the kernel).
//!
//! The activations come as f16 fragments: forwarded by the previous kernel, or packed by
//! [`pack_f16_fragments`](super::pack_f16_fragments). [`config`] chooses grid, clusters, warps and stages.

mod args;
mod config;

use fulmen_core::BackendError;

use self::args::{ForwardedInput, ForwardedOutput, GemmSmallMArgs};
use self::config::{SmallMConfig, choose};
use super::f16_fragments::F16Fragments;
use super::small_m::{LaunchGroup, MatmulInput};
use super::{Launched, at_row, pack_f16_fragments};
use crate::queue::{Forwarded, Launch, Queue};

/// Launches all groups for all rows, if there is a configuration for each.
pub(super) fn run(queue: &mut Queue, input: &MatmulInput, groups: &[LaunchGroup<'_>]) -> Option<Launched> {
    let (rows, configs) = choose(queue.caps(), input.m, input.k, groups)?;
    Some(launch(queue, input, &configs, rows))
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
    /// Fragments are forwarded only if m is exactly 8 or 16 (`rows`), as nobody writes the padding rows.
    fn of(queue: &mut Queue, input: &MatmulInput, rows: u32) -> Result<Source, BackendError> {
        let (m, k) = (input.m, input.k);
        let fragments = |at: u64| F16Fragments::at(at, rows, k);
        let x = input.norm.map_or(input.x, |norm| norm.input);
        if m == rows {
            let gamma = input.norm.map(|norm| norm.gamma);
            if let Some(at) = queue.forwarded(F16Fragments::from_matmul(x, m, k, gamma)) {
                return Ok(Source::ForwardedByMatmul(fragments(at)));
            }
            let scaled = F16Fragments::scaled(x, m, k);
            if let Some(at) = input.norm.is_none().then(|| queue.forwarded(scaled)).flatten() {
                return Ok(Source::ForwardedScaled(fragments(at)));
            }
        }
        Ok(Source::Packed(fragments(queue.scratch(F16Fragments::bytes(rows, k))?)))
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

/// Where a call forwards its result to, if it has one result and the next matmul may want it: that of
/// gate-up, or one that was requested for a norm.
fn forwarded_output(
    queue: &mut Queue,
    m: u32,
    rows: u32,
    configs: &[SmallMConfig],
) -> Option<(Forwarded, ForwardedOutput)> {
    let [config] = configs else { return None };
    let weight = &config.args.weights[0];
    let (out, width) = (weight.out, weight.rows);
    let gamma = queue.requested_gamma(out, m, width);
    let wanted = config.gate_up || (config.args.n_weights == 1 && gamma.is_some());
    if m != rows || !wanted {
        return None;
    }
    let gamma = gamma.filter(|_| !config.gate_up);
    if !weight.can_vectorize() || !gamma.unwrap_or(0).is_multiple_of(16) {
        return None;
    }
    let to = F16Fragments::reserve(queue, m, width)?;
    let output = ForwardedOutput {
        fragments: to.fragments,
        flags: to.flags,
        squares: to.squares,
        gamma: gamma.unwrap_or(0),
    };
    Some((F16Fragments::from_matmul(out, m, width, gamma), output))
}

fn launch(queue: &mut Queue, input: &MatmulInput, configs: &[SmallMConfig], rows: u32) -> Launched {
    let source = Source::of(queue, input, rows)?;
    let forwarded_output = forwarded_output(queue, input.m, rows, configs);
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
                forwarded_out: forwarded_output.map_or(ForwardedOutput::default(), |(_, output)| output),
                m,
                epsilon: input.norm.map_or(0.0, |norm| norm.epsilon),
                prefetch: queue.l2_prefetch().filter(|_| first_row == 0 && index == 0).unwrap_or_default(),
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
    if let Some((what, output)) = forwarded_output {
        queue.set_forwarded(what, output.fragments[0]);
    }
    Ok(launched)
}
