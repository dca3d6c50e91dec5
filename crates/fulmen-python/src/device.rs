//! The devices of this machine, for Python.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use fulmen::Registry;
use fulmen::core::DeviceSelector;
use fulmen::core::device::FactValue;
use fulmen::prelude::GpuDevice;
use fulmen::wgpu::AdapterSelector;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::Failure;
use crate::process::PerProcess;
use crate::worker::detached;

/// Every device that the backends found: dictionaries, of which Python makes `fulmen.Device`.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    crate::logs::follow(py)?;
    let registry = Registry::builtin();
    let reports = detached(py, || Ok(registry.reports()))?;
    let best = registry.choose(&reports, DeviceSelector::Auto).ok().map(|info| info.selector().to_string());
    let mut found = Vec::new();
    for info in reports.iter().flat_map(|report| &report.devices) {
        let selector = info.selector().to_string();
        let dict = PyDict::new(py);
        dict.set_item("backend", info.backend.as_str())?;
        dict.set_item("index", info.index)?;
        dict.set_item("name", &info.name)?;
        dict.set_item("kind", info.kind.name())?;
        dict.set_item("driver", &info.driver)?;
        dict.set_item("memory", info.memory_bytes)?;
        dict.set_item("free", info.free_bytes)?;
        dict.set_item("best", best.as_ref() == Some(&selector))?;
        dict.set_item("selector", selector)?;
        dict.set_item("unusable", info.runs_graphs.clone().err())?;
        let facts = PyDict::new(py);
        for fact in &info.facts {
            match &fact.value {
                FactValue::Bytes(n) | FactValue::Count(n) => facts.set_item(fact.name, n)?,
                FactValue::Flag(flag) => facts.set_item(fact.name, flag)?,
                FactValue::Text(text) => facts.set_item(fact.name, text)?,
            }
        }
        dict.set_item("facts", facts)?;
        found.push(dict);
    }
    Ok(found)
}

/// Why backends have no devices, by name.
#[pyfunction]
pub(crate) fn unavailable(py: Python<'_>) -> PyResult<HashMap<String, String>> {
    let reports = detached(py, || Ok(Registry::builtin().reports()))?;
    let missing = reports.into_iter().filter_map(|report| {
        let reason = report.unavailable?;
        Some((report.backend.as_str().to_owned(), reason))
    });
    Ok(missing.collect())
}

/// The GPUs that are open for arrays, by selector.
static OPEN: PerProcess<Mutex<HashMap<String, GpuDevice>>> = PerProcess::new(Mutex::default);

/// Called once, when the module is imported.
pub(crate) fn start() {
    OPEN.get();
}

/// Opens a GPU for arrays: `auto`, `wgpu` or `wgpu:N`. Each is opened once in a process.
pub(crate) fn open_gpu(call: &'static str, name: &str) -> Result<GpuDevice, Failure> {
    let selector = Registry::builtin().parse(name)?;
    let adapter = match selector {
        DeviceSelector::Auto => AdapterSelector::Best,
        DeviceSelector::Backend(backend) if backend == fulmen::wgpu::NAME => AdapterSelector::Best,
        DeviceSelector::Device(backend, index) if backend == fulmen::wgpu::NAME => {
            AdapterSelector::Index(index)
        }
        other => {
            let expected = "auto, wgpu or one of its devices, such as wgpu:0";
            return Err(Failure::argument(call, "the device", expected, other));
        }
    };
    let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{adapter:?}");
    // A device that was lost is opened again.
    if let Some(gpu) = open.get(&key).filter(|gpu| gpu.check_alive().is_ok()) {
        return Ok(gpu.clone());
    }
    let gpu = GpuDevice::open(&adapter)?;
    open.insert(key, gpu.clone());
    Ok(gpu)
}
