//! Retries after transient failures.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::error::HubError;
use crate::limits::Limits;
use crate::pull::{Event, Events, tell};

/// How often a wait asks whether to go on.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// Counts consecutive failures.
pub(crate) struct Retries<'a> {
    limits: &'a Limits,
    failed: u32,
}

impl<'a> Retries<'a> {
    pub(crate) fn new(limits: &'a Limits) -> Retries<'a> {
        Retries { limits, failed: 0 }
    }

    /// Forgets the failures so far.
    pub(crate) fn progress(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next attempt. Returns the error if another attempt would not help, if there were too
    /// many, or if the server asks for a longer wait than the limit.
    pub(crate) fn pause(&mut self, error: HubError, events: &mut Events<'_>) -> Result<(), HubError> {
        if !error.is_transient() || self.failed + 1 >= self.limits.tries {
            return Err(error);
        }
        let wait = match error.retry_after() {
            Some(asked) if asked > self.limits.retry_after => return Err(error),
            Some(asked) => asked,
            None => self.limits.backoff * (1 << self.failed.min(4)),
        };
        self.failed += 1;
        tell(events, Event::Retry { error: &error, wait })?;
        let began = Instant::now();
        loop {
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(POLL));
            tell(events, Event::Pending)?;
        }
    }
}

/// Retries an operation after transient failures.
pub(crate) fn retried<T>(
    limits: &Limits,
    events: &mut Events<'_>,
    mut f: impl FnMut() -> Result<T, HubError>,
) -> Result<T, HubError> {
    let mut retries = Retries::new(limits);
    loop {
        match f() {
            Err(error) => retries.pause(error, events)?,
            result => return result,
        }
    }
}

/// The wait that a `Retry-After` header asks for: a number of seconds, or a date. `None` if it is neither.
pub(crate) fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More seconds than u64 holds are as good as for ever.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    // A date in the past: at once.
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn seconds_and_dates_are_waits() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        let wait = |text: &str| parse_retry_after(text, now);
        assert_eq!(wait("0"), Some(Duration::ZERO));
        assert_eq!(wait(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(wait("99999999999999999999"), Some(Duration::from_secs(u64::MAX)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        for wrong in ["", "-1", "1.5", "soon", "Sun, 99 Nov 1994 08:50:37 GMT", "١٢"] {
            assert_eq!(wait(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_server_is_asked_again_a_bounded_number_of_times() {
        let limits = Limits { backoff: Duration::ZERO, ..Limits::default() };
        let status = |retry_after| HubError::Status {
            url: "u".to_owned(),
            status: 503,
            message: String::new(),
            retry_after,
        };
        let tries = |retry_after: Option<Duration>| {
            let mut count = 0;
            let result = retried(&limits, &mut |_| ControlFlow::Continue(()), || {
                count += 1;
                Err::<(), _>(status(retry_after))
            });
            assert!(result.is_err());
            count
        };
        assert_eq!(tries(None), limits.tries);
        assert_eq!(tries(Some(Duration::ZERO)), limits.tries);
        // Nobody waits for an hour; the message says what the server asked for.
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(tries(hour), 1);
        assert!(status(hour).to_string().contains("try again in 3600 s"), "{}", status(hour));
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to() {
        let limits = Limits { backoff: Duration::from_secs(3600), ..Limits::default() };
        let (mut tries, mut told) = (0, Vec::new());
        let mut events = |event: Event<'_>| {
            told.push(matches!(event, Event::Pending));
            if told.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let result = retried(&limits, &mut events, || {
            tries += 1;
            Err::<(), _>(HubError::Short { file: String::new(), got: 0, expected: 1 })
        });
        assert!(matches!(result, Err(HubError::Stopped)), "{result:?}");
        assert_eq!((tries, told), (1, vec![false, true, true]));
    }
}
