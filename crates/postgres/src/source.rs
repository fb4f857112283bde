//! A PostgreSQL cluster as a source.
//!
//! fullbore tells the server when the backup begins and ends, through one session held throughout.
//! It reads the files directly, in parallel, like any tree. Files known only at the end are late
//! files: `backup_label`, `tablespace_map`, `global/pg_control`, the WAL from start to stop, and
//! PostgreSQL's own `backup_manifest`. If the session is lost or the server is promoted, the backup
//! is void and nothing is committed (rules 2, 28).

use super::{
    archiver::{self, SegmentArchive},
    cluster_backup::{ChangedBlocks, ClusterBackup, EarlierBackup},
    cluster_part::ClusterPart,
    control,
    data_dir::{DataDir, DataTree},
    init_forks::{InitForks, NewForks},
    inventory::ManifestInventory,
    late_files::LateFiles,
    lsn::Lsn,
    manifest::WalRange,
    outside_config::OutsideConfig,
    page_stage::PageCheck,
    relation::Sizes,
    request::Wal,
    session::{Catalog, HeldSession, Session, Stopped},
    stopped, summary_anchor,
    timeline::Timelines,
    trees,
    wal_reader::WalSegments,
    wal_source::{FollowedWal, WalFollower},
    wal_summaries::BlockChanges,
};
use fullbore_format::{
    digest::crc32c,
    entry::{self, order},
    error::{Error, ErrorKind, Result, quoted},
    page::EntryState,
    root,
};
use fullbore_pipeline::{
    frame::{Buf, Frame, FrameContent, Scanned, Slice},
    source::Source,
};
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::waits::Waits,
    queue::{self, Locked},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, mpsc::channel},
};

/// A cluster that is being backed up. Dropping it ends the session, and with it the backup mode and the slot.
pub struct ClusterSource {
    pub(super) wal: Wal,
    pub(super) session: Option<HeldSession>,
    /// The control file when the backup began; a stopped cluster must still have the same at the
    /// end.
    pub(super) control: Vec<u8>,
    pub(super) data: Arc<dyn DataDir>,
    /// Whether the server keeps the WAL until it was read.
    pub(super) is_wal_held: bool,
    /// The catalog before the backup began; empty for a stopped cluster.
    pub(super) catalog: Catalog,
    /// Bytes of a page, and pages of a segment file.
    pub(super) sizes: Sizes,
    pub(super) start: Option<Lsn>,
    /// The archive that has the WAL, if segments can be looked for in it.
    pub(super) archive: Option<Arc<dyn SegmentArchive>>,
    pub(super) facts: Mutex<root::ClusterInfo>,
    pub(super) inventory: ManifestInventory,
    pub(super) init_forks: InitForks,
    /// Configuration that is not in the data directory.
    pub(super) config: OutsideConfig,
    /// What the operator should know about the server.
    pub(super) warnings: Mutex<Vec<String>>,
    /// The first error that makes the backup void.
    pub(super) failed: Mutex<Option<Error>>,
    pub(super) late: Arc<LateFiles>,
    pub(super) trees: Vec<Arc<dyn DataTree>>,
    pub(super) waits: Arc<Waits>,
    pub(super) followed: Mutex<FollowedWal>,
    /// Late files that are not in the archive yet.
    pub(super) awaited: Mutex<BTreeSet<entry::EntryPath>>,
}

pub type Sources = Vec<Arc<dyn Source>>;

impl ClusterSource {
    /// Makes one source for each stream. If `split` allows several streams, one of them is for the
    /// WAL.
    pub(super) fn sources(self, split: bool) -> (Arc<Self>, Sources) {
        let cluster = Arc::new(self);
        let (unread, ended) = channel();
        let mut sources: Sources = cluster
            .trees
            .iter()
            .enumerate()
            .map(|(index, tree)| {
                let unread = Mutex::new(Some(unread.clone()));
                Arc::new(ClusterPart {
                    cluster: cluster.clone(),
                    tree: tree.clone(),
                    is_first: index == 0,
                    unread,
                }) as Arc<dyn Source>
            })
            .collect();
        match cluster.follow_start() {
            // WAL is not stored, but copies of template files must be found in it while it is still
            // there.
            Some(start) if cluster.wal != Wal::Included => {
                let watched = cluster.clone();
                if let Err(error) = queue::start(move || watched.watch_copies(start, &ended)) {
                    platform::debug(|| error.line());
                }
            }
            Some(start) if split => {
                sources.push(Arc::new(WalFollower::new(cluster.clone(), start, ended)))
            }
            _ => {}
        }
        (cluster, sources)
    }

    /// Asks the server for its WAL summaries. On an error the backup continues without an answer.
    fn ask_summaries<T>(
        &self,
        otherwise: &str,
        ask: impl FnOnce(&mut Session) -> Result<Option<T>>,
    ) -> Option<T> {
        let session = self.session.as_ref()?;
        let answer = session
            .with(Session::is_summarizing)
            .and_then(|has_summaries| {
                if has_summaries {
                    session.with_second_session(ask)
                } else {
                    Ok(None)
                }
            });
        answer.unwrap_or_else(|error| {
            platform::debug(|| format!("{otherwise}: {}", error.line()));
            None
        })
    }

    /// Ends the backup; returns the late files, sorted by path.
    pub(super) fn finish(&self, tree: &dyn DataTree) -> Result<Vec<Scanned>> {
        if let Some(error) = self.failed.locked().take() {
            return Err(error);
        }
        let mut scanned = Vec::new();
        let mut ranges = Vec::new();
        match &self.session {
            Some(session) => ranges = self.stop_server(tree, session, &mut scanned)?,
            None => stopped::check_still_stopped(self.data.path(), &self.control)?,
        }
        self.facts.locked().unlisted = self.inventory.unlisted();
        if let Some(finished) = self.inventory.finish(&ranges)? {
            let file = Arc::new(finished.file);
            scanned.push(self.late.insert_file(tree, b"backup_manifest", file)?);
        }
        // Records of a page are in archive order, also those of late files.
        scanned.sort_by(|a, b| order(&a.entry.path, &b.entry.path));
        let paths = scanned.iter().map(|late| late.entry.path.clone());
        self.awaited.locked().extend(paths);
        Ok(scanned)
    }

    /// Tells the server to stop the backup, and adds the late files that this makes known. Returns
    /// the WAL ranges that recovery needs.
    fn stop_server(
        &self,
        tree: &dyn DataTree,
        session: &HeldSession,
        scanned: &mut Vec<Scanned>,
    ) -> Result<Vec<WalRange>> {
        self.record_anchor();
        if self.facts.locked().archives {
            let warning = session.with(archiver::failure_warning)?;
            self.warnings.locked().extend(warning);
        }
        // Read before the stop: on a standby it says where the backup is consistent (rules 15, 27).
        let (control, _) = control::read_in(&*self.data)?;
        let catalog = self.check_catalog(session)?;
        // One that is dropped between these two looks would else be missed.
        let mut forks = NewForks::new();
        self.init_forks.look(&*self.data, &mut forks)?;
        let stopped = session.with(|session| session.stop(false))?;
        self.init_forks.look(&*self.data, &mut forks)?;
        for (path, content) in forks {
            scanned.push(self.listed_late_file(tree, &path, &content)?);
        }
        self.check_timeline(&stopped)?;
        for (name, content) in &self.config.files {
            scanned.push(self.listed_late_file(tree, name.as_bytes(), content)?);
        }
        scanned.push(self.control_file(tree, &control)?);
        scanned.push(self.listed_late_file(tree, b"backup_label", &stopped.backup_label)?);
        if !stopped.tablespace_map.is_empty() {
            scanned.push(self.late_file(tree, b"tablespace_map", &stopped.tablespace_map)?);
        }
        let Some(start) = self.start else {
            return Ok(Vec::new());
        };
        let timelines = Timelines::read(&*self.data, stopped.start_timeline, stopped.timeline)?;
        let bytes = self.facts.locked().wal_segment_bytes;
        let names = timelines.segments(start, stopped.lsn, bytes);
        let segments = WalSegments {
            files: &&*self.data,
            names: &names,
            bytes,
        };
        self.check_copies(&catalog, &segments, stopped.lsn)?;
        scanned.extend(self.wal_files(session, stopped.timeline, &names)?);
        Ok(timelines.ranges(start, stopped.lsn))
    }

    /// Checks that the server still keeps the WAL that the backup needs.
    pub(super) fn check_wal_kept(&self) -> Result<()> {
        self.session
            .as_ref()
            .map_or(Ok(()), |session| session.with(Session::check_wal_kept))
    }

    /// Records the summary anchor for the next backup. Without one, the next backup reads more.
    fn record_anchor(&self) {
        let Some(start) = self.start else {
            return;
        };
        let now = self.facts();
        let otherwise = "the next backup will not ask which blocks changed";
        let noted = self.ask_summaries(otherwise, |session| {
            summary_anchor::find(session, &*self.data, &now, start)
        });
        self.facts.locked().witness = noted;
    }

    /// Fails if a database moved to another tablespace during the backup: recovery cannot redo the
    /// move. Records tablespaces made during the backup: recovery makes them where they are now.
    fn check_catalog(&self, session: &HeldSession) -> Result<Catalog> {
        let now = session.with(|session| session.catalog())?;
        if let Some(name) = self.catalog.moved_database(&now) {
            let message = format!(
                "cannot complete the backup: database {} was moved meanwhile",
                quoted(&name.0)
            );
            return Err(Error::new(ErrorKind::System, message)
                .because("recovery cannot move it to its new tablespace".to_owned())
                .hint("run the same command again"));
        }
        let links = self.data.tablespaces()?;
        let mut spaces = trees::add_names(&*self.data, links, &now.tablespaces);
        spaces.retain(|space| self.catalog.is_new(space.oid) && space.location.0.starts_with(b"/"));
        self.facts.locked().tablespaces_meanwhile = spaces;
        Ok(now)
    }

    /// Fails if a database was copied file by file from a template that was in use (strategy
    /// FILE_COPY).
    ///
    /// If the WAL is gone or not understood, every database made during the backup may have been
    /// copied so, and fails the backup.
    fn check_copies(&self, now: &Catalog, segments: &WalSegments<'_>, stop: Lsn) -> Result<()> {
        if self.catalog == *now {
            return Ok(());
        }
        let mut followed = self.followed.locked();
        let (spoiled, reason) = match followed.copies(segments, stop) {
            Some(copies) => (
                self.catalog.spoiled_copy(now, copies.found()),
                "recovery would copy it again, from a database that has changed since",
            ),
            None => (
                self.catalog.new_database(now),
                "the WAL that records how is gone or not understood",
            ),
        };
        spoiled.map_or(Ok(()), |name| {
            let message = format!(
                "cannot complete the backup: database {} was copied or moved meanwhile",
                quoted(&name.0)
            );
            Err(Error::new(ErrorKind::System, message)
                .because(reason.to_owned())
                .hint("run the same command again"))
        })
    }

    /// Fails if the server was promoted during the backup; records where the backup stopped.
    fn check_timeline(&self, stopped: &Stopped) -> Result<()> {
        let mut facts = self.facts.locked();
        if facts.timeline != stopped.timeline {
            let begun_on = facts.timeline;
            let ended_on = stopped.timeline;
            let message = format!(
                "cannot complete the backup: the server went from timeline {begun_on} to {ended_on} meanwhile"
            );
            return Err(Error::new(ErrorKind::System, message).hint("run the same command again"));
        }
        facts.stop_lsn = stopped.lsn.to_string();
        facts.stopped = stopped.time.clone();
        Ok(())
    }

    /// Returns the control file, changed so that no server starts on it without `backup_label`
    /// (rule 9).
    fn control_file(&self, tree: &dyn DataTree, bytes: &[u8]) -> Result<Scanned> {
        let safe = control::without_checkpoint(bytes);
        let safe = safe.ok_or_else(|| {
            Error::corrupt("cannot read \"global/pg_control\": its format is unknown")
        })?;
        self.listed_late_file(tree, b"global/pg_control", &safe)
    }

    /// Makes a late file that PostgreSQL's manifest lists.
    fn listed_late_file(&self, tree: &dyn DataTree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        let scanned = self.late_file(tree, path, bytes)?;
        self.inventory.list_made(
            path,
            bytes.len() as u64,
            scanned.entry.mtime.seconds,
            crc32c(bytes),
        )?;
        Ok(scanned)
    }

    /// Makes a late file that PostgreSQL's manifest does not list.
    fn late_file(&self, tree: &dyn DataTree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        self.late.insert_bytes(tree, path, bytes)
    }

    /// Waits until the archive has the segment `last`.
    pub(super) fn await_archive(&self, session: &HeldSession, last: &str) -> Result<()> {
        self.waits
            .record(archiver::AWAITED, || {
                session.with(|session| {
                    archiver::await_segment(session, &*self.data, last, archiver::PATIENCE)
                })
            })
            .map(drop)
    }

    /// The tree of the data directory.
    pub(super) fn tree(&self) -> &dyn DataTree {
        &*self.trees[0]
    }

    /// Reads for a stream. Fails if the session is lost: reading on would be in vain.
    pub(super) fn read(&self, tree: &dyn DataTree, slice: Slice, buf: Buf) -> Result<Frame> {
        if let Some(session) = &self.session {
            session.check()?;
        }
        let wal = match &slice {
            Slice::Piece { file, .. } if file.entry.path.starts_with(b"pg_wal/") => {
                Some(file.clone())
            }
            _ => None,
        };
        let frame = tree.read(slice, buf)?;
        if let Some(lost) = wal.filter(|file| file.failed.get().is_some()) {
            return Err(self.loss_of(&lost.entry.path));
        }
        for part in &frame.parts {
            match &part.what {
                FrameContent::Whole(entry, state) => check_readable(&entry.path, state)?,
                FrameContent::Piece { file, .. } => file
                    .failed
                    .get()
                    .map_or(Ok(()), |reason| unreadable_error(&file.entry.path, reason))?,
                FrameContent::Head(..) => {}
            }
        }
        Ok(frame)
    }
}

impl ClusterBackup for ClusterSource {
    fn facts(&self) -> root::ClusterInfo {
        self.facts.locked().clone()
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.locked().clone()
    }

    fn page_check(&self) -> Option<Arc<PageCheck>> {
        if !self.facts.locked().checksums {
            return None;
        }
        Some(Arc::new(PageCheck {
            data: Some(self.data.clone()),
            sizes: self.sizes,
            start_lsn: self.start.map_or(u64::MAX, |start| start.0),
        }))
    }

    fn begin(&self, earlier: Option<&EarlierBackup<'_>>) -> Result<Option<Arc<dyn ChangedBlocks>>> {
        let Some(earlier) = earlier else {
            return Ok(None);
        };
        let now = self.facts();
        let changes = self.ask_summaries("changed files are read as a whole", |session| {
            BlockChanges::since(session, &*self.data, earlier.facts, &now, self.sizes)
        });
        Ok(changes.map(|changes| Arc::new(changes) as Arc<dyn ChangedBlocks>))
    }

    fn check(&self) -> Result<()> {
        self.awaited
            .locked()
            .first()
            .map_or_else(|| self.check_wal_kept(), |path| Err(self.loss_of(path)))
    }
}

/// Fails for a file that exists and cannot be read: WAL does not replace it. A file that vanished
/// was dropped, or WAL restores it (rule 17).
pub(super) fn check_readable(path: &[u8], state: &EntryState) -> Result<()> {
    match state {
        EntryState::Unreadable(why) => unreadable_error(path, why),
        _ => Ok(()),
    }
}

fn unreadable_error(path: &[u8], reason: &str) -> Result<()> {
    let message = format!(
        "cannot back up the cluster: {} cannot be read",
        quoted(path)
    );
    Err(Error::new(ErrorKind::System, message).because(reason.to_owned()).hint(
        "run fullbore as root or as the server's user, and move files that do not belong to the \
            server out of its directory",
    ))
}
