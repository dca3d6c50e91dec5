//! Every kernel of the crate by name, with its final WGSL for a representative configuration: for readers,
//! for `fulmen kernels`, and for the snapshot tests.

use fulmen_core::{
    DType, DeltaHeads, ExpertGroups, ExpertPart, GateActivation, Heads, KeyHeadOrder, RopePairing, RopeSpec,
    RouteSpec, RouterScores,
};

use super::argmax::argmax;
use super::attention::{Attention, AttentionKernel, KvInput, attention_by};
use super::copy::{copy, copy_bytes};
use super::elementwise::{ElementwiseOp, ElementwiseProgram, fused};
use super::embed::{Embed, embed};
use super::experts::{ExpertMatmul, PairOutput, SumResidual, expert_matmul, expert_sum, route};
use super::fill::fill;
use super::history_rows::{HistoryRows, advance, gather_tokens};
use super::kv::{Cache, KvStore, RopeStore, kv_store, rope_store};
use super::log_probs::log_probs;
use super::mask_logits::{MaskLogits, mask_logits};
use super::matmul::{
    self, COOP_TILES, EpilogueInput, EpilogueSource, FragmentOps, GemmTile, GemvKn, GemvNk, Layout,
    MatmulConfig, MatmulShape, MatmulStage, RowThreads, WeightType,
};
use super::penalize::{Penalize, penalize};
use super::preprocess::documentation;
use super::qmatmul::{
    self, Activations, FusedOutput, Int8Tile, LaneSum, OutputForm, QuantGemv, QuantMatmulConfig, QuantWeight,
};
use super::recurrent::{StateRows, causal_conv, gated_delta_rule, sigmoid_gate};
use super::reduce::{Reduction, reduce};
use super::rope::{Rope, rope};
use super::rows::{RmsScale, mean_squares, rms_scale};
use super::rows::{Rows, layer_norm, rms_norm, row_reduce, softmax};
use super::sample::sample;
use super::top_k::top_k;
use super::transpose::transpose;
use super::{Elem, KernelError, LaunchList};
use crate::kernel::{Caps, Kernel};
use crate::pipeline::trusted_module;

/// A kernel of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Its name, `family/kernel`.
    pub name: &'static str,
    /// The algorithm in a line, and what the header of its file says.
    pub about: String,
    /// The label of this configuration, as profiles show it.
    pub label: String,
    /// The whole module, as it is compiled.
    pub wgsl: String,
}

/// A row of the table: name, algorithm, file with the header, and the kernel.
type Row = (&'static str, &'static str, &'static str, fn(&Caps) -> Option<Kernel>);

/// Every kernel that a device with these capabilities can run.
pub fn catalog(caps: &Caps) -> Vec<CatalogEntry> {
    let entry = |&(name, algorithm, file, kernel): &Row| {
        let kernel = kernel(caps)?;
        let about = format!("{algorithm}\n{}", documentation(file));
        Some(CatalogEntry {
            name,
            about,
            label: kernel.label.to_string(),
            wgsl: trusted_module(&kernel, caps),
        })
    };
    MATMUL.iter().chain(QMATMUL).chain(MODEL).chain(ARRAYS).filter_map(entry).collect()
}

/// Matmul with f32, f16 and bf16 weights.
const MATMUL: &[Row] = &[
    ("matmul/gemv_nk", "GEMV, weights [n, k]", "matmul/gemv_nk.wgsl", |caps| {
        let config =
            GemvNk { threads: 128, rows: 2, unroll: 4, row_threads: row_threads(caps), fixed_k: false };
        multiply(MatmulConfig::GemvNk(config), 1, Layout::Nk, WeightType::F32, caps)
    }),
    ("matmul/gemv_nk_f16_m4", "Small-M GEMM, f16 weights [n, k]", "matmul/gemv_nk.wgsl", |caps| {
        let config =
            GemvNk { threads: 128, rows: 2, unroll: 1, row_threads: row_threads(caps), fixed_k: false };
        multiply(MatmulConfig::GemvNk(config), 4, Layout::Nk, WeightType::F16, caps)
    }),
    ("matmul/gemv_kn", "GEMV, weights [k, n]", "matmul/gemv_kn.wgsl", |caps| {
        let config = GemvKn { lanes: 32, groups: 8, unroll: 4, slices: 1 };
        multiply(MatmulConfig::GemvKn(config), 1, Layout::Kn, WeightType::F32, caps)
    }),
    ("matmul/gemm_tiled", "Tiled GEMM in f32", "matmul/gemm_tiled.wgsl", |caps| {
        multiply(MatmulConfig::Tiled(tile()), 64, Layout::Nk, WeightType::F32, caps)
    }),
    ("matmul/gemm_tiled_pair", "Tiled GEMM of gate and up", "matmul/gemm_tiled.wgsl", |caps| {
        let shape = MatmulShape::f32(64, K, N, Layout::Nk);
        let (config, silu) = (MatmulConfig::TiledPair(tile()), EpilogueSource::silu_gate());
        stage(matmul::pair_launches_with(config, shape, &silu, caps).ok(), MatmulStage::Multiply)
    }),
    ("matmul/gemm_coop", "Cooperative-matrix GEMM, f16 weights", "matmul/gemm_coop.wgsl", |caps| {
        multiply(MatmulConfig::Coop(COOP_TILES[4]), 256, Layout::Nk, WeightType::F16, caps)
    }),
    ("matmul/convert_f16", "Activations to f16 with a scale per row", "matmul/convert_f16.wgsl", |caps| {
        let shape = MatmulShape { m: 256, k: K, n: N, b: Layout::Nk, elem: WeightType::F16 };
        let tile = matmul::CoopTile { fragment_ops: FragmentOps::Emulated, ..COOP_TILES[4] };
        let (config, none) = (MatmulConfig::Coop(tile), EpilogueSource::none());
        let all = matmul::launches_with(config, shape, 0..N, &none, caps);
        stage(all.ok(), MatmulStage::ConvertToF16)
    }),
    ("matmul/split_k_sum", "Split-K reduction", "matmul/split_k_sum.wgsl", |caps| {
        let shape = MatmulShape::f32(64, K, N, Layout::Nk);
        let config = MatmulConfig::Tiled(GemmTile { slices: 4, ..tile() });
        stage(matmul::launches_with(config, shape, 0..N, &bias(), caps).ok(), MatmulStage::SplitKSum)
    }),
];

/// Matmul with block-quantized weights.
const QMATMUL: &[Row] = &[
    ("qmatmul/gemv_q4_0", "GEMV, Q4_0", "qmatmul/gemv.wgsl", |caps| gemv(DType::Q4_0, Activations::Q8, caps)),
    ("qmatmul/gemv_q4_1", "GEMV, Q4_1", "qmatmul/gemv.wgsl", |caps| gemv(DType::Q4_1, Activations::Q8, caps)),
    ("qmatmul/gemv_q8_0", "GEMV, Q8_0", "qmatmul/gemv.wgsl", |caps| gemv(DType::Q8_0, Activations::Q8, caps)),
    ("qmatmul/gemv_q4_k", "GEMV, Q4_K", "qmatmul/gemv.wgsl", |caps| gemv(DType::Q4_K, Activations::Q8, caps)),
    ("qmatmul/gemv_q5_k", "GEMV, Q5_K", "qmatmul/gemv.wgsl", |caps| gemv(DType::Q5_K, Activations::Q8, caps)),
    ("qmatmul/gemv_q6_k", "GEMV, Q6_K", "qmatmul/gemv.wgsl", |caps| gemv(DType::Q6_K, Activations::Q8, caps)),
    ("qmatmul/gemv_mxfp4", "GEMV, MXFP4", "qmatmul/gemv.wgsl", |caps| {
        gemv(DType::MXFP4, Activations::Q8, caps)
    }),
    ("qmatmul/gemv_q4_k_f32", "GEMV, Q4_K, f32 activations", "qmatmul/gemv.wgsl", |caps| {
        gemv(DType::Q4_K, Activations::F32, caps)
    }),
    ("qmatmul/fused_gemv_qkv", "Fused GEMV of Q, K and V", "qmatmul/fused_gemv.wgsl", |caps| {
        let activation = GateActivation::Silu;
        let weights = |dtype, n| vec![QuantWeight { dtype, n, k: K }];
        let output = |dtype, n| FusedOutput { weights: weights(dtype, n), bias: false, activation };
        let outputs = [output(DType::Q4_K, N), output(DType::Q4_K, 256), output(DType::Q6_K, 256)];
        Some(qmatmul::fused_gemv(1, &outputs, OutputForm::F32, caps).ok()??.0.kernel)
    }),
    (
        "qmatmul/fused_gemv_gate_up",
        "Fused GEMV of gate and up, with q8 output",
        "qmatmul/fused_gemv.wgsl",
        |caps| {
            let (weights, activation) = (vec![weight(DType::Q4_K); 2], GateActivation::Silu);
            let outputs = [FusedOutput { weights, bias: false, activation }];
            Some(qmatmul::fused_gemv(1, &outputs, OutputForm::F32AndQ8, caps).ok()??.0.kernel)
        },
    ),
    ("qmatmul/gemm_int8", "Tiled int8 GEMM, Q4_K", "qmatmul/gemm_int8.wgsl", |caps| {
        let config = Int8Tile { bm: 32, bn: 64, tm: 4, tn: 4, depth: 4, slices: 1 };
        quantized(QuantMatmulConfig::Int8(config), 64, DType::Q4_K, MatmulStage::Multiply, caps)
    }),
    ("qmatmul/gemm_coop", "Cooperative-matrix GEMM, Q4_K", "matmul/gemm_coop.wgsl", |caps| {
        let config = QuantMatmulConfig::Coop(COOP_TILES[4]);
        quantized(config, 256, DType::Q4_K, MatmulStage::Multiply, caps)
    }),
    ("qmatmul/dequantize", "Weights to f32, Q4_K", "qmatmul/dequantize.wgsl", |caps| {
        let config = QuantMatmulConfig::Dequantize(MatmulConfig::Tiled(tile()));
        quantized(config, 64, DType::Q4_K, MatmulStage::Dequantize, caps)
    }),
    ("qmatmul/quantize_q8", "Activations to q8", "qmatmul/quantize_q8.wgsl", |caps| {
        Some(qmatmul::quantize_q8(1, K, caps).ok()?.kernel)
    }),
    ("qmatmul/rms_norm_q8", "RMS norm and activations to q8", "qmatmul/rms_norm_q8.wgsl", |caps| {
        Some(qmatmul::rms_norm_q8(1, K, 1e-6, caps).ok()?.kernel)
    }),
];

/// The other ops of a model.
const MODEL: &[Row] = &[
    ("embed/f16", "Rows of an embedding table by token, f16", "embed.wgsl", |caps| table(DType::F16, caps)),
    ("embed/q4_k", "Rows of an embedding table by token, Q4_K", "embed.wgsl", |caps| {
        table(DType::Q4_K, caps)
    }),
    ("experts/route", "Experts of each row and their weights", "experts/route.wgsl", |caps| {
        let scores = RouterScores::Softmax;
        let (spec, part) = (RouteSpec { renormalize: true, ..RouteSpec::new(8, scores) }, ALL_EXPERTS);
        only(route(1, 128, &spec, false, part, caps))
    }),
    ("experts/route/groups", "Experts of each row among its best groups", "experts/route.wgsl", |caps| {
        let groups = Some(ExpertGroups { count: 8, used: 4 });
        let spec = RouteSpec { groups, ..RouteSpec::new(8, RouterScores::Sigmoid) };
        only(route(1, 256, &spec, true, ExpertPart { first: 0, count: 256 }, caps))
    }),
    ("experts/matmul", "Matmul by expert id, Q4_K", "experts/matmul.wgsl", |caps| {
        only(expert_matmul(&experts(), caps))
    }),
    ("experts/sum", "Sum over the experts of each row", "experts/sum.wgsl", |caps| {
        only(expert_sum(1, 8, K, SumResidual::Operand, caps))
    }),
    ("recurrent/causal_conv", "Causal convolution with a state", "recurrent/causal_conv.wgsl", |caps| {
        only(causal_conv(StateRows { m: 1, n_seqs: 2, sequences: true }, 8192, 4, caps))
    }),
    ("recurrent/delta_gates", "Gates of the gated delta rule", "recurrent/delta_gates.wgsl", |caps| {
        only(delta_rule(caps))
    }),
    ("recurrent/gated_delta_rule", "Gated delta rule", "recurrent/gated_delta_rule.wgsl", |caps| {
        delta_rule(caps).ok()?.launches.pop().map(|step| step.launch.kernel)
    }),
    ("recurrent/sigmoid_gate", "Sigmoid gates", "recurrent/sigmoid_gate.wgsl", |caps| {
        only(sigmoid_gate(1, 4096, 4096, false, caps))
    }),
    ("rows/mean_squares", "Mean squares of rows, for a norm on ranks", "rows/mean_squares.wgsl", |caps| {
        only(mean_squares(1, [2048, 2048], caps))
    }),
    ("rows/rms_scale", "RMS norm by given means, for a norm on ranks", "rows/rms_scale.wgsl", |caps| {
        let (m, width, columns, column, ranks) = (1, 2048, 2, 0, 2);
        only(rms_scale(&RmsScale { m, width, columns, column, ranks, epsilon: 1e-6, in_place: true }, caps))
    }),
    ("rope/rope", "Rotary position embedding", "rope/rope.wgsl", |caps| {
        let spec = Rope { m: 4, n_heads: 16, head_dim: 128, rope: rotation(), factors: false };
        only(rope(&spec, caps))
    }),
    ("kv/store", "Keys and values into the KV cache", "kv/store.wgsl", |caps| {
        only(kv_store(&store(4), caps))
    }),
    ("kv/rope_store", "Norm, RoPE and KV store", "kv/store.wgsl", |caps| {
        let (store, rope) = (store(4), rotation());
        let spec = RopeStore { store, rope, factors: false, q_norm: true, k_norm: true, epsilon: 1e-6 };
        only(rope_store(&spec, caps))
    }),
    ("attention/decode", "Flash decoding: split-KV attention", "attention/decode.wgsl", |caps| {
        only(attention_by(AttentionKernel::Decode, &attention(1), caps))
    }),
    ("attention/prefill_tiled", "Tiled flash attention in f32", "attention/prefill_tiled.wgsl", |caps| {
        only(attention_by(AttentionKernel::PrefillTiled, &attention(256), caps))
    }),
    (
        "attention/prefill_coop",
        "Flash attention on cooperative matrices",
        "attention/prefill_coop.wgsl",
        |caps| {
            only(attention_by(
                AttentionKernel::PrefillCoop(FragmentOps::CooperativeMatrix),
                &attention(256),
                caps,
            ))
        },
    ),
    ("attention/split_kv_reduce", "Sum of split-KV parts", "attention/split_kv_reduce.wgsl", |caps| {
        attention_by(AttentionKernel::Decode, &attention(1), caps)
            .ok()?
            .launches
            .pop()
            .map(|step| step.launch.kernel)
    }),
    ("sample/argmax", "Greedy sampling", "argmax.wgsl", |caps| only(argmax(1, 32_000, caps))),
    ("sample/penalize", "Penalties on logits", "penalize.wgsl", |caps| {
        let spec = Penalize { m: 1, n: 32_000, n_seqs: 1, capacity: 4096, sequences: false, in_place: true };
        only(penalize(&spec, caps))
    }),
    ("sample/mask_logits", "Logit biases and token masks", "mask_logits.wgsl", |caps| {
        let (slots, in_place) = (true, true);
        only(mask_logits(&MaskLogits { m: 1, n: 32_000, n_slots: 8, capacity: 64, slots, in_place }, caps))
    }),
    ("sample/log_probs_parts", "Log-probabilities: parts of rows", "log_probs/parts.wgsl", |caps| {
        only(log_probs(1, 32_000, 5, caps))
    }),
    ("sample/log_probs_rows", "Log-probabilities: rows", "log_probs/rows.wgsl", |caps| {
        log_probs(1, 32_000, 5, caps).ok()?.launches.pop().map(|step| step.launch.kernel)
    }),
    ("sample/top_k_parts", "The largest logits: parts of rows", "top_k/parts.wgsl", |caps| {
        only(top_k(1, 32_000, 64, 0, caps))
    }),
    ("sample/top_k_rows", "The largest logits: rows", "top_k/rows.wgsl", |caps| {
        top_k(1, 32_000, 64, 0, caps).ok()?.launches.pop().map(|step| step.launch.kernel)
    }),
    ("sample/first", "Sampling: first pass", "sample/largest.wgsl", |caps| {
        only(sample(1, 32_000, false, caps))
    }),
    ("sample/draw", "Sampling: the draw", "sample/draw.wgsl", |caps| {
        sample(1, 32_000, false, caps).ok()?.launches.pop().map(|step| step.launch.kernel)
    }),
    ("sample/draw_candidates", "Sampling: the draw from some tokens", "sample/draw.wgsl", |caps| {
        sample(1, 256, true, caps).ok()?.launches.pop().map(|step| step.launch.kernel)
    }),
    ("sample/advance", "Tokens and positions of the next step", "advance.wgsl", |caps| {
        only(advance(&HistoryRows { m: 1, n_seqs: 1, capacity: 4096, sequences: false }, caps))
    }),
    ("sample/gather_tokens", "Tokens of rows from the history", "gather_tokens.wgsl", |caps| {
        only(gather_tokens(&HistoryRows { m: 1, n_seqs: 2, capacity: 4096, sequences: true }, caps))
    }),
];

/// A device that has all experts of a layer.
const ALL_EXPERTS: ExpertPart = ExpertPart { first: 0, count: 128 };

/// Operations on arrays.
const ARRAYS: &[Row] = &[
    ("rows/softmax", "Softmax of rows", "rows/rows.wgsl", |caps| only(softmax(&rows(), caps))),
    ("rows/rms_norm", "RMS norm of rows", "rows/rows.wgsl", |caps| {
        only(rms_norm(&rows(), 1e-6, Elem::F32, caps))
    }),
    ("rows/layer_norm", "Layer norm of rows", "rows/rows.wgsl", |caps| {
        only(layer_norm(&rows(), 1e-6, Elem::F32, caps))
    }),
    ("rows/row_sum", "Sums of rows", "rows/rows.wgsl", |caps| {
        only(row_reduce(Reduction::Sum, &rows(), caps))
    }),
    ("reduce/sum", "Reduction of an array: sum", "reduce/reduce.wgsl", |caps| {
        only(reduce(Reduction::Sum, 1 << 20, Elem::F32, caps))
    }),
    ("reduce/max", "Reduction of an array: maximum", "reduce/reduce.wgsl", |caps| {
        only(reduce(Reduction::Max, 1 << 20, Elem::F32, caps))
    }),
    ("elementwise/gelu", "Elementwise program: GELU", "elementwise/fused.wgsl", |caps| {
        only(fused(&ElementwiseProgram::of(ElementwiseOp::Gelu), 1 << 20, &[], caps))
    }),
    ("elementwise/copy_f16", "Elementwise program: f32 to f16", "elementwise/fused.wgsl", |caps| {
        only(copy(1 << 20, Elem::F32, Elem::F16, caps))
    }),
    ("elementwise/fill", "Elementwise program: fill", "elementwise/fused.wgsl", |caps| {
        only(fill(1 << 20, 0.0, Elem::F32, caps))
    }),
    ("copy/vectors", "Copy of whole vectors", "copy_vectors.wgsl", |caps| {
        only(copy_bytes(1 << 20, [0, 0], caps))
    }),
    ("copy/bytes", "Copy of bytes at any offset", "copy_bytes.wgsl", |caps| {
        only(copy_bytes((1 << 20) + 3, [1, 2], caps))
    }),
    ("transpose/transpose", "Transpose by tiles", "transpose.wgsl", |caps| {
        only(transpose(1024, 1024, Elem::F32, caps))
    }),
];

/// Columns of the input, and of the output, of the matmuls here.
const K: u32 = 1024;
const N: u32 = 1024;

fn tile() -> GemmTile {
    let (bm, bn, bk, tm, tn) = (32, 64, 16, 4, 8);
    GemmTile { bm, bn, bk, tm, tn, stages: 1, unroll: 4, slices: 1, band: 8, swizzle: true }
}

fn bias() -> EpilogueSource {
    EpilogueSource::of("v + e0", [EpilogueInput::PerColumn])
}

fn row_threads(caps: &Caps) -> RowThreads {
    match caps.subgroups {
        Some((min, max)) if min == max => RowThreads::Subgroup,
        Some(_) => RowThreads::Workgroup,
        None => RowThreads::Lanes(32),
    }
}

fn stage(all: Option<matmul::MatmulLaunches>, wanted: MatmulStage) -> Option<Kernel> {
    let mut launches = all?.launches.into_iter();
    launches.find(|launch| launch.stage == wanted).map(|launch| launch.launch.kernel)
}

fn multiply(config: MatmulConfig, m: u32, b: Layout, elem: WeightType, caps: &Caps) -> Option<Kernel> {
    let shape = MatmulShape { m, k: K, n: N, b, elem };
    stage(matmul::launches_with(config, shape, 0..N, &bias(), caps).ok(), MatmulStage::Multiply)
}

fn weight(dtype: DType) -> QuantWeight {
    QuantWeight { dtype, n: N, k: K }
}

fn quantized(
    config: QuantMatmulConfig,
    m: u32,
    dtype: DType,
    wanted: MatmulStage,
    caps: &Caps,
) -> Option<Kernel> {
    stage(qmatmul::launches_with(config, m, weight(dtype), 0..N, &bias(), caps).ok(), wanted)
}

fn gemv(dtype: DType, activations: Activations, caps: &Caps) -> Option<Kernel> {
    let lane_sum =
        if caps.subgroups.is_some_and(|(min, _)| min >= 16) { LaneSum::Shuffle } else { LaneSum::Memory };
    let config = QuantGemv { activations, threads: 128, lanes: 16, rows: 1, unroll: 2, lane_sum };
    quantized(QuantMatmulConfig::Gemv(config), 1, dtype, MatmulStage::Multiply, caps)
}

/// The first launch.
fn only(list: Result<LaunchList, KernelError>) -> Option<Kernel> {
    list.ok()?.launches.into_iter().next().map(|step| step.launch.kernel)
}

fn rows() -> Rows {
    Rows { rows: 256, width: 1024, input: Elem::F32, output: Elem::F32, in_place: false }
}

fn heads() -> Heads {
    Heads { n_heads: 16, n_kv_heads: 8, head_dim: 128 }
}

fn rotation() -> RopeSpec {
    RopeSpec::new(RopePairing::NeoX, 128, 1e6)
}

fn store(m: u32) -> KvStore {
    let cache = Cache { dtype: DType::F16, n_pages: 32, n_seqs: 1, seq_pages: 32 };
    KvStore { m, heads: heads(), cache, sequences: false }
}

fn attention(m: u32) -> Attention {
    let kv = KvInput::Cache { cache: store(m).cache, sequences: false };
    Attention { m, heads: heads(), scores: 0.088.into(), kv }
}

fn delta_rule(caps: &Caps) -> Result<LaunchList, KernelError> {
    let order = KeyHeadOrder::Tiled;
    let heads = DeltaHeads { n_k_heads: 16, n_v_heads: 32, head_dim: 128, order };
    gated_delta_rule(StateRows { m: 1, n_seqs: 2, sequences: true }, heads, 1e-6, caps)
}

fn experts() -> ExpertMatmul {
    let (n, n_experts, output) = (768, 128, PairOutput::Weighted);
    let (slice, by_pair, bias) = (0..n * n_experts, true, false);
    ExpertMatmul { dtype: DType::Q4_K, n, k: K, n_experts, top: 8, m: 1, by_pair, slice, bias, output }
}

fn table(dtype: DType, caps: &Caps) -> Option<Kernel> {
    only(embed(&Embed { dtype, rows: 32_000, width: K, part: 0..32_000, slice: 0..32_000, m: 1 }, caps))
}
