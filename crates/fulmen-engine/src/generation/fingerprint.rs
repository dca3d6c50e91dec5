//! Whether processes have the same model.

use std::hash::{DefaultHasher, Hash, Hasher};

use fulmen_model::source::ModelSource;

/// A number that is the same for two files with the same tensors, by their names, types and shapes, and for
/// the same version of Fulmen; the nodes of a group [compare it](crate::Brings).
pub fn fingerprint(source: &dyn ModelSource) -> u64 {
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    for info in source.tensors() {
        (info.name(), info.dtype().to_string(), info.dims()).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use fulmen_model::synth::{ModelShape, Synth};

    use super::*;

    #[test]
    fn models_differ_by_their_tensors() {
        let of = |layers, recipe: &str| {
            let shape = ModelShape { layers, ..ModelShape::preset("tiny-qwen3").unwrap() };
            fingerprint(&Synth::new(shape, recipe.parse().unwrap(), 1).file().unwrap())
        };
        assert_eq!(of(2, "f16"), of(2, "f16"));
        assert_ne!(of(2, "f16"), of(3, "f16"));
        assert_ne!(of(2, "f16"), of(2, "q8_0"));
    }
}
