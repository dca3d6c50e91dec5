//! Files that a chat keeps: the lines that were typed, and the last conversation. Only their owner can read
//! them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use fulmen_core::unfinished::Unfinished;

/// The lines that are kept.
const MAX_LINES: usize = 1000;
/// More than that many lines take.
const MAX_BYTES: u64 = 16 << 20;

/// The folder for state of the platform: `$XDG_STATE_HOME/fulmen` or `~/.local/state/fulmen` on Linux,
/// `~/Library/Application Support/fulmen` on macOS, `%LOCALAPPDATA%\fulmen` on Windows. `None` if the
/// environment names none.
pub(crate) fn folder() -> Option<PathBuf> {
    folder_from(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn folder_from(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    // The XDG specification says to ignore relative paths.
    let xdg = var("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let parent = if cfg!(windows) {
        var("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        xdg.or_else(|| Some(var("HOME")?.join("Library/Application Support")))
    } else {
        xdg.or_else(|| Some(var("HOME")?.join(".local/state")))
    };
    parent.map(|parent| parent.join("fulmen"))
}

/// The lines that were typed in earlier chats: a JSON string per line, the oldest first.
pub(super) struct History {
    path: PathBuf,
}

impl History {
    /// The history of the state folder.
    pub(super) fn new() -> Option<History> {
        folder().map(|folder| History { path: folder.join("chat-history") })
    }

    /// The newest lines. What is not a line of this format is left out.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut text = String::new();
        let read = File::open(&self.path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
        if read.is_err() {
            return Vec::new();
        }
        let mut lines: Vec<String> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if lines.len() > 2 * MAX_LINES || text.len() as u64 > MAX_BYTES / 2 {
            lines.drain(..lines.len().saturating_sub(MAX_LINES));
            let short: String = lines.iter().map(|line| entry(line)).collect();
            // The long file works as well.
            let _ = write_private(&self.path, short.as_bytes());
        }
        lines
    }

    /// Adds a line. A history that cannot be written is no reason to end a chat.
    pub(super) fn add(&self, line: &str) {
        let _ = self.append(line);
    }

    fn append(&self, line: &str) -> io::Result<()> {
        create_parent(&self.path)?;
        let mut file = private_options().append(true).create(true).open(&self.path)?;
        file.write_all(entry(line).as_bytes())
    }
}

fn entry(line: &str) -> String {
    format!("{}\n", serde_json::Value::from(line))
}

/// Writes a file that only its owner can read, whole or not at all.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_parent(path)?;
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    let _unfinished = Unfinished::new(&part);
    let written = private_options()
        .write(true)
        .create_new(true)
        .open(&part)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

fn create_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => fs::create_dir_all(parent),
        _ => Ok(()),
    }
}

/// Options that create files for their owner only.
fn private_options() -> fs::OpenOptions {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |pairs: &[(&str, &str)]| {
            folder_from(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
            })
        };
        assert_eq!(folder(&[("HOME", "/h")]), Some("/h/.local/state/fulmen".into()));
        assert_eq!(folder(&[("HOME", "/h"), ("XDG_STATE_HOME", "/s")]), Some("/s/fulmen".into()));
        assert_eq!(
            folder(&[("HOME", "/h"), ("XDG_STATE_HOME", "relative")]),
            Some("/h/.local/state/fulmen".into())
        );
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn lines_come_back_and_old_ones_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let history = History { path: folder.path().join("new/chat-history") };
        assert!(history.lines().is_empty());
        let lines = ["Hello", "two\nlines", "\x1b[31m \"ü\" \\"];
        lines.iter().for_each(|line| history.add(line));
        assert_eq!(history.lines(), lines);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&history.path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let many: String = (0..2500).map(|i| entry(&i.to_string())).collect();
        fs::write(&history.path, format!("not json\n{many}")).unwrap();
        assert_eq!(history.lines().len(), MAX_LINES);
        assert_eq!(history.lines().last().map(String::as_str), Some("2499"));
        assert_eq!(fs::read_to_string(&history.path).unwrap().lines().count(), MAX_LINES);
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(write_private(folder.path(), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
