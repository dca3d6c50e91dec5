//! Gated delta nets in f64, one position after the other, as the paper and the model's code state them, and
//! the tensors of tiny models that have them.

use fulmen_core::DType;

use super::Tiny;
use super::reference::{norm, product};

const KEYS: usize = 2;
const VALUES: usize = 4;
const HEAD: usize = 8;
const TAPS: usize = 4;
const WIDTH: usize = (2 * KEYS + VALUES) * HEAD;

/// The keys of metadata. `shared` is the width of the shared expert.
pub(super) fn describe(set: &mut impl FnMut(&str, u32), shared: Option<u32>) {
    set("full_attention_interval", 2);
    set("ssm.conv_kernel", TAPS as u32);
    set("ssm.state_size", HEAD as u32);
    set("ssm.group_count", KEYS as u32);
    set("ssm.time_step_rank", VALUES as u32);
    set("ssm.inner_size", (VALUES * HEAD) as u32);
    if let Some(shared) = shared {
        set("expert_shared_feed_forward_length", shared);
    }
}

/// The matrices of a layer, by name, columns and rows.
pub(super) fn weights(arch: &str, hidden: usize, weight: &mut impl FnMut(&str, usize, usize)) {
    match arch {
        // Fused, by key head.
        "qwen3next" => {
            weight("ssm_in", hidden, WIDTH + VALUES * HEAD);
            weight("ssm_ba", hidden, 2 * VALUES);
        }
        _ => {
            weight("attn_qkv", hidden, WIDTH);
            weight("attn_gate", hidden, VALUES * HEAD);
            weight("ssm_alpha", hidden, VALUES);
            weight("ssm_beta", hidden, VALUES);
        }
    }
    weight("ssm_out", VALUES * HEAD, hidden);
}

/// The vectors of a layer, by name, length, mean and deviation.
pub(super) fn vectors(vector: &mut impl FnMut(&str, usize, f32, f32)) {
    vector("ssm_a", VALUES, -0.5, 0.2);
    vector("ssm_dt.bias", VALUES, 0.0, 0.5);
    vector("ssm_norm.weight", HEAD, 1.0, 0.1);
}

pub(super) fn put_convolution(tiny: &mut Tiny, layer: u32, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed ^ u64::from(layer));
    let taps: Vec<f32> = (0..TAPS * WIDTH).map(|_| random.f32() * 2.0 - 1.0).collect();
    tiny.put(&format!("blk.{layer}.ssm_conv1d.weight"), &[TAPS, WIDTH], DType::F32, &taps);
}

/// The query, and the gate that follows each of its heads if the row has twice the width.
pub(super) fn query_and_gate(row: Vec<f64>, width: usize, head_dim: usize) -> (Vec<f64>, Option<Vec<f64>>) {
    if row.len() == width {
        return (row, None);
    }
    let half =
        |at: usize| row.chunks(2 * head_dim).flat_map(|head| head[at..at + head_dim].to_vec()).collect();
    (half(0), Some(half(head_dim)))
}

/// q, k, v and z of a row, and its betas and alphas.
struct Row {
    qkv: Vec<f64>,
    z: Vec<f64>,
    beta: Vec<f64>,
    alpha: Vec<f64>,
}

fn project(model: &Tiny, number: u32, x: &[f64]) -> Row {
    let linear = |name: &str| product(&model.floats(&format!("blk.{number}.{name}.weight")), x);
    if model.metadata.string("general.architecture").unwrap() != "qwen3next" {
        let (qkv, z) = (linear("attn_qkv"), linear("attn_gate"));
        return Row { qkv, z, beta: linear("ssm_beta"), alpha: linear("ssm_alpha") };
    }
    let (all, group) = (linear("ssm_in"), VALUES / KEYS);
    let block = 2 * HEAD + 2 * group * HEAD;
    let take = |first: usize, len: usize| -> Vec<f64> {
        all.chunks(block).flat_map(|head| head[first..first + len].to_vec()).collect()
    };
    let (q, k, v) = (take(0, HEAD), take(HEAD, HEAD), take(2 * HEAD, group * HEAD));
    let (qkv, z) = ([q, k, v].concat(), take(2 * HEAD + group * HEAD, group * HEAD));
    let gates = linear("ssm_ba");
    let of = |first: usize| gates.chunks(2 * group).flat_map(|b| b[first..first + group].to_vec()).collect();
    Row { qkv, z, beta: of(0), alpha: of(group) }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A vector of length 1.
fn unit(x: &[f64]) -> Vec<f64> {
    let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
    x.iter().map(|x| x / length).collect()
}

/// What the delta net of a layer computes for the normed rows of a sequence.
pub(super) fn rows(model: &Tiny, number: u32, rows: &[Vec<f64>], epsilon: f64) -> Vec<Vec<f64>> {
    let get = |name: &str| model.floats(&format!("blk.{number}.{name}"));
    let tiled = model.metadata.string("general.architecture").unwrap() != "qwen3next";
    let (taps, a, dt) = (get("ssm_conv1d.weight"), get("ssm_a"), get("ssm_dt.bias"));
    let (gain, out) = (get("ssm_norm.weight"), get("ssm_out.weight"));
    let projected: Vec<Row> = rows.iter().map(|x| project(model, number, x)).collect();
    // Rows of the state are elements of k.
    let mut states = vec![vec![[0.0; HEAD]; HEAD]; VALUES];
    let mut results = Vec::new();
    for (at, row) in projected.iter().enumerate() {
        let convolved: Vec<f64> = (0..WIDTH)
            .map(|channel| {
                let past = |tap: usize| (at + tap + 1).checked_sub(TAPS);
                let input = |tap: usize| past(tap).map_or(0.0, |at| projected[at].qkv[channel]);
                let sum: f64 = (0..TAPS).map(|tap| taps[channel * TAPS + tap] * input(tap)).sum();
                sum * sigmoid(sum)
            })
            .collect();
        let mut y = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let key = if tiled { head % KEYS } else { head / (VALUES / KEYS) };
            let of = |first: usize| &convolved[first * HEAD..][..HEAD];
            let (q, k, v) = (unit(of(key)), unit(of(KEYS + key)), of(2 * KEYS + head));
            let decay = (a[head] * (1.0 + (row.alpha[head] + dt[head]).exp()).ln()).exp();
            state.iter_mut().flatten().for_each(|s| *s *= decay);
            let mut read = [0.0; HEAD];
            for j in 0..HEAD {
                let known: f64 = (0..HEAD).map(|i| k[i] * state[i][j]).sum();
                let update = sigmoid(row.beta[head]) * (v[j] - known);
                (0..HEAD).for_each(|i| state[i][j] += k[i] * update);
                read[j] = (0..HEAD).map(|i| q[i] * state[i][j]).sum::<f64>() / (HEAD as f64).sqrt();
            }
            let z = &row.z[head * HEAD..][..HEAD];
            y.extend(norm(&read, &gain, epsilon).iter().zip(z).map(|(y, z)| y * z * sigmoid(*z)));
        }
        results.push(product(&out, &y));
    }
    results
}
