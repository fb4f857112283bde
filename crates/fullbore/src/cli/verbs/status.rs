//! `fullbore status`: reminds of sources whose last backup is old. It asks no repository, so that it is quick and never waits.

use crate::cli::output::{aside, printed};
use clap::Args;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{self, duration},
};
use fullbore_storage::{LastBackup, LastBackups, Storages};
use jiff::Timestamp;
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Seconds after which a source is late that never said how often it is backed up: a week.
const USUAL_SECONDS: u64 = 7 * 24 * 3600;

/// Where units that `fullbore systemd` prints keep what is remembered.
const UNIT_STATES: &str = "/var/lib";

/// `fullbore status`.
#[derive(Debug, Args)]
#[command(
    after_help = "This line in ~/.profile reminds at each login: `fullbore status || true`\n\
                  EXIT CODES: 0 no backup is late, 1 one is, 2 wrong arguments"
)]
pub(in crate::cli) struct StatusArgs {
    /// Remind of backups that are older than this, such as 26h
    ///
    /// The default is twice the time that the source says by `backup --every` or `schedule`, and 7d
    /// for a source that says nothing.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    late: Option<Duration>,
    /// Do not remind of this source again, until its next backup
    #[arg(long, value_name = "SOURCE", conflicts_with = "late")]
    forget: Option<String>,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
    #[arg(from_global)]
    verbose: bool,
}

pub(in crate::cli) fn run(args: StatusArgs, storages: &Storages) -> Result<u8> {
    let memories = memories(storages.state_dir(), Path::new(UNIT_STATES));
    if let Some(source) = &args.forget {
        return forget(&memories, source).map(|()| 0);
    }
    let now = Timestamp::now();
    let backups = newest(memories.iter().flat_map(LastBackups::all));
    let ages = { backups.iter() }.map(|backup| BackupAge::of(backup, now, args.late));
    let ages: Vec<BackupAge<'_>> = ages.collect();
    let late = ages.iter().filter(|age| age.is_late).count();
    if args.json {
        printed(|out| {
            ages.iter()
                .try_for_each(|age| text::json(out, &age.json()))?;
            let result = json!({"type": "result", "sources": ages.len(), "late_sources": late});
            text::json(out, &result).map(|()| 0)
        })?;
    } else if args.verbose {
        printed(|out| {
            ages.iter()
                .try_for_each(|age| text::line(out, &age.line()))?;
            Ok(0)
        })?;
    } else if !args.quiet {
        let warnings = ages.iter().filter(|age| age.is_late);
        warnings.for_each(|age| aside(format_args!("warning: {}", age.line())));
    }
    Ok(u8::from(late > 0))
}

/// Returns where this user remembers backups. Units of root have a state directory each.
fn memories(own: Option<&Path>, units: &Path) -> Vec<LastBackups> {
    let is_own_choice = std::env::var_os("FULLBORE_STATE_DIR").is_some();
    let of_units = match is_own_choice || fullbore_platform::user().0 != 0 {
        true => Vec::new(),
        false => unit_states(units),
    };
    let own = own.map(Path::to_owned).into_iter();
    own.chain(of_units)
        .map(|dir| LastBackups::new(&dir))
        .collect()
}

/// Returns the directories `fullbore-NAME`.
fn unit_states(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("fullbore-")
    });
    named.map(|entry| entry.path()).collect()
}

/// Keeps the newest backup of each source.
fn newest(backups: impl Iterator<Item = LastBackup>) -> Vec<LastBackup> {
    let mut backups: Vec<_> = backups.collect();
    backups.sort_by(|one, other| (&one.source, &other.time).cmp(&(&other.source, &one.time)));
    backups.dedup_by(|later, first| later.source == first.source);
    backups
}

fn forget(memories: &[LastBackups], source: &str) -> Result<()> {
    let mut was_known = false;
    for memory in memories {
        let failed = |e| Error::io(format!("could not forget {source:?}"), e);
        was_known |= memory.forget(source).map_err(failed)?;
    }
    if was_known {
        return Ok(());
    }
    let message = format!("could not find a backup of {source:?} in the memory of this host");
    Err(Error::new(ErrorKind::NotFound, message).hint("`fullbore status -v` prints the sources"))
}

/// A backup, and how old it is.
struct BackupAge<'a> {
    backup: &'a LastBackup,
    seconds: u64,
    late_after_seconds: u64,
    is_late: bool,
}

impl<'a> BackupAge<'a> {
    fn of(backup: &'a LastBackup, now: Timestamp, late: Option<Duration>) -> Self {
        let time = backup.time.parse::<Timestamp>();
        // Without a time that can be read, the backup is as old as can be.
        let time = time.map_or(0, |time| time.as_second());
        let seconds = u64::try_from(now.as_second() - time).unwrap_or(0);
        let own = backup.every_seconds.map(|every| every.saturating_mul(2));
        let late_after_seconds = late.map(|late| late.as_secs()).or(own);
        let late_after_seconds = late_after_seconds.unwrap_or(USUAL_SECONDS);
        Self {
            backup,
            seconds,
            late_after_seconds,
            is_late: seconds > late_after_seconds,
        }
    }

    fn line(&self) -> String {
        let LastBackup { source, place, .. } = self.backup;
        let age = duration::short(self.seconds);
        let every = match self.backup.every_seconds {
            Some(every) => format!(", one is expected every {}", duration::short(every)),
            None => String::new(),
        };
        format!("the last backup of {source} is {age} old{every}; it is in {place}")
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "type": "remembered_source",
            "source_text": self.backup.source,
            "repository": self.backup.place.trim_matches('"'),
            "time": self.backup.time,
            "age_seconds": self.seconds,
            "late_after_seconds": self.late_after_seconds,
            "late": self.is_late,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(source: &str, time: &str, every_seconds: Option<u64>) -> LastBackup {
        LastBackup {
            source: source.to_owned(),
            place: "\"/mnt/disk\"".to_owned(),
            time: time.to_owned(),
            every_seconds,
        }
    }

    #[test]
    fn a_backup_is_late_after_twice_its_interval_or_a_week() {
        let now: Timestamp = "2026-11-10T00:00:00Z".parse().unwrap();
        let is_late = |time: &str, every, late: Option<u64>| {
            let late = late.map(Duration::from_secs);
            BackupAge::of(&backup("a:/x", time, every), now, late).is_late
        };
        let day = Some(86_400);
        assert!(!is_late("2026-11-08T00:00:00Z", day, None));
        assert!(is_late("2026-11-07T23:59:59Z", day, None));
        assert!(!is_late("2026-11-03T00:00:00Z", None, None));
        assert!(is_late("2026-11-02T23:59:59Z", None, None));
        assert!(is_late("2026-11-09T00:00:00Z", day, Some(3600)));
        // A clock that was ahead, and a file that was written by hand.
        assert!(!is_late("2026-12-01T00:00:00Z", day, None));
        assert!(is_late("yesterday", day, None));
    }

    #[test]
    fn units_of_root_are_looked_at_and_the_newest_backup_counts() {
        let dir = tempfile::tempdir().unwrap();
        for (name, time) in [
            ("fullbore-web", "2026-11-03T00:00:00Z"),
            ("other", "2026-11-05T00:00:00Z"),
        ] {
            let memory = LastBackups::new(&dir.path().join(name));
            memory.note(&backup("a:/x", time, None));
        }
        let states = unit_states(dir.path());
        assert_eq!(states, [dir.path().join("fullbore-web")]);
        let found = states.iter().flat_map(|dir| LastBackups::new(dir).all());
        let older = backup("a:/x", "2026-11-01T00:00:00Z", None);
        let newest = newest([older].into_iter().chain(found));
        assert_eq!(newest, [backup("a:/x", "2026-11-03T00:00:00Z", None)]);
    }
}
