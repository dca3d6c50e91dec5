//! What only a device can show. Where there is none, each test says so; with `FULMEN_REQUIRE_CUDA=1` it fails instead.

mod capture;
mod drops;
mod example;
mod faults;
#[path = "../../../fulmen-model/tests/greedy/mod.rs"]
mod greedy;
mod handing;
mod lost;
mod memory;
mod model;
mod replay;
mod threads;

use std::sync::{Arc, Mutex, MutexGuard};

use fulmen_cuda::{CudaDevice, CudaDispatcher, CudaOptions};
use fulmen_testkit::device_or_say_so;

const REQUIRE: &str = "FULMEN_REQUIRE_CUDA";

/// Some tests count or fill the device's memory: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// An opened device that no other test uses.
struct Gpu {
    device: Arc<CudaDevice>,
    _alone: MutexGuard<'static, ()>,
}

impl Gpu {
    fn dispatcher(&self) -> CudaDispatcher {
        CudaDispatcher::new(&self.device).unwrap()
    }
}

/// The first device, if there is one.
fn gpu() -> Option<Gpu> {
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let device = device_or_say_so(CudaDevice::open(0, CudaOptions::default()), REQUIRE)?;
    Some(Gpu { device, _alone: alone })
}

/// The bits of floats, which also tell NaN from NaN.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
