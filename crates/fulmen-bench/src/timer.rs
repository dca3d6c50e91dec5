//! Waiting for a wgpu device, and medians of times.

use std::time::{Duration, Instant};

use fulmen_wgpu::{GpuDevice, GpuError, wgpu};

/// Waits until the device has done everything.
pub(crate) fn wait(gpu: &GpuDevice) -> Result<(), GpuError> {
    // Without a time limit the only failure is a lost device, which the next line reports.
    let _ = gpu.wgpu_device().poll(wgpu::PollType::Wait { submission_index: None, timeout: None });
    gpu.check_alive()
}

/// Microseconds since `start`.
pub(crate) fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// The median; 0 for an empty list.
pub(crate) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// How long a device is kept busy before a series of measurements: an idle GPU runs at a fraction of its
/// clock. A software device has no clock to wait for.
pub(crate) fn warm_up_time(gpu: &GpuDevice) -> Duration {
    let software = gpu.info().device_type == wgpu::DeviceType::Cpu;
    if software { Duration::ZERO } else { Duration::from_millis(300) }
}
