//! Logits of llama.cpp for small random models of the architectures that deviate from the plain transformer:
//! `architectures.json`, written by `scripts/golden-architectures`. Tests of every backend include this file by
//! its path.

use std::sync::Arc;

use fulmen_core::Backend;
use fulmen_engine::{LoadOptions, Model};
use fulmen_model::synth::{ModelShape, Synth};
use serde_json::Value;

use crate::compare::Case;

pub(crate) fn goldens() -> Vec<Case> {
    let set: Value = serde_json::from_str(include_str!("architectures.json")).unwrap();
    set.as_array().unwrap().iter().map(|entry| Case::new(entry["preset"].as_str().unwrap(), entry)).collect()
}

pub(crate) fn load(golden: &Case, device: Box<dyn Backend + Send>, chunk: u32) -> Model {
    let shape = ModelShape::preset(&golden.model).unwrap();
    let source = Synth::new(shape, "f32".parse().unwrap(), 1).source().unwrap();
    let options = LoadOptions { session: golden.session(chunk), ..LoadOptions::default() };
    Model::from_source(Arc::new(source), device, options).unwrap()
}
