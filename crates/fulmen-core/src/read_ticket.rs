//! Reads of device memory that were started and may not have arrived yet.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use crate::BackendError;

/// A read in flight, as a backend implements it.
pub trait PendingRead: Send {
    /// Whether the bytes have arrived. If not, `context`'s waker is woken when they have. Never blocks.
    ///
    /// # Errors
    /// The read failed, or the work before it did.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BackendError>>;

    /// Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn wait(&mut self) -> Result<(), BackendError>;

    /// Copies the bytes that have arrived; `out` has the length of the read.
    ///
    /// # Errors
    /// If the memory that they arrived in cannot be accessed.
    fn copy_to(&mut self, out: &mut [u8]) -> Result<(), BackendError>;
}

/// A read that was started by [`DeviceMemory::start_read`](crate::DeviceMemory::start_read). It is a future
/// of the bytes; it can also be asked ([`try_take`](Self::try_take)) or waited for ([`wait`](Self::wait)).
///
/// It borrows nothing: the device can be given other work meanwhile, and the bytes are those at the time of
/// the call. Dropping it discards the bytes and does not wait.
pub struct ReadTicket(State);

enum State {
    Ready(Vec<u8>),
    Pending(Box<dyn PendingRead>, usize),
    /// The bytes or the error were taken.
    Taken,
}

impl ReadTicket {
    /// Bytes that are there already.
    pub fn ready(bytes: Vec<u8>) -> ReadTicket {
        ReadTicket(State::Ready(bytes))
    }

    /// A read of so many bytes that is in flight.
    pub fn pending(read: impl PendingRead + 'static, bytes: usize) -> ReadTicket {
        ReadTicket(State::Pending(Box::new(read), bytes))
    }

    /// The bytes if they have arrived, or the error of the read. `None` while it is in flight, and after the
    /// bytes were taken. Never blocks.
    pub fn try_take(&mut self) -> Option<Result<Vec<u8>, BackendError>> {
        match self.poll_take(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => None,
        }
    }

    /// Blocks until the bytes have arrived.
    ///
    /// # Errors
    /// The read failed, or the work before it did.
    pub fn wait(self) -> Result<Vec<u8>, BackendError> {
        match self.0 {
            State::Ready(bytes) => Ok(bytes),
            State::Pending(mut read, bytes) => {
                read.wait()?;
                copied(read.as_mut(), bytes)
            }
            State::Taken => Err(taken()),
        }
    }

    /// Blocks until the bytes have arrived, and copies them; `out` has the length of the read.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`BackendError::Device`] if the length differs.
    pub fn wait_into(self, out: &mut [u8]) -> Result<(), BackendError> {
        let expected = match &self.0 {
            State::Ready(bytes) => bytes.len(),
            State::Pending(_, bytes) => *bytes,
            State::Taken => return Err(taken()),
        };
        if expected != out.len() {
            return Err(failed(format!("{expected} bytes were read, and there is room for {}", out.len())));
        }
        match self.0 {
            State::Ready(bytes) => out.copy_from_slice(&bytes),
            State::Pending(mut read, _) => {
                read.wait()?;
                read.copy_to(out)?;
            }
            State::Taken => {}
        }
        Ok(())
    }

    /// The result once; `None` after that.
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, BackendError>>> {
        if let State::Pending(read, bytes) = &mut self.0 {
            let Poll::Ready(arrived) = read.poll(context) else { return Poll::Pending };
            let result = arrived.and_then(|()| copied(read.as_mut(), *bytes));
            self.0 = State::Taken;
            return Poll::Ready(Some(result));
        }
        Poll::Ready(match std::mem::replace(&mut self.0, State::Taken) {
            State::Ready(bytes) => Some(Ok(bytes)),
            _ => None,
        })
    }
}

fn copied(read: &mut dyn PendingRead, bytes: usize) -> Result<Vec<u8>, BackendError> {
    let mut out = vec![0; bytes];
    read.copy_to(&mut out)?;
    Ok(out)
}

fn failed(message: String) -> BackendError {
    BackendError::Device { backend: "ReadTicket", call: "read", source: message.into() }
}

fn taken() -> BackendError {
    failed("the bytes were already taken".to_owned())
}

impl Future for ReadTicket {
    type Output = Result<Vec<u8>, BackendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_take(context).map(|result| result.unwrap_or_else(|| Err(taken())))
    }
}

impl fmt::Debug for ReadTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Ready(_) => "ReadTicket(ready)",
            State::Pending(..) => "ReadTicket(pending)",
            State::Taken => "ReadTicket(taken)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arrives after so many polls.
    struct Countdown(u32);

    impl PendingRead for Countdown {
        fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BackendError>> {
            if self.0 == 0 {
                return Poll::Ready(Ok(()));
            }
            self.0 -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        }

        fn wait(&mut self) -> Result<(), BackendError> {
            self.0 = 0;
            Ok(())
        }

        fn copy_to(&mut self, out: &mut [u8]) -> Result<(), BackendError> {
            assert_eq!(self.0, 0, "nothing is copied before it has arrived");
            out.fill(7);
            Ok(())
        }
    }

    #[test]
    fn a_ticket_is_asked_until_the_bytes_are_there() {
        let mut ticket = ReadTicket::pending(Countdown(2), 3);
        assert!(ticket.try_take().is_none() && ticket.try_take().is_none());
        assert_eq!(ticket.try_take().unwrap().unwrap(), [7, 7, 7]);
        assert!(ticket.try_take().is_none(), "taken once");
        assert!(ticket.wait().unwrap_err().to_string().contains("already taken"));
    }

    #[test]
    fn a_ticket_is_waited_for() {
        assert_eq!(ReadTicket::pending(Countdown(9), 2).wait().unwrap(), [7, 7]);
        assert_eq!(ReadTicket::ready(vec![1, 2]).wait().unwrap(), [1, 2]);
        let mut out = [0; 2];
        ReadTicket::pending(Countdown(1), 2).wait_into(&mut out).unwrap();
        assert_eq!(out, [7, 7]);
        let error = ReadTicket::ready(vec![1]).wait_into(&mut out).unwrap_err();
        assert!(error.to_string().contains("1 bytes were read, and there is room for 2"), "{error}");
    }

    #[test]
    fn a_ticket_is_a_future() {
        let mut ticket = ReadTicket::pending(Countdown(1), 1);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut ticket).poll(&mut context).is_pending());
        assert!(matches!(Pin::new(&mut ticket).poll(&mut context), Poll::Ready(Ok(bytes)) if bytes == [7]));
        assert!(matches!(Pin::new(&mut ticket).poll(&mut context), Poll::Ready(Err(_))));
    }
}
