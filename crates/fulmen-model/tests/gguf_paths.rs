//! Paths that are not files, files that change, split models.

mod common;

use std::{
    fs,
    path::{Path, PathBuf},
};

use common::Raw;
use fulmen_model::gguf::GgufFile;

fn refused(path: &Path) -> String {
    let said = GgufFile::open(path).map(|file| panic!("accepted: {file:?}")).unwrap_err().to_string();
    let prefix = format!("{}: ", path.display());
    said.strip_prefix(&prefix).unwrap_or_else(|| panic!("{said} should name {prefix}")).to_owned()
}

#[test]
fn what_is_no_file_is_said() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(refused(folder.path()), "is a directory, not a file");
    let missing = refused(&folder.path().join("missing.gguf"));
    assert!(missing.starts_with("cannot open it: ") && missing.contains("No such file"), "{missing}");
    let empty = folder.path().join("empty.gguf");
    fs::write(&empty, b"").unwrap();
    assert_eq!(refused(&empty), "is empty");
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_loops_neither_hang_nor_crash() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    assert_eq!(refused(&pipe), "is a pipe, socket or device, not a file");
    assert_eq!(refused(Path::new("/dev/zero")), "is a pipe, socket or device, not a file");
    let (a, b) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
    symlink(&a, &b).unwrap();
    symlink(&b, &a).unwrap();
    let said = refused(&a);
    assert!(said.starts_with("cannot open it: ") && said.contains("symbolic links"), "{said}");
    let link = folder.path().join("link.gguf");
    let target = folder.path().join("target.gguf");
    fs::write(&target, Raw::default().bytes()).unwrap();
    symlink(&target, &link).unwrap();
    assert!(GgufFile::open(&link).is_ok(), "a link to a file is a file");
}

#[test]
fn a_file_truncated_while_it_is_open_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let raw = Raw::default().tensor("x", &[4096], 0, 0).data(16384);
    let size = raw.bytes().len() as u64;
    fs::write(&path, raw.bytes()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.data("x").unwrap().len(), 16384);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size - 1).unwrap();
    let said = file.data("x").unwrap_err().to_string();
    let expected = format!("changed while it was open: expected {size} bytes, found {}", size - 1);
    assert!(said.ends_with(&expected), "{said}");
    assert_eq!(file.metadata().string("general.architecture"), Ok("test"), "metadata were copied");
    // Somebody writes to a file that grew.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size + 100).unwrap();
    assert!(file.data("x").is_err());
}

/// A model in three shards, each with one tensor; `change` may damage a shard.
fn parts(folder: &Path, change: impl Fn(u16, Raw) -> Raw) -> Vec<PathBuf> {
    let write = |number: u16| {
        let raw = Raw::default()
            .key("split.no", 2, &number.to_le_bytes())
            .key("split.count", 2, &3u16.to_le_bytes())
            .key("split.tensors.count", 5, &3i32.to_le_bytes())
            .tensor(&format!("t{number}"), &[8 * (u64::from(number) + 1)], 0, 0)
            .data(32 * (usize::from(number) + 1));
        let path = folder.join(format!("m-{:05}-of-00003.gguf", number + 1));
        fs::write(&path, change(number, raw).bytes()).unwrap();
        path
    };
    (0..3).map(write).collect()
}

#[test]
fn parts_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    for path in parts(folder.path(), |_, raw| raw) {
        let file = GgufFile::open(path).unwrap();
        let shown: Vec<String> = file.tensors().iter().map(|tensor| tensor.to_string()).collect();
        assert_eq!(shown, ["t0 [8] F32", "t1 [16] F32", "t2 [24] F32"]);
        assert_eq!(file.shards().len(), 3);
        for (name, bytes) in [("t0", 32), ("t1", 64), ("t2", 96)] {
            assert_eq!(file.data(name).unwrap().len(), bytes);
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let paths = parts(folder.path(), |_, raw| raw);
    fs::remove_file(&paths[1]).unwrap();
    let said = GgufFile::open(&paths[0]).unwrap_err().to_string();
    let expected = "is shard 1 of 3 of a split model, and one is missing: m-00002-of-00003.gguf; put all \
                    shards into one folder and pass any of them";
    assert_eq!(said, format!("{}: {expected}", paths[0].display()));
    fs::remove_file(&paths[0]).unwrap();
    let said = GgufFile::open(&paths[2]).unwrap_err().to_string();
    let expected = "is shard 3 of 3 of a split model, and others are missing: m-00001-of-00003.gguf, \
                    m-00002-of-00003.gguf; put all shards into one folder and pass any of them";
    assert_eq!(said, format!("{}: {expected}", paths[2].display()));
    let paths = parts(folder.path(), |_, raw| raw);

    // The third shard in place of the second.
    fs::copy(&paths[2], &paths[1]).unwrap();
    let said = GgufFile::open(&paths[0]).unwrap_err().to_string();
    assert_eq!(said, format!("{}: split.no must be 1, is 2", paths[1].display()));

    let paths = parts(folder.path(), |number, raw| match number {
        1 => Raw { keys: raw.keys[..2].to_vec(), ..raw },
        _ => raw,
    });
    let said = GgufFile::open(&paths[0]).unwrap_err().to_string();
    assert_eq!(said, format!("{}: split.count must be 3, is missing", paths[1].display()));

    let paths = parts(folder.path(), |number, raw| match number {
        2 => raw.tensor("more", &[8], 0, 96).data(128),
        _ => raw,
    });
    let said = GgufFile::open(&paths[0]).unwrap_err().to_string();
    assert_eq!(said, format!("{}: split.tensors.count must be 4, is 3", paths[0].display()));

    let paths = parts(folder.path(), |number, raw| match number {
        2 => raw.tensor("t0", &[8], 0, 96).data(128),
        _ => raw,
    });
    let said = GgufFile::open(&paths[0]).unwrap_err().to_string();
    assert_eq!(said, format!("{}: duplicate tensor \"t0\"", paths[2].display()));

    let other = folder.path().join("renamed.gguf");
    let paths = parts(folder.path(), |_, raw| raw);
    fs::copy(&paths[0], &other).unwrap();
    let said = GgufFile::open(&other).unwrap_err().to_string();
    let expected = "is shard 1 of 3 of a split model, but its name does not end in \
                    \"-00001-of-00003.gguf\"; the shards are found by their names, in one folder";
    assert!(said.ends_with(expected), "{said}");
    // A count that no model has takes no time.
    let many = Raw::default().key("split.no", 10, &0u64.to_le_bytes());
    let many = many.key("split.count", 10, &u64::MAX.to_le_bytes());
    let path = folder.path().join(format!("x-00001-of-{}.gguf", u64::MAX));
    fs::write(&path, many.bytes()).unwrap();
    let said = GgufFile::open(&path).unwrap_err().to_string();
    assert!(said.contains("others are missing: x-00002-of-") && said.contains(", …; put all"), "{said}");
}
