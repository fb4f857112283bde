//! Text for people: prints counts, sizes, names and sources, and parses sizes.
//!
//! Belongs here: formats that several rooms print. Does not belong here: sentences of one command.

pub mod arguments;
pub mod columns;
pub mod duration;
pub mod local_time;
pub mod size;

use crate::root::SourceInfo;
use crate::{
    entry::{Entry, EntryKind, Time},
    error::{Error, ErrorKind, Result},
};
use jiff::{Timestamp, tz::TimeZone};
use std::{
    collections::BTreeMap,
    io::{self, Write},
};

/// Writes a line to the output of a command; control characters are escaped.
///
/// # Errors
/// Those of `out`.
pub fn line(out: &mut dyn Write, text: &str) -> Result<()> {
    write_line(out, &shown(text))
}

fn write_line(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .map_err(output)
}

fn output(error: io::Error) -> Error {
    Error::io("could not write the output", error)
}

/// Writes a value as one line of JSON.
///
/// # Errors
/// Those of `out`.
pub fn json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value);
    write_line(
        out,
        &text.map_err(|e| Error::new(ErrorKind::Bug, "cannot write JSON").because(e))?,
    )
}

/// Returns bytes in decimal units: `1.23 GB`.
pub fn bytes(count: u64) -> String {
    let units = ["kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = count as f64;
    if count < 1000 {
        return format!("{count} B");
    }
    let mut unit = "B";
    for next in units {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    let digits = if value < 9.995 {
        2
    } else {
        usize::from(value < 99.95)
    };
    format!("{value:.digits$} {unit}")
}

/// Returns bytes in the units in which options are given: `128 MiB`, `1.5 GiB`.
pub fn binary_bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = count as f64;
    let mut unit = "B";
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {unit}")
}

/// Returns a number with commas: `60,000`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

/// Returns the levels of adaptive compression, from the bytes at each: `1 to 6, mostly 3`.
pub fn levels(used: &BTreeMap<i32, u64>) -> Option<String> {
    let (lowest, _) = used.first_key_value()?;
    let (highest, _) = used.last_key_value()?;
    let (most, _) = used.iter().max_by_key(|(_, bytes)| **bytes)?;
    Some(if lowest == highest {
        lowest.to_string()
    } else {
        format!("{lowest} to {highest}, mostly {most}")
    })
}

/// Returns a count and its noun: `1 file`, `60,000 files`, `2 entries`.
pub fn counted(number: u64, noun: &str) -> String {
    let number_text = count(number);
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("{number_text} {noun}"),
        Some(stem) => format!("{number_text} {stem}ies"),
        None => format!("{number_text} {noun}s"),
    }
}

/// Returns the mode as in `ls -l`: `drwxr-xr-x`.
pub fn mode(entry: &Entry) -> String {
    let kind = match entry.kind {
        EntryKind::File { .. } => '-',
        EntryKind::HardLink(_) => 'h',
        EntryKind::Directory => 'd',
        EntryKind::Symlink(_) => 'l',
        EntryKind::Fifo => 'p',
        EntryKind::CharDevice(_) => 'c',
        EntryKind::BlockDevice(_) => 'b',
        EntryKind::Socket => 's',
    };
    let mut text = String::from(kind);
    for (shift, special, letters) in [
        (6, 0o4000, ['s', 'S']),
        (3, 0o2000, ['s', 'S']),
        (0, 0o1000, ['t', 'T']),
    ] {
        let bits = entry.mode >> shift;
        // As ls: a small letter if the file can be executed as well, a capital one if not.
        let execute = match (bits & 1, entry.mode & special) {
            (0, 0) => '-',
            (_, 0) => 'x',
            (0, _) => letters[1],
            (..) => letters[0],
        };
        text.extend([
            if bits & 4 > 0 { 'r' } else { '-' },
            if bits & 2 > 0 { 'w' } else { '-' },
            execute,
        ]);
    }
    text
}

/// Returns `2026-11-21T05:45:09Z`, as roots, records and JSON have times.
pub fn utc_second(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns [`utc_second`] of seconds since 1970; `None` for a time that no calendar has.
pub fn utc_time(seconds: impl TryInto<i64>) -> Option<String> {
    let time = Timestamp::from_second(seconds.try_into().ok()?);
    time.ok().map(utc_second)
}

/// Returns `2026-11-21 05:45`, in the time zone of this machine.
pub fn local_minute(time: Time) -> String {
    let zoned = timestamp(time).map(|time| time.to_zoned(TimeZone::system()));
    zoned.map_or_else(
        || time.seconds.to_string(),
        |time| time.strftime("%Y-%m-%d %H:%M").to_string(),
    )
}

/// Returns RFC 3339 in UTC with nanoseconds; bare seconds for years that RFC 3339 does not have.
pub fn rfc3339(time: Time) -> String {
    timestamp(time).map_or_else(|| time.seconds.to_string(), |time| format!("{time:.9}"))
}

fn timestamp(time: Time) -> Option<Timestamp> {
    let whole = Timestamp::from_second(time.seconds).ok()?;
    whole
        .checked_add(jiff::SignedDuration::from_nanos(time.nanos.into()))
        .ok()
}

/// Returns a name for a terminal: invalid UTF-8, backslashes and invisible characters are escaped.
pub fn name(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' || !is_visible(c) {
                text.extend(c.escape_default())
            } else {
                text.push(c)
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// Returns text of one or more lines for a terminal. Escapes control characters, so that a stored
/// name cannot move the cursor or reverse the order of letters.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    text.chars().for_each(|c| {
        if c == '\n' || is_visible(c) {
            shown.push(c)
        } else {
            shown.extend(c.escape_default())
        }
    });
    shown
}

/// Returns whether a character is visible, alone or as a mark on another one. Characters that
/// control the terminal or the direction of writing, and those without width or meaning, are not
/// visible.
fn is_visible(c: char) -> bool {
    let of_ascii = c == ' ' || c.is_ascii_graphic();
    // `escape_debug` escapes all characters that cannot be printed, and marks only at the start.
    of_ascii || (!c.is_ascii() && ['a', c].iter().collect::<String>().escape_debug().count() == 2)
}

/// Returns a source as `host:/a /b`.
pub fn source_text(source: &SourceInfo) -> String {
    let paths: Vec<String> = source.paths.iter().map(|path| name(&path.0)).collect();
    format!("{}:{}", name(source.host.as_bytes()), paths.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_read_well() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0, 999, 1000, 687_074_626, 1 << 40, u64::MAX]
                .map(bytes)
                .join(" "),
            "0 B 999 B 1.00 kB 687 MB 1.10 TB 18.4 EB"
        );
    }

    #[test]
    fn levels_are_told_by_their_ends_and_the_one_of_most_bytes() {
        assert_eq!(levels(&[].into()), None);
        assert_eq!(levels(&[(1, 7)].into()).unwrap(), "1");
        let used = [(-2, 5), (1, 9), (3, 8)].into();
        assert_eq!(levels(&used).unwrap(), "-2 to 3, mostly 1");
    }

    #[test]
    fn sizes_of_options_are_printed_as_they_are_given() {
        assert_eq!(
            [512, 64 << 10, 128 << 20, 3 << 29, 20_000_000].map(binary_bytes),
            ["512 B", "64 KiB", "128 MiB", "1.5 GiB", "19.07 MiB"]
        );
    }

    #[test]
    fn modes_read_as_ls_prints_them() {
        let mode = |mode| {
            mode_of(Entry {
                mode,
                ..Entry::default()
            })
        };
        assert_eq!(
            [0o755, 0o4755, 0o4644, 0o2711, 0o1777].map(mode).join(" "),
            "-rwxr-xr-x -rwsr-xr-x -rwSr--r-- -rwx--s--x -rwxrwxrwt"
        );
    }

    fn mode_of(entry: Entry) -> String {
        mode(&entry)
    }

    #[test]
    fn names_cannot_move_the_cursor() {
        assert_eq!(name(b"a\x1b[2J\n\xff\\"), "a\\u{1b}[2J\\n\\xff\\\\");
        assert_eq!(name("ä b".as_bytes()), "ä b");
        assert_eq!(
            name("a\u{202e}b\u{200b}\u{9b}\u{feff}".as_bytes()),
            "a\\u{202e}b\\u{200b}\\u{9b}\\u{feff}"
        );
        for word in [
            "Ärger",
            "a\u{308}",
            "\u{308}",
            "日本語",
            "עברית",
            "हिन्दी",
            "×–…\"'",
            "😀",
        ] {
            assert_eq!(
                (name(word.as_bytes()), shown(word)),
                (word.to_owned(), word.to_owned())
            );
        }
        assert_eq!(
            shown("a\\\n\x1b]0;\x07\u{2066}\r"),
            "a\\\n\\u{1b}]0;\\u{7}\\u{2066}\\r"
        );
    }

    #[test]
    fn times_before_1970_and_far_ones_are_printed() {
        assert_eq!(
            rfc3339(Time {
                seconds: -1,
                nanos: 500_000_000
            }),
            "1969-12-31T23:59:59.500000000Z"
        );
        assert_eq!(
            rfc3339(Time {
                seconds: i64::MAX,
                nanos: 0
            }),
            i64::MAX.to_string()
        );
    }
}
