//! Logit biases, token masks and log-probabilities: every quick row through wgpu, and what kernels find out
//! of range in device memory.

use bytemuck::NoUninit;
use fulmen_core::sampling::NO_SLOT;
use fulmen_core::{Backend, LogitSlots, MaskLogitsCall};
use fulmen_cpu::CpuDispatcher;
use fulmen_testkit::{Filter, Sample, Size, run_sample, seed, this_test};
use fulmen_wgpu::{DeviceOptions, DiskCache, GpuDevice, WgpuDispatcher};

fn wgpu() -> WgpuDispatcher {
    let options = DeviceOptions { disk_cache: DiskCache::Off, ..DeviceOptions::default() };
    let gpu = GpuDevice::with_options(&options).unwrap_or_else(|error| {
        panic!("this test needs a GPU adapter, hardware or software; ./scripts/test installs one: {error}")
    });
    WgpuDispatcher::on(&gpu).expect("an open device")
}

#[test]
fn rows() {
    let ops = ["mask_logits", "log_probs"].map(str::to_owned).to_vec();
    let filter = Filter { ops, up_to: Some(Size::Quick), ..Filter::default() };
    run_sample(&mut wgpu(), &filter, &Sample::of_large_rows(2), seed()).assert_good(&[], this_test!("rows"));
}

fn put<T: NoUninit>(device: &mut dyn Backend, values: &[T]) -> u64 {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let ptr = device.alloc(bytes.len()).unwrap();
    device.write(ptr, bytes).unwrap();
    ptr
}

/// Row 0 has a slot without edits; row 1 is wrong. No logit changes.
fn report_what_is_out_of_range(device: &mut dyn Backend) {
    let inf = f32::INFINITY.to_bits();
    for (slot, edits, message) in [
        (2, [0, 0, 0, 0], "the sampling slot of row 1 is 2, but there are only 2"),
        (NO_SLOT - 1, [0, 0, 0, 0], "the sampling slot of row 1 is 4294967294, but there are only 2"),
        (1, [0, 1, 4, 0], "the token of row 1 is 4, but there are only 4"),
        (1, [0, 2, 1, 0], "the logit edits of row 1: there are 2 logit biases, but only 1 are possible"),
        (
            1,
            [0, 1, 3, inf],
            "the logit edits of row 1: the logit bias of token 3 must be a finite number or -inf, not inf",
        ),
        (NO_SLOT, [0, 2, 9, inf], ""),
    ] {
        let logits = put(device, &[1f32; 8]);
        let edits = [[0u32; 4], edits].concat();
        let (edits_ptr, masks_ptr) = (put(device, &edits), put(device, &[0u32; 2]));
        let state = LogitSlots { edits_ptr, masks_ptr, n_slots: 2, capacity: 1 };
        let slots = Some(put(device, &[0, slot]));
        let call = MaskLogitsCall { logits, state, slots, output: logits, m: 2, n: 4 };
        let run = device.dispatch_mask_logits(&call).and_then(|_| device.synchronize());
        // A device without a queue reports at once, another one when it is waited for.
        let mut out = [0u32; 8];
        let read = device.read(logits, bytemuck::cast_slice_mut(&mut out));
        let found = run.err().or(read.err()).map_or(String::new(), |error| error.to_string());
        assert_eq!(found, message);
        device.read(logits, bytemuck::cast_slice_mut(&mut out)).unwrap();
        assert_eq!(out, [1f32.to_bits(); 8], "{message}");
    }
}

#[test]
fn the_cpu_reports_what_is_out_of_range() {
    report_what_is_out_of_range(&mut CpuDispatcher::with_threads(1));
}

#[test]
fn wgpu_reports_what_is_out_of_range() {
    report_what_is_out_of_range(&mut wgpu());
}
