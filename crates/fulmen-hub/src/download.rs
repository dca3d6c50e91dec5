//! Downloads one file to its blob: resumed, retried, verified.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::thread;
use std::time::Duration;

use ureq::http::StatusCode;

use crate::cache::Cache;
use crate::checksum::Checksum;
use crate::client::{Client, FileInfo};
use crate::error::HubError;
use crate::pull::Event;
use crate::reference::Reference;

/// Consecutive attempts without progress before giving up.
const TRIES: u32 = 4;
/// Read buffer size in bytes.
const BUFFER: usize = 1 << 20;

/// A file of a repository at a commit.
pub(crate) struct Wanted<'a> {
    pub(crate) reference: &'a Reference,
    pub(crate) commit: &'a str,
    pub(crate) path: &'a str,
    pub(crate) info: &'a FileInfo,
}

/// Retries an operation after transient failures.
pub(crate) fn retried<T>(
    events: &mut dyn FnMut(Event<'_>),
    mut f: impl FnMut() -> Result<T, HubError>,
) -> Result<T, HubError> {
    let mut tried = 0;
    loop {
        match f() {
            Err(error) if error.is_transient() && tried + 1 < TRIES => pause(&mut tried, &error, events),
            result => return result,
        }
    }
}

fn pause(tried: &mut u32, error: &HubError, events: &mut dyn FnMut(Event<'_>)) {
    let wait = Duration::from_millis(500 << (*tried).min(4));
    *tried += 1;
    events(Event::Retry { error, wait });
    thread::sleep(wait);
}

/// Downloads a file to its blob. The caller holds its lock.
pub(crate) fn download(
    client: &Client,
    cache: &Cache,
    wanted: &Wanted<'_>,
    events: &mut dyn FnMut(Event<'_>),
) -> Result<(), HubError> {
    let mut partial = PartialBlob::open(cache, wanted)?;
    let resumed = partial.have > 0;
    match partial.complete(client, wanted, events) {
        // The bytes from an earlier attempt may belong to another file: start over.
        Err(HubError::Checksum { .. }) if resumed => {
            partial = PartialBlob::open(cache, wanted)?;
            partial.complete(client, wanted, events)?;
        }
        result => result?,
    }
    partial.file.sync_all().map_err(HubError::io(&partial.path))?;
    std::fs::rename(&partial.path, cache.blob(&wanted.info.etag)).map_err(HubError::io(&partial.path))
}

/// A partially downloaded blob.
struct PartialBlob {
    path: std::path::PathBuf,
    file: File,
    have: u64,
    sum: Checksum,
}

impl PartialBlob {
    fn open(cache: &Cache, wanted: &Wanted<'_>) -> Result<PartialBlob, HubError> {
        let FileInfo { etag, size } = wanted.info;
        let path = cache.incomplete(etag);
        let folder = path.parent().unwrap_or(&path);
        std::fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(HubError::io(&path))?;
        let mut partial = PartialBlob { path, file, have: 0, sum: Checksum::of(etag, *size) };
        let hashed = partial.hash_existing();
        if hashed.map_err(HubError::io(&partial.path))? > *size {
            partial.restart(wanted)?;
        }
        Ok(partial)
    }

    /// Hashes the existing bytes and returns their number.
    fn hash_existing(&mut self) -> io::Result<u64> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let n = self.file.read(&mut buffer)?;
            if n == 0 {
                return Ok(self.have);
            }
            self.sum.update(&buffer[..n]);
            self.have += n as u64;
        }
    }

    fn restart(&mut self, wanted: &Wanted<'_>) -> Result<(), HubError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(HubError::io(&self.path))?;
        (self.have, self.sum) = (0, Checksum::of(&wanted.info.etag, wanted.info.size));
        Ok(())
    }

    /// Downloads the missing bytes and verifies the file.
    fn complete(
        &mut self,
        client: &Client,
        wanted: &Wanted<'_>,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), HubError> {
        let FileInfo { etag, size } = wanted.info;
        let mut tried = 0;
        events(Event::File { path: wanted.path, size: *size, have: self.have });
        while self.have < *size {
            let before = self.have;
            match self.stream(client, wanted, events) {
                Ok(()) => {}
                Err(error) if error.is_transient() => {
                    // Progress resets the number of attempts.
                    tried = if self.have > before { 0 } else { tried };
                    if tried + 1 >= TRIES {
                        return Err(error);
                    }
                    pause(&mut tried, &error, events);
                }
                Err(error) => return Err(error),
            }
        }
        let got = std::mem::replace(&mut self.sum, Checksum::None).finish();
        match got.filter(|got| !got.eq_ignore_ascii_case(etag)) {
            None => Ok(()),
            Some(got) => {
                std::fs::remove_file(&self.path).map_err(HubError::io(&self.path))?;
                Err(HubError::Checksum { file: wanted.path.to_owned(), got, expected: etag.clone() })
            }
        }
    }

    /// Downloads over one connection.
    fn stream(
        &mut self,
        client: &Client,
        wanted: &Wanted<'_>,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), HubError> {
        let &Wanted { reference, commit, path, info } = wanted;
        let response = client.bytes(reference, commit, path, self.have)?;
        let wrong =
            |problem: String| HubError::Answer { url: client.file_url(reference, commit, path), problem };
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
                let expected = format!("bytes {}-{}/{}", self.have, info.size - 1, info.size);
                if range != Some(expected.as_str()) {
                    return Err(wrong(format!("requested {expected:?}, but the server sent {range:?}")));
                }
            }
            // The server sends the whole file or rejects the range: start over.
            StatusCode::OK if self.have == 0 => {}
            status => {
                self.restart(wanted)?;
                events(Event::File { path, size: info.size, have: 0 });
                if status != StatusCode::OK {
                    return Ok(());
                }
            }
        }
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        let short = |have| HubError::Short { file: path.to_owned(), got: have, expected: info.size };
        while self.have < info.size {
            let n = match body.read(&mut buffer) {
                Ok(0) => return Err(short(self.have)),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(short(self.have)),
            };
            if n as u64 > info.size - self.have {
                return Err(wrong(format!("received more than the expected {} bytes", info.size)));
            }
            self.file.write_all(&buffer[..n]).map_err(|error| match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    HubError::Full { path: self.path.clone(), needed: info.size - self.have }
                }
                _ => HubError::io(&self.path)(error),
            })?;
            self.sum.update(&buffer[..n]);
            self.have += n as u64;
            events(Event::Bytes(n as u64));
        }
        Ok(())
    }
}
