//! A backend of your own, registered beside the built-in ones and selected by its name.
//!
//! Here it is the CPU backend with plain code and one thread, which is what a port to another processor
//! starts from. A real one brings its own kernels and memory: anything that implements `KernelDispatch` and
//! `DeviceMemory`.
//!
//! ```text
//! cargo run --release -p fulmen --example own_backend
//! cargo run --release -p fulmen --example own_backend -- cpu
//! ```

use fulmen::core::device::{BackendName, BackendReport, DeviceInfo};
use fulmen::cpu::isa::Isa;
use fulmen::model::Device;
use fulmen::prelude::*;
use fulmen::{BackendProvider, OpenError, OpenOptions, Registry};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fulmen-cli/assets/story.gguf");

struct Plain;

impl BackendProvider for Plain {
    fn name(&self) -> BackendName {
        const { BackendName::new("plain") }
    }

    fn report(&self) -> BackendReport {
        let device = DeviceInfo { backend: self.name(), ..fulmen::cpu::device::device_info() };
        BackendReport { backend: self.name(), devices: vec![device], unavailable: None }
    }

    fn rank(&self, _: &DeviceInfo) -> u32 {
        // After all others: `auto` never selects it while there is another device.
        1000
    }

    fn open(&self, _: &DeviceInfo, _: &OpenOptions) -> Result<Device, OpenError> {
        Ok(Box::new(CpuDispatcher::with_threads(1).with_isa(Isa::Portable)?))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let asked = std::env::args().nth(1).unwrap_or_else(|| "plain".to_owned());
    let mut registry = Registry::builtin();
    registry.register(Plain)?;

    let model = Model::load(STORY, registry.open(registry.parse(&asked)?)?)?;
    let options = GenerateOptions { max_tokens: 40, ..GenerateOptions::default() };
    let answer = model.generate("Once upon a time", &options, |piece| print!("{piece}"))?;
    println!("\n{} tokens on {asked}, {:.0} tokens/s", answer.tokens.len(), answer.decode_rate());
    Ok(())
}
