//! A decoder-only transformer in f64: no KV cache, no chunks, one position after the other on plain vectors.

use super::{Tiny, delta_net};
use fulmen_model::source::ModelSource;

struct Sizes {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    layers: u32,
    inner: usize,
    experts_used: Option<usize>,
    /// The window of layers with an even number.
    window: Option<usize>,
    /// Whether SwiGLU is that of gpt-oss.
    clamped: bool,
    epsilon: f64,
    /// The rotation angle of each pair per position.
    turns: Vec<f64>,
    /// The factor of sine and cosine.
    magnitude: f64,
}

/// `y[n] = Σ_k w[n][k] x[k]`.
pub(super) fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

pub(super) fn norm(x: &[f64], gain: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + epsilon).sqrt();
    x.iter().zip(gain).map(|(x, gain)| x * scale * gain).collect()
}

/// Applies RoPE to every head of a row at `position`.
fn rope(x: &mut [f64], position: usize, sizes: &Sizes, neox: bool) {
    let pairs = sizes.turns.len();
    for head in x.chunks_mut(sizes.head_dim) {
        for (i, turn) in sizes.turns.iter().enumerate() {
            let (sin, cos) = (position as f64 * turn).sin_cos();
            let (sin, cos) = (sin * sizes.magnitude, cos * sizes.magnitude);
            let (a, b) = if neox { (i, i + pairs) } else { (2 * i, 2 * i + 1) };
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
}

/// The rotation angle per pair, and the magnitude: plain, linear, or YaRN.
fn rotation(model: &Tiny, arch: &str, head_dim: usize) -> (Vec<f64>, f64) {
    let key = |key: &str| format!("{arch}.rope.{key}");
    let base = f64::from(model.metadata.f32(&key("freq_base")).unwrap());
    let n = model.metadata.opt_u32(&key("dimension_count")).unwrap().map_or(head_dim, |n| n as usize);
    let factors = model.tensor("rope_freqs.weight").map(|_| model.floats("rope_freqs.weight"));
    let plain = |i: usize| base.powf(-2.0 * i as f64 / n as f64) / factors.as_ref().map_or(1.0, |f| f[i]);
    let scaling = model.metadata.opt_string(&key("scaling.type")).unwrap();
    let factor = model.metadata.opt_f32(&key("scaling.factor")).unwrap().map_or(1.0, f64::from);
    match scaling {
        None => ((0..n / 2).map(plain).collect(), 1.0),
        Some("linear") => ((0..n / 2).map(|i| plain(i) / factor).collect(), 1.0),
        Some("yarn") => {
            let context = f64::from(model.metadata.u32(&key("scaling.original_context_length")).unwrap());
            // The pair with this many rotations over the context.
            let pair = |rotations: f64| {
                n as f64 * (context / (2.0 * std::f64::consts::PI * rotations)).ln() / (2.0 * base.ln())
            };
            let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(n as f64 - 1.0));
            let mixed = |i: usize| {
                // 0 below `low`: extrapolated, as trained. 1 above `high`: interpolated.
                let interpolated = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                plain(i) * (1.0 - interpolated) + plain(i) / factor * interpolated
            };
            ((0..n / 2).map(mixed).collect(), 0.1 * factor.ln() + 1.0)
        }
        other => panic!("{other:?}"),
    }
}

/// The logits after every token.
pub(crate) fn logits(model: &Tiny, tokens: &[u32]) -> Vec<Vec<f64>> {
    let arch = model.metadata.string("general.architecture").unwrap().to_owned();
    let number = |key: &str| model.metadata.u32(&format!("{arch}.{key}")).unwrap();
    let float = |key: &str| f64::from(model.metadata.f32(&format!("{arch}.{key}")).unwrap());
    let head_dim = number("attention.key_length") as usize;
    let (turns, magnitude) = rotation(model, &arch, head_dim);
    let sizes = Sizes {
        hidden: number("embedding_length") as usize,
        heads: number("attention.head_count") as usize,
        kv_heads: number("attention.head_count_kv") as usize,
        head_dim,
        layers: number("block_count"),
        inner: number("feed_forward_length") as usize,
        experts_used: model
            .metadata
            .opt_u32(&format!("{arch}.expert_used_count"))
            .unwrap()
            .map(|n| n as usize),
        window: model
            .metadata
            .opt_u32(&format!("{arch}.attention.sliding_window"))
            .unwrap()
            .map(|n| n as usize),
        clamped: arch == "gpt-oss",
        epsilon: float("attention.layer_norm_rms_epsilon"),
        turns,
        magnitude,
    };
    let embedding = model.floats("token_embd.weight");
    let row = |token: u32| embedding[token as usize * sizes.hidden..][..sizes.hidden].to_vec();
    let mut rows: Vec<Vec<f64>> = tokens.iter().map(|&token| row(token)).collect();
    for number in 0..sizes.layers {
        rows = layer(model, &sizes, number, arch != "llama", rows);
    }
    let head = match model.tensor("output.weight") {
        Some(_) => model.floats("output.weight"),
        None => embedding,
    };
    let gain = model.floats("output_norm.weight");
    rows.iter().map(|row| product(&head, &norm(row, &gain, sizes.epsilon))).collect()
}

/// The experts with the largest probabilities, which are scaled to sum to 1.
fn route(logits: &[f64], used: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    order.truncate(used);
    let total: f64 = order.iter().map(|expert| logits[*expert].exp()).sum();
    order.into_iter().map(|expert| (expert, logits[expert].exp() / total)).collect()
}

/// `silu(gate) · up`, or with a limit on both, a steeper sigmoid and 1 added to up.
fn swiglu(gate: &[f64], up: &[f64], clamped: bool) -> Vec<f64> {
    let one = |(&gate, &up): (&f64, &f64)| match clamped {
        false => gate / (1.0 + (-gate).exp()) * up,
        true => {
            let gate = gate.min(7.0);
            gate / (1.0 + (-1.702 * gate).exp()) * (up.clamp(-7.0, 7.0) + 1.0)
        }
    };
    gate.iter().zip(up).map(one).collect()
}

fn layer(model: &Tiny, sizes: &Sizes, number: u32, neox: bool, rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let Sizes { heads, kv_heads, head_dim, epsilon, .. } = *sizes;
    let prefix = format!("blk.{number}.");
    let window = sizes.window.filter(|_| number.is_multiple_of(2)).unwrap_or(usize::MAX);
    let get = |name: &str| model.floats(&format!("{prefix}{name}"));
    let optional = |name: &str| model.tensor(&format!("{prefix}{name}")).map(|_| get(name));
    let linear = |x: &[f64], name: &str| {
        let mut y = product(&get(&format!("{name}.weight")), x);
        if let Some(bias) = optional(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        y
    };
    let head_norm = |x: Vec<f64>, name: &str| match optional(name) {
        Some(gain) => x.chunks(head_dim).flat_map(|head| norm(head, &gain, epsilon)).collect(),
        None => x,
    };
    let (mut keys, mut values, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let normed = |x: &Vec<f64>| norm(x, &get("attn_norm.weight"), epsilon);
    let recurrent = optional("ssm_a").map(|_| {
        let rows: Vec<Vec<f64>> = rows.iter().map(normed).collect();
        delta_net::rows(model, number, &rows, epsilon)
    });
    for (position, x) in rows.into_iter().enumerate() {
        if let Some(mixed) = &recurrent {
            let x = x.iter().zip(&mixed[position]).map(|(x, o)| x + o).collect();
            out.push(feed_forward(model, sizes, number, x));
            continue;
        }
        let h = normed(&x);
        let (q, gate) = delta_net::query_and_gate(linear(&h, "attn_q"), heads * head_dim, head_dim);
        let mut q = head_norm(q, "attn_q_norm.weight");
        let mut k = head_norm(linear(&h, "attn_k"), "attn_k_norm.weight");
        rope(&mut q, position, sizes, neox);
        rope(&mut k, position, sizes, neox);
        keys.push(k);
        values.push(linear(&h, "attn_v"));
        let mut attended = vec![0.0; heads * head_dim];
        for head in 0..heads {
            let group = head / (heads / kv_heads) * head_dim;
            let q = &q[head * head_dim..][..head_dim];
            let score = |k: &Vec<f64>| {
                let dot: f64 = q.iter().zip(&k[group..]).map(|(q, k)| q * k).sum();
                dot / (head_dim as f64).sqrt()
            };
            let visible = keys.len().saturating_sub(window);
            let scores: Vec<f64> = keys[visible..].iter().map(score).collect();
            let sink = optional("attn_sinks.weight").map(|sinks| sinks[head]);
            let largest = scores.iter().chain(&sink).fold(f64::NEG_INFINITY, |a, &b| a.max(b));
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
            for (weight, value) in weights.iter().zip(&values[visible..]) {
                for i in 0..head_dim {
                    attended[head * head_dim + i] += weight / total * value[group + i];
                }
            }
        }
        if let Some(gate) = gate {
            attended.iter_mut().zip(gate).for_each(|(x, gate)| *x /= 1.0 + (-gate).exp());
        }
        let o = linear(&attended, "attn_output");
        let x: Vec<f64> = x.iter().zip(o).map(|(x, o)| x + o).collect();
        out.push(feed_forward(model, sizes, number, x));
    }
    out
}

/// The feed-forward layer or the experts, and their residual.
fn feed_forward(model: &Tiny, sizes: &Sizes, number: u32, x: Vec<f64>) -> Vec<f64> {
    let epsilon = sizes.epsilon;
    let prefix = format!("blk.{number}.");
    let get = |name: &str| model.floats(&format!("{prefix}{name}"));
    let optional = |name: &str| model.tensor(&format!("{prefix}{name}")).map(|_| get(name));
    let linear = |x: &[f64], name: &str| {
        let mut y = product(&get(&format!("{name}.weight")), x);
        if let Some(bias) = optional(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        y
    };
    let gain = optional("ffn_norm.weight").unwrap_or_else(|| get("post_attention_norm.weight"));
    let h = norm(&x, &gain, epsilon);
    let swiglu = |gate: Vec<f64>, up: Vec<f64>| swiglu(&gate, &up, sizes.clamped);
    let d = match sizes.experts_used {
        None => linear(&swiglu(linear(&h, "ffn_gate"), linear(&h, "ffn_up")), "ffn_down"),
        Some(used) => {
            let mut d = vec![0.0; h.len()];
            for (expert, weight) in route(&linear(&h, "ffn_gate_inp"), used) {
                let of_expert = |x: &[f64], name: &str, n: usize| {
                    let all = get(&format!("{name}.weight"));
                    let mut y = product(&all[expert * n * x.len()..][..n * x.len()], x);
                    if let Some(bias) = optional(&format!("{name}.bias")) {
                        y.iter_mut().zip(&bias[expert * n..]).for_each(|(y, bias)| *y += bias);
                    }
                    y
                };
                let inner = sizes.inner;
                let gated =
                    swiglu(of_expert(&h, "ffn_gate_exps", inner), of_expert(&h, "ffn_up_exps", inner));
                let down = of_expert(&gated, "ffn_down_exps", h.len());
                d.iter_mut().zip(down).for_each(|(d, down)| *d += weight * down);
            }
            if let Some(gate) = optional("ffn_gate_inp_shexp.weight") {
                let gated = swiglu(linear(&h, "ffn_gate_shexp"), linear(&h, "ffn_up_shexp"));
                let gate = 1.0 / (1.0 + (-product(&gate, &h)[0]).exp());
                let down = linear(&gated, "ffn_down_shexp");
                d.iter_mut().zip(down).for_each(|(d, down)| *d += gate * down);
            }
            d
        }
    };
    x.iter().zip(d).map(|(x, d)| x + d).collect()
}
