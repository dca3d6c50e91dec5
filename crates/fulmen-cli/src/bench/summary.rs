//! Lines below the tables: the device, what it can do, and what the columns mean.

#[cfg(feature = "wgpu")]
use fulmen_bench::Ceilings;
use fulmen_bench::model::{Clock, LoadedModel, OpProfile};
use fulmen_core::DeviceKind;

use crate::model::load::summary;
use crate::model::split::device_of;
use crate::output::{columns, counted, percent};

/// What "of bound" means for a model file, whose ops are not timed one by one.
pub(super) const MEMORY_BOUND: &str = "\
of bound: % of the memory-bandwidth bound, the speed of reading all weights and the KV cache once per step
";

/// What "of bound" means in tables of decode steps.
pub(super) const BOUND: &str = "\
of bound: % of the speed at which every op takes just the time of its bytes or of its arithmetic
";

#[cfg(feature = "wgpu")]
/// `3900 GB/s read, 3800 GB/s read and written, 52000 GFLOP/s in f32`.
pub(super) fn ceilings(ceilings: &Ceilings) -> String {
    let Ceilings { read_gb_s, copy_gb_s, f32_gflop_s, by_host_clock } = *ceilings;
    let clock = if by_host_clock { ", timed by the host" } else { "" };
    format!(
        "{read_gb_s:.0} GB/s read, {copy_gb_s:.0} GB/s read and written, \
         {f32_gflop_s:.0} GFLOP/s in f32{clock}"
    )
}

/// Model, device and its memory bandwidth, as a line.
pub(super) fn model_and_device(loaded: &LoadedModel, bandwidth: Option<f64>) -> String {
    let device = &loaded.device;
    let selector = device_of(&loaded.model, device);
    let mut out = format!("{} on {selector} ({})", summary(&loaded.model), device.name);
    if device.kind == DeviceKind::Cpu {
        out += &format!(", {}", counted(loaded.threads, "thread"));
    }
    if let Some(bandwidth) = bandwidth {
        out += &format!(", memory bandwidth {:.1} GB/s", bandwidth / 1e9);
    }
    out + "\n"
}

/// The ops of a run as a table.
pub(super) fn op_table(profile: &OpProfile) -> String {
    let share = |us: f64| format!("{:.1} %", 100.0 * us / profile.total_us);
    let mut rows: Vec<Vec<String>> = Vec::with_capacity(profile.ops.len() + 2);
    for row in &profile.ops {
        rows.push(vec![
            row.op.clone(),
            row.calls.to_string(),
            row.kernels.to_string(),
            format!("{:.1}", row.us),
            share(row.us),
            format!("{:.3}", row.bytes as f64 / 1e6),
            format!("{:.1}", row.bytes_per_second / 1e9),
            row.share_of_memory.map_or(String::new(), percent),
        ]);
    }
    let whole = |name: &str, us: f64| {
        vec![name.to_owned(), String::new(), String::new(), format!("{us:.1}"), share(us)]
    };
    // Ops that were timed alone overlap in the run if their sum is longer than the run.
    rows.push(whole(if profile.gaps_us < 0.0 { "[overlap]" } else { "[gaps]" }, profile.gaps_us));
    let mut total = whole("[all]", profile.total_us);
    total.push(format!("{:.3}", profile.bytes() as f64 / 1e6));
    rows.push(total);
    let clock = match profile.clock {
        Clock::Device => "each timed alone by the device",
        Clock::Host => "each timed by the host, which waits for the device after it",
    };
    format!(
        "{}: {:.1} µs; ops {clock}, medians of {}\n{}",
        profile.name,
        profile.total_us,
        counted(profile.runs, "run"),
        columns(&["op", "calls", "kernels", "µs", "share", "MB", "GB/s", "of bandwidth"], &rows)
    )
}
