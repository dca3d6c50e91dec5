//! Model files that are truncated, overwritten or replaced while they are in use: an error that names the
//! file, never `SIGBUS`, and nothing half-written.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fulmen_cpu::CpuDispatcher;
use fulmen_engine::{LoadOptions, Model};
use fulmen_model::gguf::{GgufFile, GgufProblem, GgufWriter, Metadata};
use fulmen_model::quantize::{QuantizePlan, quantize};
use fulmen_model::source::{self, ModelSource};
use fulmen_model::synth::{ModelShape, Synth};

/// A model file of an hour ago, so that a change of now is seen at any resolution of the file system's clock.
fn model(folder: &Path, seed: u64) -> PathBuf {
    let shape = ModelShape { layers: 3, vocabulary: 700, ..ModelShape::preset("tiny-llama").unwrap() };
    let path = folder.join(format!("model-{seed}.gguf"));
    fs::write(&path, Synth::new(shape, "f16".parse().unwrap(), seed).bytes().unwrap()).unwrap();
    make_old(&path);
    path
}

/// The same model in two shards of an hour ago: what is opened, and the shard that will change.
fn split_model(folder: &Path) -> (PathBuf, PathBuf) {
    let whole = GgufFile::open(model(folder, 1)).unwrap();
    let (first, second) = whole.tensors().split_at(whole.tensors().len() / 2);
    let shards = [1, 2].map(|number| folder.join(format!("split-0000{number}-of-00002.gguf")));
    for (number, (path, tensors)) in shards.iter().zip([first, second]).enumerate() {
        let mut metadata = if number == 0 { whole.metadata().clone() } else { Metadata::new() };
        metadata.set("general.architecture", "llama");
        metadata.set("split.no", number as u16);
        metadata.set("split.count", 2u16);
        metadata.set("split.tensors.count", whole.tensors().len() as i32);
        let mut writer = GgufWriter::create(path, false, &metadata, tensors).unwrap();
        for tensor in tensors {
            writer.write(tensor.name(), &whole.data(tensor.name()).unwrap()).unwrap();
        }
        writer.keep().unwrap();
        make_old(path);
    }
    let [first, second] = shards;
    (first, second)
}

fn make_old(path: &Path) {
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(path).unwrap().set_modified(hour_ago).unwrap();
}

/// A way to change a file, and the words of the error.
type Change = (&'static str, fn(&Path), &'static str);

const CHANGES: [Change; 5] = [
    ("truncated to nothing", |path| resize(path, 0), "changed while it was open: expected "),
    ("truncated to a page", |path| resize(path, 4096), "changed while it was open: expected "),
    ("grown", |path| resize(path, fs::metadata(path).unwrap().len() + 1), "changed while it was open"),
    (
        "overwritten by another",
        |path| {
            // As `cp` does: truncated, then written.
            let bytes = fs::read(model(path.parent().unwrap(), 99)).unwrap();
            fs::write(path, bytes).unwrap();
        },
        "was modified while it was open",
    ),
    (
        "written to in place",
        |path| {
            let mut file = OpenOptions::new().write(true).open(path).unwrap();
            file.seek(SeekFrom::End(-1000)).unwrap();
            file.write_all(&[0x55; 1000]).unwrap();
        },
        "was modified while it was open",
    ),
];

fn resize(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn names(said: &str, path: &Path, words: &str) {
    assert!(said.starts_with(&format!("{}: ", path.display())) && said.contains(words), "{said}");
}

#[test]
fn reading_what_was_cut_off_gives_zeros_and_an_error_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path(), 1);
    let file = GgufFile::open(&path).unwrap();
    let name = file.tensors().last().unwrap().name();
    let (first, last) = (file.data("token_embd.weight").unwrap(), file.data(name).unwrap());
    assert!(last.iter().any(|&byte| byte != 0));
    resize(&path, 8192);
    // Every thread that reads survives, and all of them see the same.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                assert!(last.iter().all(|&byte| byte == 0));
                assert_eq!(first.iter().rev().take(100).map(|&byte| u32::from(byte)).sum::<u32>(), 0);
            });
        }
    });
    let error = file.check_unchanged().unwrap_err();
    assert!(matches!(*error.problem, GgufProblem::Changed { found: 8192, .. }), "{error}");
    // Restored in size and time, the loss is still known.
    let mut other = File::options().write(true).open(&path).unwrap();
    other.seek(SeekFrom::End(0)).unwrap();
    let size = file.shards().next().unwrap().1;
    other.write_all(&vec![1; usize::try_from(size - 8192).unwrap()]).unwrap();
    drop((first, last));
    assert!(file.data("token_embd.weight").is_err());
}

#[test]
fn a_file_with_the_old_size_and_time_still_lost_its_pages() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path(), 1);
    let file = GgufFile::open(&path).unwrap();
    let before = fs::metadata(&path).unwrap();
    let data = file.data("token_embd.weight").unwrap();
    resize(&path, 0);
    assert_eq!(data[1000], 0);
    let other = File::options().write(true).open(&path).unwrap();
    other.set_len(before.len()).unwrap();
    other.set_modified(before.modified().unwrap()).unwrap();
    let error = file.check_unchanged().unwrap_err();
    assert!(matches!(*error.problem, GgufProblem::PageLost), "{error}");
    // Another file that is mapped later, perhaps at the same place, starts anew.
    drop((data, file));
    assert!(GgufFile::open(model(folder.path(), 2)).unwrap().check_unchanged().is_ok());
}

/// Reads a mapping of this process that is no model's, after a model file was mapped.
#[cfg(unix)]
#[test]
#[ignore = "it ends the process; another test runs it"]
fn read_past_the_end_of_another_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let _model = GgufFile::open(model(folder.path(), 1)).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    // SAFETY: this test is about what happens when the file changes.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    file.set_len(0).unwrap();
    println!("{}", std::hint::black_box(map[5000]));
}

/// A fault elsewhere ends the process as it would without this library.
#[cfg(unix)]
#[test]
fn faults_in_other_mappings_are_not_hidden() {
    use std::os::unix::process::ExitStatusExt;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--ignored", "--exact", "read_past_the_end_of_another_mapping"]);
    let output = child.output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn a_change_while_the_weights_are_loaded_is_an_error() {
    for (what, change, words) in CHANGES {
        for check_weights in [true, false] {
            // At the first report and in the middle.
            for at in [0, 5] {
                let folder = tempfile::tempdir().unwrap();
                let path = model(folder.path(), 1);
                let mut reports = 0;
                let mut progress = |_| {
                    if reports == at {
                        change(&path);
                    }
                    reports += 1;
                    ControlFlow::Continue(())
                };
                let options =
                    LoadOptions { check_weights, progress: Some(&mut progress), ..LoadOptions::default() };
                let device = Box::new(CpuDispatcher::with_threads(2));
                let loaded = Model::load_with(&path, device, options);
                let said = loaded.map(drop).expect_err(what).to_string();
                names(&said, &path, words);
            }
        }
    }
}

#[test]
fn a_change_between_steps_of_the_processor_is_an_error() {
    for (what, change, words) in CHANGES {
        let folder = tempfile::tempdir().unwrap();
        let path = model(folder.path(), 1);
        let model = Model::load(&path, Box::new(CpuDispatcher::with_threads(2))).unwrap();
        let mut session = model.session().unwrap();
        session.feed(0, &[1, 2, 3]).unwrap();
        session.decode(&[0], 2).unwrap();
        let tokens = session.tokens(0).unwrap().to_vec();
        change(&path);
        names(&session.decode(&[0], 4).expect_err(what).to_string(), &path, words);
        names(&session.logits(0, &[5]).expect_err(what).to_string(), &path, words);
        names(&session.draw(0, &[5]).expect_err(what).to_string(), &path, words);
        names(&model.session().unwrap().feed(0, &[5]).expect_err(what).to_string(), &path, words);
        assert_eq!(session.tokens(0).unwrap(), tokens, "the sequence is as it was");
    }
}

#[test]
fn a_change_of_one_shard_is_an_error_that_names_it() {
    // The file that overwrites it has another size than the shard.
    let words = "while it was open";
    for (what, change, _) in CHANGES {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = split_model(folder.path());
        let (mut changed, cpu) = (false, || Box::new(CpuDispatcher::with_threads(2)));
        let mut progress = |_| {
            if !std::mem::replace(&mut changed, true) {
                change(&second);
            }
            ControlFlow::Continue(())
        };
        let options = LoadOptions { progress: Some(&mut progress), ..LoadOptions::default() };
        let loaded = Model::load_with(&first, cpu(), options);
        names(&loaded.map(drop).expect_err(what).to_string(), &second, words);

        let folder = tempfile::tempdir().unwrap();
        let (first, second) = split_model(folder.path());
        let model = Model::load(&first, cpu()).unwrap();
        let mut session = model.session().unwrap();
        session.feed(0, &[1, 2, 3]).unwrap();
        change(&second);
        names(&session.decode(&[0], 4).expect_err(what).to_string(), &second, words);
    }
}

#[test]
fn a_change_while_quantizing_leaves_no_file() {
    for (what, change, words) in CHANGES {
        for types in ["q8_0", "f16"] {
            let folder = tempfile::tempdir().unwrap();
            let path = model(folder.path(), 1);
            let source = source::open(&path).unwrap();
            let plan = QuantizePlan::of(&*source, types.parse().unwrap()).unwrap();
            let out = tempfile::tempdir().unwrap();
            let mut calls = 0;
            let done = quantize(&*source, &plan, &out.path().join("out.gguf"), false, 2, |_| {
                calls += 1;
                if calls == 3 {
                    change(&path);
                }
                ControlFlow::Continue(())
            });
            names(&done.expect_err(what).to_string(), &path, words);
            assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "{what}: nothing half-written");
        }
    }
}

#[test]
fn a_file_that_is_deleted_or_replaced_by_renaming_stays_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (model(folder.path(), 1), model(folder.path(), 2));
    let source: Arc<dyn ModelSource> = Arc::from(source::open(&path).unwrap());
    let device = Box::new(CpuDispatcher::with_threads(2));
    let model = Model::from_source(source, device, LoadOptions::default()).unwrap();
    let expected = model.session().unwrap().logits(0, &[1, 2, 3]).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(model.session().unwrap().logits(0, &[1, 2, 3]).unwrap(), expected);
    fs::remove_file(&path).unwrap();
    assert_eq!(model.session().unwrap().logits(0, &[1, 2, 3]).unwrap(), expected);
}
