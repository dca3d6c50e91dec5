//! `fulmen pull`: downloads a model from a hub into the cache.

use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;

use fulmen_core::device::format_bytes;
use fulmen_hub::{Choice, Event, HubError, Reference, ReferenceError, RepoFile};
use indicatif::{ProgressBar, ProgressStyle};

use crate::config::{self, ConfigError};
use crate::error::CommandError;
use crate::model::interrupt::{self, NoteOnSignal};
use crate::output::{columns, counted, print, print_text, printable};

/// Download a model from Hugging Face or a compatible server.
///
/// MODEL is ORG/NAME, ORG/NAME:FILE or ORG/NAME@REVISION:FILE, the same with a host in front
/// (hf.co/ORG/NAME), the URL of its page or file, or an alias of the configuration file. FILE may be any part
/// of a file name that is unique, such as Q8_0. Without it, the GGUF file in Q4_K_M or the closest type is
/// downloaded, or the safetensors files if there is no GGUF file. All parts of a split model are downloaded,
/// if the disk has enough space. Files in the cache are not downloaded again, and each file is verified if
/// the server sends its hash. The path of the model is printed; other commands also find it by name: `fulmen
/// run ORG/NAME`.
///
/// Ctrl-C, SIGTERM and SIGHUP keep what was downloaded so far, and the same command resumes there. `fulmen
/// list` shows such files and `fulmen rm` removes them.
///
/// Environment: HF_ENDPOINT (the server), HF_TOKEN (for gated and private models), HF_HOME or HF_HUB_CACHE
/// (where the cache is), HTTPS_PROXY, SSL_CERT_FILE.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model: ORG/NAME[@REVISION][:FILE], a URL, or an alias.
    #[arg(value_name = "MODEL")]
    model: String,

    /// Branch, tag or commit; the same as @REVISION.
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// List the files of the model without downloading anything.
    #[arg(long)]
    list: bool,

    /// Print only the path.
    #[arg(long, short)]
    quiet: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen pull ggml-org/SmolLM3-3B-GGUF           the file in Q4_K_M
  fulmen pull ggml-org/SmolLM3-3B-GGUF:Q8_0      the file in Q8_0
  fulmen pull ORG/NAME@v1.0:sub/model.gguf       one file of a revision
  fulmen pull hf.co/ORG/NAME:Q8_0                the same with a host, as other tools write it
  fulmen pull https://huggingface.co/ORG/NAME/blob/main/model.gguf
                                                 a file by its URL
  fulmen pull ORG/NAME --list                    list the files
  fulmen run ORG/NAME \"Hello\"                    run the downloaded model";

/// Why `fulmen pull` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("cannot write the result: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for PullError {
    fn is_usage(&self) -> bool {
        match self {
            PullError::Reference(_) => true,
            PullError::Config(error) => error.is_usage(),
            _ => false,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), PullError> {
    let settings = config::current().hub_settings()?;
    let named: Reference = config::current().alias(&args.model).unwrap_or(&args.model).parse()?;
    let reference = match &args.revision {
        Some(revision) => named.at(revision)?,
        None => named,
    };
    let report = Report::new(args.quiet);
    if args.list {
        let listing = fulmen_hub::list(&settings, &reference, &mut |event| report.told(&event))?;
        return Ok(print(&table(&listing.files))?);
    }
    interrupt::install();
    let pulled = fulmen_hub::pull(&settings, &reference, &mut |event| report.told(&event));
    report.note.take();
    report.bar.finish_and_clear();
    Ok(print_text(&format!("{}\n", pulled?.path.display()))?)
}

fn table(files: &[RepoFile]) -> String {
    let size = |file: &RepoFile| file.size.map_or("?".to_owned(), format_bytes);
    let rows: Vec<Vec<String>> = files.iter().map(|file| vec![printable(&file.path), size(file)]).collect();
    columns(&["file", "size"], &rows)
}

/// Progress on stderr: a bar on a terminal, and lines everywhere.
struct Report {
    bar: ProgressBar,
    quiet: bool,
    /// What a signal prints once there is something to resume.
    note: RefCell<Option<NoteOnSignal>>,
}

impl Report {
    fn new(quiet: bool) -> Report {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let template = "{wide_msg} {bar:25} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Report { bar, quiet, note: RefCell::default() }
    }

    /// Tells an event. A download ends with the process.
    fn told(&self, event: &Event<'_>) -> ControlFlow<()> {
        self.tell(event);
        ControlFlow::Continue(())
    }

    fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Pending => {}
            Event::Chosen(choice) => self.say(&chosen(choice)),
            Event::File { path, size, have } => {
                let note = "stopped; run the same command again to resume the download";
                self.note.borrow_mut().get_or_insert_with(|| NoteOnSignal::new(note));
                self.bar.set_length(*size);
                self.bar.set_position(*have);
                self.bar.set_message(printable(path));
                self.bar.reset_eta();
                if *have > 0 {
                    self.say(&format!("{}: resuming at {}", printable(path), format_bytes(*have)));
                }
            }
            Event::Bytes(more) => self.bar.inc(*more),
            Event::Complete { path, cached: true, .. } => {
                self.say(&format!("{} is already in the cache", printable(path)))
            }
            Event::Complete { path, verified, .. } => {
                let size =
                    self.bar.length().map_or(String::new(), |bytes| format!(" ({})", format_bytes(bytes)));
                let checked = match verified {
                    true => "verified",
                    false => "complete, but not verified: the server sent no hash",
                };
                self.say(&format!("{}{size}, {checked}", printable(path)));
            }
            Event::Waiting { path } => {
                self.say(&format!("{}: waiting for another process that is downloading it", printable(path)));
            }
            Event::Retry { error, wait } => {
                self.say(&format!(
                    "{}; retrying in {:.1} s",
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

/// Other files of a repository that are named; `--list` lists all.
const SHOWN: usize = 20;

fn chosen(choice: &Choice) -> String {
    let bytes = choice.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size?));
    let size = bytes.map_or(String::new(), |bytes| format!(" ({})", format_bytes(bytes)));
    let others = match choice.others.len() {
        0 => String::new(),
        n if n > SHOWN => {
            format!(
                "; also available: {} and {} more",
                printable(&choice.others[..SHOWN].join(", ")),
                n - SHOWN
            )
        }
        _ => format!("; also available: {}", printable(&choice.others.join(", "))),
    };
    match (&choice.name, choice.files.len()) {
        (Some(name), 1) => format!("downloading {}{size}{others}", printable(name)),
        (Some(name), parts) => {
            format!("downloading {} and its other parts, {parts} files{size}{others}", printable(name))
        }
        (None, files) => {
            let files = counted(files, "file");
            format!("downloading {files}: config.json, the safetensors files and the tokenizer{size}")
        }
    }
}
