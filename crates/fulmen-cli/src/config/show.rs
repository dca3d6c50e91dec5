//! `fulmen config show`.

use serde_json::json;

use super::error::ConfigError;
use super::layers::{Config, Source};
use super::settings::SETTINGS;
use crate::output::{columns_left, print, printable};

/// Print every setting, its value, and where it comes from.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the settings as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen config show
  fulmen config show --json | jq '.settings[] | select(.source != \"default\")'
  FULMEN_DEVICE=cpu fulmen config show       the environment comes before the file";

pub(crate) fn run(args: &Args, config: &Config) -> Result<(), ConfigError> {
    let output = if args.json { as_json(config)? } else { as_text(config)? };
    Ok(print(&output)?)
}

fn as_text(config: &Config) -> Result<String, ConfigError> {
    let file = config.path.as_ref().map(|path| printable(&path.display().to_string()));
    let mut rows = Vec::new();
    for setting in SETTINGS {
        let resolved = config.resolve_with_options(setting)?;
        let value = resolved.value.as_deref().map_or("–".to_owned(), printable);
        let from = match resolved.source {
            Source::Default => "default".to_owned(),
            Source::Option(flag) => format!("--{flag}"),
            Source::File(line) => format!("line {line} of the file"),
            Source::Environment(name) => name.to_owned(),
        };
        rows.push(vec![setting.key.to_owned(), value, from]);
    }
    let mut out = match file {
        Some(file) => format!("file: {file}\n\n"),
        None => "file: none; `fulmen config path` prints where it would be\n\n".to_owned(),
    };
    out += &columns_left(&["setting", "value", "from"], &rows);
    if !config.file.aliases.is_empty() {
        let aliases = config.file.aliases.iter();
        let rows: Vec<Vec<String>> =
            aliases.map(|(name, model)| vec![printable(name), printable(model)]).collect();
        out += &format!("\n{}", columns_left(&["alias", "model"], &rows));
    }
    Ok(out)
}

/// Field names here are an interface: add, do not rename.
fn as_json(config: &Config) -> Result<String, ConfigError> {
    let mut settings = Vec::new();
    for setting in SETTINGS {
        let resolved = config.resolve_with_options(setting)?;
        let (source, line, variable) = match resolved.source {
            Source::Default => ("default", None, None),
            Source::Option(_) => ("option", None, None),
            Source::File(line) => ("file", Some(line), None),
            Source::Environment(name) => ("environment", None, Some(name)),
        };
        settings.push(json!({
            "key": setting.key,
            "value": resolved.value,
            "source": source,
            "line": line,
            "variable": variable,
            "environment": setting.env,
            "description": setting.help,
            "option": setting.flag.map(|flag| format!("--{flag}")),
        }));
    }
    let file = config.path.as_ref().map(|path| path.display().to_string());
    let object = json!({ "file": file, "settings": settings, "aliases": config.file.aliases });
    Ok(format!("{object:#}\n"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::settings::Setting;
    use super::*;

    /// The table of `docs/configuration.md`.
    fn documented() -> String {
        let mut out =
            "| key | environment | option | value | default | |\n|---|---|---|---|---|---|\n".to_owned();
        for Setting { key, env, flag, kind, default, help, .. } in SETTINGS {
            let env: Vec<String> = env.iter().map(|name| format!("`{name}`")).collect();
            let flag = flag.map_or(String::new(), |flag| format!("`--{flag}`"));
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            let (env, kind) = (env.join(", "), kind.expected());
            out += &format!("| `{key}` | {env} | {flag} | {kind} | {default} | {help} |\n");
        }
        out
    }

    #[test]
    fn the_documentation_has_the_table() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (begin, end) = ("<!-- settings: begin -->\n", "<!-- settings: end -->\n");
        let (before, rest) = text.split_once(begin).unwrap();
        let (table, after) = rest.split_once(end).unwrap();
        if std::env::var_os("FULMEN_UPDATE").is_some_and(|value| value == "1") {
            std::fs::write(&path, format!("{before}{begin}{}{end}{after}", documented())).unwrap();
        } else {
            assert_eq!(table, documented(), "FULMEN_UPDATE=1 rewrites the table");
        }
    }
}
