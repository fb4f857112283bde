//! A PostgreSQL cluster as a source.
//!
//! The server is told when the backup begins and ends, through one session that is held throughout; its files are read
//! directly, in parallel, as any tree is. What is known only at the end comes as late files: `backup_label`,
//! `tablespace_map`, `global/pg_control`, the WAL from start to stop, and PostgreSQL's own `backup_manifest`.
//! If the session is lost, or the server promoted, the backup is void and nothing is committed (rules 2, 28).

use super::{
    archiver, control,
    file_copies::WalSegments,
    inventory::ManifestInventory,
    late_files::Late,
    lsn::Lsn,
    page_stage::PageCheck,
    relation::Sizes,
    request::Wal,
    session::{Catalog, HeldSession, Session, Stopped},
    stopped, summary_anchor,
    timeline::Timelines,
    trees,
    wal_source::{FollowedWal, Follower},
    wal_summaries::BlockChanges,
};
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::{
        digest::crc32c,
        entry::{self, order},
        page::{EntryState, Record},
        root,
    },
    frame::{Buf, Frame, FrameContent, Scanned, Slice},
    metrics::waits::Waits,
    platform,
    queue::{self, Locked},
    source::{OpenAhead, Source, Stream, tree::SourceTree},
};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
};

/// A cluster that is being backed up. Dropping it ends the session, and with it the backup mode and the slot.
pub struct ClusterSource {
    pub(super) wal: Wal,
    pub(super) session: Option<HeldSession>,
    /// How it was when the backup began; what a stopped one must still be at the end.
    pub(super) control: Vec<u8>,
    pub(super) data: PathBuf,
    /// What the catalog said before it began; empty if it was stopped.
    pub(super) catalog: Catalog,
    /// Of pages, and of files of them.
    pub(super) sizes: Sizes,
    pub(super) start: Option<Lsn>,
    pub(super) facts: Mutex<root::ClusterInfo>,
    pub(super) inventory: ManifestInventory,
    /// The first reason why what was stored is no backup.
    pub(super) failed: Mutex<Option<Error>>,
    pub(super) late: Arc<Late>,
    pub(super) trees: Vec<Arc<SourceTree>>,
    pub(super) waits: Arc<Waits>,
    pub(super) followed: Mutex<FollowedWal>,
    /// What came at the end, and is not in the archive yet.
    pub(super) awaited: Mutex<BTreeSet<entry::EntryPath>>,
}

/// A source for each stream.
pub type Sources = Vec<Arc<dyn Source>>;

/// One stream of it: what is on one device.
struct ClusterPart {
    cluster: Arc<ClusterSource>,
    tree: Arc<SourceTree>,
    /// Does this one bring the late files?
    is_first: bool,
    /// Held until it is read.
    unread: Mutex<Option<Sender<()>>>,
}

impl ClusterSource {
    /// A source for each stream, if there may be several with one for the WAL.
    pub(super) fn sources(self, split: bool) -> (Arc<Self>, Sources) {
        let cluster = Arc::new(self);
        let (unread, over) = channel();
        let part = |(at, tree): (usize, &Arc<SourceTree>)| {
            let unread = Mutex::new(Some(unread.clone()));
            Arc::new(ClusterPart {
                cluster: cluster.clone(),
                tree: tree.clone(),
                is_first: at == 0,
                unread,
            }) as Arc<dyn Source>
        };
        let mut sources: Sources = cluster.trees.iter().enumerate().map(part).collect();
        match cluster.followed_from() {
            Some(start) if cluster.wal != Wal::Included => {
                let watched = cluster.clone();
                if let Err(error) = queue::start(move || watched.watch_copies(start, &over)) {
                    platform::debug(|| error.line());
                }
            }
            Some(start) if split => {
                sources.push(Arc::new(Follower::new(cluster.clone(), start, over)))
            }
            _ => {}
        }
        (cluster, sources)
    }

    /// What the root says of it; complete once the backup is.
    pub fn facts(&self) -> root::ClusterInfo {
        self.facts.locked().clone()
    }

    /// How its pages are looked at, if they have checksums.
    pub fn page_check(&self) -> Option<Arc<PageCheck>> {
        let start_lsn = self.start.map_or(u64::MAX, |start| start.0);
        let (trees, sizes, checked) = (
            self.trees.clone(),
            self.sizes,
            self.facts.locked().checksums,
        );
        checked.then(|| {
            Arc::new(PageCheck {
                trees,
                sizes,
                start_lsn,
            })
        })
    }

    /// Where files changed since the backup `base`, if the server knows.
    pub fn changes_since(&self, base: &root::ClusterInfo) -> Option<BlockChanges> {
        let (now, otherwise) = (self.facts(), "changed files are read as a whole");
        self.of_summaries(otherwise, |session| {
            BlockChanges::since(session, base, &now, self.sizes)
        })
    }

    /// What the server's summaries of its WAL say. To know nothing of them is no reason to give up.
    fn of_summaries<T>(
        &self,
        otherwise: &str,
        ask: impl FnOnce(&mut Session) -> Result<Option<T>>,
    ) -> Option<T> {
        let session = self.session.as_ref()?;
        let answer = session
            .with(Session::does_summarize)
            .and_then(|does| match does {
                true => session.beside(ask),
                false => Ok(None),
            });
        answer.unwrap_or_else(|error| {
            platform::debug(|| format!("{otherwise}: {}", error.line()));
            None
        })
    }

    /// End the backup, and say what belongs to it that was not there before.
    fn finish(&self, tree: &SourceTree) -> Result<Vec<Scanned>> {
        if let Some(error) = self.failed.locked().take() {
            return Err(error);
        }
        let mut scanned = Vec::new();
        let mut ranges = Vec::new();
        match &self.session {
            Some(session) => {
                self.note_witness();
                // Before the stop, as on a standby it says where the backup is consistent (rules 15, 27).
                let (control, _) = control::read(&control::path(&self.data))?;
                let catalog = self.check_catalog(session)?;
                let stopped = session.with(|session| session.stop(false))?;
                self.check_timeline(&stopped)?;
                scanned.push(self.control_file(tree, &control)?);
                scanned.push(self.add(tree, b"backup_label", &stopped.backup_label)?);
                if !stopped.tablespace_map.is_empty() {
                    scanned.push(self.late(tree, b"tablespace_map", &stopped.tablespace_map)?);
                }
                if let Some(start) = self.start {
                    let timelines =
                        Timelines::read(&self.data, stopped.start_timeline, stopped.timeline)?;
                    let bytes = self.facts.locked().wal_segment_bytes;
                    let names = timelines.segments(start, stopped.lsn, bytes);
                    let segments = WalSegments {
                        directory: self.data.join("pg_wal"),
                        names: &names,
                        bytes,
                    };
                    self.check_copies(&catalog, &segments, stopped.lsn)?;
                    scanned.extend(self.wal_files(session, stopped.timeline, &names)?);
                    ranges = timelines.ranges(start, stopped.lsn);
                }
            }
            None => stopped::still_clean(&self.data, &self.control)?,
        }
        self.facts.locked().unlisted = self.inventory.unlisted();
        if let Some(finished) = self.inventory.finish(&ranges)? {
            scanned.push(
                self.late
                    .stand_in(tree, b"backup_manifest", Arc::new(finished.file))?,
            );
        }
        scanned.sort_by(|a, b| order(&a.entry.path, &b.entry.path));
        self.awaited
            .locked()
            .extend(scanned.iter().map(|late| late.entry.path.clone()));
        Ok(scanned)
    }

    /// Is all that came at the end in the archive, and was it kept for us as long as it was read? Asked once everything was: the
    /// server removes or overwrites WAL as soon as the session is gone.
    ///
    /// # Errors
    /// That the backup is void.
    pub fn check(&self) -> Result<()> {
        self.awaited
            .locked()
            .first()
            .map_or_else(|| self.holds(), |path| Err(self.missing(path)))
    }

    /// Is what the backup needs kept for it?
    pub(super) fn holds(&self) -> Result<()> {
        self.session
            .as_ref()
            .map_or(Ok(()), |session| session.with(Session::holds))
    }

    /// For the next backup. Without one that backup reads more.
    fn note_witness(&self) {
        let (Some(start), now) = (self.start, self.facts()) else {
            return;
        };
        let otherwise = "the next backup will not ask which blocks changed";
        let noted = self.of_summaries(otherwise, |session| {
            summary_anchor::of(session, &now, start)
        });
        self.facts.locked().witness = noted;
    }

    /// A database that was moved meanwhile is not in the backup as it can be recovered; a tablespace that was made meanwhile will
    /// be made by recovery, where it is now.
    fn check_catalog(&self, session: &HeldSession) -> Result<Catalog> {
        let now = session.with(|session| session.catalog())?;
        if let Some(name) = self.catalog.moved(&now) {
            let what = format!(
                "cannot complete the backup: database {} was moved meanwhile",
                quoted(&name.0)
            );
            return Err(Error::new(ErrorKind::System, what)
                .because("recovery cannot bring it to its new tablespace".to_owned())
                .hint("run the same command again"));
        }
        let mut spaces = trees::named(trees::tablespaces(&self.data)?, &now.tablespaces);
        spaces.retain(|space| self.catalog.is_new(space.oid) && space.location.0.starts_with(b"/"));
        self.facts.locked().tablespaces_meanwhile = spaces;
        Ok(now)
    }

    /// Nor is one that was copied file by file from one that people work in. Where the WAL is not there any more, or not understood,
    /// any that was made meanwhile may have been.
    fn check_copies(&self, now: &Catalog, segments: &WalSegments<'_>, stop: Lsn) -> Result<()> {
        if self.catalog == *now {
            return Ok(());
        }
        let mut followed = self.followed.locked();
        let (spoiled, why) = match followed.copies(segments, stop) {
            Some(copies) => (
                self.catalog.spoiled(now, copies.found()),
                "recovery would copy it again, from what has changed since",
            ),
            None => (
                self.catalog.made(now),
                "the WAL that tells how is not there any more, or not understood",
            ),
        };
        spoiled.map_or(Ok(()), |name| {
            let what = format!(
                "cannot complete the backup: database {} was copied or moved meanwhile",
                quoted(&name.0)
            );
            Err(Error::new(ErrorKind::System, what)
                .because(why.to_owned())
                .hint("run the same command again"))
        })
    }

    fn check_timeline(&self, stopped: &Stopped) -> Result<()> {
        let mut facts = self.facts.locked();
        if facts.timeline != stopped.timeline {
            let (from, to) = (facts.timeline, stopped.timeline);
            let what = format!(
                "cannot complete the backup: the server went from timeline {from} to {to} meanwhile"
            );
            return Err(Error::new(ErrorKind::System, what).hint("run the same command again"));
        }
        facts.stop_lsn = stopped.lsn.to_string();
        facts.stopped = stopped.time.clone();
        Ok(())
    }

    /// The control file, such that a server does not start on it without `backup_label` (rule 9).
    fn control_file(&self, tree: &SourceTree, bytes: &[u8]) -> Result<Scanned> {
        let safe = control::without_checkpoint(bytes);
        let safe = safe.ok_or_else(|| {
            Error::corrupt("cannot read \"global/pg_control\": it is not understood")
        })?;
        self.add(tree, b"global/pg_control", &safe)
    }

    /// A late file that PostgreSQL's manifest lists.
    fn add(&self, tree: &SourceTree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        let scanned = self.late(tree, path, bytes)?;
        self.inventory.add(
            path,
            bytes.len() as u64,
            scanned.entry.mtime.seconds,
            crc32c(bytes),
        )?;
        Ok(scanned)
    }

    fn late(&self, tree: &SourceTree, path: &[u8], bytes: &[u8]) -> Result<Scanned> {
        self.late.stand_in_bytes(tree, path, bytes)
    }

    /// Until the archive has the segment `last`.
    pub(super) fn await_archive(&self, session: &HeldSession, last: &str) -> Result<()> {
        let wait = || {
            session.with(|session| archiver::wait(session, &self.data, last, archiver::PATIENCE))
        };
        self.waits.during(archiver::AWAITED, wait).map(drop)
    }

    /// The data directory, with what is on its device.
    pub(super) fn tree(&self) -> &SourceTree {
        &self.trees[0]
    }

    /// Read for a stream; what the session has lost is read in vain.
    pub(super) fn read(&self, tree: &SourceTree, slice: Slice, buf: Buf) -> Result<Frame> {
        if let Some(session) = &self.session {
            session.check()?;
        }
        let frame = tree.read(slice, buf)?;
        for part in &frame.parts {
            match &part.what {
                FrameContent::Whole(entry, state) => readable(&entry.path, state)?,
                FrameContent::Piece { file, .. } => file
                    .failed
                    .get()
                    .map_or(Ok(()), |why| unreadable(&file.entry.path, why))?,
                FrameContent::Head(..) => {}
            }
        }
        Ok(frame)
    }
}

/// What vanished comes back by WAL, or was dropped; for what is there and cannot be read nothing stands in (rule 17).
fn readable(path: &[u8], state: &EntryState) -> Result<()> {
    match state {
        EntryState::Unreadable(why) => unreadable(path, why),
        _ => Ok(()),
    }
}

fn unreadable(path: &[u8], why: &str) -> Result<()> {
    let what = format!(
        "cannot back up the cluster: {} cannot be read",
        quoted(path)
    );
    Err(Error::new(ErrorKind::System, what).because(why.to_owned()).hint(
        "run fullbore as root or the server's own user, and have what is not the server's moved out of its directory",
    ))
}

impl Source for ClusterPart {
    fn scan(&self) -> Result<Stream<Scanned>> {
        let (scanned, cluster) = (self.tree.scan()?, self.cluster.clone());
        Ok(Box::new(scanned.map(move |scanned| {
            let scanned = scanned?;
            readable(&scanned.entry.path, &scanned.state)?;
            cluster.late.is_here(&scanned.entry)?;
            cluster.inventory.scanned(&scanned);
            Ok(scanned)
        })))
    }

    fn read(&self, slice: Slice, buf: Buf) -> Result<Frame> {
        self.cluster.read(&self.tree, slice, buf)
    }

    fn laid(&self, record: &Record, crc32c: Option<u32>) {
        if let Err(error) = self.cluster.inventory.stored(record, crc32c) {
            self.cluster.failed.locked().get_or_insert(error);
        }
        if record.state == EntryState::Whole {
            self.cluster.awaited.locked().remove(&record.entry.path);
        }
    }

    fn opener(&self) -> Option<Arc<dyn OpenAhead>> {
        self.tree.opener()
    }

    fn drained(&self) {
        self.unread.locked().take();
    }

    fn finish(&self) -> Result<Stream<Scanned>> {
        let late = if self.is_first {
            self.cluster.finish(&self.tree)?
        } else {
            Vec::new()
        };
        Ok(Box::new(late.into_iter().map(Ok)))
    }
}
