//! Every row of the ops with a recurrent state, on the CPU and through wgpu: a wrong walk over the rows of a
//! sequence shows in few of them, so a sample is not enough.

use fulmen_core::Backend;
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::{Filter, Sample, Size, run_sample, seed, this_test};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice, WgpuDispatcher, wgpu::Features};

const OPS: [&str; 3] = ["causal_conv", "gated_delta_rule", "sigmoid_gate"];

fn run(device: &mut dyn Backend, test: &str) {
    for op in OPS {
        let filter = Filter { up_to: Some(Size::Quick), ..Filter::op(op) };
        run_sample(device, &filter, &Sample::of_all_rows(1000), seed()).assert_good(&[], test);
    }
}

#[test]
fn cpu() {
    run(&mut CpuDispatcher::new(), this_test!("cpu"));
}

#[test]
fn wgpu_without_optional_features() {
    let without = Features::all();
    let options = DeviceOptions { without, disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    let gpu = GpuDevice::with_options(&options).expect("an adapter, hardware or software");
    let mut wgpu = WgpuDispatcher::on(&gpu).expect("an open device");
    run(&mut wgpu, this_test!("wgpu_without_optional_features"));
}
