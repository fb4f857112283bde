//! Sizes, times and counts: parsed from arguments and printed for people.

pub use super::{bytes, count, counted};

/// Parses a size as operators write it: `128M`, `1GiB`, `65536`. Units are powers of 1,024.
///
/// # Errors
/// A sentence for the operator.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("use a number and K, M, G or T, such as 128M".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "use a number and K, M, G or T, such as 128M".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "that is too large".to_owned())
}

/// Returns a rate: `572 MB/s`.
pub fn rate(count: u64, seconds: f64) -> String {
    format!("{}/s", bytes((count as f64 / seconds.max(1e-6)) as u64))
}

/// Returns a duration: `0.42 s`, `12.3 s`, `1m 02s`, `3h 05m`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 1.0 => format!("{s:.2} s"),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{}m {:02}s", whole / 60, whole % 60),
        _ => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_operators_write_them() {
        for (text, size) in [
            ("65536", 65536),
            ("128M", 128 << 20),
            ("1GiB", 1 << 30),
            ("4k", 4096),
            ("2TB", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(size), "{text}");
        }
        for bad in ["", "M", "12X", "-1", "1KiBiB", "1ib", "99999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [bytes(0), bytes(999), bytes(1000), bytes(687_074_626)],
            ["0 B", "999 B", "1.00 kB", "687 MB"]
        );
        assert_eq!(
            [bytes(999_999), bytes(9_994_000_000), bytes(12_340_000)],
            ["1.00 MB", "9.99 GB", "12.3 MB"]
        );
        assert_eq!(
            [
                seconds(0.421),
                seconds(12.34),
                seconds(62.0),
                seconds(11_100.0)
            ],
            ["0.42 s", "12.3 s", "1m 02s", "3h 05m"]
        );
        assert_eq!(
            [count(7), count(1000), count(1_234_567)],
            ["7", "1,000", "1,234,567"]
        );
    }
}
