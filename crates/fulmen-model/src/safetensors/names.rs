//! Translates Hugging Face tensor names to GGUF names.

/// The meaning of a tensor name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The GGUF name.
    Known(String),
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
const LAYER: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// The GGUF name of a tensor; `None` if it is unknown.
pub(super) fn gguf_name(name: &str) -> Option<Name> {
    if let Some((_, known)) = WHOLE.iter().find(|(theirs, _)| *theirs == name) {
        return Some(Name::Known((*known).to_owned()));
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    if layer.is_empty() || !layer.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    if part == "self_attn.rotary_emb.inv_freq" {
        return Some(Name::Unused);
    }
    let (part, kind) = part.rsplit_once('.')?;
    let (_, ours) = LAYER.iter().find(|(theirs, _)| *theirs == part)?;
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
            ("model.layers.7.self_attn.q_norm.weight", "blk.7.attn_q_norm.weight"),
        ] {
            assert_eq!(gguf_name(theirs), Some(Name::Known(ours.to_owned())));
        }
        assert_eq!(gguf_name("model.layers.3.self_attn.rotary_emb.inv_freq"), Some(Name::Unused));
        for unknown in [
            "",
            "model.layers.3",
            "model.layers.x.mlp.up_proj.weight",
            "model.layers..mlp.up_proj.weight",
            "model.layers.3.mlp.experts.0.up_proj.weight",
            "model.layers.3.mlp.up_proj.weight_scale",
        ] {
            assert_eq!(gguf_name(unknown), None, "{unknown}");
        }
    }
}
