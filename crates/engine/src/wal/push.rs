//! `archive_command`: stores a file that the server has finished, and the segments behind it that wait already.

use super::{
    compare::{conflict_of, conflicts, has_conflict},
    pack::{PackedRun, Packing},
    pushed::PushedAhead,
    server_files::{WalDirectory, unknown_system},
    spool::{ClusterSpool, SpoolState, WalSpool},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
    wal::{SegmentName, WalFileName, WalKey},
};
use fullbore_platform::host_name;
use fullbore_postgres::{lsn::Lsn, timeline::Timelines};
use fullbore_repository::{open::read_repository, wal::WalArchive};
use fullbore_storage::{Location, Objects, Storages};
use std::{
    ffi::OsString,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Pause before a storage that is away is asked again.
const PAUSE: Duration = Duration::from_secs(2);

/// A file to archive.
#[derive(Debug, Clone)]
pub struct WalPush {
    /// How storages are reached.
    pub storages: Storages,
    /// The file, as the server names it with `%p`.
    pub path: PathBuf,
    /// The repository.
    pub to: OsString,
    /// The name of a copy of a cluster, which archives apart from its origin.
    pub copy_name: Option<String>,
    /// The system identifier, if the file is not in a data directory.
    pub system: Option<u64>,
    /// The level of zstd.
    pub level: i32,
    /// Segments that are compressed at the same time.
    pub workers: usize,
    /// How long a storage that is away is waited for.
    pub patience: Duration,
    /// Push only this file.
    pub alone: bool,
    /// Takes the file while the repository is away.
    pub spool: Option<WalSpool>,
}

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushReport {
    /// The segments that are in the repository now; empty for a history or a label.
    pub segments: Vec<SegmentName>,
    /// Bytes that were stored; 0 if the file was pushed ahead.
    pub stored_bytes: u64,
    /// Segments that wait behind them.
    pub waits_behind: usize,
    /// The file was taken into the spool.
    pub spooled: Option<SpooledFile>,
}

/// A file that is not in the repository, but in the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpooledFile {
    /// Its name.
    pub name: String,
    /// Why the repository did not take it; `None` if it was not asked, as others wait already.
    pub reason: Option<String>,
    /// What is in the spool.
    pub state: SpoolState,
}

/// Where a push stores.
pub(super) struct PushTarget {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) copy_name: Option<String>,
}

impl PushTarget {
    /// Opens a repository that is there.
    pub(super) fn open(
        storages: &Storages,
        to: &OsString,
        copy_name: Option<&String>,
    ) -> Result<Self> {
        let objects = storages.repository_at(to)?;
        read_repository(&*objects)?;
        Ok(Self {
            objects,
            copy_name: copy_name.cloned(),
        })
    }

    /// The same, without asking an object store again whether the repository is there, if this host found it within the time
    /// for which notes count. A directory is always asked: its disk may not be mounted.
    fn open_noted(
        storages: &Storages,
        to: &OsString,
        copy_name: Option<&String>,
        notes: &PushedAhead,
    ) -> Result<Self> {
        let location = Location::parse(to)?;
        if location.as_local().is_none() && notes.has_seen_repository() {
            return Ok(Self {
                objects: storages.objects(&location)?,
                copy_name: copy_name.cloned(),
            });
        }
        let target = Self::open(storages, to, copy_name)?;
        notes.note_repository();
        Ok(target)
    }

    fn system_name(&self, system: u64) -> String {
        system_name(system, self.copy_name.as_deref())
    }

    pub(super) fn archive(&self, system: u64) -> WalArchive {
        WalArchive::new(self.objects.clone(), &self.system_name(system))
    }

    /// Stores a history or a label.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if a timeline has another history; the storage's.
    pub(super) fn store_small(&self, system: u64, name: WalFileName, content: &[u8]) -> Result<()> {
        let archive = self.archive(system);
        let others = archive.put_small(name, content)?;
        match name {
            WalFileName::History(timeline) if !others.is_empty() => {
                Err(begun_before(&archive, timeline, content, &others))
            }
            _ => Ok(()),
        }
    }

    /// Stores a run, compares it, and returns which of its segments are archived. The first must be.
    pub(super) fn store(
        &self,
        run: &PackedRun,
        wal: &WalDirectory,
        pushed: &PushedAhead,
    ) -> Result<(Vec<SegmentName>, u64)> {
        let archive = self.archive(run.system);
        let (stored, object) = run.object(archive.system(), archive.digester())?;
        // Stored before it is compared: of two hosts that push at the same time, at least one sees
        // both runs.
        archive.put_run(&stored, &object)?;
        let digests = run.digests();
        let here = |segment| wal.content(segment);
        let found = conflicts(&archive, &here, &stored, &digests)?;
        let is_right = |(segment, _): &&(SegmentName, _)| !has_conflict(&found, *segment);
        let right: Vec<_> = run.stamps.iter().filter(is_right).copied().collect();
        if let Some(conflict) = conflict_of(&found, stored.first) {
            return Err(conflict.error(&archive));
        }
        // The whole segment of this name may still come, and must be pushed then.
        if !stored.is_partial {
            pushed.note(&right);
        }
        Ok((
            right.into_iter().map(|(segment, _)| segment).collect(),
            object.len() as u64,
        ))
    }
}

/// Returns the name of a system: its identifier, and behind a dot the name of a copy.
pub(super) fn system_name(system: u64, copy_name: Option<&str>) -> String {
    match copy_name {
        Some(name) => format!("{system}.{name}"),
        None => system.to_string(),
    }
}

/// Names a repository for notes: one of this machine by its whole path and the file that makes it one, so that notes do not
/// outlive it. Another storage is not asked.
pub(super) fn location_name(storages: &Storages, to: &OsString) -> String {
    let Ok(location) = Location::parse(to) else {
        return to.to_string_lossy().into_owned();
    };
    let path = location
        .as_local()
        .and_then(|path| path.canonicalize().ok());
    let Some(path) = path else {
        return format!("{} {}", to.to_string_lossy(), storages.way_to(&location));
    };
    let document = storages
        .stored_objects(&location)
        .and_then(|objects| objects.get(REPOSITORY));
    let document = document
        .ok()
        .flatten()
        .map(|(bytes, _)| blake3::hash(&bytes).to_hex());
    format!("{} {document:?}", path.display())
}

/// Tries again while a storage is away, for `patience`.
pub(super) fn with_patience<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error)
                if error.kind == ErrorKind::Unreachable && begin.elapsed() + PAUSE < patience =>
            {
                fullbore_platform::debug(|| format!("again after {}", error.line()));
                thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

impl WalPush {
    /// Pushes the file: when this returns, it is durable in the repository.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the file is not the segment of its name; [`ErrorKind::Exists`] if other content of that name
    /// is there; the storage's. Then the server must keep the file.
    pub fn run(&self) -> Result<PushReport> {
        let name = self
            .path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let name = WalFileName::parse(name).ok_or_else(|| not_archived(name))?;
        let wal = WalDirectory::around(&self.path);
        let Some(spool) = &self.spool else {
            return self.push(&wal, name);
        };
        let system = self.system_of(&wal, name)?;
        let spool = spool.of_cluster(&system_name(system, self.copy_name.as_deref()));
        if spool.has_files() {
            return take(&spool, &wal, name, None);
        }
        match self.push(&wal, name) {
            Err(error) if matches!(error.kind, ErrorKind::Unreachable | ErrorKind::Full) => {
                take(&spool, &wal, name, Some(&error))
            }
            pushed => pushed,
        }
    }

    fn push(&self, wal: &WalDirectory, name: WalFileName) -> Result<PushReport> {
        match name {
            WalFileName::Segment(segment) => self.push_segment(wal, segment, false),
            WalFileName::Partial(segment) => self.push_segment(wal, segment, true),
            small => with_patience(self.patience, || self.push_small(wal, small)),
        }
    }

    /// The notes of this cluster.
    pub(super) fn notes(&self, system: u64, wal: &WalDirectory) -> PushedAhead {
        let location = location_name(&self.storages, &self.to);
        let name = system_name(system, self.copy_name.as_deref());
        PushedAhead::of(self.storages.state_dir(), &location, &name, wal)
    }

    fn push_segment(
        &self,
        wal: &WalDirectory,
        segment: SegmentName,
        is_partial: bool,
    ) -> Result<PushReport> {
        let system = self.system.or_else(|| wal.system());
        let notes = system.map(|system| self.notes(system, wal));
        let stamp = wal.stamp(segment).filter(|_| !is_partial);
        if let (Some(notes), Some(stamp)) = (&notes, &stamp)
            && notes.has(segment, stamp)
        {
            return Ok(PushReport {
                segments: vec![segment],
                stored_bytes: 0,
                waits_behind: 0,
                spooled: None,
            });
        }
        let packing = Packing {
            level: self.level,
            workers: self.workers.max(1),
        };
        let may_follow = |next: SegmentName| {
            let is_pushed =
                |notes: &PushedAhead| wal.stamp(next).is_some_and(|stamp| notes.has(next, &stamp));
            !self.alone && wal.is_ready(next) && !notes.as_ref().is_some_and(is_pushed)
        };
        let run = packing.pack_run(wal, segment, is_partial, &may_follow)?;
        // Notes that were found before the run was read are of its system, too.
        run.check_system(system)?;
        let pushed = notes.unwrap_or_else(|| self.notes(run.system, wal));
        let (segments, stored_bytes) = with_patience(self.patience, || {
            let target =
                PushTarget::open_noted(&self.storages, &self.to, self.copy_name.as_ref(), &pushed)?;
            target.store(&run, wal, &pushed)
        })?;
        let waits_behind = match self.alone {
            true => 0,
            false => wal
                .ready_segments()
                .into_iter()
                .filter(|ready| !segments.contains(ready))
                .count(),
        };
        Ok(PushReport {
            segments,
            stored_bytes,
            waits_behind,
            spooled: None,
        })
    }

    /// Returns the system that a file is of.
    fn system_of(&self, wal: &WalDirectory, name: WalFileName) -> Result<u64> {
        let of_segment = match name {
            WalFileName::Segment(segment) | WalFileName::Backup(segment, _) => {
                Some((segment, false))
            }
            WalFileName::Partial(segment) => Some((segment, true)),
            WalFileName::History(_) => None,
        };
        let in_header = || {
            let (segment, is_partial) = of_segment?;
            let (.., facts) = wal.read_segment(segment, is_partial).ok()?;
            Some(facts.system)
        };
        let system = self.system.or_else(|| wal.system()).or_else(in_header);
        system.ok_or_else(|| unknown_system(format!("cannot archive {name}")))
    }

    fn push_small(&self, wal: &WalDirectory, name: WalFileName) -> Result<PushReport> {
        let content = wal.read_small(&name.to_string())?;
        let system = self.system_of(wal, name)?;
        let target = PushTarget::open(&self.storages, &self.to, self.copy_name.as_ref())?;
        target.store_small(system, name, &content)?;
        Ok(PushReport {
            segments: Vec::new(),
            stored_bytes: content.len() as u64,
            waits_behind: 0,
            spooled: None,
        })
    }
}

/// Takes a file into the spool.
fn take(
    spool: &ClusterSpool,
    wal: &WalDirectory,
    name: WalFileName,
    error: Option<&Error>,
) -> Result<PushReport> {
    let content = match name {
        WalFileName::Segment(segment) => wal.read_segment(segment, false)?.0,
        WalFileName::Partial(segment) => wal.read_segment(segment, true)?.0,
        WalFileName::History(_) | WalFileName::Backup(..) => wal.read_small(&name.to_string())?,
    };
    let reason = error.map(Error::line);
    let taken = spool.add(name, &content);
    taken.map_err(|full| match &reason {
        Some(reason) => full.detail(format!("the repository did not take it: {reason}")),
        None => full,
    })?;
    Ok(PushReport {
        segments: Vec::new(),
        stored_bytes: 0,
        waits_behind: 0,
        spooled: Some(SpooledFile {
            name: name.to_string(),
            reason,
            state: spool.state(),
        }),
    })
}

fn not_archived(name: &str) -> Error {
    let message = format!("cannot archive {name:?}: servers archive no file of this name");
    Error::new(ErrorKind::Usage, message).hint("archive_command = 'fullbore wal push %p --to REPO'")
}

/// Returns the error of a history whose timeline has another one.
pub(super) fn begun_before(
    archive: &WalArchive,
    timeline: u32,
    own: &[u8],
    others: &[WalKey],
) -> Error {
    let message = format!(
        "cannot archive the history of timeline {timeline} of system {}",
        archive.system()
    );
    let error = Error::new(ErrorKind::Exists, message)
        .because("another server began a timeline of this number, and archived its history")
        .hint("stop the server that should not write; a copy of a cluster archives with --as NAME");
    // A host that only adds cannot read the other history.
    let other = others.first().and_then(|key| archive.read_small(key).ok());
    match (
        timeline_begin(own, timeline),
        other.and_then(|text| timeline_begin(&text, timeline)),
    ) {
        (Some(own), Some(other)) => error.detail(format!(
            "the other one begins at {other}, and that of {:?} at {own}",
            host_name()
        )),
        _ => error,
    }
}

/// Returns the place where the timeline of a history begins.
fn timeline_begin(history: &[u8], timeline: u32) -> Option<Lsn> {
    let history = Timelines::parse(&String::from_utf8_lossy(history), timeline);
    history.map(|history| history.last_start())
}
