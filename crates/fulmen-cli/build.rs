//! Says whether the default model is there to be built in: `assets/story.gguf`, or the file that `FULMEN_STORY` names.

use std::path::{Path, PathBuf};

/// What a binary should carry at most.
const MOST: u64 = 5 << 20;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(story)");
    println!("cargo::rerun-if-env-changed=FULMEN_STORY");
    let named = std::env::var_os("FULMEN_STORY").filter(|path| !path.is_empty());
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/story.gguf");
    let path = named.as_ref().map_or(own, PathBuf::from);
    println!("cargo::rerun-if-changed={}", path.display());
    match path.metadata() {
        Ok(metadata) if metadata.len() > MOST => {
            println!("cargo::error={} has {} bytes, more than {MOST}", path.display(), metadata.len());
        }
        Ok(_) => {
            println!("cargo::rustc-cfg=story");
            println!("cargo::rustc-env=FULMEN_STORY_FILE={}", path.display());
        }
        // Without it the commands ask for a model.
        Err(_) if named.is_none() => {}
        Err(error) => println!("cargo::error={}: {error}", path.display()),
    }
}
