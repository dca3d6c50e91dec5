//! Generates text that continues a prompt, on the best device of this machine.
//!
//! ```text
//! cargo run --release -p fulmen --example generate
//! cargo run --release -p fulmen --example generate -- "Why is the sky blue?" model.gguf
//! ```

use std::io::Write;

use fulmen::prelude::*;

/// The small story model that comes with the repository.
const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".to_owned());
    let path = args.next().unwrap_or_else(|| STORY.to_owned());

    let model = Model::load(path, fulmen::open("auto".parse()?)?)?;
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 1, ..Sampling::GREEDY };
    let options = GenerateOptions { sampling, max_tokens: 200, ..GenerateOptions::default() };
    print!("{prompt}");
    let answer = model.generate(&prompt, &options, |piece| {
        print!("{piece}");
        // Errors of the terminal are ignored.
        let _ = std::io::stdout().flush();
    })?;
    println!(
        "\n\n{} tokens: prefill {:.0} tokens/s, decode {:.0} tokens/s",
        answer.tokens.len(),
        answer.prefill_rate(),
        answer.decode_rate()
    );
    Ok(())
}
