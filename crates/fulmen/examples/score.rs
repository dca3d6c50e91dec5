//! Scores texts: for each prompt its tokens, and the model's most likely token after the prompt and after
//! each token of a continuation. `scripts/compare-llama-cpp` uses it.
//!
//! ```sh
//! echo '{"prompt": "The capital of France is", "continuation": []}' |
//!     cargo run --release -p fulmen --example score -- model.gguf
//! ```
//!
//! Reads one JSON object per line: `prompt` (text) and `continuation` (token ids). Writes one per line:
//! `tokens` of the prompt, `best` (the most likely token after the prompt and after each token of the
//! continuation), `margin` (its logit minus the second-highest) and `logits` after the prompt.

use std::error::Error;
use std::io::{BufRead, Write};

use fulmen::core::DType;
use fulmen::model::tokenizer::Special;
use fulmen::model::{LoadOptions, Model, SessionOptions};
use serde_json::{Value, json};

/// The most likely token, and its logit minus the second-highest.
fn best(logits: &[f32]) -> (u32, f32) {
    let (mut first, mut second) = ((0, f32::NEG_INFINITY), f32::NEG_INFINITY);
    for (token, &logit) in (0u32..).zip(logits) {
        if logit > first.1 {
            (second, first) = (first.1, (token, logit));
        } else if logit > second {
            second = logit;
        }
    }
    (first.0, first.1 - second)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: score MODEL.gguf [DEVICE [CACHE TYPE]]")?;
    let device = std::env::args().nth(2).unwrap_or_else(|| "cpu".to_owned());
    let cache: DType = std::env::args().nth(3).unwrap_or_else(|| "f16".to_owned()).parse()?;
    let session = SessionOptions { context: 2048, cache, ..SessionOptions::default() };
    let options = LoadOptions { session, ..LoadOptions::default() };
    let model = Model::load_with(path, fulmen::open(device.parse()?)?, options)?;
    let tokenizer = model.tokenizer().ok_or("the model has no tokenizer")?;
    let mut session = model.session()?;
    let mut stdout = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let prompt = request["prompt"].as_str().ok_or("a request has no prompt")?;
        let tokens = tokenizer.encode_prompt(prompt, Special::Parse);
        session.truncate(0, 0)?;
        let logits = session.logits(0, &tokens)?;
        let mut steps = vec![best(&logits)];
        for token in request["continuation"].as_array().into_iter().flatten() {
            let token = u32::try_from(token.as_u64().ok_or("a continuation token is not an integer")?)?;
            steps.push(best(&session.logits(0, &[token])?));
        }
        let (best, margin): (Vec<u32>, Vec<f32>) = steps.into_iter().unzip();
        writeln!(
            stdout,
            "{}",
            json!({ "tokens": tokens, "best": best, "margin": margin, "logits": logits })
        )?;
        stdout.flush()?;
    }
    Ok(())
}
