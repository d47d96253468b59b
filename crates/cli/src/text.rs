//! Text for people: names that cannot play with the terminal, ages, sizes, durations.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use overwinter_client::raw;

/// Text from elsewhere without anything that a terminal would act on: control characters, and those
/// that turn the direction of writing.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// How long ago a time was that a message gives in seconds since 1970, by the local clock.
pub(crate) fn age(seconds: i64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let then = Duration::from_secs(seconds.max(0) as u64);
    coarse(now.saturating_sub(then))
}

/// Two units at most, the second only where the first is small.
pub(crate) fn coarse(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let s = duration.as_secs();
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match s {
        0..120 => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 10 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        s => format!("{}d", s / DAY),
    }
}

/// How long something took.
pub(crate) fn fine(duration: Duration) -> String {
    if duration < Duration::from_millis(1) {
        format!("{}µs", duration.as_micros())
    } else if duration < Duration::from_secs(1) {
        format!("{:.1}ms", duration.as_secs_f64() * 1e3)
    } else if duration < Duration::from_secs(120) {
        format!("{:.2}s", duration.as_secs_f64())
    } else {
        coarse(duration)
    }
}

/// A setting, exactly and as it can be typed in: `1m 30s`, `500ms`.
pub(crate) fn setting(seconds: i64, nanos: i32) -> String {
    format!("{:#}", jiff::SignedDuration::new(seconds, nanos))
}

/// A size in bytes, as people read it.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else if value.fract() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// What became of the memory of a freeze that was asked to give it back.
pub(crate) fn reclaimed(reclaimed: &raw::Reclaimed) -> String {
    format!(
        "{} given back, {} left",
        size(reclaimed.freed_bytes),
        size(reclaimed.left_bytes)
    )
}

/// Why an argument was not understood. It is shown by the argument parser, with the argument.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misread {
    #[error("not a size: write bytes, or a number with K, M, G or T (1024-fold), or KB, MB, …")]
    Size,
    #[error("not a duration: write seconds, or 500ms, 90s, 1m30s, 2h")]
    Duration,
    #[error("not KEY=VALUE")]
    Pair,
    #[error("not a number of CPUs: write 2, or 0.5")]
    Cpus,
}

/// `512`, `64M`, `1.5GiB`, `10GB`.
pub(crate) fn parse_size(text: &str) -> Result<u64, Misread> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (base, power): (u64, u32) = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => (1, 0),
        "k" | "ki" | "kib" => (1024, 1),
        "m" | "mi" | "mib" => (1024, 2),
        "g" | "gi" | "gib" => (1024, 3),
        "t" | "ti" | "tib" => (1024, 4),
        "kb" => (1000, 1),
        "mb" => (1000, 2),
        "gb" => (1000, 3),
        "tb" => (1000, 4),
        _ => return Err(Misread::Size),
    };
    let factor = base.pow(power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or(Misread::Size);
    }
    let value = number.parse::<f64>().map_err(|_| Misread::Size)? * factor as f64;
    if value.is_finite() && value < u64::MAX as f64 {
        Ok(value as u64)
    } else {
        Err(Misread::Size)
    }
}

/// `30` (seconds), `500ms`, `1m30s`, `2h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, Misread> {
    if let Ok(seconds) = text.trim().parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    let duration: jiff::SignedDuration = text.parse().map_err(|_| Misread::Duration)?;
    Duration::try_from(duration).map_err(|_| Misread::Duration)
}

/// `KEY=VALUE`; the value may be empty, and have further `=`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), Misread> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err(Misread::Pair),
    }
}

/// `2` or `0.5` CPUs, in thousandths.
pub(crate) fn parse_cpus(text: &str) -> Result<u32, Misread> {
    let cpus: f64 = text.parse().map_err(|_| Misread::Cpus)?;
    let millis = (cpus * 1000.0).round();
    if (0.0..=f64::from(u32::MAX)).contains(&millis) {
        Ok(millis as u32)
    } else {
        Err(Misread::Cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_as_people_write_them() {
        let sizes = [
            ("0", 0),
            ("512", 512),
            ("64M", 64 << 20),
            ("1.5GiB", 3 << 29),
        ];
        for (text, bytes) in sizes
            .into_iter()
            .chain([("10GB", 10_000_000_000), ("2k", 2048)])
        {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "M", "-1", "1X", "99999999999T", "1.2.3K"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        let durations = [
            ("90", 90_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
        ];
        for (text, millis) in durations {
            assert_eq!(
                parse_duration(text).unwrap(),
                Duration::from_millis(millis),
                "{text}"
            );
        }
        for (seconds, nanos, text) in [
            (10, 0, "10s"),
            (750, 0, "12m 30s"),
            (1, 500_000_000, "1s 500ms"),
            (0, 0, "0s"),
        ] {
            assert_eq!(setting(seconds, nanos), text);
            let read = parse_duration(text).unwrap();
            assert_eq!(read, Duration::new(seconds as u64, nanos as u32));
        }
        assert!(parse_duration("-5s").is_err());
        assert!(parse_duration("soon").is_err());
        assert_eq!(parse_cpus("0.5").unwrap(), 500);
        assert!(parse_cpus("-1").is_err());
    }

    #[test]
    fn names_cannot_act_on_the_terminal() {
        assert_eq!(printable("box-1 ü"), "box-1 ü");
        assert_eq!(printable("a\x1b[2Jb\n\u{202e}"), "a\\u{1b}[2Jb\\n\\u{202e}");
    }

    #[test]
    fn sizes_and_ages_are_short() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1_500_000_000), "1.4 GiB");
        assert_eq!(coarse(Duration::from_secs(119)), "119s");
        assert_eq!(coarse(Duration::from_secs(5 * 60)), "5m");
        assert_eq!(coarse(Duration::from_secs(3 * 86_400 + 7200)), "3d2h");
    }
}
