//! Pipelines: compiled once per device, right with and without checks, kept on disk.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use common::*;
use fulmen_wgpu::{
    DeviceOptions, DiskCache, DispatchList, GpuDevice, GpuError, PipelineCache,
    kernel::{Access, Kernel, StorageBinding},
};

#[test]
fn each_kernel_is_compiled_once_whoever_asks() {
    let (gpu, cache) = (gpu(), Arc::new(PipelineCache::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    cache.get(&gpu, &add_kernel()).unwrap();
                    cache.get(&gpu, &increment_kernel()).unwrap();
                }
            });
        }
    });
    let stats = gpu.stats();
    assert_eq!((cache.len(), cache.compiled()), (2, 2));
    assert_eq!((stats.pipelines_compiled, stats.pipelines_loaded, stats.shader_modules), (2, 0, 2));
}

#[test]
fn devices_share_a_cache_and_are_never_mixed_up() {
    let (one, other, cache) = (gpu(), gpu(), PipelineCache::new());
    let first = cache.get(&one, &add_kernel()).unwrap();
    assert!(!Arc::ptr_eq(&first, &cache.get(&other, &add_kernel()).unwrap()));
    assert!(Arc::ptr_eq(&first, &cache.get(&one.clone(), &add_kernel()).unwrap()));
    assert_eq!((cache.len(), cache.compiled()), (2, 2));
    for gpu in [&one, &other] {
        let (dispatch, out) = add_dispatch(gpu, &cache, &[1.0], &[2.0], 1.0);
        DispatchList::compile(gpu, vec![dispatch]).unwrap().submit().unwrap();
        assert_eq!(read(gpu, &out, 1), [3.0]);
    }
    // The pipelines of a device that is closed go when another comes.
    drop((one, first));
    let third = gpu();
    cache.get(&third, &add_kernel()).unwrap();
    assert_eq!((cache.len(), cache.compiled()), (2, 3));
}

#[test]
fn a_kernel_that_does_not_compile_says_which_and_why() {
    let (gpu, cache) = (gpu(), PipelineCache::new());
    let mut parse = add_kernel();
    parse.wgsl = parse.wgsl.replace("params.n", "params.m");
    let mut entry = increment_kernel();
    entry.wgsl = entry.wgsl.replace("fn main", "fn other");
    let mut access = increment_kernel();
    access.bindings[0].access = Access::Read;
    let mut group = increment_kernel();
    group.wgsl = group.wgsl.replace("64", "1024, 1024");
    for (kernel, part) in [(parse, "m"), (entry, "main"), (access, ""), (group, "")] {
        for _ in 0..2 {
            match cache.get(&gpu, &kernel).unwrap_err() {
                GpuError::Shader { label, message } => {
                    assert_eq!(label, kernel.label);
                    assert!(message.contains(part) && !message.is_empty(), "{message}");
                }
                error => panic!("{error:?}"),
            }
        }
    }
    assert!(cache.is_empty());
    let gpu = gpu_with(DeviceOptions { max_storage_buffers: Some(2), ..Default::default() });
    let error = cache.get(&gpu, &add_kernel()).unwrap_err();
    assert!(matches!(error, GpuError::TooLarge { needed: 3, limit: 2, .. }), "{error:?}");
}

/// Sums in workgroup memory, with loops and divisions: all that run-time checks look at.
fn checked_things() -> Kernel {
    Kernel {
        label: "checked things".into(),
        wgsl: "
            enable f16;
            struct Params { n: u32, divisor: u32 }
            var<workgroup> tile: array<u32, 64>;
            @compute @workgroup_size(64)
            fn main(@builtin(local_invocation_id) id: vec3<u32>) {
                var sum = u32(f16(0.0));
                for (var i = id.x; i < params.n; i += 64) { sum += data[i] / params.divisor; }
                tile[id.x] = sum;
                workgroupBarrier();
                if id.x == 0 {
                    var total = 0u;
                    for (var i = 0; i < 64; i++) { total += tile[i]; }
                    out[0] = total;
                }
            }"
        .into(),
        bindings: vec![StorageBinding::read("data", "u32"), StorageBinding::read_write("out", "u32")],
        param_words: 2,
    }
}

#[test]
fn trusted_and_checked_give_the_same() {
    let cache = PipelineCache::new();
    for check_trusted in [false, true] {
        let gpu = gpu_with(DeviceOptions { check_trusted, ..Default::default() });
        let data: Vec<u8> = (0..1000u32).flat_map(|value| (value * 3).to_le_bytes()).collect();
        let input = gpu.create_buffer_with("test", &data).unwrap();
        // SAFETY: the kernel stays inside its 1000 words, ends, divides by 3 and writes the tile before
        // reading it.
        let trusted = unsafe { cache.get_trusted(&gpu, &checked_things()) }.unwrap();
        let checked = cache.get(&gpu, &checked_things()).unwrap();
        assert_eq!(Arc::ptr_eq(&trusted, &checked), check_trusted);
        for pipeline in [trusted, checked] {
            let out = gpu.create_buffer("test", 4).unwrap();
            let dispatch = dispatch(&pipeline, vec![input.whole(), out.whole()], vec![1000, 3], 1);
            let read = DispatchList::compile(&gpu, vec![dispatch])
                .unwrap()
                .submit_and_read(&[out.slice(0..4)])
                .unwrap();
            assert_eq!(read.wait().unwrap()[0], 499_500u32.to_le_bytes());
        }
    }
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("fulmen-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn with_folder(folder: &Path) -> GpuDevice {
    gpu_with(DeviceOptions { disk_cache: DiskCache::Folder(folder.to_path_buf()), ..Default::default() })
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map_or(Vec::new(), |files| files.map(|file| file.unwrap().path()).collect())
}

#[test]
fn pipelines_are_kept_on_disk_and_a_damaged_file_does_no_harm() {
    let folder = folder("pipelines");
    let run = |gpu: &GpuDevice| {
        let cache = PipelineCache::new();
        let (dispatch, out) = add_dispatch(gpu, &cache, &[1.0], &[2.0], 1.0);
        DispatchList::compile(gpu, vec![dispatch]).unwrap().submit().unwrap();
        assert_eq!(read(gpu, &out, 1), [3.0]);
    };

    let gpu = with_folder(&folder);
    if !gpu.wgpu_device().features().contains(wgpu::Features::PIPELINE_CACHE) {
        panic!("the adapter has no pipeline cache; this test needs one that has, such as lavapipe");
    }
    gpu.save_pipelines().unwrap();
    assert!(files(&folder).is_empty(), "nothing to save");
    run(&gpu);
    drop(gpu);
    let [file] = &*files(&folder) else { panic!("{:?}", files(&folder)) };
    let good = fs::read(file).unwrap();

    // What the driver keeps it finds again, and then there is nothing new to write.
    let again = with_folder(&folder);
    run(&again);
    let stats = again.stats();
    assert_eq!(stats.pipelines_compiled + stats.pipelines_loaded, 1);
    again.save_pipelines().unwrap();
    if stats.pipelines_loaded == 1 {
        assert_eq!(fs::read(file).unwrap(), good);
    }
    drop(again);

    for bad in [&b""[..], b"FULMENPC", &good[..good.len() - 1], &[0xff; 1000]] {
        fs::write(file, bad).unwrap();
        let gpu = with_folder(&folder);
        run(&gpu);
        assert_eq!(gpu.stats().pipelines_compiled, 1);
        gpu.save_pipelines().unwrap();
        assert_ne!(fs::read(file).unwrap(), bad, "replaced");
    }
    assert_eq!(files(&folder).len(), 1, "nothing left beside the file");
    fs::remove_dir_all(&folder).unwrap();

    // A folder that cannot be made: the work goes on, and saving says why it failed.
    fs::write(&folder, b"a file").unwrap();
    let gpu = with_folder(&folder.join("inside"));
    run(&gpu);
    let error = gpu.save_pipelines().unwrap_err();
    assert!(matches!(error, GpuError::CacheFile { .. }), "{error:?}");
    drop(gpu);
    fs::remove_file(&folder).unwrap();
}
