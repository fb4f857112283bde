//! Values of options: their syntax, and the errors for anything else.

use clap::{
    ValueEnum,
    builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser},
};
use fullbore_engine::backup::Dedup;
use fullbore_format::{
    digest::Algorithm,
    entry::is_safe,
    error::{Error, ErrorKind},
    text::size,
};
use fullbore_postgres::{
    request::{Via, Wal},
    restore::recovery::{Mode, TargetAction},
};
use fullbore_repository::{compare::Compare, open::names_backup};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    num::{NonZeroU64, NonZeroUsize},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    time::Duration,
};

const MAX_THREADS: usize = 1024;

/// A parser for an argument of any bytes, with `check`, whose error is what the operator reads.
pub(super) fn any_bytes<T: Clone + Send + Sync + 'static>(
    check: fn(OsString) -> Result<T, String>,
) -> impl TypedValueParser<Value = T> {
    OsStringValueParser::new().try_map(check)
}

/// A value of an option by its name, with its help text.
pub(super) type Named<T> = (&'static str, T, &'static str);

/// A parser for an option that takes one of these names.
pub(super) fn one_of<T: Copy + Send + Sync + 'static>(
    values: &'static [Named<T>],
) -> impl TypedValueParser<Value = T> {
    let names = values
        .iter()
        .map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).map(|given| {
        let chosen = values.iter().find(|(name, ..)| *name == given);
        chosen.expect("the parser takes no other name").1
    })
}

/// How files are digested.
pub(super) const DIGESTS: [Named<Algorithm>; 3] = [
    ("blake3", Algorithm::Blake3, "BLAKE3, as b3sum prints it"),
    (
        "crc32c",
        Algorithm::Crc32c,
        "CRC-32C, which detects accidental damage only",
    ),
    ("none", Algorithm::None, "No digest of files"),
];

/// Whose content a backup refers to.
pub(super) const DEDUPS: [Named<Dedup>; 2] = [
    (
        "repository",
        Dedup::Repository,
        "That of all sources in the repository",
    ),
    ("source", Dedup::Source, "That of the same source"),
];

/// The proofs that a file has not changed.
pub(super) const COMPARES: [Named<Compare>; 4] = [
    (
        "inode",
        Compare::Inode,
        "Its size, modification time, inode time and inode number are equal",
    ),
    (
        "mtime",
        Compare::Mtime,
        "Its size and modification time are equal",
    ),
    (
        "size",
        Compare::Size,
        "Its size is equal (not possible for a cluster)",
    ),
    (
        "content",
        Compare::Content,
        "Its content is equal: all files are read",
    ),
];

/// Ways to the files of a running cluster.
pub(super) const VIAS: [Named<Via>; 4] = [
    ("auto", Via::Auto, "The first of these ways that is open"),
    ("files", Via::Files, "From the data directory on this host"),
    ("sql", Via::Sql, "Through sessions with the server"),
    (
        "protocol",
        Via::Protocol,
        "As the server sends them to a standby, to a role with REPLICATION",
    ),
];

/// Places of the WAL that a backup needs.
pub(super) const WALS: [Named<Wal>; 3] = [
    (
        "included",
        Wal::Included,
        "In the backup, which can then start without an archive",
    ),
    (
        "archived",
        Wal::Archived,
        "In the server's archive, for which the backup waits",
    ),
    ("none", Wal::None, "Elsewhere, which is not checked"),
];

/// Kinds of recovery.
pub(super) const RECOVERIES: [Named<Mode>; 3] = [
    ("none", Mode::None, "To the end of the WAL in the backup"),
    (
        "point",
        Mode::Point,
        "To a target, or to the end of the archive",
    ),
    ("standby", Mode::Standby, "Endless, as a standby"),
];

/// Actions of a server at its target.
pub(super) const TARGET_ACTIONS: [Named<TargetAction>; 3] = [
    (
        "pause",
        TargetAction::Pause,
        "Wait, so that the operator can check",
    ),
    ("promote", TargetAction::Promote, "Open for writing"),
    ("shutdown", TargetAction::Shutdown, "Shut down"),
];

/// How the checkpoint at the start of a backup is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CheckpointArg {
    /// At once
    Fast,
    /// Slowly, over half the time between two checkpoints
    Spread,
}

/// How large files are cut, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Chunking {
    /// Blocks of --block-size, for databases and virtual machines
    Fixed,
    /// Chunks of about 32 KiB cut by content, for dumps and mailboxes
    Content,
}

/// The host that does the work of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RunOn {
    /// The host that has the source
    Source,
    /// The host that has the destination, or this one for an object store
    Dest,
}

/// A number of readers, or `auto`: as many as increase the speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Readers(pub(super) Option<NonZeroUsize>);

pub(super) fn readers(text: &str) -> Result<Readers, String> {
    match text {
        "auto" => Ok(Readers(None)),
        _ => threads(text)
            .map(|n| Readers(Some(n)))
            .map_err(|error| format!("{error}, or auto")),
    }
}

/// Refuses more threads than any machine can use: such a number is a typing error, and could exhaust the system.
pub(super) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &NonZeroUsize| number.get() <= MAX_THREADS);
    number.ok_or_else(|| format!("a number from 1 to {MAX_THREADS}"))
}

/// Parses a duration above zero, such as `30m`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "use a number and s, m or h, as 30m".to_owned();
    let (number, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .filter(|time| *time > 0)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// Parses a duration in days, hours, minutes or seconds, such as `14d`; 0 is allowed.
pub(super) fn days(text: &str) -> Result<Duration, String> {
    let wrong = || "use a number and d, h, m or s, as 14d".to_owned();
    match text.strip_suffix('d') {
        Some(number) => {
            let days: u64 = number.parse().map_err(|_| wrong())?;
            days.checked_mul(24 * 3600)
                .map(Duration::from_secs)
                .ok_or_else(wrong)
        }
        None => interval(text).map_err(|_| wrong()),
    }
}

/// Parses a duration; a number without a unit means seconds, and 0 is allowed.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let is_none = |text: &str| text.trim_end_matches(['s', 'm', 'h']).parse() == Ok(0);
    if is_none(text) {
        Ok(Duration::ZERO)
    } else {
        text.parse()
            .map(Duration::from_secs)
            .or_else(|_| time(text))
    }
}

pub(super) fn frame_size(text: &str) -> Result<u32, String> {
    let size = size::parse(text)?;
    let fits = size.is_power_of_two() && (64 << 10..=64 << 20).contains(&size);
    if fits {
        Ok(size as u32)
    } else {
        Err("a power of two from 64K to 64M".to_owned())
    }
}

pub(super) fn block_size(text: &str) -> Result<u32, String> {
    let size = size::parse(text)?;
    let fits = size.is_power_of_two() && (4 << 10..=64 << 20).contains(&size);
    if fits {
        Ok(size as u32)
    } else {
        Err("a power of two from 4K to 64M".to_owned())
    }
}

pub(super) fn segment_size(text: &str) -> Result<u64, String> {
    let size = size::parse(text)?;
    if size >= 1 << 20 {
        Ok(size)
    } else {
        Err("at least 1M".to_owned())
    }
}

pub(super) fn target(path: PathBuf) -> Result<PathBuf, String> {
    match path.as_os_str().as_encoded_bytes() {
        b"-" => {
            Err("files are made in a directory; `fullbore export REPO --to -` writes a tar to standard output"
                .to_owned())
        }
        _ => Ok(path),
    }
}

pub(super) fn stream_name(text: OsString) -> Result<OsString, String> {
    let bytes = text.as_bytes();
    // No Linux file system takes a longer name.
    let fits = !bytes.is_empty()
        && is_safe(bytes)
        && bytes.split(|c| *c == b'/').all(|name| name.len() <= 255);
    if fits {
        Ok(text)
    } else {
        Err("the path of a file below the root of the backup, like db.sql".to_owned())
    }
}

/// The destination of a backup.
pub(super) fn destination(text: OsString) -> Result<OsString, String> {
    if text.is_empty() {
        Err("a place, and not an empty one".to_owned())
    } else if names_backup(&text) {
        Err("a place: @ behind the last / chooses a backup; add a / at the end if the @ is a part of the name".to_owned())
    } else {
        Ok(text)
    }
}

/// Parses bytes a second; the minimum keeps the wait for one frame short.
pub(super) fn rate(text: &str) -> Result<NonZeroU64, String> {
    NonZeroU64::new(size::parse(text)?)
        .filter(|rate| rate.get() >= 64 << 10)
        .ok_or_else(|| "at least 64K".to_owned())
}

/// A level of dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LevelArg {
    Number(u8),
    /// Chosen by the earlier backups of the source.
    Hanoi,
}

/// Parses a level of dump.
pub(super) fn level(text: &str) -> Result<LevelArg, String> {
    if text == "hanoi" {
        return Ok(LevelArg::Hanoi);
    }
    let number = text.parse().ok().filter(|number| *number <= 9);
    number
        .map(LevelArg::Number)
        .ok_or_else(|| "a number from 0 to 9, or hanoi".to_owned())
}

pub(super) fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    check_tag_key(key)?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Refuses a key of a tag that is empty, or is a list, as in restic.
pub(super) fn check_tag_key(key: &str) -> Result<(), String> {
    if key.contains(',') {
        let each: Vec<&str> = key.split(',').filter(|part| !part.is_empty()).collect();
        let each = each.join(" --tag ");
        return Err(format!("one tag for each option: --tag {each}"));
    }
    match key.is_empty() {
        true => Err("use KEY or KEY=VALUE".to_owned()),
        false => Ok(()),
    }
}

/// Returns tags that were given one by one.
///
/// # Errors
/// [`ErrorKind::Usage`] if a key has two values, of which one would be lost.
pub(super) fn distinct_tags(
    tags: Vec<(String, String)>,
) -> Result<BTreeMap<String, String>, Error> {
    let mut distinct = BTreeMap::new();
    for (key, value) in tags {
        let earlier = distinct.insert(key.clone(), value.clone());
        if let Some(earlier) = earlier.filter(|earlier| *earlier != value) {
            let message =
                format!("cannot give the tag {key:?} two values, {earlier:?} and {value:?}");
            let hint = format!("use another key, or one value such as {key}={earlier},{value}");
            return Err(Error::new(ErrorKind::Usage, message).hint(hint));
        }
    }
    Ok(distinct)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_intervals_may_be_seconds() {
        let seconds = |time: Result<Duration, String>| time.ok().map(|time| time.as_secs());
        let both = |text: &str| (seconds(time(text)), seconds(interval(text)));
        for (text, value) in [("5s", 5), ("30m", 1800), ("2h", 7200)] {
            assert_eq!(both(text), (Some(value), Some(value)));
        }
        assert_eq!((both("60"), both("0")), ((None, Some(60)), (None, Some(0))));
        assert_eq!(both("0m"), (None, Some(0)));
        for bad in [
            "",
            "m",
            "-1s",
            "1.5h",
            "5d",
            "30 m",
            "18446744073709551615h",
        ] {
            assert_eq!(both(bad), (None, None), "{bad:?}");
        }
    }
}
