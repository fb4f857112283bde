//! The WAL that the repository of a backup has of its server, for the recovery of what is restored.
//!
//! Before the first byte is written, the whole way to the target is checked by the names of segments.

use super::choose_backup::ClusterBackups;
use crate::{restore::request::Restore, wal::SystemWal};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{ClusterInfo, Root},
    wal::{SegmentName, check_system_name},
};
use fullbore_postgres::{
    lsn::Lsn,
    restore::{
        plan::ClusterOptions,
        recovery::{Mode, RecoveryOptions},
        recovery_target::RecoveryTarget,
    },
    wal_archive::WalGap,
};
use fullbore_repository::{
    open::place,
    wal::{WalArchive, WalNeeds, has_wal_of},
};
use fullbore_storage::Location;
use jiff::Timestamp;
use std::{ffi::OsString, os::unix::ffi::OsStrExt};

/// The setting of the command.
const RESTORE_COMMAND: &str = "restore_command";

/// What the repository has for the recovery of one backup.
pub(crate) struct ArchivedWal {
    /// The command of the server, if it is to fetch WAL itself.
    command: Option<String>,
    /// Segments that are put into the data directory, if it is not.
    pub(crate) segments: Vec<SegmentName>,
    /// A note for the operator.
    pub(crate) note: String,
}

/// Returns what the repository of the restored backup has of the WAL that its recovery needs; `None` if it has none, or the
/// operator says where the WAL comes from.
///
/// # Errors
/// [`ErrorKind::NotFound`] if a gap lies on the way to the target; [`ErrorKind::Exists`] if two servers began a timeline on
/// it; the storage's.
pub(crate) fn look(
    restore: &Restore,
    root: &Root,
    cluster: &ClusterInfo,
    backups: Option<&ClusterBackups>,
) -> Result<Option<ArchivedWal>> {
    let recovery = &restore.postgres.recovery;
    let is_set = |(name, _): &(String, String)| name.eq_ignore_ascii_case(RESTORE_COMMAND);
    if recovery.restore_command.is_some() || recovery.settings.iter().any(is_set) {
        return Ok(None);
    }
    if !check_system_name(&cluster.system_identifier) {
        return Ok(None);
    }
    let mode = recovery.kind()?;
    let has_own_wal = !cluster.online || cluster.wal == "included";
    let Some(needs) = WalNeeds::of(root).filter(|_| mode != Mode::None || !has_own_wal) else {
        return Ok(None);
    };
    let Ok((location, _)) = place(&restore.from) else {
        return Ok(None);
    };
    if !location.is_repository() {
        return Ok(None);
    }
    let objects = restore.storages.objects(&location)?;
    if !has_wal_of(&*objects, &cluster.system_identifier)? {
        return Ok(None);
    }
    let archive = WalArchive::new(objects, &cluster.system_identifier);
    let wal = SystemWal::load(archive, Some(cluster.wal_segment_bytes))?;
    let way = WayToTarget {
        wal: &wal,
        needs: &needs,
        recovery,
    };
    let timeline = way.timeline(cluster)?;
    let end = way.check(timeline, backups)?;
    let (command, segments) = match mode {
        Mode::None => (None, way.own_segments(timeline)),
        _ => (Some(command(restore, &location, end, mode)?), Vec::new()),
    };
    let note = match (mode, end) {
        (Mode::None, _) => "the WAL that the backup needs was taken from the archive in this repository".to_owned(),
        (_, Some(end)) => format!("the server fetches WAL from this repository (restore_command), which has it up to {end}"),
        (_, None) => "the server fetches WAL from this repository (restore_command), which has none behind this backup yet".to_owned(),
    };
    Ok(Some(ArchivedWal {
        command,
        segments,
        note,
    }))
}

impl ArchivedWal {
    /// Returns the options with the command.
    pub(crate) fn options(&self, options: &ClusterOptions) -> ClusterOptions {
        let mut options = options.clone();
        options.recovery.restore_command = self.command.clone();
        options
    }
}

/// The WAL from the start of a backup to the end of its recovery.
struct WayToTarget<'a> {
    wal: &'a SystemWal,
    needs: &'a WalNeeds,
    recovery: &'a RecoveryOptions,
}

impl WayToTarget<'_> {
    /// The timeline that the recovery ends on.
    fn timeline(&self, cluster: &ClusterInfo) -> Result<u32> {
        let own = cluster.timeline;
        let is_own = self.recovery.target == Some(RecoveryTarget::Immediate)
            || self.recovery.kind()? == Mode::None;
        let wanted = match self.recovery.timeline.as_deref() {
            Some("current") => own,
            None if is_own => own,
            None | Some("latest") => {
                let all = self.wal.tree.timelines().into_iter().rev();
                let mut leading =
                    all.filter(|timeline| self.wal.tree.leads_to(self.needs.first, *timeline));
                leading.next().unwrap_or(own).max(own)
            }
            Some(number) => number.parse().unwrap_or(own),
        };
        if self.wal.doubtful_timelines.contains(&wanted) {
            let what = format!(
                "cannot recover on timeline {wanted}: two servers began it, and each archived a history"
            );
            return Err(Error::new(ErrorKind::Exists, what).hint(
                "choose one with --target-timeline, or move the history of the wrong server away",
            ));
        }
        Ok(wanted)
    }

    /// Checks that no segment is missing before the target. Returns the last segment that there is.
    fn check(
        &self,
        timeline: u32,
        backups: Option<&ClusterBackups>,
    ) -> Result<Option<SegmentName>> {
        let tree = &self.wal.tree;
        let is_short = matches!(self.recovery.target, Some(RecoveryTarget::Immediate))
            || self.recovery.kind()? == Mode::None;
        let until = match &self.recovery.target {
            Some(RecoveryTarget::Lsn(text)) => text.parse::<Lsn>().ok(),
            _ if is_short => Some(Lsn(self.needs.last.start(self.needs.segment_bytes))),
            _ => None,
        };
        let end = tree.end_of_way(self.needs.first, timeline);
        // Of the segment at the end there may be only the beginning.
        let is_whole =
            |end: &SegmentName| !tree.is_open(*end) || end.place() > self.needs.last.place();
        let whole = end.filter(is_whole);
        let is_archived = self.needs.last.place() <= whole.map_or((0, 0), SegmentName::place);
        if is_short && !is_archived {
            return Err(self.lacks(WalGap {
                from: self.needs.first,
                to: self.needs.last,
            }));
        }
        let gaps = tree.gaps_on_way(self.needs.first, timeline, until);
        match gaps.first() {
            Some(gap)
                if self.recovery.kind()? != Mode::Standby && !self.ends_before(*gap, backups) =>
            {
                Err(self.lacks(*gap))
            }
            _ => Ok(end),
        }
    }

    /// A target time is before a gap if a backup that ended later did not need the WAL behind the gap.
    fn ends_before(&self, gap: WalGap, backups: Option<&ClusterBackups>) -> bool {
        let Some(RecoveryTarget::Time(text)) = &self.recovery.target else {
            return false;
        };
        let Ok(time) = text.parse::<Timestamp>() else {
            return false;
        };
        let is_proof = |needs: &WalNeeds| {
            needs.ended >= time.as_second() && needs.last.place() < gap.from.place()
        };
        backups.is_some_and(|backups| backups.wal_needs().any(|needs| is_proof(&needs)))
    }

    fn lacks(&self, gap: WalGap) -> Error {
        let id = &self.needs.id;
        let missing = match gap.from == gap.to {
            true => format!("{} is", gap.from),
            false => format!("{} to {} are", gap.from, gap.to),
        };
        let what = format!(
            "cannot recover backup {id:?} to its target: the archive in this repository has a gap"
        );
        let before = self
            .wal
            .tree
            .end_of_way(self.needs.first, gap.from.timeline);
        let behind = before.is_some_and(|end| end > gap.to);
        let error = Error::new(ErrorKind::NotFound, what).because(format!("{missing} missing"));
        let error = if behind {
            error.detail("WAL behind the gap is there, but leads from no earlier backup")
        } else {
            error
        };
        error.hint(format!(
            "choose a backup behind the gap, or end before it: --target-lsn {}; `fullbore wal list` shows all gaps",
            Lsn(gap.from.start(self.wal.segment_bytes))
        ))
    }

    /// The segments that a backup needs to be consistent.
    fn own_segments(&self, timeline: u32) -> Vec<SegmentName> {
        self.wal
            .tree
            .segments_on_way(self.needs.first, timeline, self.needs.last)
    }
}

/// Returns the command with which the server fetches WAL. It has no secret in it.
fn command(
    restore: &Restore,
    location: &Location,
    through: Option<SegmentName>,
    mode: Mode,
) -> Result<String> {
    let mut words: Vec<OsString> = restore.fetch_words.clone();
    if words.is_empty() {
        words.push("fullbore".into());
    }
    let repository = match location.as_local() {
        Some(path) => path
            .canonicalize()
            .map_err(|error| Error::io(format!("could not find {path:?}"), error))?
            .into_os_string(),
        None => location.text().into(),
    };
    let program = quoted(&words.remove(0))?;
    let mut line = format!("{program} wal get %f %p --from {}", quoted(&repository)?);
    if let Some(through) = through {
        line.push_str(&format!(" --through {through}"));
    }
    if mode == Mode::Standby {
        line.push_str(" --standby");
    }
    for word in &words {
        line.push_str(&format!(" {}", quoted(word)?));
    }
    Ok(line)
}

/// Quotes a word for the shell. The server takes `%` for the beginning of a placeholder.
fn quoted(word: &OsString) -> Result<String> {
    let text = std::str::from_utf8(word.as_bytes()).map_err(|_| {
        Error::new(
            ErrorKind::Unsupported,
            format!("cannot write {word:?} into restore_command: it is not text"),
        )
    })?;
    let text = text.replace('%', "%%");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@%+,".contains(c);
    match text.chars().all(is_plain) && !text.is_empty() {
        true => Ok(text),
        false => Ok(format!("'{}'", text.replace('\'', "'\\''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_shell_and_server() {
        let quote = |text: &str| quoted(&text.into()).unwrap();
        assert_eq!(quote("/mnt/disk/pg"), "/mnt/disk/pg");
        assert_eq!(quote("/mnt/a b"), "'/mnt/a b'");
        assert_eq!(quote("/mnt/50%"), "/mnt/50%%");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote("$(x)"), "'$(x)'");
    }
}
