//! Which type each tensor of a quantized model gets.

use std::{fmt, str::FromStr};

use fulmen_core::DType;

use crate::source::TensorInfo;

/// How to quantize a model: one type for most matrices, and a more precise one where errors matter most.
///
/// ```
/// use fulmen_model::quantize::Recipe;
/// let recipe: Recipe = "q4_k_m".parse().unwrap();
/// assert_eq!(recipe.to_string(), "q4_k_m");
/// assert!("q9_0".parse::<Recipe>().unwrap_err().to_string().contains("q4_k_m"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe(&'static Row);

#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: &'static str,
    /// llama.cpp's number for `general.file_type`.
    file_type: u32,
    /// Type of most matrices.
    base: DType,
    /// Type of the output matrix, or of the token embedding if it is tied.
    output: DType,
    /// Tensors of a layer that get more bits.
    mix: Mix,
}

/// Which tensors of a layer get more bits than most, as in llama.cpp.
#[derive(Debug, PartialEq, Eq)]
enum Mix {
    /// None.
    Plain,
    /// `attn_v` and `ffn_down` in the first and last eighth of the layers and every third in between.
    Some(DType),
    /// `attn_v` in the first four layers and `ffn_down` in the first eighth.
    First(DType),
    /// The weights of experts get another type, which has fewer bits.
    Experts(DType),
    /// The projections `attn_v`, `attn_output` and `ffn_down`, in the first layers even more.
    Projections { most: DType, first: DType },
}

impl Mix {
    fn choose(&self, part: &str, layer: usize, layers: usize) -> Option<DType> {
        if let Mix::Experts(dtype) = self {
            return part.ends_with("_exps.weight").then_some(*dtype);
        }
        // The weights of experts are treated as those of a single feed-forward layer.
        let part = if part == "ffn_down_exps.weight" { "ffn_down.weight" } else { part };
        match (self, part) {
            (Mix::Some(dtype), "attn_v.weight" | "ffn_down.weight") => {
                more_bits(layer, layers).then_some(*dtype)
            }
            (Mix::First(dtype), "attn_v.weight") => (layer < 4).then_some(*dtype),
            (Mix::First(dtype), "ffn_down.weight") => (layer < layers / 8).then_some(*dtype),
            (Mix::Projections { most, first }, "attn_v.weight") => {
                Some(if layer < 2 { *first } else { *most })
            }
            (Mix::Projections { most, first }, "ffn_down.weight") => {
                Some(if layer < layers / 16 { *first } else { *most })
            }
            (Mix::Projections { most, .. }, "attn_output.weight") => Some(*most),
            _ => None,
        }
    }
}

const fn row(name: &'static str, file_type: u32, base: DType, output: DType, mix: Mix) -> Row {
    Row { name, file_type, base, output, mix }
}

static TABLE: [Row; 23] = [
    row("f32", 0, DType::F32, DType::F32, Mix::Plain),
    row("f16", 1, DType::F16, DType::F16, Mix::Plain),
    row("bf16", 32, DType::BF16, DType::BF16, Mix::Plain),
    row("q8_0", 7, DType::Q8_0, DType::Q8_0, Mix::Plain),
    row("q4_0", 2, DType::Q4_0, DType::Q6_K, Mix::Plain),
    row("q4_1", 3, DType::Q4_1, DType::Q6_K, Mix::Plain),
    row("q5_0", 8, DType::Q5_0, DType::Q6_K, Mix::Plain),
    row("q5_1", 9, DType::Q5_1, DType::Q6_K, Mix::Plain),
    row("q2_k", 10, DType::Q2_K, DType::Q6_K, Mix::Plain),
    row("q3_k", 11, DType::Q3_K, DType::Q6_K, Mix::Plain),
    row("q3_k_s", 11, DType::Q3_K, DType::Q6_K, Mix::Plain),
    row("q3_k_m", 12, DType::Q3_K, DType::Q6_K, Mix::Projections { most: DType::Q4_K, first: DType::Q5_K }),
    row("q3_k_l", 13, DType::Q3_K, DType::Q6_K, Mix::Projections { most: DType::Q5_K, first: DType::Q5_K }),
    row("q4_k", 14, DType::Q4_K, DType::Q6_K, Mix::Plain),
    row("q4_k_s", 14, DType::Q4_K, DType::Q6_K, Mix::First(DType::Q5_K)),
    row("q4_k_m", 15, DType::Q4_K, DType::Q6_K, Mix::Some(DType::Q6_K)),
    row("q5_k", 16, DType::Q5_K, DType::Q6_K, Mix::Plain),
    row("q5_k_s", 16, DType::Q5_K, DType::Q6_K, Mix::Plain),
    row("q5_k_m", 17, DType::Q5_K, DType::Q6_K, Mix::Some(DType::Q6_K)),
    row("q6_k", 18, DType::Q6_K, DType::Q6_K, Mix::Plain),
    row("iq4_nl", 25, DType::IQ4_NL, DType::Q6_K, Mix::Plain),
    row("iq4_xs", 30, DType::IQ4_XS, DType::Q6_K, Mix::Plain),
    row("mxfp4_moe", 38, DType::Q8_0, DType::Q8_0, Mix::Experts(DType::MXFP4)),
];

/// The type for one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The type to use.
    pub dtype: DType,
    /// The recipe's type, if rows are not a multiple of its block and another type is used instead.
    pub instead_of: Option<DType>,
}

impl Recipe {
    /// Every recipe.
    pub fn all() -> impl Iterator<Item = Recipe> {
        TABLE.iter().map(Recipe)
    }

    /// The name, as typed on a command line.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The value of the key `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.0.file_type
    }

    /// The type of most matrices.
    pub fn base(self) -> DType {
        self.0.base
    }

    /// The type for one tensor of a model with `layers` layers. `tied` means that the model has no output
    /// matrix and uses the token embedding instead. Vectors, norms and routers of experts are small and stay
    /// F32.
    pub fn choose(self, tensor: &TensorInfo, layers: usize, tied: bool) -> Choice {
        let name = tensor.name();
        if !is_matrix(tensor) {
            return Choice { dtype: DType::F32, instead_of: None };
        }
        let output = name == "output.weight" || tied && name == "token_embd.weight";
        let asked = match layer_part(name) {
            _ if output => self.0.output,
            Some((layer, part)) => self.0.mix.choose(part, layer, layers).unwrap_or(self.0.base),
            None => self.0.base,
        };
        Choice::of(tensor, asked)
    }
}

impl Choice {
    /// This type, or another if rows are not whole blocks of it.
    pub(super) fn of(tensor: &TensorInfo, asked: DType) -> Choice {
        let fits = |dtype: &DType| tensor.width().is_multiple_of(dtype.block_len());
        let dtype = [asked, in_blocks_of_32(asked)].into_iter().find(fits).unwrap_or(DType::F16);
        Choice { dtype, instead_of: (dtype != asked).then_some(asked) }
    }
}

/// Whether a tensor is quantized: vectors, norms, convolutions and routers of experts are not.
pub(super) fn is_matrix(tensor: &TensorInfo) -> bool {
    let name = tensor.name();
    let matrix = tensor.dims().len() > 1 && name.ends_with(".weight") && !name.contains("norm");
    matrix && !name.ends_with(ROUTER) && !name.ends_with(CONVOLUTION) && name != LAYER_PROJECTION
}

/// The end of the name of a router, whose rounding would change which experts run.
const ROUTER: &str = ".ffn_gate_inp.weight";

/// The projection of embeddings for each layer of Gemma 4, which is small.
const LAYER_PROJECTION: &str = "per_layer_model_proj.weight";

/// The end of the name of a convolution, whose rows are a few taps.
const CONVOLUTION: &str = ".ssm_conv1d.weight";

/// Splits `blk.7.attn_v.weight` into the layer and the rest.
fn layer_part(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// The layers where errors matter most: the first and last eighth, and every third in between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= layers.saturating_mul(7) / 8 || (layer - eighth) % 3 == 2
}

/// The substitute for a type with blocks of 256: at least as many bits, in blocks of 32.
fn in_blocks_of_32(dtype: DType) -> DType {
    match dtype {
        DType::Q2_K | DType::Q3_K => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::IQ4_XS => DType::IQ4_NL,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        other => other,
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name)
    }
}

/// The name of an unknown recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown type {0:?} (known: {known})", known = TABLE.each_ref().map(|row| row.name).join(", "))]
pub struct UnknownRecipe(pub String);

impl FromStr for Recipe {
    type Err = UnknownRecipe;

    /// Reads a name in any case.
    fn from_str(name: &str) -> Result<Recipe, UnknownRecipe> {
        let found = TABLE.iter().find(|row| row.name.eq_ignore_ascii_case(name));
        found.map(Recipe).ok_or_else(|| UnknownRecipe(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(recipe: &str, name: &str, dims: &[usize], layers: usize, tied: bool) -> Choice {
        let tensor = TensorInfo::new(name, dims, DType::F32).unwrap();
        recipe.parse::<Recipe>().unwrap().choose(&tensor, layers, tied)
    }

    fn dtype(recipe: &str, name: &str, tied: bool) -> DType {
        choose(recipe, name, &[512, 64], 16, tied).dtype
    }

    #[test]
    fn the_usual_mix() {
        assert_eq!(dtype("q4_k_m", "output.weight", false), DType::Q6_K);
        assert_eq!(dtype("q4_k_m", "token_embd.weight", false), DType::Q4_K);
        assert_eq!(dtype("q4_k_m", "token_embd.weight", true), DType::Q6_K);
        assert_eq!(dtype("q4_k_m", "blk.0.attn_q.weight", true), DType::Q4_K);
        let more: Vec<usize> = (0..16)
            .filter(|layer| dtype("q4_k_m", &format!("blk.{layer}.attn_v.weight"), true) == DType::Q6_K)
            .collect();
        assert_eq!(more, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(dtype("q4_k_m", "blk.4.ffn_down.weight", true), DType::Q6_K);
        assert_eq!(dtype("q4_k_m", "blk.5.ffn_down.weight", true), DType::Q4_K);
        assert_eq!(dtype("q4_0", "output.weight", false), DType::Q6_K);
        assert_eq!(dtype("q8_0", "output.weight", false), DType::Q8_0);
        assert_eq!(dtype("q8_0", "blk.0.attn_q_norm.weight", false), DType::F32);
    }

    #[test]
    fn smaller_and_larger_mixes() {
        let of = |recipe: &str, part: &str| -> Vec<DType> {
            (0..16).map(|layer| dtype(recipe, &format!("blk.{layer}.{part}.weight"), true)).collect()
        };
        let first = |n: usize, first: DType, rest: DType| -> Vec<DType> {
            (0..16).map(|layer| if layer < n { first } else { rest }).collect()
        };
        assert_eq!(of("q4_k_s", "attn_v"), first(4, DType::Q5_K, DType::Q4_K));
        assert_eq!(of("q4_k_s", "ffn_down"), first(2, DType::Q5_K, DType::Q4_K));
        assert_eq!(of("q3_k_m", "attn_v"), first(2, DType::Q5_K, DType::Q4_K));
        assert_eq!(of("q3_k_m", "ffn_down"), first(1, DType::Q5_K, DType::Q4_K));
        assert_eq!(of("q3_k_m", "attn_output"), first(0, DType::Q5_K, DType::Q4_K));
        assert_eq!(of("q3_k_l", "ffn_down"), first(16, DType::Q5_K, DType::Q5_K));
        for recipe in ["q3_k_s", "q3_k_m", "q3_k_l"] {
            assert_eq!(of(recipe, "ffn_up"), first(16, DType::Q3_K, DType::Q3_K));
        }
        assert_eq!(of("q5_k_s", "attn_v"), first(16, DType::Q5_K, DType::Q5_K));
    }

    #[test]
    fn experts_are_quantized_and_their_router_is_not() {
        let dtype = |name| choose("q4_k_m", name, &[512, 64, 8], 16, false).dtype;
        assert_eq!(dtype("blk.4.ffn_down_exps.weight"), DType::Q6_K);
        assert_eq!(dtype("blk.5.ffn_down_exps.weight"), DType::Q4_K);
        assert_eq!(dtype("blk.4.ffn_gate_exps.weight"), DType::Q4_K);
        assert_eq!(dtype("blk.4.ffn_gate_inp.weight"), DType::F32);
        let dtype = |name| choose("mxfp4_moe", name, &[96, 64, 8], 16, false).dtype;
        assert_eq!(dtype("blk.4.ffn_down_exps.weight"), DType::MXFP4);
        assert_eq!(dtype("blk.4.attn_q.weight"), DType::Q8_0);
        assert_eq!(dtype("token_embd.weight"), DType::Q8_0);
        assert_eq!(dtype("blk.4.ffn_gate_inp.weight"), DType::F32);
    }

    #[test]
    fn vectors_stay_single_precision() {
        for name in ["blk.0.attn_norm.weight", "blk.0.attn_q.bias", "rope_freqs.weight"] {
            assert_eq!(
                choose("f16", name, &[512], 16, false),
                Choice { dtype: DType::F32, instead_of: None }
            );
        }
    }

    #[test]
    fn rows_that_do_not_fit_get_another_type() {
        let choice = |recipe, name, width| {
            let choice = choose(recipe, name, &[width, 4], 16, false);
            (choice.dtype, choice.instead_of)
        };
        assert_eq!(choice("q4_k_m", "blk.2.attn_q.weight", 96), (DType::Q5_0, Some(DType::Q4_K)));
        assert_eq!(choice("q4_k_m", "output.weight", 96), (DType::Q8_0, Some(DType::Q6_K)));
        assert_eq!(choice("q4_k_m", "output.weight", 100), (DType::F16, Some(DType::Q6_K)));
        assert_eq!(choice("iq4_xs", "blk.2.attn_q.weight", 96), (DType::IQ4_NL, Some(DType::IQ4_XS)));
        assert_eq!(choice("q4_0", "blk.2.attn_q.weight", 100), (DType::F16, Some(DType::Q4_0)));
        assert_eq!(choice("f32", "blk.2.attn_q.weight", 100), (DType::F32, None));
    }

    #[test]
    fn layers_beyond_the_count_and_odd_names_are_handled() {
        assert_eq!(dtype("q4_k_m", "blk.99999999999999999999.attn_v.weight", true), DType::Q4_K);
        assert_eq!(dtype("q4_k_m", "blk.x.attn_v.weight", true), DType::Q4_K);
        assert_eq!(choose("q4_k_m", "blk.0.attn_v.weight", &[256, 2], 0, true).dtype, DType::Q6_K);
    }
}
