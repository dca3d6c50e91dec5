//! The time, on every target.
//!
//! `wasm32-unknown-unknown` has no clock of its own, and `std::time::Instant::now` panics there. The page or
//! the program that runs the module gives it one ([`set_clock`]); without one, time stands still and
//! durations are zero. On all other targets [`Instant`] is the standard one.

use std::time::SystemTime;

#[cfg(any(test, all(target_family = "wasm", target_os = "unknown")))]
#[cfg_attr(test, allow(unreachable_pub, reason = "public on wasm32-unknown-unknown"))]
mod host {
    use std::{
        ops::{Add, Sub},
        sync::{PoisonError, RwLock},
        time::Duration,
    };

    /// A function that returns the milliseconds since the Unix epoch.
    pub type Clock = fn() -> f64;

    static CLOCK: RwLock<Option<Clock>> = RwLock::new(None);

    /// Sets the clock of this module: JavaScript's `Date.now`, or
    /// `performance.timeOrigin + performance.now()`.
    pub fn set_clock(clock: Clock) {
        *CLOCK.write().unwrap_or_else(PoisonError::into_inner) = Some(clock);
    }

    /// The time since the Unix epoch; zero without a clock.
    pub(super) fn since_epoch() -> Duration {
        let clock = *CLOCK.read().unwrap_or_else(PoisonError::into_inner);
        clock.and_then(|clock| Duration::try_from_secs_f64(clock() / 1e3).ok()).unwrap_or_default()
    }

    /// A moment, by the clock that was set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// This moment.
        pub fn now() -> Instant {
            Instant(since_epoch())
        }

        /// The time since this moment; zero if the clock was set back.
        pub fn elapsed(&self) -> Duration {
            Instant::now().duration_since(*self)
        }

        /// The time from `earlier` to this moment; zero if that is negative.
        pub fn duration_since(&self, earlier: Instant) -> Duration {
            self.saturating_duration_since(earlier)
        }

        /// As [`duration_since`](Self::duration_since).
        pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    impl Sub for Instant {
        type Output = Duration;

        fn sub(self, earlier: Instant) -> Duration {
            self.duration_since(earlier)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Instant;

        fn add(self, duration: Duration) -> Instant {
            Instant(self.0.saturating_add(duration))
        }
    }
}

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub use host::{Clock, Instant, set_clock};
#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub use std::time::Instant;

/// The date and time; the Unix epoch where there is no clock.
pub fn system_time() -> SystemTime {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    return SystemTime::UNIX_EPOCH + host::since_epoch();
    #[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::host::{Instant, set_clock};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// One test, because the clock is that of the process.
    #[test]
    fn a_host_clock_gives_durations_and_may_go_back_or_wrong() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let set = |ms: f64| NOW.store(ms.to_bits(), Ordering::Relaxed);
        let still = Instant::now();
        assert_eq!(still.elapsed(), Duration::ZERO);
        set_clock(|| f64::from_bits(NOW.load(Ordering::Relaxed)));
        set(1_721_995_200_000.5);
        let start = Instant::now();
        set(1_721_995_201_500.5);
        assert_eq!(start.elapsed(), Duration::from_millis(1500));
        assert_eq!(Instant::now() - start, Duration::from_millis(1500));
        assert!(start + Duration::from_secs(2) > Instant::now());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            set(wrong);
            assert_eq!(start.elapsed(), Duration::ZERO, "{wrong}");
        }
    }
}
