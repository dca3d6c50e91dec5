//! Downloads one file to its blob: resumed, retried a bounded number of times, verified.

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Instant;

use ureq::http::{Response, StatusCode};
use ureq::{Body, BodyReader};

use crate::cache::Cache;
use crate::checksum::Checksum;
use crate::client::{Client, FileInfo, number};
use crate::disk::{Disk, PartialFile};
use crate::error::HubError;
use crate::limits::Limits;
use crate::pull::{Event, Events, tell};
use crate::reference::Reference;
use crate::retry::Retries;

/// Read buffer size in bytes.
const BUFFER: usize = 1 << 20;

/// Where a file comes from and where it goes.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a Client,
    pub(crate) cache: &'a Cache,
    pub(crate) disk: &'a dyn Disk,
    pub(crate) limits: &'a Limits,
    pub(crate) reference: &'a Reference,
    pub(crate) commit: &'a str,
    pub(crate) path: &'a str,
    pub(crate) info: &'a FileInfo,
}

impl Download<'_> {
    /// Downloads the file to its blob. The caller holds its lock. Returns whether its hash was checked.
    pub(crate) fn run(&self, events: &mut Events<'_>) -> Result<bool, HubError> {
        let mut partial = PartialBlob::open(self)?;
        let resumed = partial.have > 0;
        match partial.complete(events) {
            // The bytes from an earlier attempt may belong to another file: start over.
            Err(HubError::Checksum { .. }) if resumed => {
                partial = PartialBlob::open(self)?;
                partial.complete(events)?;
            }
            result => result?,
        }
        partial.file.sync().map_err(HubError::write(&partial.path, 0))?;
        let blob = self.cache.blob(&self.info.etag);
        self.disk.rename(&partial.path, &blob).map_err(HubError::write(&partial.path, 0))?;
        Ok(partial.verified)
    }

    /// The error for an invalid response.
    fn wrong(&self, problem: String) -> HubError {
        HubError::Answer { url: self.client.file_url(self.reference, self.commit, self.path), problem }
    }
}

/// A partially downloaded blob.
struct PartialBlob<'a> {
    download: &'a Download<'a>,
    path: PathBuf,
    file: Box<dyn PartialFile>,
    have: u64,
    sum: Checksum,
    restarts: u32,
    verified: bool,
}

impl<'a> PartialBlob<'a> {
    fn open(download: &'a Download<'a>) -> Result<PartialBlob<'a>, HubError> {
        let FileInfo { etag, size } = download.info;
        download.cache.blobs()?;
        let path = download.cache.incomplete(etag);
        let file = download.disk.open_partial(&path)?;
        let sum = Checksum::of(etag, *size);
        let mut partial = PartialBlob { download, path, file, have: 0, sum, restarts: 0, verified: false };
        let hashed = partial.hash_existing();
        if hashed.map_err(HubError::io(&partial.path))? > *size {
            partial.empty()?;
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

    fn empty(&mut self) -> Result<(), HubError> {
        let FileInfo { etag, size } = self.download.info;
        self.file.empty().map_err(HubError::write(&self.path, *size))?;
        (self.have, self.sum) = (0, Checksum::of(etag, *size));
        Ok(())
    }

    /// Starts over from the first byte, unless that happened too often.
    fn restart(&mut self, requests: u32, events: &mut Events<'_>) -> Result<(), HubError> {
        if self.restarts >= self.download.limits.restarts {
            return Err(self.gave_up(requests));
        }
        self.restarts += 1;
        self.empty()?;
        tell(events, Event::File { path: self.download.path, size: self.download.info.size, have: 0 })?;
        Ok(())
    }

    fn gave_up(&self, requests: u32) -> HubError {
        HubError::GaveUp {
            file: self.download.path.to_owned(),
            requests,
            restarts: self.restarts,
            got: self.have,
            expected: self.download.info.size,
        }
    }

    /// Downloads the missing bytes and verifies the file.
    fn complete(&mut self, events: &mut Events<'_>) -> Result<(), HubError> {
        let Download { limits, path, info: FileInfo { etag, size }, .. } = *self.download;
        let mut retries = Retries::new(limits);
        tell(events, Event::File { path, size: *size, have: self.have })?;
        let (mut farthest, mut requests) = (self.have, 0);
        while self.have < *size {
            if requests == limits.requests {
                return Err(self.gave_up(requests));
            }
            requests += 1;
            let result = self.request(requests, events);
            if self.have >= farthest.saturating_add(limits.progress) {
                farthest = self.have;
                retries.progress();
            }
            if let Err(error) = result {
                retries.pause(error, events)?;
            }
        }
        let Some(got) = std::mem::replace(&mut self.sum, Checksum::None).finish() else { return Ok(()) };
        if !got.eq_ignore_ascii_case(etag) {
            std::fs::remove_file(&self.path).map_err(HubError::io(&self.path))?;
            return Err(HubError::Checksum { file: path.to_owned(), got, expected: etag.clone() });
        }
        self.verified = true;
        Ok(())
    }

    /// Downloads over one connection.
    fn request(&mut self, requests: u32, events: &mut Events<'_>) -> Result<(), HubError> {
        let Download { client, reference, commit, path, info, .. } = *self.download;
        let response = client.bytes(reference, commit, path, self.have)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => self.check_range(&response)?,
            StatusCode::RANGE_NOT_SATISFIABLE => return self.out_of_range(&response, requests, events),
            _ => {
                let length = number(response.headers(), "content-length");
                let length = length.map_err(|problem| self.download.wrong(problem))?;
                if let Some(got) = length.filter(|&got| got != info.size) {
                    return Err(HubError::Size { file: path.to_owned(), expected: info.size, got });
                }
                // The server sends the whole file instead of the rest.
                if self.have > 0 {
                    self.restart(requests, events)?;
                }
            }
        }
        self.receive(response.into_body().into_reader(), events)
    }

    /// Checks that a response has the bytes that were asked for.
    fn check_range(&self, response: &Response<Body>) -> Result<(), HubError> {
        let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        let size = self.download.info.size;
        let expected = format!("bytes {}-{}/{size}", self.have, size - 1);
        match range {
            Some(range) if range == expected => Ok(()),
            _ => Err(self.download.wrong(format!("requested {expected:?}, but the server sent {range:?}"))),
        }
    }

    /// The server has no bytes at this offset. It may have no ranges at all: the whole file is tried.
    fn out_of_range(
        &mut self,
        response: &Response<Body>,
        requests: u32,
        events: &mut Events<'_>,
    ) -> Result<(), HubError> {
        let (file, expected) = (self.download.path.to_owned(), self.download.info.size);
        let range = response.headers().get("content-range").and_then(|value| value.to_str().ok());
        let got = range.and_then(|range| range.strip_prefix("bytes */")?.trim().parse().ok());
        match got.filter(|&got: &u64| got != expected) {
            Some(got) => Err(HubError::Size { file, expected, got }),
            None if self.have == 0 => Err(HubError::Range {
                file,
                status: response.status().as_u16(),
                what: "the whole file".into(),
            }),
            None => self.restart(requests, events),
        }
    }

    /// Writes the body of a response.
    fn receive(&mut self, mut body: BodyReader<'_>, events: &mut Events<'_>) -> Result<(), HubError> {
        let Download { path, limits, info: FileInfo { size, .. }, .. } = *self.download;
        let mut buffer = vec![0; BUFFER];
        let short = |got| HubError::Short { file: path.to_owned(), got, expected: *size };
        let mut window = (Instant::now(), self.have);
        while self.have < *size {
            let n = match body.read(&mut buffer) {
                Ok(0) => return Err(short(self.have)),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(short(self.have)),
            };
            if n as u64 > *size - self.have {
                return Err(self.download.wrong(format!("received more than the expected {size} bytes")));
            }
            let full = HubError::write(&self.path, *size - self.have);
            self.file.write_all(&buffer[..n]).map_err(full)?;
            self.sum.update(&buffer[..n]);
            self.have += n as u64;
            tell(events, Event::Bytes(n as u64))?;
            // A connection that only drips is as good as closed.
            if window.0.elapsed() >= limits.window {
                if self.have - window.1 < limits.progress_per_window {
                    return Err(short(self.have));
                }
                window = (Instant::now(), self.have);
            }
        }
        Ok(())
    }
}
