//! Lists the GPUs that wgpu can reach, and their capabilities.

use fulmen_core::device::{BackendName, BackendReport, DeviceInfo, DeviceKind, Fact};
use wgpu::{
    Adapter, AdapterInfo, Backends, DeviceType, Features, Instance, InstanceDescriptor, InstanceFlags,
};

use crate::error::{GpuError, TRIED};

/// The name of this backend.
pub const NAME: BackendName = BackendName::new("wgpu");

/// A report of every adapter, or the reason why there is none.
pub fn report() -> BackendReport {
    BackendReport::new(NAME, list_devices())
}

/// Every adapter that wgpu finds, in its own order. Opens none of them.
///
/// # Errors
/// [`GpuError::NoAdapter`] where no driver offers one.
pub fn list_devices() -> Result<Vec<DeviceInfo>, GpuError> {
    let adapters = pollster::block_on(adapters())?;
    Ok(adapters.iter().enumerate().map(|(index, adapter)| device_info(index, adapter)).collect())
}

/// Every adapter, in wgpu's order, which defines their index.
pub(super) async fn adapters() -> Result<Vec<Adapter>, GpuError> {
    let adapters = instance().enumerate_adapters(Backends::PRIMARY).await;
    if adapters.is_empty() { Err(GpuError::NoAdapter { tried: TRIED }) } else { Ok(adapters) }
}

/// An instance without validation layers, so that listing is fast and prints nothing.
fn instance() -> Instance {
    Instance::new(InstanceDescriptor {
        backends: Backends::PRIMARY,
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    })
}

fn device_info(index: usize, adapter: &Adapter) -> DeviceInfo {
    let info = adapter.get_info();
    DeviceInfo {
        backend: NAME,
        index,
        kind: device_kind(info.device_type),
        driver: driver(&info),
        // Neither is part of WebGPU.
        memory_bytes: None,
        free_bytes: None,
        facts: facts(adapter, &info),
        runs_graphs: runs_graphs(&adapter.limits()),
        name: info.name,
    }
}

/// Whether graphs can run on the device: the limits that WebGPU guarantees outside its compatibility mode.
fn runs_graphs(limits: &wgpu::Limits) -> Result<(), String> {
    let least = [
        ("storage buffers per stage", limits.max_storage_buffers_per_shader_stage, 8),
        ("invocations per workgroup", limits.max_compute_invocations_per_workgroup, 64),
        ("bytes of workgroup memory", limits.max_compute_workgroup_storage_size, 8192),
    ];
    match least.into_iter().find(|(_, has, needs)| has < needs) {
        None => Ok(()),
        Some((what, has, needs)) => Err(format!("graphs need {needs} {what}, and it has {has}")),
    }
}

const fn device_kind(device_type: DeviceType) -> DeviceKind {
    match device_type {
        DeviceType::DiscreteGpu => DeviceKind::DiscreteGpu,
        DeviceType::IntegratedGpu => DeviceKind::IntegratedGpu,
        DeviceType::Cpu => DeviceKind::SoftwareGpu,
        DeviceType::VirtualGpu | DeviceType::Other => DeviceKind::Other,
    }
}

/// The driver's name and version in one line; either may be missing.
fn driver(info: &AdapterInfo) -> String {
    let parts = [info.driver.trim(), info.driver_info.trim()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The limits that shape a kernel or its buffers, then the optional features.
fn facts(adapter: &Adapter, info: &AdapterInfo) -> Vec<Fact> {
    let limits = adapter.limits();
    let features = adapter.features();
    let has = |feature| features.contains(feature);
    vec![
        Fact::text("interface", info.backend.to_string()),
        Fact::bytes("largest buffer", limits.max_buffer_size),
        Fact::bytes("largest storage binding", limits.max_storage_buffer_binding_size),
        Fact::count("storage buffers per stage", limits.max_storage_buffers_per_shader_stage.into()),
        Fact::bytes("workgroup memory", limits.max_compute_workgroup_storage_size.into()),
        Fact::count("invocations per workgroup", limits.max_compute_invocations_per_workgroup.into()),
        Fact::count("workgroups per dimension", limits.max_compute_workgroups_per_dimension.into()),
        subgroups(has(Features::SUBGROUP), info),
        Fact::flag("shader-f16", has(Features::SHADER_F16)),
        if has(Features::IMMEDIATES) {
            Fact::bytes("immediates", limits.max_immediate_size.into())
        } else {
            Fact::flag("immediates", false)
        },
        Fact::flag("timestamps", has(Features::TIMESTAMP_QUERY)),
        Fact::flag("timestamps inside passes", has(Features::TIMESTAMP_QUERY_INSIDE_PASSES)),
        Fact::flag("pipeline cache", has(Features::PIPELINE_CACHE)),
        cooperative_matrix(has(Features::EXPERIMENTAL_COOPERATIVE_MATRIX), adapter),
    ]
}

/// The subgroup size: one number, or the range from which the driver chooses.
fn subgroups(present: bool, info: &AdapterInfo) -> Fact {
    let (min, max) = (info.subgroup_min_size, info.subgroup_max_size);
    match present {
        false => Fact::flag("subgroups", false),
        true if min == max => Fact::text("subgroups", format!("{min} wide")),
        true => Fact::text("subgroups", format!("{min} to {max} wide")),
    }
}

/// The cooperative matrix shapes as `MxNxK inputs→sum`.
fn cooperative_matrix(present: bool, adapter: &Adapter) -> Fact {
    if !present {
        return Fact::flag("cooperative matrix", false);
    }
    let mut shapes = Vec::new();
    for p in adapter.cooperative_matrix_properties() {
        let (inputs, sum) = (format!("{:?}", p.ab_type), format!("{:?}", p.cr_type));
        let (inputs, sum) = (inputs.to_lowercase(), sum.to_lowercase());
        let shape = format!("{}x{}x{} {inputs}→{sum}", p.m_size, p.n_size, p.k_size);
        // A driver may list a shape twice, with and without saturating sums.
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }
    Fact::text("cooperative matrix", shapes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_line_leaves_out_what_is_missing() {
        let line = |driver: &str, driver_info: &str| {
            let mut info = AdapterInfo::new(DeviceType::Other, wgpu::Backend::Vulkan);
            (info.driver, info.driver_info) = (driver.to_owned(), driver_info.to_owned());
            super::driver(&info)
        };
        assert_eq!(line("llvmpipe", "Mesa 22.3.6"), "llvmpipe Mesa 22.3.6");
        assert_eq!(line("", " 1.2 "), "1.2");
        assert_eq!(line("", ""), "");
    }

    #[test]
    fn every_adapter_has_a_name_and_usable_limits() {
        let devices = list_devices().unwrap_or_else(|error| {
            panic!(
                "this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}"
            )
        });
        for (index, device) in devices.iter().enumerate() {
            assert_eq!((device.backend, device.index), (NAME, index));
            assert!(!device.name.is_empty());
            let names: Vec<_> = device.facts.iter().map(|fact| fact.name).collect();
            for name in ["largest storage binding", "workgroup memory", "subgroups", "cooperative matrix"] {
                assert!(names.contains(&name), "{name} is missing in {names:?}");
            }
        }
    }
}
