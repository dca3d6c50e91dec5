//! RMS norm, alone and with a residual add before or after it (`rms_norm.cu`).

use fulmen_core::{AddRmsNormCall, BinaryCall, RmsNormCall};

use super::{Launched, apart, threads_for, wide};
use crate::layout::{DevicePtr, kernel_args};
use crate::queue::{Launch, Queue};

kernel_args! {
    file: "rms_norm.cu";

    struct RmsNormArgs {
        a: DevicePtr,
        b: DevicePtr,
        gamma: DevicePtr,
        sum: DevicePtr,
        out: DevicePtr,
        width: u32,
        epsilon: f32,
        vectorized: u32,
        unused: u32,
    }
}

pub(crate) fn launch(queue: &mut Queue, call: &RmsNormCall) -> Launched {
    let RmsNormCall { input, gamma, output, width, rows, epsilon } = *call;
    let args =
        RmsNormArgs { a: input, b: 0, gamma, sum: 0, out: output, width, epsilon, vectorized: 0, unused: 0 };
    launch_rows(queue, "rms_norm", rows, args)
}

pub(crate) fn launch_add(queue: &mut Queue, call: &AddRmsNormCall) -> Launched {
    let AddRmsNormCall { a, b, gamma, sum, output, width, rows, epsilon } = *call;
    let args = RmsNormArgs { a, b, gamma, sum, out: output, width, epsilon, vectorized: 0, unused: 0 };
    launch_rows(queue, "add_rms_norm", rows, args)
}

/// What a norm's result is added to by the next call, if both can be one kernel: each element of all operands
/// is then read and written by one thread.
fn residual(norm: &RmsNormCall, add: &BinaryCall) -> Option<u64> {
    let bytes = u64::from(norm.rows) * u64::from(norm.width) * 4;
    let residual = match norm.output {
        output if add.b == output => add.a,
        output if add.a == output => add.b,
        _ => return None,
    };
    let aligned = |a: u64, b: u64| a == b || apart((a, bytes), (b, bytes));
    let gamma = (norm.gamma, u64::from(norm.width) * 4);
    let fuses = add.n_elements as u64 * 4 == bytes
        && residual != norm.output
        && [norm.input, residual].iter().all(|&read| aligned(norm.output, read) && aligned(add.output, read))
        && apart((residual, bytes), (norm.output, bytes))
        && aligned(norm.output, add.output)
        && [norm.output, add.output].iter().all(|&written| apart((written, bytes), gamma));
    fuses.then_some(residual)
}

/// Whether a norm and the addition of its result to a residual stream (post-norm) can be one kernel.
pub(crate) fn fuses_add(norm: &RmsNormCall, add: &BinaryCall) -> bool {
    residual(norm, add).is_some()
}

/// Launches both calls as one kernel; see [`fuses_add`].
pub(crate) fn launch_then_add(queue: &mut Queue, norm: &RmsNormCall, add: &BinaryCall) -> Option<Launched> {
    let RmsNormCall { input, gamma, output, width, rows, epsilon } = *norm;
    let (a, b, sum, out) = (input, residual(norm, add)?, add.output, output);
    let args = RmsNormArgs { a, b, gamma, sum, out, width, epsilon, vectorized: 0, unused: 0 };
    Some(launch_rows(queue, "rms_norm_add", rows, args))
}

/// One block per row.
fn launch_rows(queue: &mut Queue, entry: &str, rows: u32, mut args: RmsNormArgs) -> Launched {
    if rows == 0 || args.width == 0 {
        return Ok(0);
    }
    let aligned = wide(&[args.a, args.b, args.gamma, args.sum, args.out]);
    args.vectorized = if args.width.is_multiple_of(4) { aligned } else { 0 };
    let items = if args.vectorized == 1 { args.width / 4 } else { args.width };
    let blocks = queue.blocks(entry, rows.into())?;
    queue.launch(&Launch::new("rms_norm", entry, blocks, threads_for(items)), &args)?;
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_norm_takes_the_addition_unless_memory_overlaps() {
        let norm = RmsNormCall { input: 4096, gamma: 512, output: 8192, width: 64, rows: 4, epsilon: 1e-6 };
        // Operands and result of the addition, each of 1024 bytes.
        let fuses =
            |a: u64, b: u64, output: u64| fuses_add(&norm, &BinaryCall { a, b, output, n_elements: 256 });
        assert!(fuses(16384, 8192, 32768) && fuses(8192, 16384, 32768), "either order");
        assert!(fuses(16384, 8192, 16384) && fuses(16384, 8192, 8192), "in place of either operand");
        assert!(fuses(16384, 8192, 4096), "in place of what the norm has read");
        assert!(fuses(4096, 8192, 32768), "what the norm reads is the residual stream");
        assert!(!fuses(16384, 20480, 32768), "of something else");
        assert!(!fuses(8192, 8192, 32768), "the norm's result twice");
        assert!(!fuses(8192 + 512, 8192, 32768) && !fuses(16384, 8192, 16384 + 4), "shifted");
        assert!(!fuses(16384, 8192, 512), "over the gain");
        let shorter = BinaryCall { a: 16384, b: 8192, output: 32768, n_elements: 255 };
        assert!(!fuses_add(&norm, &shorter));
    }
}
