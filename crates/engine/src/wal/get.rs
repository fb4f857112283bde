//! `restore_command`: writes a file of the archive where the server wants it.
//!
//! A server takes "missing" for the end of the archive, and opens. So it is said only if a listing that succeeded has
//! neither the file nor any later one on the way, and the file is behind what the restore saw. Everything else is an error
//! that ends the recovery, and starting the server again goes on with it. A segment that the server has itself, as a whole, may
//! be missing, too: it reads its own next.

use super::{
    ahead::{FetchedAhead, WalAhead},
    push::{system_name, with_patience},
    server_files::{WalDirectory, unknown_system},
    system::{SystemWal, run_among, run_with},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    wal::{SegmentFrame, SegmentName, WalFileName},
};
use fullbore_platform::debug;
use fullbore_postgres::{
    control,
    wal_archive::{SegmentFacts, SegmentRecords, check_segment, check_segment_begin},
};
use fullbore_repository::{
    open::read_repository,
    wal::{StoredRun, WalArchive},
};
use fullbore_storage::{Objects, Storages};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// A file to fetch.
#[derive(Debug, Clone)]
pub struct WalGet {
    /// How storages are reached.
    pub storages: Storages,
    /// Its name, which the server gives as `%f`.
    pub name: String,
    /// Where to write it, which the server gives as `%p`.
    pub path: PathBuf,
    /// The repository.
    pub from: OsString,
    /// The system identifier, if it is not run in a data directory.
    pub system: Option<u64>,
    /// The name of a copy of a cluster, which archived apart from its origin.
    pub copy_name: Option<String>,
    /// The last segment that a restore saw: up to there, nothing is ever missing.
    pub through: Option<SegmentName>,
    /// The archive ends after this segment, whatever is behind it.
    pub until: Option<SegmentName>,
    /// Of segments that two hosts archived with different content, that of this host is fetched.
    pub wal_from: Option<String>,
    /// For a standby, which may get by streaming what the archive lacks: a gap is missing, and not an error.
    pub standby: bool,
    /// How long a storage that is away is waited for.
    pub patience: Duration,
}

/// The outcome of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    /// The file is there.
    Written {
        /// Whether the archive has the segment behind it, which was not fetched ahead.
        leads_on: bool,
    },
    /// The archive ends before it. With the reason.
    Missing(String),
}

impl WalGet {
    /// Fetches the file.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a gap; [`ErrorKind::Exists`] for two contents of one name; [`ErrorKind::Corrupt`] for damage;
    /// the storage's. A server must not open then.
    pub fn run(&self) -> Result<Got> {
        let name = WalFileName::parse(&self.name);
        let name = name.ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("cannot fetch {:?}: no WAL has this name", self.name),
            )
        })?;
        if let (WalFileName::Segment(segment), Some(until)) = (name, self.until)
            && segment.place() > until.place()
        {
            return Ok(Got::Missing(format!("this recovery ends after {until}")));
        }
        if let WalFileName::Segment(segment) = name
            && self.takes_ahead(segment)
        {
            return Ok(Got::Written { leads_on: false });
        }
        with_patience(self.patience, || self.fetch(name))
    }

    /// Gives a segment that was fetched before the server asked the name that the server wants. Returns whether there was one.
    fn takes_ahead(&self, segment: SegmentName) -> bool {
        self.known_system().is_some_and(|system| {
            let fetched = self.fetched_ahead(system);
            fetched.take(segment, system, &self.path)
        })
    }

    fn fetched_ahead(&self, system: u64) -> FetchedAhead {
        let name = system_name(system, self.copy_name.as_deref());
        let host = self.wal_from.as_deref();
        FetchedAhead::of(&self.storages, &self.from, &name, host, &self.data())
    }

    /// Returns what fetches the segments behind this one, for a process of its own; `None` if one does already, or it is not known
    /// of which cluster they are.
    pub fn behind(&self) -> Option<WalAhead> {
        let system = self.known_system()?;
        let ahead = WalAhead {
            storages: self.storages.clone(),
            name: self.name.clone(),
            from: self.from.clone(),
            system,
            copy_name: self.copy_name.clone(),
            wal_from: self.wal_from.clone(),
            data: self.data(),
        };
        (!self.fetched_ahead(system).is_locked()).then_some(ahead)
    }

    fn known_system(&self) -> Option<u64> {
        let system = || self.control().map(|control| control.system_identifier);
        self.system.or_else(system)
    }

    /// The data directory that the file is fetched into, if it is in one.
    fn data(&self) -> PathBuf {
        let directory = self.path.parent().and_then(Path::parent);
        directory.unwrap_or(Path::new("")).to_owned()
    }

    fn fetch(&self, name: WalFileName) -> Result<Got> {
        let objects = self.storages.repository_at(&self.from)?;
        read_repository(&*objects)?;
        let archive = self.archive(&objects)?;
        match name {
            WalFileName::Segment(segment) => self.fetch_segment(&archive, segment),
            WalFileName::History(timeline) => match archive.history(timeline)? {
                Some(content) => self.write(&content),
                None => Ok(Got::Missing(format!("{name} was not archived"))),
            },
            WalFileName::Partial(_) | WalFileName::Backup(..) => {
                Ok(Got::Missing(format!("{name} is of no use for a recovery")))
            }
        }
    }

    /// The archive of the cluster in whose data directory this runs; of the only one, if it runs in none.
    fn archive(&self, objects: &Arc<dyn Objects>) -> Result<WalArchive> {
        let archive = |system: &str| {
            WalArchive::new(objects.clone(), system).preferring(self.wal_from.clone())
        };
        if let Some(system) = self.known_system() {
            return Ok(archive(&system_name(system, self.copy_name.as_deref())));
        }
        let all = fullbore_repository::wal::list_systems(&**objects)?;
        let names: BTreeSet<&String> = all.keys().collect();
        match (names.first(), names.len()) {
            (Some(one), 1) => Ok(archive(one)),
            _ => Err(unknown_system(format!("cannot fetch {}", self.name))),
        }
    }

    fn control(&self) -> Option<control::Control> {
        control_of(&self.data()).or_else(|| control_of(Path::new("")))
    }

    fn fetch_segment(&self, archive: &WalArchive, segment: SegmentName) -> Result<Got> {
        let runs = archive.runs_beside(segment)?;
        let Some(stored) = run_among(archive, &runs, segment)? else {
            return self.explain(archive, segment);
        };
        let next = SegmentName {
            number: segment.number.saturating_add(1),
            ..segment
        };
        let leads_on = runs.iter().any(|stored| stored.run.covers(next));
        match self.fetch_from(archive, &stored, segment)? {
            Got::Written { .. } => Ok(Got::Written { leads_on }),
            other => Ok(other),
        }
    }

    fn fetch_from(
        &self,
        archive: &WalArchive,
        stored: &StoredRun,
        segment: SegmentName,
    ) -> Result<Got> {
        let key = archive.describe(&stored.run.to_string());
        let mut write = |packed: SegmentFrame<'_>| {
            self.write_new(&mut |file| {
                let facts = unpack_into(file, &packed, segment)?;
                check_system(archive, segment, &facts, &key)
            })
        };
        archive.with_segment(stored, segment, &mut write)
    }

    /// Writes a segment of which there are only pieces.
    fn fetch_tail(&self, wal: &SystemWal, segment: SegmentName) -> Result<Got> {
        self.write(&segment_of_tail(wal, segment)?)
    }

    /// Writes the last segment, of which only the beginning was received. If the server archived the part that it had when the
    /// timeline ended, and that begins with the same bytes, it has at least as much.
    fn fetch_end(&self, wal: &SystemWal, segment: SegmentName) -> Result<Got> {
        let received = segment_of_tail(wal, segment)?;
        let len = wal.tail_bytes(segment);
        match &partial_runs(wal, segment)[..] {
            [stored] => {
                let archived = segment_of_run(&wal.archive, stored, segment)?;
                let is_more = archived.get(..len) == received.get(..len);
                self.write(if is_more { &archived } else { &received })
            }
            _ => self.write(&received),
        }
    }

    /// Why a segment is not there: the end of the archive, or a gap.
    fn explain(&self, archive: &WalArchive, segment: SegmentName) -> Result<Got> {
        let bytes = self
            .control()
            .map(|control| u64::from(control.wal_segment_bytes));
        let wal = SystemWal::load(archive.clone(), bytes)?;
        if wal.tree.has(segment) {
            // It has arrived meanwhile, or is whole in pieces.
            return match run_with(archive, segment)? {
                Some(stored) => self.fetch_from(archive, &stored, segment),
                None => self.fetch_tail(&wal, segment),
            };
        }
        let start = wal.tree.start_of(segment.timeline);
        if start.is_some_and(|start| {
            segment.next(wal.segment_bytes).start(wal.segment_bytes) <= start.0
        }) {
            return Ok(Got::Missing(format!(
                "timeline {} begins behind {segment}",
                segment.timeline
            )));
        }
        let first = wal.tree.first_of(segment.timeline);
        let why = match (wal.tree.later_than(segment), self.through) {
            (Some(_), _) if first.is_some_and(|first| segment < first) => format!(
                "the archive of timeline {} begins later: WAL before that was pruned, or never archived",
                segment.timeline
            ),
            (Some(later), _) => format!("{later}, which is later, is there"),
            _ if wal.tree.is_open(segment) => return self.fetch_end(&wal, segment),
            (None, Some(through)) if segment.place() <= through.place() => {
                format!("the restore saw the archive up to {through}")
            }
            _ => return self.end(archive, &wal, segment),
        };
        if self.is_in_data_directory(archive, segment) {
            return Ok(Got::Missing(format!(
                "the archive lacks {segment}, and the data directory has it"
            )));
        }
        match self.standby {
            true => Ok(Got::Missing(format!(
                "{segment} is a gap in the archive: {why}"
            ))),
            false => Err(gap(archive, segment, why)),
        }
    }

    /// Returns whether the server has a segment itself, as a whole: with the WAL that a backup brings it goes on over what was never
    /// archived. One of which it has only the beginning is the end of all WAL to it, and it would open there.
    fn is_in_data_directory(&self, archive: &WalArchive, segment: SegmentName) -> bool {
        let is_asked_for = self.path.file_name() == Some(segment.to_string().as_ref());
        if is_asked_for || control_of(&self.data()).is_none() {
            return false;
        }
        WalDirectory::around(&self.path)
            .read_segment(segment, false)
            .is_ok_and(|(content, _, facts)| {
                check_system(archive, segment, &facts, "pg_wal").is_ok()
                    && SegmentRecords::new(&content).is_some_and(SegmentRecords::are_complete)
            })
    }

    /// At the end of a timeline there may be the segment in which it ended.
    fn end(&self, archive: &WalArchive, wal: &SystemWal, segment: SegmentName) -> Result<Got> {
        match partial_runs(wal, segment)[..] {
            [stored] => self.fetch_from(archive, stored, segment),
            [] => Ok(Got::Missing(format!("the archive ends before {segment}"))),
            _ => {
                debug(|| format!("several servers archived a part of {segment}: none is used"));
                Ok(Got::Missing(format!("the archive ends before {segment}")))
            }
        }
    }

    fn write(&self, content: &[u8]) -> Result<Got> {
        self.write_new(&mut |file| {
            file.write_all(content)
                .map_err(|error| cannot_write(&self.path, error))
        })
    }

    fn write_new(&self, fill: &mut dyn FnMut(&mut File) -> Result<()>) -> Result<Got> {
        write_beside(&self.path, fill)?;
        Ok(Got::Written { leads_on: false })
    }
}

/// Lets `fill` write a file beside `target`, and gives it that name when it is complete.
pub(super) fn write_beside(
    target: &Path,
    fill: &mut dyn FnMut(&mut File) -> Result<()>,
) -> Result<()> {
    let mut beside = target.as_os_str().to_owned();
    beside.push(format!(".fullbore-{}", std::process::id()));
    let failed = |error| cannot_write(target, error);
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside);
    let written = opened
        .map_err(failed)
        .and_then(|mut file| fill(&mut file))
        .and_then(|()| fs::rename(&beside, target).map_err(failed));
    if written.is_err() {
        let _ = fs::remove_file(&beside); // of no use without the rest
    }
    written
}

pub(super) fn cannot_write(path: &Path, error: io::Error) -> Error {
    let path = quoted(path.as_os_str().as_bytes());
    Error::io(format!("could not write {path}"), error)
}

/// Writes a segment that is packed, and returns its header after checking that it is the segment of that name.
pub(super) fn unpack_into(
    file: &mut File,
    packed: &SegmentFrame<'_>,
    segment: SegmentName,
) -> Result<SegmentFacts> {
    let mut begin = None;
    packed.unpack(&mut |piece| {
        // Judged behind the digest: of a damaged segment the damage is told.
        begin.get_or_insert_with(|| check_segment_begin(piece, packed.segment_bytes, segment));
        file.write_all(piece)
            .map_err(|error| Error::io(format!("could not write {segment}"), error))
    })?;
    begin.unwrap_or_else(|| check_segment_begin(&[], 0, segment))
}

fn control_of(data: &Path) -> Option<control::Control> {
    control::read(&control::path(data))
        .ok()
        .map(|(_, control)| control)
}

/// Returns the runs with a segment in which a timeline ended.
fn partial_runs(wal: &SystemWal, segment: SegmentName) -> Vec<&StoredRun> {
    let runs = wal.listing.runs.iter();
    runs.filter(|stored| stored.run.is_partial && stored.run.covers(segment))
        .collect()
}

/// Reads a segment of a run, and checks that it is of this cluster.
fn segment_of_run(
    archive: &WalArchive,
    stored: &StoredRun,
    segment: SegmentName,
) -> Result<Vec<u8>> {
    let content = archive.segment_of(stored, segment)?;
    let key = archive.describe(&stored.run.to_string());
    let facts = check_segment(&content, segment)?;
    check_system(archive, segment, &facts, &key)?;
    Ok(content)
}

/// Reads a segment of which there are only pieces. A run may take their place meanwhile.
fn segment_of_tail(wal: &SystemWal, segment: SegmentName) -> Result<Vec<u8>> {
    let archive = &wal.archive;
    match wal.read_tail(segment) {
        Ok(Some(content)) => {
            let facts = check_segment(&content, segment)?;
            check_system(archive, segment, &facts, "its pieces")?;
            Ok(content)
        }
        Err(error) if error.kind != ErrorKind::NotFound => Err(error),
        _ => match run_with(archive, segment)? {
            Some(stored) => segment_of_run(archive, &stored, segment),
            None => {
                let why = "it was deleted while it was looked for";
                Err(gap(archive, segment, why.to_owned()))
            }
        },
    }
}

/// Checks that a segment is of the cluster of the archive. Messages call its place `place`.
fn check_system(
    archive: &WalArchive,
    segment: SegmentName,
    facts: &SegmentFacts,
    place: &str,
) -> Result<()> {
    let system = archive.system().split('.').next().unwrap_or_default();
    if facts.system.to_string() == system {
        return Ok(());
    }
    let message = format!("{segment} in {place} is of another cluster");
    Err(Error::corrupt(message).because(format!("its system identifier is {}", facts.system)))
}

fn gap(archive: &WalArchive, segment: SegmentName, why: String) -> Error {
    let message = format!(
        "cannot fetch {segment}: it is missing from the WAL of system {}",
        archive.system()
    );
    Error::new(ErrorKind::NotFound, message)
        .because(why)
        .hint("`fullbore wal list` shows the gaps; a recovery has to end before it, or begin with a backup behind it")
}
