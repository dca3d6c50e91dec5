//! `fulmen list`: the models in the download cache.

use std::time::SystemTime;

use fulmen_core::device::format_bytes;
use fulmen_hub::{CachedModel, Inventory};
use serde_json::json;

use super::ModelsError;
use super::show::quantization;
use super::time::{ago, rfc3339};
use crate::config::{self, Config};
use crate::output::{columns, print, printable};

/// List the downloaded models.
///
/// Other commands take the names as they are printed. Interrupted downloads are listed below the models:
/// `fulmen pull` with the same name resumes them, and `fulmen rm` removes them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the list as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen list
  fulmen list --json | jq -r '.models[].name'";

pub(crate) fn run(args: &Args) -> Result<(), ModelsError> {
    let config = config::current();
    let inventory = Inventory::read(&config.hub_settings()?.cache)?;
    let output = if args.json { as_json(&inventory, config) } else { as_text(&inventory, config) };
    Ok(print(&output)?)
}

/// The aliases that mean a model.
fn aliases<'a>(inventory: &Inventory, model: &CachedModel, config: &'a Config) -> Vec<&'a str> {
    let means = |target: &str| {
        let Ok(reference) = target.parse() else { return false };
        matches!(inventory.matching(&reference)[..], [one] if one.path == model.path)
    };
    let aliases = config.file.aliases.iter();
    aliases.filter(|(_, target)| means(target)).map(|(name, _)| name.as_str()).collect()
}

fn as_text(inventory: &Inventory, config: &Config) -> String {
    let now = SystemTime::now();
    let row = |model: &CachedModel| {
        let aliases = aliases(inventory, model, config).join(", ");
        let name = match aliases.as_str() {
            "" => printable(&model.name),
            aliases => format!("{} ({})", printable(&model.name), printable(aliases)),
        };
        let quantization = quantization(model).map_or("–".to_owned(), |name| printable(&name));
        vec![name, format_bytes(model.bytes), quantization, ago(model.modified, now)]
    };
    let rows: Vec<Vec<String>> = inventory.models.iter().map(row).collect();
    let mut out = match rows.is_empty() {
        true => "no models yet; `fulmen pull ORG/NAME` downloads one\n".to_owned(),
        false => columns(&["name", "size", "quantization", "modified"], &rows),
    };
    if !inventory.partial.is_empty() {
        let row = |partial: &fulmen_hub::PartialDownload| {
            vec![printable(&partial.repo), format_bytes(partial.bytes), ago(partial.modified, now)]
        };
        let rows: Vec<Vec<String>> = inventory.partial.iter().map(row).collect();
        out += &format!("\n{}", columns(&["interrupted download", "size", "modified"], &rows));
    }
    out
}

/// Field names here are an interface: add, do not rename.
fn as_json(inventory: &Inventory, config: &Config) -> String {
    let models: Vec<_> = inventory
        .models
        .iter()
        .map(|model| {
            json!({
                "name": model.name,
                "repository": model.repo,
                "revision": model.revision,
                "commit": model.commit,
                "file": model.file,
                "path": model.path.display().to_string(),
                "bytes": model.bytes,
                "quantization": quantization(model),
                "modified": rfc3339(model.modified),
                "aliases": aliases(inventory, model, config),
            })
        })
        .collect();
    let partial: Vec<_> = inventory
        .partial
        .iter()
        .map(|partial| {
            json!({
                "repository": partial.repo,
                "path": partial.path.display().to_string(),
                "bytes": partial.bytes,
                "modified": rfc3339(partial.modified),
            })
        })
        .collect();
    format!("{:#}\n", json!({ "models": models, "interrupted": partial }))
}
