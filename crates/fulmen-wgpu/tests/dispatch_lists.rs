//! Programs: what they compute, what they cost, what they refuse.

mod common;

use common::*;
use fulmen_wgpu::{DeviceOptions, Dispatch, DispatchList, GpuError, PipelineCache, pipeline::ParamMode};
use wgpu::Features;

#[test]
fn a_kernel_runs_from_end_to_end_with_one_pass_and_one_submission() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (dispatch, out) = add_dispatch(&gpu, &cache, &[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0], 2.0);
    let list = DispatchList::compile(&gpu, vec![dispatch]).unwrap();
    let before = gpu.stats();
    let read = list.submit_and_read(&[out.slice(0..12)]).unwrap().wait().unwrap();
    assert_eq!(floats(&read[0]), [21.0, 42.0, 63.0]);
    let did = gpu.stats().since(&before);
    assert_eq!((did.submissions, did.passes, did.dispatches), (1, 1, 1));
}

#[test]
fn immediates_and_uniforms_give_the_same() {
    let a: Vec<f32> = (0..1000).map(|i| i as f32 * 0.37).collect();
    let run = |without, mode| {
        let (gpu, cache) = (gpu_with(DeviceOptions { without, ..Default::default() }), PipelineCache::new());
        assert_eq!(cache.get(&gpu, &add_kernel()).unwrap().param_mode(), mode);
        let dispatches: Vec<_> =
            [0.1, -3.0, 0.1].iter().map(|&f| add_dispatch(&gpu, &cache, &a, &a, f)).collect();
        let (dispatches, outs): (Vec<_>, Vec<_>) = dispatches.into_iter().unzip();
        DispatchList::compile(&gpu, dispatches).unwrap().submit().unwrap();
        outs.iter().map(|out| read(&gpu, out, a.len())).collect::<Vec<_>>()
    };
    let immediates = run(Features::empty(), ParamMode::Immediates);
    assert_eq!(immediates, run(Features::IMMEDIATES, ParamMode::Uniform));
    assert_eq!(immediates[0][999], a[999] + 0.1 * a[999]);
    assert_eq!(immediates[1][999], a[999] - 3.0 * a[999]);
}

#[test]
fn replay_makes_nothing() {
    for without in [Features::empty(), Features::IMMEDIATES] {
        let (gpu, cache) = (gpu_with(DeviceOptions { without, ..Default::default() }), PipelineCache::new());
        let (first, out) = add_dispatch(&gpu, &cache, &[1.0; 100], &[1.0; 100], 1.0);
        let increment = cache.get(&gpu, &increment_kernel()).unwrap();
        let mut dispatches = vec![first];
        dispatches.extend((0..50).map(|_| dispatch(&increment, vec![out.whole()], vec![], 2)));
        let list = DispatchList::compile(&gpu, dispatches).unwrap();
        // One for the add, one that all the increments share, and one for parameters in a uniform.
        assert_eq!(gpu.stats().bind_groups, if without.is_empty() { 2 } else { 3 });
        list.submit().unwrap();
        assert_eq!(read(&gpu, &out, 1), [52.0]);
        let before = gpu.stats();
        for _ in 0..10 {
            let read = list.submit_and_read(&[out.whole()]).unwrap().wait().unwrap();
            assert_eq!(floats(&read[0])[99], 52.0);
        }
        let did = gpu.stats().since(&before);
        assert_eq!((did.submissions, did.passes, did.dispatches, did.maps), (10, 10, 510, 10));
        assert_eq!((did.buffers, did.bind_groups, did.pipelines_compiled, did.shader_modules), (0, 0, 0, 0));
    }
}

#[test]
fn a_program_without_work_submits_nothing() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let (mut dispatch, _) = add_dispatch(&gpu, &cache, &[1.0], &[1.0], 1.0);
    dispatch.workgroups = [1, 0, 1];
    for dispatches in [vec![], vec![dispatch]] {
        let list = DispatchList::compile(&gpu, dispatches).unwrap();
        let before = gpu.stats();
        assert!(list.submit().unwrap().is_none());
        assert!(list.profile().unwrap().dispatches.is_empty());
        assert!(list.submit_and_read(&[]).unwrap().wait().unwrap().is_empty());
        assert_eq!(gpu.stats().since(&before).submissions, 0);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let options =
        DeviceOptions { max_binding: Some(1 << 20), max_workgroups: Some(1000), ..Default::default() };
    let (gpu, cache) = (gpu_with(options), PipelineCache::new());
    assert_eq!((gpu.caps().max_binding, gpu.caps().max_workgroups), (1 << 20, 1000));
    let (good, out) = add_dispatch(&gpu, &cache, &[1.0; 300], &[1.0; 300], 1.0);
    let refused = |change: &dyn Fn(&mut Dispatch)| {
        let mut dispatch = good.clone();
        change(&mut dispatch);
        let error = DispatchList::compile(&gpu, vec![good.clone(), dispatch]).unwrap_err();
        assert!(error.to_string().contains("dispatch 1 (add)"), "{error}");
        error
    };
    let large = gpu.create_buffer("test", 2 << 20).unwrap();
    let error = refused(&|dispatch| dispatch.bindings[0] = large.whole());
    assert!(matches!(error, GpuError::TooLarge { needed: 2_097_152, limit: 1_048_576, .. }), "{error:?}");
    let error = refused(&|dispatch| dispatch.workgroups = [1, 1001, 1]);
    assert!(matches!(error, GpuError::TooLarge { needed: 1001, limit: 1000, .. }), "{error:?}");
    let error = refused(&|dispatch| dispatch.bindings[0] = out.whole());
    assert!(matches!(error, GpuError::Aliased { first: 0, second: 2, .. }), "{error:?}");
    let changes: [&dyn Fn(&mut Dispatch); 7] = [
        &|dispatch| drop(dispatch.bindings.pop()),
        &|dispatch| dispatch.params.push(0),
        &|dispatch| dispatch.bindings[0].offset = 4,
        &|dispatch| dispatch.bindings[0].size = 0,
        &|dispatch| dispatch.bindings[0].size = u64::MAX - 3,
        &|dispatch| dispatch.bindings[0].size = 6,
        &|dispatch| dispatch.bindings[0].size += 4,
    ];
    for change in changes {
        let error = refused(change);
        assert!(matches!(error, GpuError::Argument { .. }), "{error:?}");
    }
    // A refusal leaves nothing behind.
    DispatchList::compile(&gpu, vec![good]).unwrap().submit().unwrap();
    assert_eq!(read(&gpu, &out, 300), [2.0; 300]);
}

#[test]
fn pipelines_and_buffers_of_another_device_are_refused() {
    let (one, other, cache) = (gpu(), gpu(), PipelineCache::new());
    let (dispatch, _) = add_dispatch(&one, &cache, &[1.0], &[1.0], 1.0);
    let error = DispatchList::compile(&other, vec![dispatch.clone()]).unwrap_err();
    assert!(matches!(error, GpuError::ForeignDevice { .. }), "{error:?}");
    let mut mixed = dispatch;
    mixed.pipeline = cache.get(&other, &add_kernel()).unwrap();
    let foreign = mixed.bindings[2].clone();
    for result in [
        DispatchList::compile(&other, vec![mixed]).map(drop),
        other.read_many(std::slice::from_ref(&foreign)).map(drop),
        other.upload("test", &foreign.buffer, 0, &[0; 4]),
    ] {
        assert!(matches!(result, Err(GpuError::ForeignDevice { .. })), "{result:?}");
    }
}

#[test]
fn a_binding_shorter_than_the_kernel_s_type_is_an_error_of_the_submission() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let mut kernel = increment_kernel();
    kernel.bindings[0].element = "vec4<f32>".into();
    kernel.wgsl = kernel.wgsl.replace("+= 1.0", "+= vec4(1.0)");
    let pipeline = cache.get(&gpu, &kernel).unwrap();
    let buffer = gpu.create_buffer("test", 1).unwrap();
    assert_eq!(buffer.size(), 16, "any buffer can be bound as vectors");
    DispatchList::compile(&gpu, vec![dispatch(&pipeline, vec![buffer.whole()], vec![], 1)])
        .unwrap()
        .submit()
        .unwrap();
    let short =
        DispatchList::compile(&gpu, vec![dispatch(&pipeline, vec![buffer.slice(0..4)], vec![], 1)]).unwrap();
    let error = short.submit().unwrap_err();
    assert!(matches!(error, GpuError::Validation { call: "DispatchList::submit", .. }), "{error:?}");
    gpu.check_alive().unwrap();
}

#[test]
fn profiles_time_each_dispatch_inside_one_pass_or_in_passes_of_their_own() {
    for without in [Features::empty(), Features::TIMESTAMP_QUERY_INSIDE_PASSES] {
        let (gpu, cache) = (gpu_with(DeviceOptions { without, ..Default::default() }), PipelineCache::new());
        let (first, out) = add_dispatch(&gpu, &cache, &[1.0; 10_000], &[1.0; 10_000], 1.0);
        let increment = cache.get(&gpu, &increment_kernel()).unwrap();
        // More than one query set holds.
        let mut dispatches = vec![first];
        dispatches.extend((0..5000).map(|_| dispatch(&increment, vec![out.slice(0..4)], vec![], 1)));
        let profile = DispatchList::compile(&gpu, dispatches).unwrap().profile().unwrap();
        assert_eq!(profile.split_passes, !without.is_empty());
        assert_eq!((profile.dispatches.len(), &*profile.dispatches[0].label), (5001, "add"));
        assert!(profile.total_us() > 0.0);
        assert!(profile.dispatches.windows(2).all(|pair| pair[0].start_us <= pair[1].start_us));
        assert_eq!(read(&gpu, &out, 1), [5002.0]);
    }
    let gpu = gpu_with(DeviceOptions { without: Features::TIMESTAMP_QUERY, ..Default::default() });
    let error = DispatchList::compile(&gpu, vec![]).unwrap().profile().unwrap_err();
    assert!(matches!(error, GpuError::Unsupported { .. }), "{error:?}");
}

#[test]
fn a_whole_program_is_timed_in_one_pass() {
    for without in [Features::empty(), Features::TIMESTAMP_QUERY_INSIDE_PASSES] {
        let (gpu, cache) = (gpu_with(DeviceOptions { without, ..Default::default() }), PipelineCache::new());
        let (first, out) = add_dispatch(&gpu, &cache, &[1.0; 10_000], &[1.0; 10_000], 1.0);
        let increment = cache.get(&gpu, &increment_kernel()).unwrap();
        let list =
            DispatchList::compile(&gpu, vec![first, dispatch(&increment, vec![out.slice(0..4)], vec![], 1)])
                .unwrap();
        let before = gpu.stats();
        assert!(list.time_us().unwrap() > 0.0);
        let done = gpu.stats().since(&before);
        assert_eq!((done.submissions, done.passes, done.dispatches), (1, 1, 2));
        assert_eq!(read(&gpu, &out, 1), [3.0]);
        assert_eq!(DispatchList::compile(&gpu, vec![]).unwrap().time_us(), Ok(0.0));
    }
    let gpu = gpu_with(DeviceOptions { without: Features::TIMESTAMP_QUERY, ..Default::default() });
    let error = DispatchList::compile(&gpu, vec![]).unwrap().time_us().unwrap_err();
    assert!(matches!(error, GpuError::Unsupported { .. }), "{error:?}");
}
