//! All that a repository has of the WAL of a system.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    wal::{SegmentName, WalFileName, WalKey, WalRunIndex},
};
use fullbore_platform::debug;
use fullbore_postgres::{
    archiver::SegmentArchive,
    lsn::Lsn,
    wal_archive::{HeldWal, TimelineTree, check_segment, first_difference, read_segment_facts},
};
use fullbore_repository::wal::{SegmentTail, StoredRun, WalArchive, WalListing, has_wal_of};
use fullbore_storage::{Objects, Storages};
use jiff::Timestamp;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt,
    sync::Arc,
};

/// Bytes of a segment unless a server was made with others.
const USUAL_SEGMENT_BYTES: u64 = 16 << 20;

/// The WAL of a system, as a listing and the histories say.
#[derive(Debug)]
pub struct SystemWal {
    /// Reads it.
    pub archive: WalArchive,
    /// All objects.
    pub listing: WalListing,
    /// Its timelines.
    pub tree: TimelineTree,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Timelines that two servers began.
    pub doubtful_timelines: Vec<u32>,
    /// The pieces of segments that no run has.
    tails: BTreeMap<SegmentName, SegmentTail>,
}

impl SystemWal {
    /// Lists the WAL of a system and reads its histories. `segment_bytes` is known from elsewhere, or read of a run.
    ///
    /// # Errors
    /// The storage's; [`ErrorKind::Corrupt`] if a history is damaged.
    pub fn load(archive: WalArchive, segment_bytes: Option<u64>) -> Result<Self> {
        let listing = archive.listing()?;
        Self::of_listing(archive, listing, segment_bytes)
    }

    /// The same, of a listing that was made.
    ///
    /// # Errors
    /// As [`SystemWal::load`].
    pub fn of_listing(
        archive: WalArchive,
        listing: WalListing,
        segment_bytes: Option<u64>,
    ) -> Result<Self> {
        let segment_bytes = match segment_bytes {
            Some(bytes) => bytes,
            None => segment_bytes_of(&archive, &listing)?,
        };
        let mut histories: BTreeMap<u32, String> = BTreeMap::new();
        let mut doubtful = Vec::new();
        for (key, _) in &listing.small {
            let WalKey::Small {
                name: WalFileName::History(timeline),
                ..
            } = key
            else {
                continue;
            };
            let text = match archive.read_small(key) {
                // A host that only adds sees the names.
                Err(error) if error.kind == ErrorKind::Permission => continue,
                text => text?,
            };
            let text = String::from_utf8_lossy(&text).into_owned();
            if histories.insert(*timeline, text).is_some() {
                doubtful.push(*timeline);
            }
        }
        let mut segments = listing.segments();
        let mut tails = listing.tails();
        tails.retain(|segment, _| !segments.contains(segment));
        let is_whole = |tail: &SegmentTail| u64::from(tail.end()) >= segment_bytes;
        let mut open = BTreeSet::new();
        for (segment, tail) in &tails {
            match is_whole(tail) {
                true => segments.insert(*segment),
                false => open.insert(*segment),
            };
        }
        let held = HeldWal {
            segments,
            partial: listing.partial_segments(),
            open,
            segment_bytes,
        };
        Ok(Self {
            tails,
            tree: TimelineTree::new(held, &histories),
            archive,
            listing,
            segment_bytes,
            doubtful_timelines: doubtful,
        })
    }

    /// Returns the segments that are whole, but in pieces.
    pub(super) fn whole_tails(&self) -> Vec<SegmentName> {
        let tails = self.tails.keys().copied();
        tails.filter(|segment| self.tree.has(*segment)).collect()
    }

    /// Returns how many bytes of a segment its pieces have, from the beginning on.
    pub(super) fn tail_bytes(&self, segment: SegmentName) -> usize {
        self.tails
            .get(&segment)
            .map_or(0, |tail| tail.end() as usize)
    }

    /// Reads the pieces of a segment, with zeros behind them; `None` if there are none. Use it only for a segment that is whole,
    /// or the end of its timeline.
    ///
    /// # Errors
    /// Those of [`WalArchive::read_tail`]; [`ErrorKind::Corrupt`] if it is not the segment of that name.
    pub fn read_tail(&self, segment: SegmentName) -> Result<Option<Vec<u8>>> {
        let Some(tail) = self.tails.get(&segment) else {
            return Ok(None);
        };
        let mut content = self.archive.read_tail(tail)?;
        let bytes = read_segment_facts(&content).map(|facts| facts.segment_bytes);
        let bytes =
            bytes.filter(|bytes| *bytes == self.segment_bytes && *bytes >= content.len() as u64);
        if let Some(bytes) = bytes {
            content.resize(bytes as usize, 0);
        }
        check_segment(&content, segment)?;
        Ok(Some(content))
    }
}

/// Returns the size of a segment, from the index of a run.
///
/// # Errors
/// Those of reading it; without a key that reads, it is the usual one.
pub fn segment_bytes_of(archive: &WalArchive, listing: &WalListing) -> Result<u64> {
    let bytes = match (listing.runs.last(), listing.tails().last_key_value()) {
        (Some(stored), _) => archive.index(stored).map(|index| Some(index.segment_bytes)),
        (None, Some((_, tail))) => archive
            .read_tail(tail)
            .map(|content| read_segment_facts(&content).map(|facts| facts.segment_bytes)),
        (None, None) => Ok(None),
    };
    match bytes {
        Err(error) if error.kind == ErrorKind::Permission => {
            debug(|| format!("segments are taken for 16 MiB: {}", error.line()));
            Ok(USUAL_SEGMENT_BYTES)
        }
        bytes => Ok(bytes?.unwrap_or(USUAL_SEGMENT_BYTES)),
    }
}

/// The WAL in a repository, as a backup that is made into it looks for segments.
#[derive(Debug)]
pub struct RepositoryArchive {
    storages: Storages,
    repository: OsString,
}

impl RepositoryArchive {
    /// Of the repository that this word names. It is opened when it is needed.
    pub fn new(storages: Storages, repository: OsString) -> Self {
        Self {
            storages,
            repository,
        }
    }
}

impl SegmentArchive for RepositoryArchive {
    fn has_wal_of(&self, system: &str) -> Result<bool> {
        let objects = self.storages.repository_at(&self.repository)?;
        has_wal_of(&*objects, system)
    }

    fn has(&self, system: &str, segment: &str) -> Result<bool> {
        let Some(segment) = SegmentName::parse(segment) else {
            return Ok(false);
        };
        let objects = self.storages.repository_at(&self.repository)?;
        has_segment(&objects, system, segment)
    }
}

/// Returns whether a repository has this segment of a system.
///
/// # Errors
/// The storage's.
pub fn has_segment(objects: &Arc<dyn Objects>, system: &str, segment: SegmentName) -> Result<bool> {
    let archive = WalArchive::new(objects.clone(), system);
    let runs = archive.runs_beside(segment)?;
    Ok(runs
        .iter()
        .any(|stored| !stored.run.is_partial && stored.run.covers(segment)))
}

/// Reads a segment that must be there.
///
/// # Errors
/// [`ErrorKind::NotFound`] if it is missing; [`ErrorKind::Corrupt`] if it is damaged; [`ErrorKind::Exists`] if it has two
/// contents; the storage's.
pub fn read_segment(archive: &WalArchive, segment: SegmentName) -> Result<Vec<u8>> {
    let Some(stored) = run_with(archive, segment)? else {
        let wal = SystemWal::load(archive.clone(), None)?;
        let content = match wal.tree.has(segment) {
            true => wal.read_tail(segment)?,
            false => None,
        };
        return content.ok_or_else(|| missing_segment(archive, segment));
    };
    let content = archive.segment_of(&stored, segment)?;
    check_segment(&content, segment)?;
    Ok(content)
}

fn missing_segment(archive: &WalArchive, segment: SegmentName) -> Error {
    let message = format!("could not read {segment} of system {}", archive.system());
    Error::new(ErrorKind::NotFound, message).because("it is not in the archive")
}

/// Returns the run to read a segment from.
///
/// # Errors
/// [`ErrorKind::Exists`] if runs have different content of it; the storage's.
pub(super) fn run_with(archive: &WalArchive, segment: SegmentName) -> Result<Option<StoredRun>> {
    run_among(archive, &archive.runs_beside(segment)?, segment)
}

/// Checks that a segment of a listing has one content, or that of the preferred host.
///
/// # Errors
/// [`ErrorKind::Exists`] if two hosts archived different content of it; the storage's.
pub(crate) fn check_one_content(wal: &SystemWal, segment: SegmentName) -> Result<()> {
    let covering = wal
        .listing
        .runs
        .iter()
        .filter(|stored| !stored.run.is_partial && stored.run.covers(segment));
    let covering: Vec<StoredRun> = covering.cloned().collect();
    match covering.len() {
        0 | 1 => Ok(()),
        _ => run_among(&wal.archive, &covering, segment).map(drop),
    }
}

/// Returns the one of these runs to read a segment from.
///
/// # Errors
/// As [`run_with`].
pub(super) fn run_among(
    archive: &WalArchive,
    runs: &[StoredRun],
    segment: SegmentName,
) -> Result<Option<StoredRun>> {
    let runs: Vec<_> = runs
        .iter()
        .filter(|stored| !stored.run.is_partial && stored.run.covers(segment))
        .collect();
    let runs = match runs.len() {
        0 | 1 => runs,
        _ => with_same_content(archive, runs, segment)?,
    };
    // The longest has the segments behind it, too.
    Ok(runs
        .into_iter()
        .max_by_key(|stored| stored.run.last())
        .cloned())
}

/// The content of a segment in one run.
struct RunContent<'a> {
    stored: &'a StoredRun,
    digest: [u8; 32],
    /// Who stored it, and when.
    by: StoredBy,
}

/// Who stored a run, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBy {
    /// The host.
    pub host: String,
    /// In seconds since 1970 by the clock of that host.
    pub stored: i64,
}

impl StoredBy {
    /// Of the index of a run.
    pub(super) fn of(index: &WalRunIndex) -> Self {
        Self {
            host: index.host.clone(),
            stored: index.stored,
        }
    }
}

impl fmt::Display for StoredBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_second(self.stored) {
            Ok(time) => write!(f, "{:?} at {time}", self.host),
            Err(_) => write!(f, "{:?} at {}", self.host, self.stored),
        }
    }
}

/// Returns the runs that are there and have one content of a segment: that of the preferred host, if two differ.
fn with_same_content<'a>(
    archive: &WalArchive,
    runs: Vec<&'a StoredRun>,
    segment: SegmentName,
) -> Result<Vec<&'a StoredRun>> {
    let mut contents: Vec<RunContent<'a>> = Vec::new();
    for stored in runs {
        let index = match archive.index(stored) {
            // A prune has deleted it meanwhile.
            Err(error) if error.kind == ErrorKind::NotFound => continue,
            // What a damaged one has cannot be compared: that the others are right is not known.
            index => index?,
        };
        let position = stored.run.segments().position(|name| name == segment);
        if let Some(member) = position.and_then(|position| index.members.get(position)) {
            contents.push(RunContent {
                stored,
                digest: member.digest,
                by: StoredBy::of(&index),
            });
        }
    }
    if differs(&contents)
        && let Some(host) = archive.preferred_host()
    {
        contents.retain(|content| content.by.host == host);
        if contents.is_empty() {
            return Err(not_of_host(archive, segment, host));
        }
    }
    check_records(archive, segment, &contents)?;
    Ok(contents.iter().map(|content| content.stored).collect())
}

fn differs(contents: &[RunContent<'_>]) -> bool {
    contents
        .windows(2)
        .any(|pair| pair[0].digest != pair[1].digest)
}

/// Checks that contents with other bytes have the same records, so that a recovery with either is the same.
fn check_records(
    archive: &WalArchive,
    segment: SegmentName,
    contents: &[RunContent<'_>],
) -> Result<()> {
    let Some((first, others)) = contents.split_first().filter(|_| differs(contents)) else {
        return Ok(());
    };
    let content = archive.segment_of(first.stored, segment)?;
    for other in others {
        if other.digest == first.digest {
            continue;
        }
        let second = archive.segment_of(other.stored, segment)?;
        if let Some(position) = first_difference(&content, &second) {
            return Err(two_contents(
                archive,
                segment,
                (&first.by, &other.by),
                position,
            ));
        }
    }
    debug(|| format!("{segment} has contents that differ only behind their records"));
    Ok(())
}

fn not_of_host(archive: &WalArchive, segment: SegmentName, host: &str) -> Error {
    let message = format!(
        "cannot choose the content of {segment} of system {}",
        archive.system()
    );
    Error::new(ErrorKind::NotFound, message)
        .because(format!(
            "other hosts archived different content of it, and {host:?} archived none"
        ))
        .hint("`fullbore wal show REPO SEGMENT` names the hosts")
}

fn two_contents(
    archive: &WalArchive,
    segment: SegmentName,
    (one, other): (&StoredBy, &StoredBy),
    at: Lsn,
) -> Error {
    let message = format!(
        "cannot choose the content of {segment} of system {}",
        archive.system()
    );
    Error::new(ErrorKind::Exists, message)
        .because(format!(
            "hosts {one} and {other} archived different content of it: two servers wrote one timeline"
        ))
        .detail(format!("the first difference is at {at}"))
        .hint("say whose WAL is right: --wal-from HOST; `fullbore wal show REPO SEGMENT` shows both")
}
