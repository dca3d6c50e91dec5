//! Bytes up and down.

mod common;

use std::sync::mpsc;

use common::*;
use fulmen_wgpu::{DeviceOptions, DispatchList, GpuBuffer, GpuError, PipelineCache};

#[test]
fn bytes_come_back_as_they_went_at_any_length() {
    let gpu = gpu();
    for length in [0usize, 1, 3, 4, 5, 255, 4096, 100_003] {
        let data: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
        let buffer = gpu.create_buffer_with("test", &data).unwrap();
        let slice = buffer.slice(0..length as u64);
        assert_eq!(gpu.read_many(std::slice::from_ref(&slice)).unwrap(), std::slice::from_ref(&data));
        let mut out = vec![1; length];
        gpu.download_into(&slice, &mut out).unwrap();
        assert_eq!(out, data);
    }
}

#[test]
fn a_large_upload_goes_in_pieces() {
    let gpu = gpu();
    let data: Vec<u8> = (0..(100 << 20) + 5).map(|i: u32| (i >> 12) as u8).collect();
    let buffer = gpu.create_buffer("test", data.len() as u64).unwrap();
    gpu.upload("test", &buffer, 0, &data).unwrap();
    assert!(gpu.stats().submissions >= 3);
    let mut out = vec![0; data.len()];
    gpu.download_into(&buffer.slice(0..data.len() as u64), &mut out).unwrap();
    assert!(out == data);
}

#[test]
fn many_reads_are_one_submission_and_staging_is_kept() {
    let gpu = gpu();
    let buffers: Vec<GpuBuffer> = (0..5).map(|i| buffer(&gpu, &[i as f32; 33])).collect();
    let mut slices: Vec<_> = buffers.iter().map(|buffer| buffer.slice(4..131)).collect();
    slices.insert(2, buffers[0].slice(8..8));
    gpu.read_many(&slices).unwrap();
    let before = gpu.stats();
    for _ in 0..3 {
        let read = gpu.read_many(&slices).unwrap();
        assert_eq!(read.iter().map(Vec::len).collect::<Vec<_>>(), [127, 127, 0, 127, 127, 127]);
        assert_eq!(floats(&read[5]), [4.0; 31]);
    }
    let did = gpu.stats().since(&before);
    assert_eq!((did.submissions, did.maps, did.buffers), (3, 3, 0));
    assert_eq!(gpu.read_many(&[]).unwrap(), [[0u8; 0]; 0]);
    assert_eq!(gpu.stats().since(&before).submissions, 3);
}

#[test]
fn reads_that_do_not_fit_one_staging_buffer_take_more_of_them() {
    let gpu = gpu_with(DeviceOptions { max_buffer: Some(1 << 20), ..Default::default() });
    let buffers: Vec<_> =
        (0..3).map(|i| gpu.create_buffer_with("test", &vec![i; 700 << 10]).unwrap()).collect();
    let before = gpu.stats();
    let read = gpu.read_many(&buffers.iter().map(GpuBuffer::whole).collect::<Vec<_>>()).unwrap();
    assert!((0..3).all(|i| read[i].len() == 700 << 10 && read[i].iter().all(|&byte| byte == i as u8)));
    let did = gpu.stats().since(&before);
    assert_eq!((did.submissions, did.maps), (1, 3));
}

#[test]
fn futures_need_no_runtime_and_may_be_dropped() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (dispatch, out) = add_dispatch(&gpu, &cache, &[1.0; 1000], &[2.0; 1000], 1.0);
    let list = DispatchList::compile(&gpu, vec![dispatch]).unwrap();
    let future = list.submit_and_read(&[out.whole()]).unwrap().into_future().unwrap();
    let dropped = gpu.read_many_async(&[out.whole()]).unwrap();
    // Another thread may await it.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(pollster::block_on(future)).unwrap());
    assert_eq!(floats(&receiver.recv().unwrap().unwrap()[0]), [3.0; 1000]);
    drop(dropped);
    let both = async {
        let first = gpu.read_many_async(&[out.slice(0..4)])?;
        let second = gpu.read_many_async(&[out.slice(4..12), out.slice(0..0)])?;
        Ok::<_, GpuError>((second.await?, first.await?))
    };
    let (second, first) = pollster::block_on(both).unwrap();
    assert_eq!((second[0].len(), second[1].len(), first[0].len()), (8, 0, 4));
    assert!(pollster::block_on(gpu.read_many_async(&[]).unwrap()).unwrap().is_empty());
}

#[test]
fn ranges_outside_and_buffers_too_large_are_refused() {
    let gpu = gpu_with(DeviceOptions { max_buffer: Some(1 << 20), ..Default::default() });
    let buffer = gpu.create_buffer("test", 64).unwrap();
    for (range, data) in [(60..68, 8), (2..6, 4), (u64::MAX - 3..u64::MAX, 4), (64..68, 1)] {
        let error = gpu.read_many(&[buffer.slice(range.clone())]).unwrap_err();
        assert!(matches!(error, GpuError::Argument { call: "read_many", .. }), "{range:?}: {error:?}");
        let error = gpu.upload("put", &buffer, range.start, &vec![0; data]).unwrap_err();
        assert!(matches!(error, GpuError::Argument { call: "put", .. }), "{range:?}: {error:?}");
    }
    let error = gpu.download_into(&buffer.whole(), &mut [0; 63]).unwrap_err();
    assert!(matches!(error, GpuError::Argument { .. }), "{error:?}");
    for bytes in [(1 << 20) + 1, u64::MAX] {
        let error = gpu.create_buffer("make", bytes).unwrap_err();
        let limit = 1 << 20;
        let what = "a buffer's size in bytes".to_owned();
        assert_eq!(error, GpuError::TooLarge { call: "make", what, needed: bytes, limit });
    }
    gpu.create_buffer("make", 1 << 20).unwrap();
}

#[test]
fn live_bytes_go_up_and_down() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let start = gpu.stats().live_bytes;
    let buffer = gpu.create_buffer("test", 1000).unwrap();
    assert_eq!(gpu.stats().live_bytes - start, 1008);
    let pipeline = cache.get(&gpu, &increment_kernel()).unwrap();
    let list =
        DispatchList::compile(&gpu, vec![dispatch(&pipeline, vec![buffer.whole()], vec![], 1)]).unwrap();
    drop(buffer);
    assert_eq!(gpu.stats().live_bytes - start, 1008, "the list keeps it");
    drop(list);
    assert_eq!(gpu.stats().live_bytes, start);
}
