//! `fulmen rm`: removes models from the download cache.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use fulmen_core::device::format_bytes;
use fulmen_hub::{CachedModel, Inventory, Reference, remove, remove_partial};
use serde_json::json;

use super::ModelsError;
use crate::config::{self, Config};
use crate::model::find::near_names;
use crate::output::{print, printable, tell};

/// Remove downloaded models.
///
/// On a terminal you are asked first. Content that another model needs is kept. Files outside of the cache
/// are never removed. A repository of which there are only interrupted downloads can be named, too.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Names of models, as `fulmen list` prints them, or aliases.
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Do not ask.
    #[arg(long, short)]
    yes: bool,

    /// Print what was removed as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen rm ORG/NAME:Q8_0
  fulmen rm --yes ORG/NAME ORG/OTHER";

/// What a name means.
#[derive(Debug)]
enum Found<'a> {
    Model(&'a CachedModel),
    /// Interrupted downloads of a repository.
    Partial {
        repo: String,
        bytes: u64,
    },
}

impl Found<'_> {
    fn name(&self) -> &str {
        match self {
            Found::Model(model) => &model.name,
            Found::Partial { repo, .. } => repo,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Found::Model(model) => model.bytes,
            Found::Partial { bytes, .. } => *bytes,
        }
    }
}

/// Returns the exit code.
pub(crate) fn run(args: &Args) -> Result<i32, ModelsError> {
    let config = config::current();
    let root = config.hub_settings()?.cache;
    let inventory = Inventory::read(&root)?;
    // All names are resolved before anything is removed.
    let mut found: Vec<Found<'_>> = Vec::new();
    for name in &args.names {
        let one = resolve(name, &inventory, config)?;
        if !found.iter().any(|other| other.name() == one.name()) {
            found.push(one);
        }
    }
    if !args.yes && !confirmed(&found)? {
        tell("nothing was removed");
        return Ok(1);
    }
    let models: Vec<&CachedModel> = found
        .iter()
        .filter_map(|found| match found {
            Found::Model(model) => Some(*model),
            Found::Partial { .. } => None,
        })
        .collect();
    let mut freed = remove(&root, &models)?;
    for one in &found {
        if let Found::Partial { repo, .. } = one {
            freed = freed.saturating_add(remove_partial(&root, repo)?);
        }
    }
    let names: Vec<&str> = found.iter().map(Found::name).collect();
    print(&match args.json {
        // Field names here are an interface: add, do not rename.
        true => format!("{:#}\n", json!({ "removed": names, "freed_bytes": freed })),
        false => format!("removed {}; {} freed\n", printable(&names.join(", ")), format_bytes(freed)),
    })?;
    Ok(0)
}

fn resolve<'a>(name: &str, inventory: &'a Inventory, config: &Config) -> Result<Found<'a>, ModelsError> {
    let target = config.alias(name).unwrap_or(name);
    let shown = printable(name);
    let not_cached = || ModelsError::NotCached { name: shown.clone(), near: near_names(name, config) };
    let Ok(reference) = target.parse::<Reference>() else {
        return Err(match Path::new(target).symlink_metadata() {
            Ok(_) => ModelsError::IsPath { name: printable(target) },
            Err(_) => not_cached(),
        });
    };
    match inventory.matching(&reference)[..] {
        [model] => Ok(Found::Model(model)),
        [] => {
            let repo = reference.repo_with_host();
            let partial = inventory.partial.iter().filter(|partial| partial.repo == repo);
            let sizes: Vec<u64> = partial.map(|partial| partial.bytes).collect();
            let whole = reference.file().is_none() && !reference.has_revision();
            match sizes.is_empty() || !whole {
                false => Ok(Found::Partial { repo, bytes: sizes.into_iter().fold(0, u64::saturating_add) }),
                true if Path::new(target).symlink_metadata().is_ok() => {
                    Err(ModelsError::IsPath { name: printable(target) })
                }
                true => Err(not_cached()),
            }
        }
        ref several => {
            let names = several.iter().map(|model| printable(&model.name)).collect();
            Err(ModelsError::Ambiguous { name: shown, names })
        }
    }
}

/// Asks on the terminal.
fn confirmed(found: &[Found<'_>]) -> Result<bool, ModelsError> {
    if !io::stdin().is_terminal() {
        return Err(ModelsError::CannotAsk);
    }
    let names: Vec<String> = found
        .iter()
        .map(|found| format!("{} ({})", printable(found.name()), format_bytes(found.bytes())))
        .collect();
    let mut stderr = io::stderr().lock();
    write!(stderr, "remove {}? [y/N] ", names.join(", "))?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
