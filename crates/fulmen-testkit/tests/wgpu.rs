//! The table through wgpu on the best available adapter, in CI a software one: with all optional features and
//! without.
//!
//! In software a row takes up to seconds, most of them for compiling its shaders, so tests run a
//! [sample](fulmen_testkit::sample) of each op and type. `fulmen ops check --device wgpu` runs every row, and
//! with `FULMEN_WGPU_WITHOUT=all` without optional features.

use fulmen_testkit::{Filter, Sample, Size, run_sample, seed, this_test};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice, WgpuDispatcher, wgpu::Features};

fn run(without: Features, up_to: Size, sample: &Sample, test: &str) {
    let options = DeviceOptions { without, disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    let gpu = GpuDevice::with_options(&options).unwrap_or_else(|error| {
        panic!("this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    });
    let mut wgpu = WgpuDispatcher::on(&gpu).expect("an open device");
    let filter = Filter { up_to: Some(up_to), ..Filter::default() };
    run_sample(&mut wgpu, &filter, sample, seed()).assert_good(&[], test);
}

/// Rows of each op and type, quick or large.
const ROWS: usize = 2;

#[test]
fn rows() {
    run(Features::empty(), Size::Large, &Sample::of_all_rows(ROWS), this_test!("rows"));
}

/// The kernels that need no optional feature, one row of each op and type.
#[test]
fn quick_rows_without_optional_features() {
    let sample = Sample::of_all_rows(1);
    run(Features::all(), Size::Quick, &sample, this_test!("quick_rows_without_optional_features"));
}
