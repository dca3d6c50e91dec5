//! Products of few rows, 2 to 16 a launch, with block-quantized weights: x goes to 16 bits once, by the kernel that made it or by `pack_f16_fragments.cu`, and tensor
//! cores multiply it with weights that are decoded on the way.

mod args;
mod config;

use bytemuck::{Pod, Zeroable};
use fulmen_core::BackendError;

use self::args::{Args, Incoming, Outgoing};
use self::config::{Plan, choose};
use super::f16_fragments::{CHUNK, Image, ORDERS};
use super::small_m::{Group, Input};
use super::{Launched, at_row};
use crate::queue::{Forwarded, Launch, Queue};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HalvesParams {
    x: u64,
    gamma: u64,
    normed: u64,
    out: [u64; ORDERS],
    factors: u64,
    epsilon: f32,
    k: u32,
    columns: u32,
    unused: u32,
}

/// Threads for a row of x: 16 columns each, if that is not too few or too many.
fn halves_threads(k: u32) -> u32 {
    let padded = k.next_multiple_of(CHUNK);
    (padded / 16).next_multiple_of(32).clamp(256, 1024).min(padded / 4)
}

/// All launches for all rows, if there is a plan for each.
pub(super) fn run(queue: &mut Queue, input: &Input, groups: &[Group<'_>]) -> Option<Launched> {
    let (rows, plans) = choose(queue.caps(), input.m, input.k, groups)?;
    Some(launch(queue, input, &plans, rows))
}

/// Where x comes from.
enum Source {
    /// Floats, which `pack_f16_fragments.cu` puts into an image.
    Floats(Image),
    /// An image whose rows are scaled.
    Scaled(Image),
    /// An image that a product has handed on.
    Product(Image),
}

impl Source {
    /// Of all rows at once, or of some at a time: only the first can have been handed on.
    fn of(queue: &mut Queue, input: &Input, rows: u32) -> Result<Source, BackendError> {
        let (m, k) = (input.m, input.k);
        let image = |at: u64| Image::at(at, rows, k);
        let x = input.norm.map_or(input.x, |norm| norm.input);
        if m == rows {
            let gain = input.norm.map(|norm| norm.gamma);
            if let Some(at) = queue.forwarded(Image::of_product(x, m, k, gain)) {
                return Ok(Source::Product(image(at)));
            }
            if let Some(at) = input.norm.is_none().then(|| queue.forwarded(Image::of(x, m, k))).flatten() {
                return Ok(Source::Scaled(image(at)));
            }
        }
        Ok(Source::Floats(image(queue.scratch(Image::bytes(rows, k))?)))
    }

    fn image(&self) -> &Image {
        match self {
            Source::Floats(image) | Source::Scaled(image) | Source::Product(image) => image,
        }
    }

    /// What a product reads beside the image; the first of a call writes the norm's result.
    fn incoming(&self, input: &Input, first: bool) -> Incoming {
        let Source::Product(image) = self else { return Incoming::default() };
        match input.norm {
            None => Incoming { words: image.words, floats: input.x, ..Incoming::default() },
            Some(norm) => Incoming {
                words: image.words,
                squares: image.squares,
                floats: norm.input,
                gain: norm.gamma,
                normed: if first { norm.output } else { 0 },
            },
        }
    }
}

/// Where a call hands its result on to, if it has one and the product behind it may want it: the result of gate and up, or what a norm is
/// expected to take.
fn outgoing(queue: &mut Queue, m: u32, rows: u32, plans: &[Plan]) -> Option<(Forwarded, Outgoing)> {
    let [plan] = plans else { return None };
    let (out, width) = (plan.args.part[0].out, plan.args.part[0].rows);
    let gain = queue.requested_gain(out, m, width);
    let wanted = plan.pair || (plan.args.parts == 1 && gain.is_some());
    if m != rows || !wanted {
        return None;
    }
    let gain = gain.filter(|_| !plan.pair);
    if !plan.args.part[0].is_wide() || !gain.unwrap_or(0).is_multiple_of(16) {
        return None;
    }
    let image = Image::room(queue, m, width)?;
    let to =
        Outgoing { image: image.orders, words: image.words, squares: image.squares, gain: gain.unwrap_or(0) };
    Some((Image::of_product(out, m, width, gain), to))
}

fn launch(queue: &mut Queue, input: &Input, plans: &[Plan], rows: u32) -> Launched {
    let (m, k) = (input.m, input.k);
    let source = Source::of(queue, input, rows)?;
    let outgoing = outgoing(queue, m, rows, plans);
    let image = source.image();
    let mut launched = 0;
    for row in (0..m).step_by(rows as usize) {
        let columns = (m - row).min(rows);
        let at = |ptr: u64, width: u32| at_row(ptr, row, width);
        if matches!(source, Source::Floats(_)) {
            let mut out = [0; ORDERS];
            for order in plans.iter().flat_map(|plan| plan.orders) {
                out[order] = image.orders[order];
            }
            let norm = input.norm;
            let params = HalvesParams {
                x: at(norm.map_or(input.x, |norm| norm.input), k),
                gamma: norm.map_or(0, |norm| norm.gamma),
                normed: at(norm.map_or(0, |norm| norm.output), k),
                out,
                factors: image.factors,
                epsilon: norm.map_or(0.0, |norm| norm.epsilon),
                k,
                columns,
                unused: 0,
            };
            let entry = format!("pack_f16_fragments_rows{rows}");
            queue.launch(
                &Launch::new("pack_f16_fragments", &entry, 1, halves_threads(k)).rows(rows),
                &params,
            )?;
            launched += 1;
        }
        for (index, plan) in plans.iter().enumerate() {
            let (map, maps) = plan.maps(queue)?;
            let mut args = Args {
                map,
                maps,
                x: plan.orders.map(|order| image.orders[order]),
                factors: image.factors,
                from: source.incoming(input, index == 0),
                to: outgoing.map_or(Outgoing::default(), |(_, to)| to),
                columns,
                epsilon: input.norm.map_or(0.0, |norm| norm.epsilon),
                ahead: queue.l2_prefetch().filter(|_| row == 0 && index == 0).unwrap_or_default(),
                ..plan.args
            };
            for part in &mut args.part {
                part.out = at(part.out, part.rows);
                part.residual = at(part.residual, part.rows);
                part.wide = part.is_wide().into();
            }
            let blocks = plan.clusters * args.ranks;
            // One more warp brings x.
            let threads = 32 * (args.warps + 1);
            let mut launch = Launch::new("gemm_small_m", &plan.entry, blocks, threads).shared(plan.shared);
            launch.cluster = args.ranks;
            queue.launch(&launch, &args)?;
        }
        launched += plans.len();
    }
    if let Some((what, to)) = outgoing {
        queue.set_forwarded(what, to.image[0]);
    }
    Ok(launched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_for_a_row_are_whole_warps() {
        for (k, threads) in [(32, 64), (256, 64), (1024, 256), (2560, 256), (9728, 608), (28672, 1024)] {
            assert_eq!(halves_threads(k), threads, "{k}");
        }
    }
}
