//! `fulmen pull`: a model from a hub into the cache.

use std::io;

use fulmen_core::device::format_bytes;
use fulmen_hub::{Choice, Event, HubError, Reference, ReferenceError, RepoFile, Settings};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::{columns, print, printable};

/// Get a model from Hugging Face, or from a server that speaks like it.
///
/// MODEL is ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION:FILE. FILE may be a part of a name that only one file has, such
/// as Q8_0; without it the GGUF file in Q4_K_M is taken, or what comes next to it, or the safetensors files. All parts of
/// a model in parts come. What is in the cache is not fetched again, what was cut is gone on with, and every file is checked
/// against its hash. The path of the model is printed; `fulmen run ORG/NAME` finds it, too.
///
/// Environment: HF_ENDPOINT (the server), HF_TOKEN (for models that are not open to all), HF_HOME or HF_HUB_CACHE (where the
/// cache is), HTTPS_PROXY, SSL_CERT_FILE.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The model: ORG/NAME[@REVISION][:FILE].
    #[arg(value_name = "MODEL")]
    model: Reference,

    /// A branch, tag or commit; the same as @REVISION.
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// List the files that the model has, and get nothing.
    #[arg(long)]
    list: bool,

    /// Print nothing but the path.
    #[arg(long, short)]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen pull ggml-org/SmolLM3-3B-GGUF           the usual file of it
  fulmen pull ggml-org/SmolLM3-3B-GGUF:Q8_0      the file in Q8_0
  fulmen pull ORG/NAME@v1.0:sub/model.gguf       this file, as it was then
  fulmen pull ORG/NAME --list                    which files are there?
  fulmen run ORG/NAME \"Hello\"                    run what was pulled";

/// Why `fulmen pull` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("the result could not be written: {0}")]
    Write(#[from] io::Error),
}

pub(crate) fn run(args: &Args) -> Result<(), PullError> {
    let settings = Settings::from_env()?;
    let reference = match &args.revision {
        Some(revision) => args.model.clone().at(revision)?,
        None => args.model.clone(),
    };
    let report = Report::new(args.quiet);
    if args.list {
        let listing = fulmen_hub::list(&settings, &reference, &mut |event| report.tell(&event))?;
        return Ok(print(&table(&listing.files))?);
    }
    let pulled = fulmen_hub::pull(&settings, &reference, &mut |event| report.tell(&event));
    report.bar.finish_and_clear();
    Ok(print(&format!("{}\n", pulled?.path.display()))?)
}

fn table(files: &[RepoFile]) -> String {
    let size = |file: &RepoFile| file.size.map_or("?".to_owned(), format_bytes);
    let rows: Vec<Vec<String>> = files.iter().map(|file| vec![printable(&file.path), size(file)]).collect();
    columns(&["file", "size"], &rows)
}

/// What is said meanwhile, on stderr: a bar on a terminal, lines everywhere.
struct Report {
    bar: ProgressBar,
    quiet: bool,
}

impl Report {
    fn new(quiet: bool) -> Report {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let template = "{wide_msg} {bar:25} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Report { bar, quiet }
    }

    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Chosen(choice) => self.say(&chosen(choice)),
            Event::File { path, size, have } => {
                self.bar.set_length(*size);
                self.bar.set_position(*have);
                self.bar.set_message(printable(path));
                self.bar.reset_eta();
                if *have > 0 {
                    self.say(&format!("{}: going on at {}", printable(path), format_bytes(*have)));
                }
            }
            Event::Bytes(more) => self.bar.inc(*more),
            Event::Complete { path, cached: true } => {
                self.say(&format!("{} is in the cache", printable(path)))
            }
            Event::Complete { path, .. } => {
                let size =
                    self.bar.length().map_or(String::new(), |bytes| format!(" ({})", format_bytes(bytes)));
                self.say(&format!("{}{size}, checked", printable(path)));
            }
            Event::Waiting { path } => {
                self.say(&format!("{}: another process gets it; waiting", printable(path)));
            }
            Event::Retry { error, wait } => {
                self.say(&format!(
                    "{}; trying again in {:.1} s",
                    printable(&error.to_string()),
                    wait.as_secs_f64()
                ));
            }
        }
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            self.bar.suspend(|| anstream::eprintln!("{line}"));
        }
    }
}

fn chosen(choice: &Choice) -> String {
    let bytes: Option<u64> = choice.files.iter().map(|file| file.size).sum();
    let size = bytes.map_or(String::new(), |bytes| format!(" ({})", format_bytes(bytes)));
    let others = match choice.others.len() {
        0 => String::new(),
        _ => format!("; there are also {}", printable(&choice.others.join(", "))),
    };
    match (&choice.name, choice.files.len()) {
        (Some(name), 1) => format!("taking {}{size}{others}", printable(name)),
        (Some(name), parts) => {
            format!("taking {} and its other parts, {parts} in all{size}{others}", printable(name))
        }
        (None, files) => {
            format!("taking {files} files: config.json, safetensors and what belongs to them{size}")
        }
    }
}
