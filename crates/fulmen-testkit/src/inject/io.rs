//! Readers and writers that fail.

use std::io::{self, Read, Write};

use super::{Injector, Site};

/// A reader or writer whose calls may fail.
#[derive(Debug)]
pub struct FailingIo<T> {
    inner: T,
    injector: Injector,
}

impl<T> FailingIo<T> {
    /// Wraps a reader or writer.
    pub fn new(inner: T, injector: &Injector) -> FailingIo<T> {
        FailingIo { inner, injector: injector.clone() }
    }

    /// What it wraps.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: Read> Read for FailingIo<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.injector.ask(Site::Read).map_err(io::Error::other)?;
        self.inner.read(out)
    }
}

impl<T: Write> Write for FailingIo<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let full = |fault| io::Error::new(io::ErrorKind::StorageFull, fault);
        self.injector.ask(Site::Write).map_err(full)?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.injector.ask(Site::Write).map_err(io::Error::other)?;
        self.inner.flush()
    }
}
