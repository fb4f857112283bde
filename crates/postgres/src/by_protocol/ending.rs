//! The end of a backup that was sent: its WAL is checked, and the last files are made.

use super::{MANIFEST, SentCluster, anonymous, archives::wrong, earlier};
use crate::{
    cluster_backup::ClusterBackup,
    replication::BackupEnd,
    request::Wal,
    timeline::{Timelines, history_path},
};
use fullbore_format::{
    entry::{Entry, EntryKind, order},
    error::{Error, ErrorKind, Result},
    page::EntryState,
};
use fullbore_pipeline::frame::Scanned;
use fullbore_platform::queue::Locked;
use std::{
    fs::File,
    sync::{Arc, atomic::Ordering::Relaxed},
};

impl SentCluster {
    /// Completes the facts, and makes the files that only this program adds.
    pub(super) fn finish(&self) -> Result<Vec<Scanned>> {
        if let Some(error) = self.failed.locked().take() {
            return Err(error);
        }
        let end = self.end.get().copied();
        let end = end.ok_or_else(|| wrong("it has no end"))?;
        self.check_timeline(&end)?;
        let timelines = self.timelines(&end)?;
        let names = self.check_wal(&timelines, &end)?;
        self.check_copies(&end)?;
        self.note_end(&end, &names);
        if end.has_bad_pages && !self.names_bad_pages.load(Relaxed) {
            let warning = "the server found pages with wrong checksums; its log names them";
            self.warnings.locked().push(warning.to_owned());
        }
        let mut scanned = Vec::new();
        if end.timeline > 1 {
            scanned.extend(self.history(end.timeline)?);
        }
        let ranges = timelines.ranges(self.start, end.stop);
        if let Some(finished) = self.inventory.finish(&ranges)? {
            scanned.push(self.late_file(MANIFEST, finished.file, finished.bytes));
        }
        scanned.sort_by(|a, b| order(&a.entry.path, &b.entry.path));
        _ = self.is_complete.set(());
        Ok(scanned)
    }

    fn check_timeline(&self, end: &BackupEnd) -> Result<()> {
        let begun_on = self.facts.locked().timeline;
        if begun_on == end.timeline {
            return Ok(());
        }
        let ended_on = end.timeline;
        let message = format!(
            "cannot complete the backup: the server went from timeline {begun_on} to {ended_on} meanwhile"
        );
        Err(Error::new(ErrorKind::System, message).hint("run the same command again"))
    }

    fn timelines(&self, end: &BackupEnd) -> Result<Timelines> {
        if self.start_timeline == end.timeline {
            return Timelines::from_history("", end.timeline, end.timeline);
        }
        let history = self.holder.locked().timeline_history(end.timeline)?;
        let history = String::from_utf8_lossy(&history);
        Timelines::from_history(&history, self.start_timeline, end.timeline)
    }

    /// Checks that the WAL that recovery needs is in the backup, if it must be. Returns the names of its
    /// segments.
    fn check_wal(&self, timelines: &Timelines, end: &BackupEnd) -> Result<Vec<Vec<String>>> {
        if end.stop <= self.start {
            return Err(wrong("it ends before it begins"));
        }
        let bytes = self.facts.locked().wal_segment_bytes;
        let names = timelines.segments(self.start, end.stop, bytes);
        if self.wal != Wal::Included {
            return Ok(names);
        }
        let sent = self.sent.locked();
        let is_there = |name: &str| {
            sent.wal
                .contains(&(format!("pg_wal/{name}").into_bytes(), bytes))
        };
        match names.iter().find(|same| !is_there(&same[0])) {
            None => Ok(names),
            Some(same) => Err(wrong(&format!("it lacks the WAL segment {}", same[0]))),
        }
    }

    /// Fails if a database was copied file by file from one that may have changed (strategy FILE_COPY), or
    /// moved.
    fn check_copies(&self, end: &BackupEnd) -> Result<()> {
        if self.wal != Wal::Included {
            return Ok(());
        }
        let major = self.facts.locked().major;
        let mut wal = self.sent_wal.locked();
        let Some(copy) = wal.spoiled_copy(end.stop, major) else {
            if !wal.is_understood() {
                let warning = "the WAL was not understood: a database that was copied file by file meanwhile \
                    may be damaged in this backup";
                self.warnings.locked().push(warning.to_owned());
            }
            return Ok(());
        };
        let message = format!(
            "cannot complete the backup: database {} was copied or moved meanwhile",
            copy.database
        );
        Err(Error::new(ErrorKind::System, message)
            .because("recovery would copy its files again, which may have changed since")
            .hint("run the same command again"))
    }

    fn note_end(&self, end: &BackupEnd, names: &[Vec<String>]) {
        let now = self.facts();
        let anchor = |params| earlier::anchor(params, &now, self.start);
        let witness = self.params.as_ref().and_then(anchor);
        let mut facts = self.facts.locked();
        facts.witness = witness;
        facts.stop_lsn = end.stop.to_string();
        let ends = [names.first(), names.last()];
        let ends = ends.into_iter().flatten().map(|same| same[0].clone());
        facts.wal_segments = ends.collect();
        facts.unlisted = self.inventory.unlisted();
    }

    /// Returns the history of the timeline, unless it was sent with the WAL (rule 29).
    fn history(&self, timeline: u32) -> Result<Option<Scanned>> {
        let path = history_path(timeline).into_bytes();
        if self.sent.locked().wal.iter().any(|(sent, _)| *sent == path) {
            return Ok(None);
        }
        let history = self.holder.locked().timeline_history(timeline)?;
        let bytes = history.len() as u64;
        Ok(Some(self.late_file(&path, anonymous(&history)?, bytes)))
    }

    fn late_file(&self, path: &[u8], file: File, size: u64) -> Scanned {
        self.late.locked().insert(path.to_vec(), Arc::new(file));
        let entry = Entry {
            path: path.to_vec(),
            kind: EntryKind::File { size, map: None },
            ..self.sent.locked().model.clone()
        };
        Scanned::new(entry, EntryState::Whole)
    }
}
