//! Downloads against a server on loopback whose answers are mutated, and to a disk whose writes fail.

mod faults;
mod fuzz;
#[path = "../../tests/server/mod.rs"]
mod server;

use std::time::Duration;

use crate::limits::Limits;
use crate::settings::Settings;

/// The usual limits without waiting.
fn limits() -> Limits {
    Limits { backoff: Duration::ZERO, retry_after: Duration::ZERO, ..Limits::default() }
}

fn settings(endpoint: &str, cache: &std::path::Path) -> Settings {
    Settings { endpoint: endpoint.to_owned(), token: None, cache: cache.to_owned(), certificates: None }
}
