//! A second process finds the first one's pipelines on disk.
//!
//! The test starts itself twice as a process of its own, with one fresh cache folder, and compares what
//! the two counted.

use std::{env, fs, path::Path, process::Command};

use fulmen_wgpu::{GpuCommandBatch, GpuDevice, wgpu::Features};

/// What a process counted.
#[derive(Debug, PartialEq)]
struct Counted {
    compiled: u64,
    loaded: u64,
    /// Whether the driver has a pipeline cache at all.
    has_cache: bool,
}

/// The variable that makes this executable the process that is counted.
const CHILD: &str = "FULMEN_TEST_SECOND_PROCESS";

/// The work of a process: a chain, a sum and a product, so some kernels of different kinds.
#[test]
fn counted_process() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let gpu = GpuDevice::new().expect("an adapter");
    let mut batch = GpuCommandBatch::new(gpu.clone());
    let x = batch.upload(&[1.0, -2.0, 3.0, 4.0]);
    let y = batch.swish(x);
    let sum = batch.sum(y);
    let z = batch.matmul_nt(y, x, 2, 2, 2);
    batch.execute_blocking().unwrap();
    assert_eq!(batch.read_many_blocking(&[sum, z]).unwrap()[1].len(), 4);
    gpu.save_pipelines().unwrap();
    let stats = gpu.stats();
    let has_cache = gpu.wgpu_device().features().contains(Features::PIPELINE_CACHE);
    println!("counted {} {} {has_cache}", stats.pipelines_compiled, stats.pipelines_loaded);
}

fn process(folder: &Path) -> Counted {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "counted_process", "--nocapture", "--test-threads", "1"])
        .env(CHILD, "1")
        .env("FULMEN_CACHE_DIR", folder)
        .env_remove("FULMEN_CACHE")
        .output()
        .expect("this executable starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let words =
        stdout.lines().find_map(|line| line.split_once("counted ")).map(|(_, words)| words.to_owned());
    let words = words.unwrap_or_else(|| panic!("the process counted nothing: {stdout}"));
    let words: Vec<&str> = words.split_whitespace().collect();
    Counted {
        compiled: words[0].parse().unwrap(),
        loaded: words[1].parse().unwrap(),
        has_cache: words[2].parse().unwrap(),
    }
}

fn files(folder: &Path) -> Vec<fs::DirEntry> {
    fs::read_dir(folder).map_or(Vec::new(), |files| files.map(Result::unwrap).collect())
}

#[test]
fn a_second_process_compiles_nothing_where_the_driver_keeps_pipelines() {
    let folder = env::temp_dir().join(format!("fulmen-second-process-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let first = process(&folder);
    assert!(first.compiled >= 3 && first.loaded == 0, "{first:?}");
    if !first.has_cache {
        println!("the driver has no pipeline cache: each process compiles");
        assert!(files(&folder).is_empty(), "nothing to keep, so no file");
        assert_eq!(process(&folder), first);
        return;
    }
    // One file, whole: written beside and renamed.
    let [file] = &files(&folder)[..] else { panic!("{:?}", files(&folder)) };
    assert_eq!(file.path().extension().unwrap(), "pipelines");
    let (bytes, name) = (fs::read(file.path()).unwrap(), file.path());
    let second = process(&folder);
    let total = first.compiled;
    assert_eq!(second.compiled + second.loaded, total, "the same kernels: {second:?}");
    if second.loaded == 0 {
        // A driver may answer with a cache that holds nothing, as lavapipe of Mesa 22 does. That is not
        // taken for a hit.
        println!("the driver's pipeline cache stays empty: all {total} pipelines were compiled again");
    } else {
        println!("{} of {total} pipelines came from disk", second.loaded);
        assert_eq!(second, Counted { compiled: 0, loaded: total, has_cache: true });
        assert_eq!(fs::read(&name).unwrap(), bytes, "nothing new, so nothing was written");
    }
    // A damaged file is taken for none, and replaced.
    let mut damaged = bytes.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x40;
    fs::write(&name, &damaged).unwrap();
    let third = process(&folder);
    assert_eq!((third.compiled, third.loaded), (total, 0), "{third:?}");
    assert_ne!(fs::read(&name).unwrap(), damaged);
    assert_eq!(files(&folder).len(), 1, "nothing is left beside the file");
    if second.loaded > 0 {
        assert_eq!(process(&folder), second);
    }
    fs::remove_dir_all(&folder).unwrap();
}
