//! Opening, losing, sharing and dropping devices.

mod common;

use common::*;
use fulmen_wgpu::{
    AdapterSelector, DeviceOptions, DispatchList, GpuCommandBatch, GpuDevice, GpuError, PipelineCache,
};
use wgpu::Features;

#[test]
fn adapters_are_opened_by_index_and_by_name() {
    assert!(GpuDevice::is_available());
    let adapters = GpuDevice::list_adapters().unwrap();
    let open = |adapter| gpu_with(DeviceOptions { adapter, ..Default::default() });
    for (index, adapter) in adapters.iter().enumerate() {
        assert_eq!(open(AdapterSelector::Index(index)).info().name, adapter.name);
    }
    let name = &adapters[0].name;
    let part = name[..name.len() / 2].to_uppercase();
    assert!(open(AdapterSelector::Name(part.clone())).info().name.to_uppercase().contains(&part));
    for (selector, wanted) in [
        (AdapterSelector::Index(99), "number 99"),
        (AdapterSelector::Name("no such GPU".to_owned()), "named \"no such GPU\""),
    ] {
        match GpuDevice::open(&selector).unwrap_err() {
            GpuError::AdapterNotFound { wanted: text, found } => {
                assert_eq!((&*text, found.len()), (wanted, adapters.len()));
            }
            error => panic!("{error:?}"),
        }
    }
}

#[test]
fn features_can_be_left_alone() {
    let plain = gpu_with(DeviceOptions { without: Features::all(), ..Default::default() });
    let caps = plain.caps();
    assert_eq!(
        (caps.subgroups, caps.f16, caps.immediate_bytes, caps.cooperative_matrix),
        (None, false, 0, false)
    );
    let (dispatch, out) = add_dispatch(&plain, &PipelineCache::new(), &[1.0], &[1.0], 1.0);
    DispatchList::compile(&plain, vec![dispatch]).unwrap().submit().unwrap();
    assert_eq!(read(&plain, &out, 1), [2.0]);
}

#[test]
fn a_device_of_the_caller_s_own_works() {
    let gpu = gpu();
    let own = GpuDevice::from_wgpu(gpu.wgpu_device().clone(), gpu.wgpu_queue().clone()).unwrap();
    assert_eq!(own.caps().max_binding, gpu.caps().max_binding);
    let (dispatch, out) = add_dispatch(&own, &PipelineCache::new(), &[1.0], &[1.0], 1.0);
    DispatchList::compile(&own, vec![dispatch]).unwrap().submit().unwrap();
    assert_eq!(read(&own, &out, 1), [2.0]);
}

#[test]
fn a_lost_device_says_so_and_a_new_one_works() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (dispatch, out) = add_dispatch(&gpu, &cache, &[1.0; 64], &[1.0; 64], 1.0);
    let list = DispatchList::compile(&gpu, vec![dispatch.clone()]).unwrap();
    list.submit().unwrap();
    let in_flight = gpu.read_many_async(&[out.whole()]).unwrap();
    gpu.wgpu_device().destroy();
    // Whoever waits or reads learns of it at once, others within a millisecond.
    if let Ok(Some(dropped)) = list.submit() {
        let error = gpu.wait(&dropped).unwrap_err();
        assert!(matches!(error, GpuError::DeviceLost { .. }), "{error:?}");
    }
    let results = [
        list.submit().map(drop),
        list.submit_and_read(&[out.whole()]).map(drop),
        gpu.create_buffer("test", 4).map(drop),
        gpu.read_many(&[out.whole()]).map(drop),
        gpu.read_many_async(&[out.whole()]).map(drop),
        gpu.upload("test", &out, 0, &[0; 4]),
        cache.get(&gpu, &increment_kernel()).map(drop),
        DispatchList::compile(&gpu, vec![dispatch]).map(drop),
        list.profile().map(drop),
        list.time_us().map(drop),
        gpu.check_alive(),
    ];
    for (call, result) in results.into_iter().enumerate() {
        assert!(matches!(result, Err(GpuError::DeviceLost { .. })), "call {call}: {result:?}");
    }
    // What was on its way may have arrived.
    let late = pollster::block_on(in_flight);
    assert!(matches!(late, Ok(_) | Err(GpuError::DeviceLost { .. })), "{late:?}");

    let new = common::gpu();
    let (dispatch, out) = add_dispatch(&new, &cache, &[1.0], &[2.0], 1.0);
    DispatchList::compile(&new, vec![dispatch]).unwrap().submit().unwrap();
    assert_eq!(read(&new, &out, 1), [3.0]);
}

#[test]
fn a_device_destroyed_with_work_in_flight_is_noticed_by_the_next_submission() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let pipeline = cache.get(&gpu, &increment_kernel()).unwrap();
    let data = gpu.create_buffer("test", 8 << 20).unwrap();
    let groups = (2u32 << 20) / 64;
    let dispatches = vec![dispatch(&pipeline, vec![data.whole()], vec![], groups); 50];
    let list = DispatchList::compile(&gpu, dispatches).unwrap();
    list.submit().unwrap();
    gpu.wgpu_device().destroy();
    // A device that was seen within the last millisecond is not looked at again.
    std::thread::sleep(std::time::Duration::from_millis(2));
    let error = list.submit().unwrap_err();
    assert!(matches!(error, GpuError::DeviceLost { .. }), "{error:?}");
}

#[test]
fn errors_outside_this_crate_do_not_panic_and_are_reported_once() {
    let gpu = gpu();
    let _bad = gpu.wgpu_device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 16,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    let error = gpu.create_buffer("test", 4).unwrap_err();
    assert!(matches!(error, GpuError::Validation { .. }), "{error:?}");
    gpu.create_buffer("test", 4).unwrap();
}

#[test]
fn threads_share_a_device() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (gpu, cache) = (&gpu, &cache);
            scope.spawn(move || {
                for round in 0..20 {
                    let factor = (thread * 100 + round) as f32;
                    let (dispatch, out) = add_dispatch(gpu, cache, &[1.0; 500], &[1.0; 500], factor);
                    let list = DispatchList::compile(gpu, vec![dispatch]).unwrap();
                    let read = list.submit_and_read(&[out.whole()]).unwrap().wait().unwrap();
                    assert_eq!(floats(&read[0])[..500], [1.0 + factor; 500]);
                }
            });
        }
    });
    assert_eq!(cache.compiled(), 1);
}

#[test]
fn things_can_be_dropped_in_any_order_and_with_work_in_flight() {
    for order in 0..6 {
        let (gpu, cache) = (gpu(), PipelineCache::new());
        let (dispatch, out) = add_dispatch(&gpu, &cache, &[1.0; 100_000], &[1.0; 100_000], 1.0);
        let list = DispatchList::compile(&gpu, vec![dispatch.clone()]).unwrap();
        list.submit().unwrap();
        let readback = list.submit_and_read(&[out.whole()]).unwrap();
        let future = gpu.read_many_async(&[out.whole()]).unwrap();
        match order {
            0 => drop((gpu, cache, list, dispatch, out, readback, future)),
            1 => drop((future, readback, out, dispatch, list, cache, gpu)),
            2 => {
                drop((gpu, out, dispatch, cache, list, future));
                assert_eq!(floats(&readback.wait().unwrap()[0])[99_999], 2.0);
            }
            3 => {
                drop((cache, gpu, list, out, dispatch, readback));
                assert_eq!(floats(&pollster::block_on(future).unwrap()[0])[0], 2.0);
            }
            4 => {
                drop((readback, dispatch, out, cache, gpu, future));
                list.submit().unwrap();
            }
            _ => {
                drop((gpu, list, readback, future, dispatch, out));
                assert_eq!(cache.len(), 1);
            }
        }
    }
}

/// Submissions and polls of several threads do not disturb each other.
#[test]
fn threads_share_a_device_without_losing_it() {
    let gpu = gpu();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let gpu = gpu.clone();
            scope.spawn(move || {
                for turn in 0..40 {
                    let mut batch = GpuCommandBatch::new(gpu.clone());
                    let x = batch.upload(&[thread as f32, turn as f32]);
                    let y = batch.scale(x, 2.0);
                    batch.execute_blocking().unwrap();
                    assert_eq!(batch.read_blocking(y).unwrap(), [2.0 * thread as f32, 2.0 * turn as f32]);
                }
            });
        }
    });
    gpu.check_alive().unwrap();
}
