//! `--dumpdates FILE`: the file in which dump notes its backups.
//!
//! A line has the name, the level, and the time at which the backup began. Lines of other programs stay as
//! they are. As dump does, the file is changed in place under a lock.

use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    root::{EntryName, Root},
};
use fullbore_platform::place::quoted_path;
use fullbore_repository::level::level_of;
use jiff::{Timestamp, tz::TimeZone};
use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// A longer file is not one of dump.
const MAX_BYTES: u64 = 1 << 20;
/// The most bytes that dump reads of a name.
const MAX_NAME_BYTES: usize = 255;

/// The file of an option `--dumpdates`.
#[derive(Debug, Clone)]
pub(super) struct Dumpdates(PathBuf);

impl Dumpdates {
    /// Opens the file, and creates it if it does not exist; so a backup fails before it begins, and not at its end.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::Usage`] for a file that is not one of dump.
    pub(super) fn check(path: &Path) -> Result<Self> {
        let (_, text) = open(path)?;
        let is_line = |line: &&str| line.trim().is_empty() || parts(line).is_some();
        match text.lines().find(|line| !is_line(line)) {
            None => Ok(Self(path.to_owned())),
            Some(line) => {
                let message = format!("cannot use {} for --dumpdates", quoted_path(path));
                let why = format!("this line is not one of dump: {}", quoted(line.as_bytes()));
                Err(Error::new(ErrorKind::Usage, message).because(why))
            }
        }
    }

    /// Notes a backup: one line for each path of its source, in place of an earlier one of its level.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::Usage`] for a path that a line of dump cannot have.
    pub(super) fn note(&self, root: &Root) -> Result<()> {
        let Some(level) = level_of(root) else {
            return Ok(());
        };
        let failed = |error| {
            let message = format!(
                "the backup is complete, but could not change {}",
                quoted_path(&self.0)
            );
            Error::io(message, error)
        };
        let (mut file, text) = open(&self.0)?;
        let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        for path in &root.source.paths {
            let name = name_of(path)?;
            lines.retain(|line| parts(line) != Some((name, level)));
            lines.push(format!("{name:<16} {level} {}", written_time(&root.time)?));
        }
        let text = lines.join("\n") + "\n";
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.set_len(text.len() as u64).map_err(failed)?;
        file.sync_all().map_err(failed)
    }
}

/// Opens and locks the file, and reads it.
fn open(path: &Path) -> Result<(File, String)> {
    let failed = |error| Error::io(format!("could not read {}", quoted_path(path)), error);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed)?;
    file.lock().map_err(failed)?;
    let mut text = String::new();
    let mut start = Read::by_ref(&mut file).take(MAX_BYTES + 1);
    start.read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        let message = format!("cannot use {}: it is too large", quoted_path(path));
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok((file, text))
}

/// Returns the name and the level of a line.
fn parts(line: &str) -> Option<(&str, u8)> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let level = words.next()?.parse().ok()?;
    words.next()?;
    Some((name, level))
}

fn name_of(path: &EntryName) -> Result<&str> {
    let name = std::str::from_utf8(&path.0).ok();
    let is_word = |name: &&str| {
        name.len() <= MAX_NAME_BYTES && !name.chars().any(|c| c.is_whitespace() || c.is_control())
    };
    name.filter(is_word).ok_or_else(|| {
        let message = format!("cannot note {} for --dumpdates", quoted(&path.0));
        Error::new(ErrorKind::Usage, message).because("a name there has no spaces")
    })
}

/// Returns a time as dump writes it: `Sun Nov 29 10:00:00 2026 +0100`.
fn written_time(rfc3339: &str) -> Result<String> {
    let time: Timestamp = rfc3339
        .parse()
        .map_err(|_| Error::new(ErrorKind::Bug, "cannot read the time of a backup"))?;
    let local = time.to_zoned(TimeZone::system());
    Ok(local.strftime("%a %b %e %H:%M:%S %Y %z").to_string())
}
