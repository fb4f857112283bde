//! Objects with WAL.

use super::tail::{SegmentTail, StoredPiece};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::WAL,
    wal::{
        SegmentFrame, SegmentName, TAIL_BYTES, WalDigester, WalFileName, WalKey, WalMember, WalRun,
        WalRunIndex, history_dir, log_dir, system_dir,
    },
};
use fullbore_storage::{Objects, Put, PutIf};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Larger objects are uploaded in pieces.
const MAX_PUT_BYTES: usize = 128 << 20;
/// Objects of so many bytes are read whole, by one request.
const WHOLE_BYTES: u64 = 1 << 20;
/// Bytes of a history or a label at most.
const MAX_SMALL_BYTES: u64 = 64 << 10;

/// The WAL of one system in a repository. Clones share the repository.
#[derive(Debug, Clone)]
pub struct WalArchive {
    pub(super) objects: Arc<dyn Objects>,
    pub(super) system: String,
    pub(super) digester: WalDigester,
    preferred_host: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    /// Its key as data.
    pub run: WalRun,
    pub bytes: u64,
}

/// All WAL of a system, as a listing says.
#[derive(Debug, Clone, Default)]
pub struct WalListing {
    /// Runs in the order of their keys.
    pub runs: Vec<StoredRun>,
    /// Histories and labels with the bytes of each.
    pub small: Vec<(WalKey, u64)>,
    /// Pieces of segments that were not finished.
    pub pieces: Vec<StoredPiece>,
    /// The first and the last segment of each gap that was accepted.
    pub accepted: Vec<(SegmentName, SegmentName)>,
}

impl WalListing {
    fn of(objects: impl Iterator<Item = (WalKey, u64)>) -> Self {
        let mut listing = Self::default();
        for (key, bytes) in objects {
            match key {
                WalKey::Run(run) => listing.runs.push(StoredRun { run, bytes }),
                WalKey::Piece(piece) => listing.pieces.push(StoredPiece { piece, bytes }),
                WalKey::Gap { from, to, .. } => listing.accepted.push((from, to)),
                small @ WalKey::Small { .. } => listing.small.push((small, bytes)),
            }
        }
        listing
    }

    pub fn bytes(&self) -> u64 {
        let runs = self.runs.iter().map(|stored| stored.bytes);
        let pieces = self.pieces.iter().map(|stored| stored.bytes);
        let small = self.small.iter().map(|(_, bytes)| *bytes);
        runs.chain(pieces).chain(small).sum()
    }

    /// Returns how many objects there are.
    pub fn objects(&self) -> u64 {
        (self.runs.len() + self.pieces.len() + self.small.len()) as u64
    }

    /// Returns what there is of segments that were not finished.
    pub fn tails(&self) -> BTreeMap<SegmentName, SegmentTail> {
        SegmentTail::all_of(&self.pieces)
    }

    /// Returns the names of all complete segments.
    pub fn segments(&self) -> BTreeSet<SegmentName> {
        let whole = self.runs.iter().filter(|stored| !stored.run.is_partial);
        whole.flat_map(|stored| stored.run.segments()).collect()
    }

    /// Returns the names of the segments in which timelines ended.
    pub fn partial_segments(&self) -> BTreeSet<SegmentName> {
        let partial = self.runs.iter().filter(|stored| stored.run.is_partial);
        partial.map(|stored| stored.run.first).collect()
    }

    /// Returns the timelines of which there is a history.
    pub fn histories(&self) -> BTreeSet<u32> {
        self.small
            .iter()
            .filter_map(|(key, _)| match key {
                WalKey::Small {
                    name: WalFileName::History(timeline),
                    ..
                } => Some(*timeline),
                _ => None,
            })
            .collect()
    }
}

/// Returns all WAL of all systems in a repository.
///
/// # Errors
/// The storage's.
pub fn list_systems(objects: &dyn Objects) -> Result<BTreeMap<String, WalListing>> {
    let mut systems: BTreeMap<String, Vec<(WalKey, u64)>> = BTreeMap::new();
    for object in objects.list(WAL)? {
        if let Some(key) = WalKey::parse(&object.key) {
            let all = systems.entry(key.system().to_owned()).or_default();
            all.push((key, object.bytes));
        }
    }
    let listings = systems.into_iter();
    Ok(listings
        .map(|(system, all)| (system, WalListing::of(all.into_iter())))
        .collect())
}

/// Returns whether a repository has WAL of a system. Results of drills are no WAL.
///
/// # Errors
/// Those of listing.
pub fn has_wal_of(objects: &dyn Objects, system: &str) -> Result<bool> {
    let listed = objects.list(&system_dir(system))?;
    Ok(listed
        .iter()
        .any(|object| WalKey::parse(&object.key).is_some()))
}

impl WalArchive {
    /// The WAL of `system` in a repository that was opened.
    pub fn new(objects: Arc<dyn Objects>, system: &str) -> Self {
        let ring = objects
            .as_sealed()
            .and_then(|sealed| sealed.ring().cloned());
        let digester = ring.map(|ring| WalDigester::keyed(&*ring.wal_name_secret()));
        Self {
            objects,
            system: system.to_owned(),
            digester: digester.unwrap_or_else(WalDigester::plain),
            preferred_host: None,
        }
    }

    /// Of segments that two hosts archived with different content, reads that of this host.
    pub fn preferring(self, host: Option<String>) -> Self {
        Self {
            preferred_host: host,
            ..self
        }
    }

    /// Returns the host whose content is read, if two differ.
    pub fn preferred_host(&self) -> Option<&str> {
        self.preferred_host.as_deref()
    }

    /// Reads the frame of a segment.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the object ends before; the storage's.
    pub(super) fn frame_of(&self, stored: &StoredRun, member: &WalMember) -> Result<Vec<u8>> {
        let key = stored.run.to_string();
        let end = member.offset.saturating_add(member.stored_bytes);
        if end > stored.bytes {
            let message = format!("{} is damaged", self.describe(&key));
            return Err(Error::corrupt(message).because("it ends too early"));
        }
        let mut frame = Vec::new();
        let len = member.stored_bytes as usize;
        self.objects.read_at(&key, member.offset, len, &mut frame)?;
        Ok(frame)
    }

    /// Reads one segment of a run.
    ///
    /// # Errors
    /// As [`WalArchive::read_segments`]; [`ErrorKind::Corrupt`] if the run lacks it.
    pub fn segment_of(&self, stored: &StoredRun, segment: SegmentName) -> Result<Vec<u8>> {
        self.with_segment(stored, segment, &mut |packed| packed.content())
    }

    /// Reads one segment of a run, and hands it to `read` while it is packed.
    ///
    /// # Errors
    /// As [`WalArchive::segment_of`]; those of `read`.
    pub fn with_segment<T>(
        &self,
        stored: &StoredRun,
        segment: SegmentName,
        read: &mut dyn FnMut(SegmentFrame<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut found = None;
        self.read_segments(stored, segment, &mut |name, packed| {
            if name == segment {
                found = Some(read(packed)?);
            }
            Ok(false)
        })?;
        let key = stored.run.to_string();
        found.ok_or_else(|| Error::corrupt(format!("{} lacks {segment}", self.describe(&key))))
    }

    pub fn system(&self) -> &str {
        &self.system
    }

    /// Makes the digests in keys.
    pub fn digester(&self) -> &WalDigester {
        &self.digester
    }

    /// What messages call the repository, or an object in it.
    pub fn describe(&self, key: &str) -> String {
        self.objects.describe(key)
    }

    /// Stores a run: durable when this returns. An object of the same key has the same content, and stays.
    ///
    /// # Errors
    /// The storage's.
    pub fn put_run(&self, run: &WalRun, object: &[u8]) -> Result<()> {
        self.put_object(&run.to_string(), object)
    }

    pub(super) fn put_object(&self, key: &str, object: &[u8]) -> Result<()> {
        if object.len() <= MAX_PUT_BYTES {
            return self.put(key, object);
        }
        if self.objects.stat(key)?.is_some() {
            return Ok(());
        }
        let mut upload = self.objects.create(key)?;
        for piece in object.chunks(1 << 20) {
            upload.append(piece)?;
        }
        upload.finish().map(drop)
    }

    pub(super) fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        match self.objects.put(key, bytes, &PutIf::Absent) {
            // Without conditions, the object is replaced by the same bytes.
            Err(error) if error.kind == ErrorKind::Unsupported => {
                self.objects.put(key, bytes, &PutIf::Always).map(drop)
            }
            Ok(Put::Done(_) | Put::Refused) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores a history or a label, and returns those of the same name that have other content.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it is too long; the storage's.
    pub fn put_small(&self, name: WalFileName, content: &[u8]) -> Result<Vec<WalKey>> {
        if content.len() as u64 > MAX_SMALL_BYTES {
            let message = format!("cannot archive {name}: it has {} bytes", content.len());
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let digest = self.digester.of_small(&self.system, name, content);
        let key = WalKey::Small {
            system: self.system.clone(),
            name,
            digest,
        };
        self.put(&key.to_string(), content)?;
        let others = self.list_small(name)?;
        Ok(others.into_iter().filter(|other| *other != key).collect())
    }

    fn list_small(&self, name: WalFileName) -> Result<Vec<WalKey>> {
        let listed = self.objects.list(&history_dir(&self.system))?;
        let keys = listed
            .iter()
            .filter_map(|object| WalKey::parse(&object.key));
        Ok(keys
            .filter(|key| matches!(key, WalKey::Small { name: of, .. } if *of == name))
            .collect())
    }

    /// Returns the history of a timeline; `None` if it was not archived.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] if two servers began this timeline; [`ErrorKind::Corrupt`] if it is damaged; the storage's.
    pub fn history(&self, timeline: u32) -> Result<Option<Vec<u8>>> {
        let name = WalFileName::History(timeline);
        let keys = self.list_small(name)?;
        match &keys[..] {
            [] => Ok(None),
            [key] => self.read_small(key).map(Some),
            _ => Err(two_histories(&self.system, timeline)),
        }
    }

    /// Reads a history or a label, and checks it against its key.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is missing or damaged; the storage's.
    pub fn read_small(&self, key: &WalKey) -> Result<Vec<u8>> {
        let text = key.to_string();
        let damaged = |reason: &'static str| {
            Error::corrupt(format!("{} is damaged", self.describe(&text))).because(reason)
        };
        let got = self.objects.get(&text)?;
        let (content, _) = got.ok_or_else(|| damaged("it is missing"))?;
        let WalKey::Small { name, digest, .. } = key else {
            return Ok(content);
        };
        let is_right = self.digester.of_small(&self.system, *name, &content) == *digest;
        if is_right {
            Ok(content)
        } else {
            Err(damaged("its key has the digest of other content"))
        }
    }

    /// Lists the runs beside a segment: those of the same timeline and log.
    ///
    /// # Errors
    /// The storage's.
    pub fn runs_beside(&self, segment: SegmentName) -> Result<Vec<StoredRun>> {
        Ok(self.listing_below(&log_dir(&self.system, segment))?.runs)
    }

    /// Lists all WAL of the system.
    ///
    /// # Errors
    /// The storage's.
    pub fn listing(&self) -> Result<WalListing> {
        self.listing_below(&system_dir(&self.system))
    }

    pub(super) fn listing_below(&self, dir: &str) -> Result<WalListing> {
        let listed = self.objects.list(dir)?.into_iter();
        let keys = listed.filter_map(|object| Some((WalKey::parse(&object.key)?, object.bytes)));
        Ok(WalListing::of(keys))
    }

    /// Reads what a run holds.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is missing or damaged; [`ErrorKind::Permission`] without a key that reads; the storage's.
    pub fn index(&self, stored: &StoredRun) -> Result<WalRunIndex> {
        let key = stored.run.to_string();
        let len = TAIL_BYTES.min(stored.bytes);
        let mut tail = Vec::new();
        self.objects
            .read_at(&key, stored.bytes - len, len as usize, &mut tail)?;
        WalRunIndex::read(
            &tail,
            stored.bytes,
            &stored.run,
            &self.digester,
            &self.describe(&key),
        )
    }

    /// Reads segments of a run, each with its name, in order, and hands them to `take` until that is enough. `first` is the first.
    /// `take` unpacks those that it wants, which checks them.
    ///
    /// # Errors
    /// As [`WalArchive::index`]; those of `take`.
    pub fn read_segments(
        &self,
        stored: &StoredRun,
        first: SegmentName,
        take: &mut dyn FnMut(SegmentName, SegmentFrame<'_>) -> Result<bool>,
    ) -> Result<()> {
        let key = stored.run.to_string();
        let name = self.describe(&key);
        // A short run is read with one request, index and segments at once. Of a long one only what
        // is wanted is fetched.
        let whole = match stored.bytes <= WHOLE_BYTES {
            true => Some(self.objects.get(&key)?.ok_or_else(|| missing(&name))?.0),
            false => None,
        };
        let index = match &whole {
            Some(object) => {
                let tail = &object[object.len().saturating_sub(TAIL_BYTES as usize)..];
                WalRunIndex::read(
                    tail,
                    object.len() as u64,
                    &stored.run,
                    &self.digester,
                    &name,
                )?
            }
            None => self.index(stored)?,
        };
        let members = stored.run.segments().zip(&index.members);
        for (segment, member) in members.filter(|(segment, _)| *segment >= first) {
            let read;
            let frame = match &whole {
                Some(object) => {
                    let end = member.offset.saturating_add(member.stored_bytes);
                    let range = member.offset as usize..end as usize;
                    object.get(range).ok_or_else(|| {
                        Error::corrupt(format!("{name} is damaged")).because("it ends too early")
                    })?
                }
                None => {
                    read = self.frame_of(stored, member)?;
                    &read[..]
                }
            };
            let packed = SegmentFrame {
                frame,
                member,
                segment_bytes: index.segment_bytes,
                name: format!("{segment} in {name}"),
            };
            if !take(segment, packed)? {
                break;
            }
        }
        Ok(())
    }
}

fn missing(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("could not read {name}")).because("it is not there")
}

fn two_histories(system: &str, timeline: u32) -> Error {
    let message = format!("cannot follow timeline {timeline} of system {system}");
    Error::new(ErrorKind::Exists, message)
        .because("two servers began this timeline, and each archived a history of it")
        .hint("`fullbore wal list` shows both; move the history of the wrong one away")
}
