//! Times as people and as programs read them.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::output::counted;

/// How long ago: `3 days ago`.
pub(super) fn ago(time: SystemTime, now: SystemTime) -> String {
    const UNITS: [(u64, &str); 6] = [
        (31_557_600, "year"),
        (2_629_800, "month"),
        (604_800, "week"),
        (86_400, "day"),
        (3600, "hour"),
        (60, "minute"),
    ];
    let seconds = now.duration_since(time).map_or(0, |age| age.as_secs());
    match UNITS.iter().find(|(length, _)| seconds >= *length) {
        Some((length, unit)) => format!("{} ago", counted((seconds / length) as usize, unit)),
        None => "just now".to_owned(),
    }
}

/// RFC 3339 in UTC: `2026-03-01T12:00:00Z`.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400 years: leap days come last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_772_323_199), "2026-02-28T23:59:59Z");
        assert_eq!(at(1_772_323_200), "2026-03-01T00:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn ages_have_one_unit() {
        let now = UNIX_EPOCH + Duration::from_secs(100_000_000);
        let age = |seconds| ago(now - Duration::from_secs(seconds), now);
        assert_eq!(
            [age(5), age(60), age(7200), age(90_000)],
            ["just now", "1 minute ago", "2 hours ago", "1 day ago"]
        );
        assert_eq!([age(1_300_000), age(64_000_000)], ["2 weeks ago", "2 years ago"]);
        assert_eq!(ago(now + Duration::from_secs(9), now), "just now", "a clock that was set back");
    }
}
