//! A connection between two processes of a group: frames of a length and a message.
//!
//! ```text
//!  bytes of the message (u32, little-endian), the message in postcard's encoding
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message: a step of thousands of rows with a token mask for each of hundreds of sequences.
const MAX_MESSAGE: usize = 1 << 28;

/// One end of a connection. Any thread may send; one receives.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    /// Held while a frame is written.
    sending: Mutex<()>,
    closed: AtomicBool,
}

impl Link {
    /// A link over a connection on which nothing is under way. Nothing waits longer than the time-out for the
    /// other end to take a message.
    pub(crate) fn new(stream: TcpStream, timeout: Duration) -> io::Result<Link> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(timeout))?;
        // A step waits for its messages.
        stream.set_nodelay(true)?;
        Ok(Link { stream, sending: Mutex::new(()), closed: AtomicBool::new(false) })
    }

    pub(crate) fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        // The length is put in front when it is known.
        let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
        let bytes = frame.len() - 4;
        if bytes > MAX_MESSAGE {
            return Err(io::Error::other(format!(
                "a message of {bytes} bytes; at most {MAX_MESSAGE} can go"
            )));
        }
        frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.stream).write_all(&frame)
    }

    /// Waits for a message, not longer than the time-out. Behind an error nothing more can be received.
    pub(crate) fn receive<T: DeserializeOwned>(&self, timeout: Option<Duration>) -> io::Result<T> {
        self.stream.set_read_timeout(timeout)?;
        let mut length = [0; 4];
        (&self.stream).read_exact(&mut length)?;
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes > MAX_MESSAGE {
            return Err(io::Error::other(format!(
                "a message of {bytes} bytes; at most {MAX_MESSAGE} can come"
            )));
        }
        let mut message = vec![0; bytes];
        (&self.stream).read_exact(&mut message)?;
        postcard::from_bytes(&message).map_err(io::Error::other)
    }

    /// Ends the connection: whoever waits on either side gets an error.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}
