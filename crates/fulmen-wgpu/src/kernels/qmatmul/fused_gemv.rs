//! Fused multi-weight GEMV (`fused_gemv.wgsl`): one input by several weights in one launch, such as Q, K and
//! V of a layer, or gate and up with their epilogue.
//!
//! A launch costs a device some microseconds whatever it does, and small weights fill no device by
//! themselves. The workgroups of all weights are put in one grid; each weight has its own functions, so the
//! formats may differ.

use fulmen_core::GateActivation;

use super::choose::{gemv, gemv_for_blocks};
use super::format::Format;
use super::gemv::{Activations, LaneSum, QuantGemv};
use super::{QuantError, QuantWeight, quantize_q8};
use crate::kernel::{Caps, Kernel, Launch, StorageBinding, fold_grid};
use crate::kernels::matmul::gemv_nk::padded_rows;
use crate::kernels::preprocess::{render, values};

/// One output of the launch, and its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedOutput {
    /// One weight, or two of one shape: then the output is `activation(first) · second`.
    pub weights: Vec<QuantWeight>,
    /// A bias, one f32 for each row of the weight, is added.
    pub bias: bool,
    /// Of the first of two weights.
    pub activation: GateActivation,
}

/// What the output of a pair of weights is needed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// f32.
    F32,
    /// f32 and q8 activations for the next matmul, if the launch can make them. They are the same as those
    /// that a launch of their own would make.
    F32AndQ8,
}

/// A buffer that the launch binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FusedBuffer {
    /// A as q8 activations, as [`quantize_q8`](super::quantize_q8()) makes them.
    Activations,
    /// The only output as q8 activations, [`q8_bytes`](super::q8_bytes) long.
    Q8Output,
    /// A weight: the output, and its number there.
    Weight(usize, usize),
    /// The bias of an output.
    Bias(usize),
    /// An output, `[m, n]`.
    Out(usize),
}

/// The launch of `m` rows of q8 activations by all weights, and what it binds; `None` where one launch cannot
/// do it: for more rows, or more buffers than the device binds.
///
/// # Errors
/// Where there are no kernels for a weight.
pub fn fused_gemv(
    m: u32,
    outputs: &[FusedOutput],
    form: OutputForm,
    caps: &Caps,
) -> Result<Option<(Launch, Vec<FusedBuffer>)>, QuantError> {
    let Some(first) = outputs.first().and_then(|output| output.weights.first()) else { return Ok(None) };
    let all = || outputs.iter().flat_map(|output| &output.weights);
    let n: u32 = all().fold(0, |sum, weight| sum.saturating_add(weight.n));
    let q8_output = form == OutputForm::F32AndQ8 && can_quantize(outputs);
    let buffers = 1
        + usize::from(q8_output)
        + outputs.iter().map(|o| o.weights.len() + 1 + usize::from(o.bias)).sum::<usize>();
    let (k, most) = (first.k, caps.max_storage_buffers as usize);
    let fitting = |output: &FusedOutput| match &*output.weights {
        [one] => one.k == k,
        [a, b] => a.k == k && (b.n, b.k) == (a.n, k),
        _ => false,
    };
    let formats =
        outputs.iter().map(|output| output.weights.iter().map(|weight| Format::of(*weight)).collect());
    let formats = formats.collect::<Result<Vec<Vec<_>>, _>>()?;
    let bytes = |weight: &QuantWeight| weight.packed_bytes().is_ok_and(|bytes| bytes <= caps.max_binding);
    if m == 0 || m > 8 || buffers > most || !outputs.iter().all(fitting) || !all().all(bytes) {
        return Ok(None);
    }
    let config = match q8_output {
        true => gemv_for_blocks(m, first.n, caps),
        false => QuantGemv { rows: 1, ..gemv(m, QuantWeight { n, ..*first }, Activations::Q8, caps) },
    };
    Ok(launch(m, k, outputs, &formats, config, q8_output, caps))
}

/// Whether the output can be quantized, too: one pair of weights, and rows of whole blocks.
fn can_quantize(outputs: &[FusedOutput]) -> bool {
    let whole_blocks = |weights: &[QuantWeight]| weights.len() == 2 && weights[0].n.is_multiple_of(32);
    matches!(outputs, [FusedOutput { weights, bias: false, .. }] if whole_blocks(weights))
}

fn launch(
    m: u32,
    k: u32,
    outputs: &[FusedOutput],
    formats: &[Vec<Format>],
    config: QuantGemv,
    q8_output: bool,
    caps: &Caps,
) -> Option<(Launch, Vec<FusedBuffer>)> {
    let QuantGemv { threads, lanes, unroll, lane_sum, .. } = config;
    let columns = if q8_output { 32 } else { threads / lanes };
    let mut bound = vec![(FusedBuffer::Activations, StorageBinding::read("a", "vec4<u32>"))];
    let mut params = vec![m, k, quantize_q8::stride(k)];
    let mut end = 0u32;
    for (o, output) in outputs.iter().enumerate() {
        for p in 0..output.weights.len() {
            let weight = StorageBinding::read(format!("w_{o}_{p}"), "vec4<u32>");
            bound.push((FusedBuffer::Weight(o, p), weight));
        }
        if output.bias {
            bound.push((FusedBuffer::Bias(o), StorageBinding::read(format!("bias_{o}"), "f32")));
        }
        bound.push((FusedBuffer::Out(o), StorageBinding::read_write(format!("dst_{o}"), "f32")));
        let n = output.weights[0].n;
        end = end.checked_add(n.div_ceil(columns))?;
        params.extend([n, end]);
    }
    if q8_output {
        bound.push((FusedBuffer::Q8Output, StorageBinding::read_write("dst", "vec4<u32>")));
    }
    let rows = padded_rows(m);
    let of_each = |value: fn(Format) -> &'static str| -> Vec<Vec<&'static str>> {
        formats.iter().map(|all| all.iter().map(|format| value(*format)).collect()).collect()
    };
    let values = values![
        m: rows,
        threads,
        lanes,
        log2_lanes: lanes.ilog2(),
        unroll,
        shuffle: lane_sum == LaneSum::Shuffle,
        formats: of_each(Format::name),
        dots: of_each(Format::dot),
        bias: outputs.iter().map(|output| output.bias).collect::<Vec<_>>(),
        gelu: outputs
            .iter()
            .map(|output| output.activation == GateActivation::GeluTanh)
            .collect::<Vec<_>>(),
        q8_output,
        q8_stride: quantize_q8::stride(outputs[0].weights[0].n),
    ];
    let names: Vec<String> = outputs
        .iter()
        .map(|o| o.weights.iter().map(|w| format!("{:?}", w.dtype)).collect::<Vec<_>>().join("·"))
        .collect();
    let gelu = outputs.iter().any(|output| output.activation == GateActivation::GeluTanh);
    let q8 = if q8_output { " q8" } else { "" };
    let gelu = if gelu { " gelu" } else { "" };
    let label = format!("qmatmul fused {} {config} m={rows}{gelu}{q8}", names.join("+"));
    let (buffers, bindings) = bound.into_iter().unzip();
    let wgsl = render("qmatmul/fused_gemv.wgsl", &values);
    let kernel = Kernel { label: label.into(), wgsl, bindings, param_words: params.len() as u32 };
    let workgroups = fold_grid(end.into(), caps.max_workgroups)?;
    Some((Launch { kernel, params, workgroups }, buffers))
}
