//! `fullbore list --due`: which sources have no backup of today, and the level of the next one.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::Root,
    text::{self, local_time::recent_minute, source_text},
};
use fullbore_repository::{
    level::{LeveledBackup, hanoi_level},
    open::{list_backups, place},
    select::BackupFilter,
    tape_catalog::TapeCatalog,
    volume_series::VolumeSeries,
};
use fullbore_storage::{Location, Storages};
use jiff::Zoned;
use std::{collections::BTreeMap, ffi::OsStr, io::Write};

/// The options of `list --due`.
pub(super) struct ListDue<'a> {
    pub(super) storages: &'a Storages,
    pub(super) from: &'a OsStr,
    pub(super) filter: &'a BackupFilter,
    /// Also the sources that have a backup of today.
    pub(super) all: bool,
    pub(super) json: bool,
}

impl ListDue<'_> {
    /// Prints a line for each source that has backups with levels.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if none has: a timer must not take that for "nothing is due".
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<u8> {
        let now = Zoned::now();
        let mut by_source: BTreeMap<String, Vec<LeveledBackup>> = BTreeMap::new();
        for root in self.roots()? {
            if let Some(backup) = LeveledBackup::of(&root) {
                by_source
                    .entry(source_text(&root.source))
                    .or_default()
                    .push(backup);
            }
        }
        if by_source.is_empty() {
            return Err(self.without_levels());
        }
        for (source, backups) in &by_source {
            self.print_source(source, backups, &now, out)?;
        }
        Ok(0)
    }

    fn without_levels(&self) -> Error {
        let message = format!("could not find a backup with a level in {:?}", self.from);
        let error = Error::new(ErrorKind::NotFound, message);
        let hint = match place(self.from) {
            Ok((Location::Volumes(_) | Location::Tape(_), _)) => {
                "the state directory of the user that made the backups lists them"
            }
            _ => "`fullbore backup PATH --to REPO --level hanoi` makes one",
        };
        error.hint(hint)
    }

    fn print_source(
        &self,
        source: &str,
        backups: &[LeveledBackup],
        now: &Zoned,
        out: &mut dyn Write,
    ) -> Result<()> {
        let Some(last) = backups.first() else {
            return Ok(());
        };
        let is_due = is_due(last, now);
        if !is_due && !self.all {
            return Ok(());
        }
        let next = hanoi_level(backups, now.timestamp());
        if self.json {
            let line = serde_json::json!({
                "type": "due", "source": last.source, "source_text": source, "level": last.level, "time": last.time.to_string(), "due": is_due, "next_level": next,
            });
            return text::json(out, &line);
        }
        let mark = if is_due { ">" } else { " " };
        let when = recent_minute(&last.time.to_string(), now);
        let line = format!(
            "{mark} {source}: level {} of {when}; the next is level {next}",
            last.level
        );
        text::line(out, &line)
    }

    /// Returns the roots of all backups that are selected, the newest first.
    fn roots(&self) -> Result<Vec<Root>> {
        let (location, _) = place(self.from)?;
        let mut roots = match location {
            Location::Volumes(prefix) => VolumeSeries::of(self.storages, &prefix)
                .map(|series| series.roots())
                .unwrap_or_default(),
            Location::Tape(_) => TapeCatalog::of(self.storages).lasting_roots()?,
            _ => {
                let objects = self.storages.repository_at(self.from)?;
                let mut roots: Vec<_> = list_backups(&objects)?
                    .filter_map(|(_, root)| root.ok())
                    .collect();
                roots.reverse();
                roots
            }
        };
        roots.retain(|root| self.filter.check(root).is_ok());
        Ok(roots)
    }
}

/// Returns whether the last backup of a source is not of today.
fn is_due(last: &LeveledBackup, now: &Zoned) -> bool {
    let day = last.time.to_zoned(now.time_zone().clone()).date();
    day < now.date()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_due_on_the_day_after_its_backup() {
        let now: Zoned = "2026-11-29T02:00:00+01:00[Europe/Berlin]".parse().unwrap();
        let is_due = |time: &str| {
            let last = LeveledBackup {
                level: 3,
                time: time.parse().unwrap(),
                source: fullbore_format::root::SourceInfo::default(),
            };
            super::is_due(&last, &now)
        };
        assert!(is_due("2026-11-28T22:59:59Z") && !is_due("2026-11-28T23:00:00Z"));
    }
}
