//! Small Hugging Face folders and the logits that PyTorch computes for them: `transformers.json`, written by
//! `scripts/golden-transformers`. It has the configurations and the names of the tensors as transformers
//! writes them; the weights are made again from the names. Tests of every backend include this file by its
//! path.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fulmen_core::Backend;
use fulmen_engine::{LoadOptions, Model};
use fulmen_model::safetensors::SafetensorsFolder;
use fulmen_model::source::Dequantized;
use serde_json::{Map, Value, json};

use crate::compare::Case;

/// A model and its prompts.
pub(crate) struct Golden {
    config: Value,
    tensors: Vec<Value>,
    pub(crate) cases: Vec<Case>,
}

pub(crate) fn goldens() -> Vec<Golden> {
    let set: Value = serde_json::from_str(include_str!("transformers.json")).unwrap();
    let golden = |entry: &Value| {
        let name = entry["name"].as_str().unwrap();
        Golden {
            config: entry["config"].clone(),
            tensors: entry["tensors"].as_array().unwrap().clone(),
            cases: entry["cases"].as_array().unwrap().iter().map(|case| Case::new(name, case)).collect(),
        }
    };
    set.as_array().unwrap().iter().map(golden).collect()
}

impl Golden {
    /// The model's folder.
    pub(crate) fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        let (mut header, mut data) = (Map::new(), Vec::new());
        for tensor in &self.tensors {
            let name = tensor[0].as_str().unwrap();
            let elements = tensor[1].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
            let start = data.len();
            // Blocks and scales of MXFP4 are bytes.
            let dtype = match name.ends_with("_blocks") || name.ends_with("_scales") {
                true => {
                    let [first, count] = [2, 3].map(|at| tensor[at].as_u64().unwrap());
                    data.extend(hashes(name, elements).map(|hash| (first + hash % count) as u8));
                    "U8"
                }
                false => {
                    let [mean, spread] = [2, 3].map(|at| tensor[at].as_f64().unwrap());
                    let even = |hash: u64| (hash >> 40) as f64 / f64::from(1 << 23) - 1.0;
                    let value = |hash| (mean + spread * even(hash)) as f32;
                    data.extend(hashes(name, elements).flat_map(|hash| value(hash).to_le_bytes()));
                    "F32"
                }
            };
            let entry = json!({ "dtype": dtype, "shape": tensor[1], "data_offsets": [start, data.len()] });
            header.insert(name.to_owned(), entry);
        }
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        fs::write(folder.path().join("model.safetensors"), file).unwrap();
        folder
    }
}

/// Numbers from the name of a tensor (FNV-1a) and a position (SplitMix64).
fn hashes(name: &str, count: u64) -> impl Iterator<Item = u64> {
    let fnv = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    (1..=count).map(move |at: u64| {
        let z = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// The model of a folder, with its weights as floats.
pub(crate) fn load(folder: &Path, case: &Case, device: Box<dyn Backend + Send>, chunk: u32) -> Model {
    let source = Arc::new(SafetensorsFolder::open(folder).unwrap());
    let source = Arc::new(Dequantized::new(source).unwrap());
    let options = LoadOptions { session: case.session(chunk), ..LoadOptions::default() };
    Model::from_source(source, device, options).unwrap()
}
