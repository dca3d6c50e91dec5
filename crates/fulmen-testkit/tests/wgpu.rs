//! The table on a GPU through wgpu: on the best adapter there is, in CI a software one, with all that it offers and with
//! nothing that is optional. Kernels are compiled by the hundred, which takes minutes there, so each run takes some of the
//! quick rows, by its seed. `fulmen ops check --device wgpu --all` runs every row.

use fulmen_testkit::check::check_case;
use fulmen_testkit::draw::Pools;
use fulmen_testkit::{Case, Report, Row, Size, seed, table};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice, WgpuDispatcher, wgpu::Features};

/// Of so many quick rows one is taken: of products, and of the others.
struct Every {
    product: usize,
    other: usize,
}

fn run(without: Features, every: &Every) {
    let options = DeviceOptions { without, disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    let gpu = GpuDevice::with_options(&options).unwrap_or_else(|error| {
        panic!("this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    });
    let mut wgpu = WgpuDispatcher::on(&gpu).expect("an open device");
    let seed = seed();
    let (mut pools, mut rows) = (Pools::new(seed), Vec::new());
    for (at, case) in table().into_iter().filter(|case| case.size == Size::Quick).enumerate() {
        let every = if matches!(case.op, "mul_mat" | "gate_up") { every.product } else { every.other };
        if !(at + seed as usize).is_multiple_of(every) {
            continue;
        }
        let start = std::time::Instant::now();
        let outcome = check_case(&mut wgpu, &case, &mut pools);
        let Case { name, op, dtype, .. } = case;
        rows.push(Row { name, op, dtype, outcome, elapsed: start.elapsed() });
    }
    let report = Report { backend: "wgpu", seed, rows };
    println!("{report}");
    assert!(!report.rows.is_empty() && report.is_good(&[]), "rows of the table fail: see above");
}

#[test]
fn quick_rows() {
    run(Features::empty(), &Every { product: 6, other: 1 });
}

/// The kernels that need no optional feature.
#[test]
fn quick_rows_without_optional_features() {
    run(Features::all(), &Every { product: 24, other: 6 });
}
