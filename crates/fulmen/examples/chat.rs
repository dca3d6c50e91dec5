//! A conversation in the terminal, on the best device of this machine. An empty line ends it.
//!
//! ```text
//! cargo run --release -p fulmen --example chat -- model.gguf
//! ```
//!
//! Without a model it uses the small story model that comes with the repository. That one was not trained to
//! converse, so it gets a template that simply joins the messages: it continues the story that you both tell.

use std::io::{BufRead, Write};

use fulmen::model::template::ChatTemplate;
use fulmen::prelude::*;

/// The small story model that comes with the repository.
const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");

/// Joins all messages, for models without a chat template.
const JOIN: &str = "{% for message in messages %}{{ message.content }} {% endfor %}";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| STORY.to_owned());
    let model = Model::load(path, fulmen::open("auto".parse()?)?)?;
    let template = match model.chat_template()? {
        Some(template) => template,
        None => ChatTemplate::new(JOIN)?,
    };
    // The session keeps the conversation in its KV cache: each turn only runs its new tokens.
    let mut chat = Chat::with_template(model.session()?, template);
    let options = GenerateOptions { max_tokens: 100, ..GenerateOptions::default() };
    prompt()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let answer = chat.say(&line, &options, |piece| {
            print!("{piece}");
            // Errors of the terminal are ignored.
            let _ = std::io::stdout().flush();
        })?;
        println!("\n({} of {} prompt tokens run)", answer.fed_tokens, answer.prompt_tokens);
        prompt()?;
    }
    Ok(())
}

fn prompt() -> std::io::Result<()> {
    print!("> ");
    std::io::stdout().flush()
}
