//! Translates Hugging Face tensor names to GGUF names.

/// The meaning of a tensor name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The GGUF name.
    Known(String),
    /// The weight of one expert, which is a part of the tensor with this GGUF name.
    Expert { name: String, expert: usize },
    /// Vectors of all experts, those of gate and up in turn: parts of the tensors with these GGUF names.
    GateUp([String; 2]),
    /// Weights of all experts, of each the rows of gate before those of up: parts of the tensors with these
    /// GGUF names.
    GateBeforeUp([String; 2]),
    /// A tensor that is derived from the configuration and not used.
    Unused,
}

/// Names outside the layers.
const WHOLE: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Names inside a layer, without the last component.
const LAYER: [(&str, &str); 14] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
];

/// Names inside a layer of architectures with norms after attention and feed-forward.
const POST_NORMS: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Names of one architecture, and the GGUF names.
type Names = &'static [(&'static str, &'static str)];

/// Names inside a layer of gpt-oss, which differ from those of others.
const GPT_OSS: Names = &[
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.router.weight", "ffn_gate_inp.weight"),
    ("mlp.router.bias", "ffn_gate_inp.bias"),
    ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
];

/// Names inside a layer of GLM-4.5, which differ from those of others.
const GLM4_MOE: Names = &[
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
];

/// Names inside a layer of hybrid models, which differ from those of others.
const HYBRID: Names = &[
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("linear_attn.in_proj_qkvz.weight", "ssm_in.weight"),
    ("linear_attn.in_proj_ba.weight", "ssm_ba.weight"),
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
    ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    ("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
    ("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
    ("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
    ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
];

/// Names outside the layers of Gemma 4, which others do not have.
const GEMMA4_WHOLE: Names = &[
    ("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    ("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    ("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
];

/// Names inside a layer of Gemma 4, which others do not have.
const GEMMA4: Names = &[
    ("layer_scalar", "layer_output_scale.weight"),
    ("per_layer_input_gate.weight", "inp_gate.weight"),
    ("per_layer_projection.weight", "proj.weight"),
    ("post_per_layer_input_norm.weight", "post_norm.weight"),
    ("router.proj.weight", "ffn_gate_inp.weight"),
    ("router.scale", "ffn_gate_inp.scale"),
    ("router.per_expert_scale", "ffn_down_exps.scale"),
    ("experts.down_proj", "ffn_down_exps.weight"),
    ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
];

/// Names inside a layer that only this architecture has, or that mean something else in it.
fn own_names(architecture: &str) -> Names {
    match architecture {
        "gpt-oss" => GPT_OSS,
        "glm4moe" => GLM4_MOE,
        "gemma4" => GEMMA4,
        _ if is_hybrid(architecture) => HYBRID,
        _ => &[],
    }
}

fn is_hybrid(architecture: &str) -> bool {
    matches!(architecture, "qwen3next" | "qwen35" | "qwen35moe")
}

/// Names of the weights of an expert.
const EXPERT: [(&str, &str); 3] = [
    ("gate_proj.weight", "ffn_gate_exps"),
    ("up_proj.weight", "ffn_up_exps"),
    ("down_proj.weight", "ffn_down_exps"),
];

/// Beginnings of the names of what models with images and sound have beside the text part.
fn beside_text(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "gemma4" => &["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio."],
        _ if is_hybrid(architecture) => &["visual."],
        _ => &["vision_tower.", "multi_modal_projector."],
    }
}

/// As [`gguf_name`] for a model that also takes images: names have a prefix, and what is not of the text part
/// is not used.
pub(super) fn text_name(name: &str, architecture: &str) -> Option<Name> {
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if beside_text(architecture).iter().any(|images| inner.starts_with(images)) {
        return Some(Name::Unused);
    }
    // `language_model.model.layers` in older files, `model.language_model.layers` in newer ones.
    match (name.strip_prefix("language_model."), name.strip_prefix("model.language_model.")) {
        (Some(name), _) => gguf_name(name, architecture),
        (None, Some(name)) => gguf_name(&format!("model.{name}"), architecture),
        (None, None) => gguf_name(name, architecture),
    }
}

/// Whether a tensor belongs to a layer behind the `layers` of the model: one that predicts further tokens.
pub(super) fn is_draft(name: &str, layers: u32) -> bool {
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    layer.and_then(|layer| layer.parse::<u32>().ok()).is_some_and(|layer| layer >= layers)
}

/// The GGUF name of a tensor of an architecture; `None` if it is unknown.
pub(super) fn gguf_name(name: &str, architecture: &str) -> Option<Name> {
    let others = if architecture == "gemma4" { GEMMA4_WHOLE } else { &[] };
    if let Some((_, known)) = WHOLE.iter().chain(others).find(|(theirs, _)| *theirs == name) {
        return Some(Name::Known((*known).to_owned()));
    }
    // Layers that predict further tokens. They are not run.
    if is_hybrid(architecture) && name.starts_with("mtp.") {
        return Some(Name::Unused);
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    if layer.is_empty() || !layer.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if part == "self_attn.rotary_emb.inv_freq" {
        return Some(Name::Unused);
    }
    let gate_and_up = |kind| ["gate", "up"].map(|part| format!("blk.{layer}.ffn_{part}_exps.{kind}"));
    match (architecture, part) {
        ("gpt-oss", "mlp.experts.gate_up_proj_bias") => return Some(Name::GateUp(gate_and_up("bias"))),
        ("gemma4", "experts.gate_up_proj") => return Some(Name::GateBeforeUp(gate_and_up("weight"))),
        (_, "mlp.experts.gate_up_proj") if is_hybrid(architecture) => {
            return Some(Name::GateBeforeUp(gate_and_up("weight")));
        }
        _ => {}
    }
    if let Some((_, ours)) = own_names(architecture).iter().find(|(theirs, _)| *theirs == part) {
        return Some(Name::Known(format!("blk.{layer}.{ours}")));
    }
    if let Some(part) = part.strip_prefix("mlp.experts.") {
        let (expert, part) = part.split_once('.')?;
        let (_, ours) = EXPERT.iter().find(|(theirs, _)| *theirs == part)?;
        // Written as converters write it, so that no two names mean one expert.
        let number: usize = expert.parse().ok().filter(|number: &usize| number.to_string() == expert)?;
        return Some(Name::Expert { name: format!("blk.{layer}.{ours}.weight"), expert: number });
    }
    let (part, kind) = part.rsplit_once('.')?;
    let post_norms =
        if matches!(architecture, "gemma3" | "gemma4" | "olmo2") { &POST_NORMS[..] } else { &[] };
    let (_, ours) = post_norms.iter().chain(&LAYER).find(|(theirs, _)| *theirs == part)?;
    matches!(kind, "weight" | "bias").then(|| Name::Known(format!("blk.{layer}.{ours}.{kind}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated() {
        for (theirs, ours) in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight"),
            ("model.layers.31.self_attn.k_proj.bias", "blk.31.attn_k.bias"),
            ("model.layers.7.post_attention_layernorm.weight", "blk.7.ffn_norm.weight"),
            ("model.layers.7.mlp.down_proj.weight", "blk.7.ffn_down.weight"),
            ("model.layers.7.mlp.gate.weight", "blk.7.ffn_gate_inp.weight"),
            ("model.layers.7.self_attn.q_norm.weight", "blk.7.attn_q_norm.weight"),
        ] {
            assert_eq!(gguf_name(theirs, "llama"), Some(Name::Known(ours.to_owned())));
        }
        for prefix in ["language_model.model.", "model.language_model.", "model."] {
            let name = text_name(&format!("{prefix}layers.0.self_attn.q_proj.weight"), "gemma3");
            assert_eq!(name, Some(Name::Known("blk.0.attn_q.weight".to_owned())), "{prefix}");
        }
        for images in ["vision_tower.x", "model.vision_tower.x", "multi_modal_projector.mm_input.weight"] {
            assert_eq!(
                (text_name(images, "gemma3"), gguf_name(images, "gemma3")),
                (Some(Name::Unused), None)
            );
        }
        let norm = gguf_name("model.layers.7.post_attention_layernorm.weight", "gemma3");
        assert_eq!(norm, Some(Name::Known("blk.7.post_attention_norm.weight".to_owned())));
        for (theirs, ours) in [
            ("model.layers.7.self_attn.sinks", "blk.7.attn_sinks.weight"),
            ("model.layers.7.mlp.router.bias", "blk.7.ffn_gate_inp.bias"),
            ("model.layers.7.self_attn.o_proj.bias", "blk.7.attn_output.bias"),
            ("model.layers.7.post_attention_layernorm.weight", "blk.7.post_attention_norm.weight"),
            ("model.layers.7.mlp.experts.down_proj_bias", "blk.7.ffn_down_exps.bias"),
        ] {
            assert_eq!(gguf_name(theirs, "gpt-oss"), Some(Name::Known(ours.to_owned())));
        }
        let expert = Name::Expert { name: "blk.3.ffn_up_exps.weight".to_owned(), expert: 11 };
        assert_eq!(gguf_name("model.layers.3.mlp.experts.11.up_proj.weight", "qwen3moe"), Some(expert));
        assert_eq!(gguf_name("model.layers.3.self_attn.rotary_emb.inv_freq", "llama"), Some(Name::Unused));
        for unknown in [
            "",
            "model.layers.3",
            "model.layers.x.mlp.up_proj.weight",
            "model.layers..mlp.up_proj.weight",
            "model.layers.3.mlp.experts.00.up_proj.weight",
            "model.layers.3.mlp.experts.x.up_proj.weight",
            "model.layers.3.mlp.experts.0.up_proj.bias",
            "model.layers.3.mlp.up_proj.weight_scale",
        ] {
            assert_eq!(gguf_name(unknown, "llama"), None, "{unknown}");
        }
    }
}
