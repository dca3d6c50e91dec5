//! The list of devices as JSON. Field names here are an interface: add, do not rename.

use fulmen_core::device::{BackendReport, DeviceInfo, DeviceSelector, Fact, FactValue};
use serde_json::{Map, Value, json};

/// The whole list as indented JSON with a newline at its end.
pub(super) fn render(
    reports: &[BackendReport],
    asked: DeviceSelector,
    selected: Option<&DeviceInfo>,
) -> String {
    let list = json!({
        "asked": asked.to_string(),
        "taken": selected.map(|device| device.selector().to_string()),
        "backends": reports.iter().map(backend).collect::<Vec<_>>(),
    });
    format!("{list:#}\n")
}

pub(crate) fn backend(report: &BackendReport) -> Value {
    json!({
        "backend": report.backend.as_str(),
        "unavailable": report.unavailable,
        "devices": report.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

fn device(device: &DeviceInfo) -> Value {
    json!({
        "device": device.selector().to_string(),
        "name": device.name,
        "kind": device.kind.name(),
        "driver": device.driver,
        "memory_bytes": device.memory_bytes,
        "free_bytes": device.free_bytes,
        "facts": device.facts.iter().map(fact).collect::<Map<_, _>>(),
        "runs_graphs": device.runs_graphs.is_ok(),
        "reason": device.runs_graphs.as_ref().err(),
    })
}

fn fact(fact: &Fact) -> (String, Value) {
    let value = match &fact.value {
        FactValue::Bytes(number) | FactValue::Count(number) => json!(number),
        FactValue::Flag(flag) => json!(flag),
        FactValue::Text(text) => json!(text),
    };
    (fact.name.to_owned(), value)
}
