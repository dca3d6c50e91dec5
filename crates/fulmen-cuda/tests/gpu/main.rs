//! Tests that need a GPU. Without one each test says that it was skipped; with `FULMEN_REQUIRE_CUDA=1` it
//! fails.

mod architectures;
mod bulk_import;
mod capture;
#[path = "../../../fulmen-engine/tests/golden/compare.rs"]
mod compare;
mod drops;
mod engine;
#[path = "../../../fulmen-engine/tests/model/scenario.rs"]
mod engine_scenario;
mod example;
mod faults;
mod forwarding;
#[path = "../../../fulmen-engine/tests/greedy/mod.rs"]
mod greedy;
#[path = "../../../fulmen-engine/tests/golden/architectures.rs"]
mod llama_cpp;
mod lost;
mod memory;
mod model;
mod nccl;
#[path = "../../../fulmen-engine/tests/golden/transformers.rs"]
mod pytorch;
mod replay;
mod runs;
mod several_devices;
mod threads;
mod tickets;

use std::sync::{Arc, Mutex, MutexGuard};

use fulmen_cuda::{CudaDevice, CudaDispatcher, CudaOptions};
use fulmen_testkit::device_or_say_so;

const REQUIRE: &str = "FULMEN_REQUIRE_CUDA";

/// Held by the running test: some tests count or fill the memory of the device.
static EXCLUSIVE: Mutex<()> = Mutex::new(());

/// An open device that no other test uses.
struct Gpu {
    device: Arc<CudaDevice>,
    _exclusive: MutexGuard<'static, ()>,
}

impl Gpu {
    fn dispatcher(&self) -> CudaDispatcher {
        CudaDispatcher::new(&self.device).unwrap()
    }
}

/// The first device, if there is one.
fn gpu() -> Option<Gpu> {
    let exclusive = EXCLUSIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let device = device_or_say_so(CudaDevice::open(0, CudaOptions::default()), REQUIRE)?;
    Some(Gpu { device, _exclusive: exclusive })
}

/// The bits of f32 values, which compare equal for equal NaNs too.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
