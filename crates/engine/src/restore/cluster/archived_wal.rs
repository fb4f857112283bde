//! The WAL that the repository of a backup has of its server, for the recovery of what is restored.
//!
//! Before the first byte is written, the whole way to the target is checked by the names of segments.

use super::{
    choose_backup::ClusterBackups,
    way_to_target::{WayEnd, WayToTarget},
};
use crate::{restore::request::Restore, wal::SystemWal};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{ClusterInfo, Root},
    wal::{SegmentName, check_system_name},
};
use fullbore_postgres::restore::{
    plan::ClusterOptions,
    recovery::{Mode, RecoveryOptions},
};
use fullbore_repository::{
    open::place,
    wal::{WalArchive, WalNeeds, has_wal_of},
};
use fullbore_storage::Location;
use std::{ffi::OsString, os::unix::ffi::OsStrExt};

/// The setting of the command.
const RESTORE_COMMAND: &str = "restore_command";

/// Beginning of a location in the repository of the other host of this session.
const PEER: &str = "peer:";

/// What the repository has for the recovery of one backup.
pub(crate) struct ArchivedWal {
    /// The command of the server, if it is to fetch WAL itself.
    command: Option<String>,
    /// The timeline of the last segment before a gap, if the recovery ends there.
    cut_timeline: Option<u32>,
    /// The timeline of the recovery, if the server would choose another one.
    named_timeline: Option<u32>,
    /// Segments that are put into the data directory, if it is not.
    pub(crate) segments: Vec<SegmentName>,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
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
    // The identifier comes from the root, and becomes part of a key of the storage.
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
    let archive =
        WalArchive::new(objects, &cluster.system_identifier).preferring(recovery.wal_from.clone());
    let wal = SystemWal::load(archive, Some(cluster.wal_segment_bytes))?;
    let way = WayToTarget {
        wal: &wal,
        needs: &needs,
        brought: brought_wal(cluster, &needs),
        recovery,
    };
    let timeline = way.timeline(cluster)?;
    let end = way.check(timeline, backups)?;
    let (command, segments) = match mode {
        Mode::None => (None, way.own_segments(timeline)),
        _ => (Some(command(restore, &location, &end, mode)?), Vec::new()),
    };
    let note = match (mode, &end.cut, end.last) {
        (Mode::None, ..) => "the WAL that the backup needs was taken from the archive in this repository".to_owned(),
        (_, Some(cut), _) => cut.note(),
        (_, None, Some(last)) => format!("the server fetches WAL from this repository (restore_command), which has it up to {last}"),
        (_, None, None) => "the server fetches WAL from this repository (restore_command), which has none behind this backup yet".to_owned(),
    };
    let mut notes = vec![note];
    if mode == Mode::Point {
        notes.extend(way.timeline_note(timeline, cluster.timeline));
        let last = end.last.filter(|_| end.cut.is_none());
        notes.extend(last.and_then(|last| way.end_note(timeline, last)));
    }
    Ok(Some(ArchivedWal {
        command,
        cut_timeline: end.cut.map(|cut| cut.last.timeline),
        named_timeline: named_timeline(&wal, recovery, timeline)?,
        segments,
        notes,
    }))
}

impl ArchivedWal {
    /// Returns the options with the command. A recovery that ends before a gap has no target: the archive ends there.
    pub(crate) fn options(&self, options: &ClusterOptions) -> ClusterOptions {
        let mut options = options.clone();
        let recovery = &mut options.recovery;
        recovery.restore_command = self.command.clone();
        if let Some(timeline) = self.named_timeline {
            recovery.timeline = Some(timeline.to_string());
        }
        if let Some(timeline) = self.cut_timeline {
            recovery.target = None;
            recovery.exclusive = false;
            recovery.action = None;
            recovery.timeline = Some(timeline.to_string());
        }
        options
    }
}

/// Returns the last segment that a backup brings as a whole. The end of a backup ends the segment on a primary; a standby cannot, and
/// of its last segment there may be only the beginning.
fn brought_wal(cluster: &ClusterInfo, needs: &WalNeeds) -> Option<SegmentName> {
    if !cluster.online || needs.is_archived {
        return None;
    }
    match cluster.standby {
        false => Some(needs.last),
        true => needs
            .last
            .previous(needs.segment_bytes)
            .filter(|last| *last >= needs.first),
    }
}

/// Returns the timeline that the server has to be told. By itself it takes that with the largest number in the archive, also if the
/// backup does not lead there, and then it does not start.
fn named_timeline(
    wal: &SystemWal,
    recovery: &RecoveryOptions,
    timeline: u32,
) -> Result<Option<u32>> {
    let is_latest = matches!(recovery.timeline.as_deref(), None | Some("latest"));
    let largest = wal.tree.timelines().into_iter().max();
    let is_other = largest.is_some_and(|largest| largest > timeline);
    Ok((is_latest && is_other && recovery.kind()? == Mode::Point).then_some(timeline))
}

/// Returns the command with which the server fetches WAL. It has no secret in it.
fn command(restore: &Restore, location: &Location, end: &WayEnd, mode: Mode) -> Result<String> {
    let mut words: Vec<OsString> = restore.fetch_words.clone();
    if words.is_empty() {
        words.push("fullbore".into());
    }
    if location.text().starts_with(PEER) {
        return Err(other_host());
    }
    // The server runs the command in its data directory, where a relative path is another one.
    let repository = match location.as_local() {
        Some(path) => path
            .canonicalize()
            .map_err(|error| Error::io(format!("could not find {path:?}"), error))?
            .into_os_string(),
        None => location.text().into(),
    };
    let program = quoted(&words.remove(0))?;
    let mut line = format!("{program} wal get %f %p --from {}", quoted(&repository)?);
    if let Some(through) = end.last {
        line.push_str(&format!(" --through {through}"));
    }
    if let Some(cut) = &end.cut {
        line.push_str(&format!(" --until {}", cut.last));
    }
    if let Some(host) = &restore.postgres.recovery.wal_from {
        line.push_str(&format!(" --wal-from {}", quoted(&host.into())?));
    }
    if mode == Mode::Standby {
        line.push_str(" --standby");
    }
    for word in &words {
        line.push_str(&format!(" {}", quoted(word)?));
    }
    Ok(line)
}

/// The server runs on another host, which reaches the repository only while this restore lasts.
fn other_host() -> Error {
    let message = "cannot write a restore_command for the server on another host";
    Error::new(ErrorKind::Usage, message)
        .because("this host reads the repository, and it is not known how that host reaches it")
        .hint("--restore-command 'fullbore wal get %f %p --from REPO', with REPO as the server reaches it, for example ssh://HOST/PATH")
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
