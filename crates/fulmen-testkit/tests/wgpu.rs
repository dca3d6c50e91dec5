//! The table on a GPU through wgpu: on the best adapter there is, in CI a software one, with all that it offers and with
//! nothing that is optional. Rows of real models, which take minutes in software, are in the first; `FULMEN_WGPU_WITHOUT=all fulmen ops check
//! --device wgpu` runs them in the second way, and `--all` every combination.

use fulmen_testkit::{Filter, Size, run_table, seed};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice, WgpuDispatcher, wgpu::Features};

fn run(without: Features, up_to: Size) {
    let options = DeviceOptions { without, disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    let gpu = GpuDevice::with_options(&options).unwrap_or_else(|error| {
        panic!("this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    });
    let mut wgpu = WgpuDispatcher::on(&gpu).expect("an open device");
    let filter = Filter { up_to: Some(up_to), ..Filter::default() };
    let report = run_table(&mut wgpu, &filter, seed());
    println!("{report}");
    assert!(report.is_good(&[]), "rows of the table fail: see above");
}

#[test]
fn rows() {
    run(Features::empty(), Size::Large);
}

/// The kernels that need no optional feature.
#[test]
fn quick_rows_without_optional_features() {
    run(Features::all(), Size::Quick);
}
