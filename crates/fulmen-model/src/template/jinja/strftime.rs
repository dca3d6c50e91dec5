//! Dates for `strftime_now`, in UTC.

use std::time::{Duration, SystemTime};

use super::error::{Failure, Result};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A calendar date.
struct Date {
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    /// From 1.
    day_of_year: u64,
    /// From 0, which is Monday.
    weekday: usize,
    seconds: u64,
}

impl Date {
    fn of(time: SystemTime) -> Date {
        // A time before 1970 means that the clock was never set.
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let (days, seconds) = (since / 86_400, since % 86_400);
        // The first of January 1970 was a Thursday.
        let weekday = usize::try_from((days + 3) % 7).unwrap_or(0);
        let (mut year, mut left) = (1970, days);
        // Skip whole 400-year calendar cycles first.
        (year, left) = (year + left / 146_097 * 400, left % 146_097);
        while left >= days_of(year) {
            left -= days_of(year);
            year += 1;
        }
        let (day_of_year, mut month) = (left + 1, 0);
        while left >= days_of_month(year, month) {
            left -= days_of_month(year, month);
            month += 1;
        }
        Date { year, month, day: left + 1, day_of_year, weekday, seconds }
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// Formats a time.
pub(super) fn strftime(time: SystemTime, format: &str) -> Result<String> {
    let date = Date::of(time);
    let (hour, minute, second) = (date.seconds / 3600, date.seconds / 60 % 60, date.seconds % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        // `%-d` is `%d` without the leading zero.
        let plain = code == Some('-');
        if plain {
            code = chars.next();
        }
        let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
        let part = match code {
            Some('Y') => format!("{:04}", date.year),
            Some('y') => format!("{:02}", date.year % 100),
            Some('m') => format!("{:02}", date.month + 1),
            Some('d') => format!("{:02}", date.day),
            Some('e') => format!("{:2}", date.day),
            Some('j') => format!("{:03}", date.day_of_year),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{hour12:02}"),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{second:02}"),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => MONTHS[date.month].to_owned(),
            Some('b' | 'h') => MONTHS[date.month][..3].to_owned(),
            Some('A') => DAYS[date.weekday].to_owned(),
            Some('a') => DAYS[date.weekday][..3].to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month + 1, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(Failure::Unsupported(format!("%{other} in a date"))),
            None => "%".to_owned(),
        };
        out.push_str(if plain { part.trim_start_matches(['0', ' ']) } else { &part });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, format: &str) -> String {
        strftime(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), format).unwrap()
    }

    /// Compared with `date -u -d @SECONDS`.
    #[test]
    fn dates_as_the_calendar_says() {
        assert_eq!(at(0, "%A, %d %B %Y %H:%M:%S"), "Thursday, 01 January 1970 00:00:00");
        assert_eq!(at(951_782_400, "%F %j %a"), "2000-02-29 060 Tue");
        assert_eq!(at(1_721_995_200, "%d %b %Y"), "26 Jul 2024");
        assert_eq!(at(1_735_689_599, "%F %T %p %I"), "2024-12-31 23:59:59 PM 11");
        assert_eq!(at(4_107_542_400, "%F"), "2100-03-01", "2100 is no leap year");
        assert_eq!(at(253_402_300_799, "%F"), "9999-12-31");
        assert_eq!(at(1_721_995_200, "%-d.%-m.%y 100%%"), "26.7.24 100%");
        let error = strftime(SystemTime::UNIX_EPOCH, "%Q").unwrap_err();
        assert_eq!(error.to_string(), "%Q in a date is not supported");
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(strftime(before, "%Y").unwrap(), "1970");
    }
}
