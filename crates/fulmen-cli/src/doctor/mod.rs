//! `fulmen doctor`: what this machine can do, checked by doing it, and what would make it faster.

mod advice;
mod files;
mod self_test;
mod text;

use std::io;

use fulmen_core::device::{BackendReport, DeviceInfo, DeviceSelector};
use serde_json::{Value, json};

use crate::devices;
use crate::error::CommandError;
use crate::output::{json as json_text, print};
use crate::select::{self, DeviceOption};
use files::Folder;
use self_test::Tested;

/// Check this machine: drivers, devices, caches and disk space, and what would make it faster.
///
/// On every device that can run models, the built-in model generates a few tokens, which must be the same
/// everywhere. The exit status is 1 if the device that --device selects does not exist or fails the test.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    device: DeviceOption,

    /// Do not run the built-in model.
    #[arg(long)]
    no_test: bool,

    /// Print the report as JSON, with sizes in bytes.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  fulmen doctor
  fulmen doctor --device cuda            exit status 1 if CUDA cannot be used
  fulmen doctor --json | jq .advice";

/// Why the report could not be printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    #[error("cannot write the report: {0}")]
    Write(#[from] io::Error),
}

impl CommandError for DoctorError {}

/// Everything that was found.
struct Report {
    asked: DeviceSelector,
    /// The device that is selected, or the reason why none is.
    selected: Result<DeviceInfo, String>,
    backends: Vec<BackendReport>,
    /// The devices that were tested.
    tested: Vec<(DeviceSelector, Tested)>,
    folders: Vec<Folder>,
    advice: Vec<String>,
}

impl Report {
    fn test_of(&self, device: DeviceSelector) -> Option<&Tested> {
        self.tested.iter().find(|(tested, _)| *tested == device).map(|(_, result)| result)
    }

    /// Whether models run on the selected device.
    fn usable(&self) -> bool {
        match &self.selected {
            Ok(device) => self.test_of(device.selector()).is_none_or(Tested::passed),
            Err(_) => false,
        }
    }
}

/// Returns the exit code.
pub(crate) fn run(args: &Args) -> Result<i32, DoctorError> {
    let backends = select::reports();
    let asked = args.device.device;
    let selected = select::choose(&backends, asked).cloned().map_err(|error| error.to_string());
    let tested = if args.no_test { Vec::new() } else { self_test::all(&backends) };
    let folders = files::folders();
    let mut report = Report { asked, selected, backends, tested, folders, advice: Vec::new() };
    report.advice = advice::advice(&report, &advice::Machine::of_this_process());
    print(&if args.json { json_text(&as_json(&report)) } else { text::render(&report) })?;
    Ok(if report.usable() { 0 } else { 1 })
}

/// Field names here are an interface: add, do not rename.
fn as_json(report: &Report) -> Value {
    let mut backends: Vec<Value> = report.backends.iter().map(devices::json::backend).collect();
    for (backend, json) in report.backends.iter().zip(&mut backends) {
        for (device, json) in backend.devices.iter().zip(json["devices"].as_array_mut().into_iter().flatten())
        {
            json["test"] = report.test_of(device.selector()).map_or(Value::Null, Tested::as_json);
        }
    }
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "platform": platform(),
        "usable": report.usable(),
        "asked": report.asked.to_string(),
        "taken": report.selected.as_ref().ok().map(|device| device.selector().to_string()),
        "backends": backends,
        "folders": report.folders.iter().map(Folder::as_json).collect::<Vec<_>>(),
        "advice": report.advice,
    })
}

fn platform() -> String {
    format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)
}
