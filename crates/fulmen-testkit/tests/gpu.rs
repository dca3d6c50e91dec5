//! The GPU table on the best available adapter: in CI a software one.

use fulmen_testkit::{Filter, Sample, Size, gpu_ops, gpu_table, run_gpu_sample, seed, this_test};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice};

fn gpu() -> GpuDevice {
    let options = DeviceOptions { disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    GpuDevice::with_options(&options).unwrap_or_else(|error| {
        panic!("this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    })
}

fn run(filter: &Filter, sample: &Sample, test: &str) {
    run_gpu_sample(&gpu(), filter, sample, seed()).assert_good(&[], test);
}

/// Every quick row; of the large ones (lengths around what one dimension of a grid holds, weights of a real
/// model's size or with more rows than a grid has workgroups in a dimension) one of each operation.
#[test]
fn rows() {
    let filter = Filter { up_to: Some(Size::Large), ..Filter::default() };
    run(&filter, &Sample::of_large_rows(1).by_op(), this_test!("rows"));
}

#[test]
#[ignore = "takes an hour on a software device; fulmen ops check --device wgpu --all runs the same rows"]
fn all_rows() {
    run(&Filter::default(), &Sample::Full, this_test!("all_rows"));
}

#[test]
fn every_operation_has_rows_with_names_of_their_own() {
    let table = gpu_table();
    let mut names: Vec<&str> = table.iter().map(|case| &*case.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "two rows have one name");
    let ops = gpu_ops();
    for op in fulmen_wgpu::ElementwiseOp::ALL {
        // Of two arrays; of one they are reductions.
        let name = match op.name() {
            "max" => "maximum",
            "min" => "minimum",
            name => name,
        };
        assert!(ops.contains(&name), "{name}");
    }
    for length in ["0", "1", "255", "256", "257", "16776959", "16776960", "16776961", "17777217"] {
        for op in ["relu", "div", "gelu"] {
            assert!(table.iter().any(|case| case.name == format!("{op}/f32/{length}")), "{op} of {length}");
        }
    }
}
