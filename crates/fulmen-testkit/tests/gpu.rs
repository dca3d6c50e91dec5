//! The rows about a GPU's arrays, on the best adapter there is: in CI a software one.

use fulmen_core::DType;
use fulmen_testkit::{Filter, Size, gpu_ops, gpu_table, run_gpu_table, seed};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice};

fn gpu() -> GpuDevice {
    let options = DeviceOptions { disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    GpuDevice::with_options(&options).unwrap_or_else(|error| {
        panic!("this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    })
}

fn run(filter: &Filter) {
    let report = run_gpu_table(&gpu(), filter, seed(), |_| {});
    println!("{report}");
    assert!(!report.rows.is_empty() && report.is_good(&[]), "rows of the table fail: see above");
}

#[test]
fn quick_rows() {
    run(&Filter { up_to: Some(Size::Quick), ..Filter::default() });
}

/// Lengths around what one dimension of a grid holds, by ops of one array, of two, and with a scalar.
#[test]
fn long_rows() {
    let ops = ["relu", "add", "scale", "sum", "dot", "max"].map(str::to_owned).to_vec();
    run(&Filter { ops, ..Filter::default() });
}

/// One weight of a real model's size in 4 bits, and one with more rows than a grid has workgroups in a dimension.
#[test]
fn large_products() {
    for (dtype, name) in [(DType::Q4_K, "k2560/n9728/4m"), (DType::F32, "k64/n65536/5m")] {
        run(&Filter { dtypes: vec![dtype], name: name.to_owned(), ..Filter::default() });
    }
}

#[test]
#[ignore = "takes an hour on a software device; fulmen ops check --device wgpu --all runs the same rows"]
fn all_rows() {
    run(&Filter::default());
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
