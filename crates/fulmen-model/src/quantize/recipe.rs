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
    /// Type of `attn_v` and `ffn_down` in the first and last eighth of the layers and every third in between.
    more: DType,
}

const fn row(name: &'static str, file_type: u32, base: DType, output: DType, more: DType) -> Row {
    Row { name, file_type, base, output, more }
}

static TABLE: [Row; 15] = [
    row("f32", 0, DType::F32, DType::F32, DType::F32),
    row("f16", 1, DType::F16, DType::F16, DType::F16),
    row("bf16", 32, DType::BF16, DType::BF16, DType::BF16),
    row("q8_0", 7, DType::Q8_0, DType::Q8_0, DType::Q8_0),
    row("q4_0", 2, DType::Q4_0, DType::Q6_K, DType::Q4_0),
    row("q4_1", 3, DType::Q4_1, DType::Q6_K, DType::Q4_1),
    row("q5_0", 8, DType::Q5_0, DType::Q6_K, DType::Q5_0),
    row("q5_1", 9, DType::Q5_1, DType::Q6_K, DType::Q5_1),
    row("q2_k", 10, DType::Q2_K, DType::Q6_K, DType::Q2_K),
    row("q3_k", 11, DType::Q3_K, DType::Q6_K, DType::Q3_K),
    row("q4_k", 14, DType::Q4_K, DType::Q6_K, DType::Q4_K),
    row("q4_k_m", 15, DType::Q4_K, DType::Q6_K, DType::Q6_K),
    row("q5_k", 16, DType::Q5_K, DType::Q6_K, DType::Q5_K),
    row("q5_k_m", 17, DType::Q5_K, DType::Q6_K, DType::Q6_K),
    row("q6_k", 18, DType::Q6_K, DType::Q6_K, DType::Q6_K),
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
    /// matrix and uses the token embedding instead. Vectors and norms are small and stay F32.
    pub fn choose(self, tensor: &TensorInfo, layers: usize, tied: bool) -> Choice {
        let name = tensor.name();
        let matrix = tensor.dims().len() > 1 && name.ends_with(".weight") && !name.contains("norm");
        if !matrix {
            return Choice { dtype: DType::F32, instead_of: None };
        }
        let output = name == "output.weight" || tied && name == "token_embd.weight";
        let asked = match layer_part(name) {
            _ if output => self.0.output,
            Some((layer, "attn_v.weight" | "ffn_down.weight")) if more_bits(layer, layers) => self.0.more,
            _ => self.0.base,
        };
        let fits = |dtype: &DType| tensor.width().is_multiple_of(dtype.block_len());
        let dtype = [asked, in_blocks_of_32(asked)].into_iter().find(fits).unwrap_or(DType::F16);
        Choice { dtype, instead_of: (dtype != asked).then_some(asked) }
    }
}

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
