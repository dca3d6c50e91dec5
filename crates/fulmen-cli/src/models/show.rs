//! `fulmen show`: what a model is, in a few lines.

use std::fmt::Write;
use std::path::PathBuf;

use anstyle::Style;
use fulmen_core::device::format_bytes;
use fulmen_hub::CachedModel;
use fulmen_model::source::{self, ModelSource};
use fulmen_model::summary::Summary;
use serde_json::json;

use super::ModelsError;
use crate::model::find::find;
use crate::output::{print, printable, thousands};

/// Show what a model is: architecture, parameters, context, quantization, chat template, license.
///
/// `fulmen inspect` shows everything: types, memory on each device, tensors and metadata.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: a GGUF file, a folder with config.json and safetensors files, the name of a pulled model, or an
    /// alias.
    #[arg(value_name = "NAME")]
    model: PathBuf,

    /// Print the facts as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen show ORG/NAME
  fulmen show model.gguf --json | jq -r .license";

const DIM: Style = Style::new().dimmed();

/// What is shown.
struct Facts {
    path: PathBuf,
    bytes: u64,
    format: String,
    summary: Summary,
    quantization: Option<String>,
    /// The length of the model's own chat template in characters.
    template: Option<usize>,
    license: Option<String>,
    license_link: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), ModelsError> {
    let path = find(&args.model)?;
    let source = source::open(&path)?;
    let facts = Facts::of(path, &*source)?;
    Ok(print(&if args.json { facts.json() } else { facts.text(&args.model.display().to_string()) })?)
}

/// The quantization of a model in the cache: as its name says, or else as its file does.
pub(super) fn quantization(model: &CachedModel) -> Option<String> {
    model.quantization.clone().or_else(|| {
        let source = source::open(&model.path).ok()?;
        stored_quantization(&*source, &Summary::of(&*source).ok()?)
    })
}

/// The quantization that a file tells: the mix by its number, or the type of most bytes.
fn stored_quantization(source: &dyn ModelSource, summary: &Summary) -> Option<String> {
    // llama.cpp's numbers.
    let mix = source.metadata().opt_u32("general.file_type").ok().flatten().and_then(|number| {
        let name = match number {
            11 => "Q3_K_S",
            12 => "Q3_K_M",
            13 => "Q3_K_L",
            14 => "Q4_K_S",
            15 => "Q4_K_M",
            16 => "Q5_K_S",
            17 => "Q5_K_M",
            19 => "IQ2_XXS",
            20 => "IQ2_XS",
            22 => "IQ3_XS",
            23 => "IQ3_XXS",
            25 => "IQ4_NL",
            26 => "IQ3_S",
            27 => "IQ3_M",
            28 => "IQ2_S",
            29 => "IQ2_M",
            30 => "IQ4_XS",
            38 => "MXFP4_MOE",
            _ => return None,
        };
        Some(name.to_owned())
    });
    let most =
        || summary.types.iter().max_by_key(|(_, totals)| totals.bytes).map(|(dtype, _)| dtype.to_string());
    mix.or_else(most)
}

impl Facts {
    fn of(path: PathBuf, source: &dyn ModelSource) -> Result<Facts, ModelsError> {
        let metadata = |error| ModelsError::Metadata { path: path.clone(), error };
        let summary = Summary::of(source).map_err(metadata)?;
        let text = |key: &str| source.metadata().opt_string(key).map(|value| value.map(str::to_owned));
        let template = text("tokenizer.chat_template").map_err(metadata)?.map(|text| text.chars().count());
        let license = text("general.license").map_err(metadata)?;
        let license_name = text("general.license.name").map_err(metadata)?;
        let license_link = text("general.license.link").map_err(metadata)?;
        Ok(Facts {
            bytes: source.files().iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add),
            format: source.format().to_string(),
            quantization: stored_quantization(source, &summary),
            license: license_name.or(license),
            license_link,
            template,
            summary,
            path,
        })
    }

    fn text(&self, title: &str) -> String {
        let Facts { summary, .. } = self;
        let mut out = format!("{}\n", printable(title));
        let mut fact = |name: &str, value: Option<String>| {
            let value = value.unwrap_or_else(|| "unknown".to_owned());
            let _ = writeln!(out, "  {DIM}{name:<16}{DIM:#}{value}");
        };
        let tokens = |count: u64| format!("{} tokens", thousands(count));
        fact("name", summary.name.as_deref().map(printable));
        fact("architecture", summary.architecture.as_deref().map(printable));
        fact("parameters", Some(thousands(summary.parameters)));
        fact("context", summary.context.map(tokens));
        fact("quantization", self.quantization.as_deref().map(printable));
        fact("size", Some(format!("{}, {}", format_bytes(self.bytes), self.format)));
        fact(
            "chat template",
            Some(match (self.template, summary.chat_template) {
                (Some(length), _) => format!("yes, {} characters", thousands(length as u64)),
                (None, true) => "yes".to_owned(),
                (None, false) => "no".to_owned(),
            }),
        );
        let license = self.license.as_deref().map(printable);
        let link =
            self.license_link.as_deref().map_or(String::new(), |link| format!(" ({})", printable(link)));
        fact("license", license.map(|license| license + &link));
        fact("path", Some(printable(&self.path.display().to_string())));
        out
    }

    /// Field names here are an interface: add, do not rename.
    fn json(&self) -> String {
        let object = json!({
            "name": self.summary.name,
            "architecture": self.summary.architecture,
            "parameters": self.summary.parameters,
            "context": self.summary.context,
            "quantization": self.quantization,
            "bytes": self.bytes,
            "format": self.format,
            "chat_template": self.summary.chat_template,
            "license": self.license,
            "license_link": self.license_link,
            "path": self.path.display().to_string(),
        });
        format!("{object:#}\n")
    }
}
