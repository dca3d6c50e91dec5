//! What a score of attention is beyond its scale (`attention_scores.cuh`).

use fulmen_core::{Scores, Temperature};

use crate::layout::{DevicePtr, kernel_args};

kernel_args! {
    file: "attention_scores.cuh";

    pub(super) struct ScoreArgs {
        sinks: DevicePtr,
        window: u32,
        softcap: f32,
        temperature_length: u32,
        temperature_beta: f32,
        chunk: u32,
        unused: u32,
    }
}

impl From<Scores> for ScoreArgs {
    fn from(scores: Scores) -> ScoreArgs {
        let temperature = scores.temperature.unwrap_or(Temperature { length: 0, beta: 0.0 });
        ScoreArgs {
            sinks: scores.sinks.unwrap_or(0),
            window: scores.window.unwrap_or(0),
            softcap: scores.softcap.unwrap_or(0.0),
            temperature_length: temperature.length,
            temperature_beta: temperature.beta,
            chunk: scores.chunk.unwrap_or(0),
            unused: 0,
        }
    }
}
