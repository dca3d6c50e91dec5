//! The text that a command works on: an argument, files and piped input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::error::CommandError;
use crate::output::tell;

/// More text than any context holds.
const MAX_BYTES: u64 = 64 << 20;

/// Why the text could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("cannot read {from}: {error}")]
    Read { from: String, error: io::Error },
    #[error("{from} is not UTF-8: the first bad byte is at offset {offset}")]
    NotUtf8 { from: String, offset: usize },
    #[error("{from} has more than {} MiB, which no context holds", MAX_BYTES >> 20)]
    TooLarge { from: String },
    #[error("standard input can be read only once: `-f -` is given several times")]
    StdinTwice,
}

impl CommandError for InputError {
    fn is_usage(&self) -> bool {
        matches!(self, InputError::StdinTwice)
    }
}

/// The parts of a prompt: the argument, the files, and what is piped in unless a file is `-`. Empty files and
/// empty input are left out.
pub(crate) fn parts(prompt: Option<&str>, files: &[PathBuf]) -> Result<Vec<String>, InputError> {
    let dashes = files.iter().filter(|file| file.as_os_str() == "-").count();
    if dashes > 1 {
        return Err(InputError::StdinTwice);
    }
    let mut parts: Vec<String> = prompt.into_iter().map(str::to_owned).collect();
    for file in files {
        parts.push(if file.as_os_str() == "-" { stdin()? } else { read_file(file)? });
    }
    let alone = parts.is_empty();
    if dashes == 0 && is_piped(alone) {
        parts.push(if alone { stdin()? } else { stdin_with_hint()? });
    }
    parts.retain(|part| !part.is_empty());
    Ok(parts)
}

/// Whether somebody may have piped text in. Next to other text, only pipes and files count: services and
/// schedulers start commands with a device that has nothing to say.
fn is_piped(alone: bool) -> bool {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    #[cfg(unix)]
    if !alone {
        use std::os::fd::AsFd;
        use std::os::unix::fs::FileTypeExt;
        let file = stdin.as_fd().try_clone_to_owned().map(File::from);
        let kind = file.and_then(|file| file.metadata()).map(|metadata| metadata.file_type());
        return kind.is_ok_and(|kind| kind.is_fifo() || kind.is_file() || kind.is_socket());
    }
    #[cfg(not(unix))]
    let _ = alone;
    true
}

fn stdin() -> Result<String, InputError> {
    read(io::stdin().lock(), "standard input".to_owned())
}

/// Standard input; a pipe that stays open is explained after a while, because the prompt seemed complete.
fn stdin_with_hint() -> Result<String, InputError> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let (done, wait) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if wait.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            tell("waiting for the end of standard input; `< /dev/null` starts without it");
        }
    });
    let text = stdin();
    drop(done);
    text
}

pub(crate) fn read_file(path: &Path) -> Result<String, InputError> {
    let from = path.display().to_string();
    let file = File::open(path).map_err(|error| InputError::Read { from: from.clone(), error })?;
    read(file, from)
}

/// All text, without the line break at its end.
fn read(from: impl Read, name: String) -> Result<String, InputError> {
    let mut bytes = Vec::new();
    if let Err(error) = from.take(MAX_BYTES + 1).read_to_end(&mut bytes) {
        return Err(InputError::Read { from: name, error });
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(InputError::TooLarge { from: name });
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        InputError::NotUtf8 { from: name, offset }
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_break_at_the_end_is_not_part_of_the_text() {
        let text = |bytes: &[u8]| read(bytes, "a".to_owned()).unwrap();
        for (bytes, expected) in [("", ""), ("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n")] {
            assert_eq!(text(bytes.as_bytes()), expected);
        }
    }

    #[test]
    fn bad_text_is_refused_with_its_place() {
        let error = |bytes: &[u8]| read(bytes, "a.txt".to_owned()).unwrap_err().to_string();
        assert_eq!(error(b"caf\xe9"), "a.txt is not UTF-8: the first bad byte is at offset 3");
        let endless = read(io::repeat(b'a'), "a.txt".to_owned()).unwrap_err().to_string();
        assert_eq!(endless, "a.txt has more than 64 MiB, which no context holds");
    }
}
