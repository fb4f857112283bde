//! Turns records into jobs: one for each frame of a backup.
//!
//! A job is one frame with all wanted pieces of it, so that each frame is fetched and decoded once,
//! however many files need it. Jobs come out in the order in which the records first need them,
//! which is the order of the segments. At most `WINDOW` pieces are held back, whatever the number
//! of files.

use super::{
    block_digests::{are_digested, first_wrong},
    volume_passes::VolumePasses,
};
use fullbore_format::{
    digest::{Algorithm, Digest, Joiner, Piece as Hashed, digests, piece, piece_of_any_bounds},
    entry::xattr_bytes,
    error::{Error, Result, quoted},
    page::{FrameAt, PageItem, SegmentId},
    root::BackupOptions,
};
use fullbore_platform::queue::Locked;
use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Most pieces that wait for others of the same frame: about those of a page. Each KiB of
/// attributes counts as one more.
const WINDOW: usize = 8192;
const XATTRS: usize = 1 << 10;
/// The records of a longer file are not kept for their block digests: relations are shorter, and
/// other files have a digest.
const MOST_OF_BLOCKS: u64 = 1 << 32;
/// Entries without content in one job.
const BATCH: usize = 128;

/// A frame, and the wanted pieces of it.
#[derive(Debug)]
pub struct FrameJob<H> {
    /// The frame; `None` if no wanted entry has content.
    pub frame: Option<(SegmentId, FrameAt)>,
    pub pieces: Vec<WantedRun<H>>,
    /// Entries without content: empty files, symbolic links, pipes and devices.
    pub bare: Vec<PageItem>,
}

#[derive(Debug)]
pub struct WantedRun<H> {
    /// The file that the run belongs to.
    pub of: RunOwner<H>,
    /// Bytes of the frame before it.
    pub inner: u32,
    pub len: u32,
}

#[derive(Debug)]
pub enum RunOwner<H> {
    Whole(PageItem),
    /// A part of a file, from this offset of its data.
    Part(Arc<ScheduleShared<H>>, u64),
}

impl<H> WantedRun<H> {
    pub fn content<'a>(&self, plain: &'a [u8]) -> &'a [u8] {
        plain
            .get(self.inner as usize..)
            .and_then(|rest| rest.get(..self.len as usize))
            .unwrap_or_default()
    }

    /// Returns whether the content is correct although the checksum of the frame is wrong.
    pub fn is_saved(&self, plain: &[u8]) -> bool {
        matches!(&self.of, RunOwner::Whole(item) if is_saved(item, self.content(plain)))
    }

    /// Returns how much it counts among the waiting pieces.
    fn weight(&self) -> usize {
        1 + xattr_bytes(&self.item().entry.xattrs) / XATTRS
    }

    /// Returns the record of its file.
    pub fn item(&self) -> &PageItem {
        match &self.of {
            RunOwner::Whole(item) => item,
            RunOwner::Part(shared, _) => &shared.item,
        }
    }
}

/// A file in several pieces, which arrive in any order, from any thread.
#[derive(Debug)]
pub struct ScheduleShared<H> {
    /// Its record; the first one, if it continues over pages.
    pub item: PageItem,
    /// The consumer's own value for this item.
    pub handle: H,
    joined: Mutex<JoinedPieces>,
    /// Its records and their described lengths, if only its blocks have digests. The digests span
    /// all extents.
    blocks: Mutex<Vec<(PageItem, u64)>>,
    damaged: AtomicBool,
}

#[derive(Debug, Default)]
struct JoinedPieces {
    joiner: Joiner,
    /// Pieces that arrived before earlier ones: usually as many as there are jobs under way.
    early: BTreeMap<u64, (u64, PieceHash)>,
    /// Whether a piece cannot be hashed by itself.
    unknown: bool,
    /// Bytes of data joined so far, and arrived so far.
    next: u64,
    seen: u64,
    digest: Option<Digest>,
    /// Offset of a wrong block.
    wrong: Option<u64>,
}

/// The hash of a piece, and the units of its blocks; `None` if the piece cannot be hashed by
/// itself.
pub type PieceHash = Option<(Hashed, u64)>;

/// The state of a file after a piece.
#[derive(Debug, PartialEq, Eq)]
pub enum ContentEnd {
    /// There are more pieces.
    NotYet,
    /// The content is correct.
    Right,
    /// The content is wrong, with the reason.
    Damaged(String),
    /// All pieces arrived, but only reading the file can show whether it is correct: hash its data
    /// and compare with this.
    Unknown(Digest),
}

impl<H> ScheduleShared<H> {
    fn joined(&self) -> MutexGuard<'_, JoinedPieces> {
        self.joined.locked()
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<(PageItem, u64)>> {
        self.blocks.locked()
    }

    /// Hashes a piece that starts at `offset` of the data.
    pub fn hash(&self, options: &BackupOptions, offset: u64, content: &[u8]) -> PieceHash {
        let may_be_digested = self.item.more || self.item.digest.is_some();
        let algorithm = if may_be_digested {
            options.digest
        } else {
            Algorithm::None
        };
        let blocks = self.blocks().clone();
        let mut known = blocks
            .iter()
            .filter(|(record, len)| are_digested(record, *len, options));
        if let Some(position) = known.find_map(|(record, len)| {
            first_wrong(record, *len, options.block_bytes, offset, content)
        }) {
            self.joined().wrong = Some(position);
        }
        piece_of_any_bounds(algorithm, content, offset, self.item.entry.data_len())
    }

    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Relaxed)
    }

    /// Returns whether all pieces are written, or damaged.
    pub(super) fn is_complete(&self) -> bool {
        self.joined().seen >= self.item.entry.data_len()
    }

    /// Records that a piece is damaged.
    pub fn spoil(&self) {
        self.damaged.store(true, Relaxed);
    }

    /// Records that a piece is written, or damaged. The call for the last piece returns the state
    /// of the file.
    pub fn done(&self, offset: u64, len: u64, hash: PieceHash) -> ContentEnd {
        let mut joined = self.joined();
        joined.seen += len;
        joined.unknown |= hash.is_none();
        joined.early.insert(offset, (len, hash));
        let mut next = joined.next;
        while let Some((len, hash)) = joined.early.remove(&next) {
            if let Some((piece, units)) = hash {
                joined.joiner.push_units(&piece, units);
            }
            next += len;
        }
        joined.next = next;
        if joined.seen < self.item.entry.data_len() {
            ContentEnd::NotYet
        } else {
            self.end(&mut joined)
        }
    }

    fn end(&self, joined: &mut JoinedPieces) -> ContentEnd {
        match (joined.digest, joined.wrong) {
            _ if self.is_damaged() => ContentEnd::Damaged("a frame of it is damaged".to_owned()),
            (_, Some(at)) => {
                ContentEnd::Damaged(format!("its block at byte {at} differs from the manifest"))
            }
            (None, None) => ContentEnd::Right,
            (Some(wanted), None) if joined.unknown => ContentEnd::Unknown(wanted),
            (Some(wanted), None) => compare(wanted, take(&mut joined.joiner).finish()),
        }
    }
}

fn compare(wanted: Digest, found: Option<Digest>) -> ContentEnd {
    match found {
        Some(found) if found != wanted => {
            ContentEnd::Damaged(format!("its digest is {found}, the manifest says {wanted}"))
        }
        // Without a hash: this build does not have the algorithm.
        _ => ContentEnd::Right,
    }
}

/// Checks the content of a whole file against its record.
pub fn check_whole(item: &PageItem, content: &[u8]) -> ContentEnd {
    match item.digest {
        None => ContentEnd::Right,
        Some(Digest::Blake3(_)) => check_with(item, Algorithm::Blake3, content),
        Some(Digest::Crc32c(_)) => check_with(item, Algorithm::Crc32c, content),
    }
}

/// Returns a result for each piece of a frame: for a whole file its end (whole files are hashed
/// together), for another piece the value that `part` returns.
pub fn check_pieces<H, C>(
    pieces: &[WantedRun<H>],
    plain: &[u8],
    whole: impl Fn(ContentEnd) -> C,
    part: impl Fn(&ScheduleShared<H>, u64, &[u8]) -> C,
) -> Vec<C> {
    let contents: Vec<&[u8]> = pieces
        .iter()
        .filter(|wanted| match &wanted.of {
            RunOwner::Whole(item) => matches!(item.digest, Some(Digest::Blake3(_))),
            RunOwner::Part(..) => false,
        })
        .map(|wanted| wanted.content(plain))
        .collect();
    // In one call, which hashes several small contents at the same time.
    let mut found = digests(&contents).into_iter();
    let mut check = |wanted: &WantedRun<H>| match &wanted.of {
        RunOwner::Part(shared, offset) => part(shared, *offset, wanted.content(plain)),
        RunOwner::Whole(item) => whole(match item.digest {
            Some(wanted @ Digest::Blake3(_)) => compare(wanted, found.next()),
            _ => check_whole(item, wanted.content(plain)),
        }),
    };
    pieces.iter().map(&mut check).collect()
}

/// Returns whether this is the whole content of a file, by its BLAKE3 digest. Without that digest,
/// the bytes of a damaged frame cannot be checked.
pub fn is_saved(item: &PageItem, content: &[u8]) -> bool {
    matches!(item.digest, Some(Digest::Blake3(_)))
        && check_whole(item, content) == ContentEnd::Right
}

fn check_with(item: &PageItem, algorithm: Algorithm, content: &[u8]) -> ContentEnd {
    let mut joiner = Joiner::default();
    joiner.push(&piece(algorithm, content, 0, 0, u64::MAX));
    item.digest
        .map_or(ContentEnd::Right, |wanted| compare(wanted, joiner.finish()))
}

/// Turns records into jobs.
pub struct JobPlanner<'a, H, S> {
    send: S,
    /// The pass over volumes that this is; `None`: frames are read in any order.
    passes: Option<&'a mut VolumePasses<H>>,
    jobs: Vec<FrameJob<H>>,
    of_frame: HashMap<(SegmentId, u64), usize>,
    /// The frame used last in each stream: the next page may need more of it.
    latest: HashMap<u32, (SegmentId, u64)>,
    waiting: usize,
    bare: Vec<PageItem>,
    going_on: HashMap<Vec<u8>, ContinuedFile<H>>,
}

/// A file whose next record is expected.
struct ContinuedFile<H> {
    shared: Arc<ScheduleShared<H>>,
    /// Bytes of data that the records so far describe.
    position: u64,
    /// Whether an earlier pass took its digests.
    is_begun: bool,
}

impl<'a, H: Default, S: FnMut(FrameJob<H>) -> Result<()>> JobPlanner<'a, H, S> {
    /// Makes a planner that passes jobs to `send`.
    pub fn new(send: S) -> Self {
        Self::in_pass(send, None)
    }

    /// Makes a planner for one pass over a backup in volumes. All passes must get the same records with content.
    pub fn in_pass(send: S, passes: Option<&'a mut VolumePasses<H>>) -> Self {
        Self {
            send,
            passes,
            jobs: Vec::new(),
            of_frame: HashMap::new(),
            latest: HashMap::new(),
            waiting: 0,
            bare: Vec::new(),
            going_on: HashMap::new(),
        }
    }

    /// Adds the next record, of any stored entry except directories and hard links.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if the sum of its extents is not the length
    /// of its data; and those of `send`.
    pub fn add(&mut self, item: PageItem) -> Result<()> {
        if item.extents.is_empty() && item.from == 0 && !item.more {
            return self.add_bare(item);
        }
        let len: u64 = item.described_bytes();
        // Frames follow from the record: a length that does not add up would leave a hole in the
        // file.
        let whole = item
            .from
            .checked_add(len)
            .is_some_and(|end| end == item.entry.data_len());
        if !whole && !item.more {
            return Err(misfit(&item.entry.path));
        }
        if let ([extent], 0, false) = (&item.extents[..], item.from, item.more) {
            let (extent, frame) = (*extent, (item.segment(&extent.frame).clone(), extent.frame));
            self.want(
                frame,
                WantedRun {
                    of: RunOwner::Whole(item),
                    inner: extent.inner,
                    len: extent.len,
                },
            );
        } else {
            self.add_shared(&item)?;
        }
        if self.waiting >= WINDOW {
            self.flush(false)
        } else {
            Ok(())
        }
    }

    fn add_bare(&mut self, item: PageItem) -> Result<()> {
        if item.entry.data_len() > 0 {
            return Err(misfit(&item.entry.path));
        }
        if self.passes.as_ref().is_some_and(|pass| !pass.is_first()) {
            return Ok(());
        }
        self.bare.push(item);
        if self.bare.len() >= BATCH {
            self.send_bare()
        } else {
            Ok(())
        }
    }

    fn send_bare(&mut self) -> Result<()> {
        (self.send)(FrameJob {
            frame: None,
            pieces: Vec::new(),
            bare: take(&mut self.bare),
        })
    }

    fn add_shared(&mut self, item: &PageItem) -> Result<()> {
        let ContinuedFile {
            shared,
            mut position,
            is_begun,
        } = self.continued(item);
        // Records of one file must follow each other without a gap, or content would be written at
        // a wrong place.
        if position != item.from || item.entry.data_len() != shared.item.entry.data_len() {
            return Err(misfit(&item.entry.path));
        }
        if !is_begun {
            shared.joined().digest = item.digest;
        }
        if !is_begun
            && item.digest.is_none()
            && !item.blocks.is_empty()
            && item.entry.data_len() <= MOST_OF_BLOCKS
        {
            shared.blocks().push((item.clone(), item.described_bytes()));
        }
        for extent in &item.extents {
            let frame = (item.segment(&extent.frame).clone(), extent.frame);
            self.want(
                frame,
                WantedRun {
                    of: RunOwner::Part(shared.clone(), position),
                    inner: extent.inner,
                    len: extent.len,
                },
            );
            position += u64::from(extent.len);
        }
        if let Some(passes) = &mut self.passes {
            passes.keep(item, &shared);
        }
        if item.more {
            let continued = ContinuedFile {
                shared,
                position,
                is_begun,
            };
            self.going_on.insert(item.entry.path.clone(), continued);
        }
        Ok(())
    }

    /// Returns the file of a record: of the record before, of an earlier pass, or a new one.
    fn continued(&mut self, item: &PageItem) -> ContinuedFile<H> {
        let path = &item.entry.path;
        if let Some(continued) = self.going_on.remove(path) {
            return continued;
        }
        let begun = self.passes.as_ref().and_then(|pass| pass.begun(path));
        ContinuedFile {
            is_begun: begun.is_some(),
            shared: begun.unwrap_or_else(|| share(item)),
            position: 0,
        }
    }

    fn want(&mut self, frame: (SegmentId, FrameAt), wanted: WantedRun<H>) {
        if let Some(passes) = &mut self.passes
            && !passes.takes(&frame.0)
        {
            return;
        }
        let key = (frame.0.clone(), frame.1.offset);
        self.latest.insert(key.0.stream, key.clone());
        self.waiting += wanted.weight();
        if let Some(index) = self.of_frame.get(&key)
            && self.jobs[*index].frame.as_ref() == Some(&frame)
        {
            return self.jobs[*index].pieces.push(wanted);
        }
        self.of_frame.insert(key, self.jobs.len());
        self.jobs.push(FrameJob {
            frame: Some(frame),
            pieces: vec![wanted],
            bare: Vec::new(),
        });
    }

    /// Sends the jobs, but without `all` keeps those that the next records may extend.
    fn flush(&mut self, all: bool) -> Result<()> {
        self.of_frame.clear();
        let mut kept = Vec::new();
        for job in take(&mut self.jobs) {
            let key = job
                .frame
                .as_ref()
                .map(|(segment, place)| (segment.clone(), place.offset));
            if !all && key.is_some_and(|key| self.latest.values().any(|latest| *latest == key)) {
                kept.push(job);
            } else {
                (self.send)(job)?;
            }
        }
        self.waiting = kept
            .iter()
            .flat_map(|job| &job.pieces)
            .map(WantedRun::weight)
            .sum();
        for (place, job) in kept.iter().enumerate() {
            if let Some((segment, frame)) = &job.frame {
                self.of_frame.insert((segment.clone(), frame.offset), place);
            }
        }
        self.jobs = kept;
        // A frame with more files than the window must not be kept for ever.
        if self.waiting >= WINDOW {
            self.flush(true)
        } else {
            Ok(())
        }
    }

    /// Sends the remaining jobs.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for a record that announces a continuation
    /// without one; and those of `send`.
    pub fn finish(mut self) -> Result<()> {
        self.flush(true)?;
        self.send_bare()?;
        self.going_on
            .values()
            .next()
            .map_or(Ok(()), |file| Err(misfit(&file.shared.item.entry.path)))
    }
}

/// The error of a file whose records do not cover its whole content.
pub fn misfit(path: &[u8]) -> Error {
    Error::corrupt(format!(
        "the manifest does not say where all of {} is",
        quoted(path)
    ))
}

fn share<H: Default>(item: &PageItem) -> Arc<ScheduleShared<H>> {
    Arc::new(ScheduleShared {
        item: item.clone(),
        handle: H::default(),
        joined: Mutex::default(),
        blocks: Mutex::default(),
        damaged: AtomicBool::new(false),
    })
}

/// Collects jobs that make up one stretch of a file, so that a worker can write it at once. If
/// scattered parts of a file changed again and again, a stretch is in as many frames as there were
/// backups.
pub struct StretchBuffer<H, S> {
    send: S,
    bytes: u64,
    jobs: Vec<FrameJob<H>>,
}

impl<H, S: FnMut(Vec<FrameJob<H>>) -> Result<()>> StretchBuffer<H, S> {
    /// Passes the jobs to `send`; a stretch has this many bytes.
    pub fn new(bytes: u64, send: S) -> Self {
        Self {
            send,
            bytes,
            jobs: Vec::new(),
        }
    }

    /// Adds the next job.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn add(&mut self, job: FrameJob<H>) -> Result<()> {
        let goes_on =
            self.jobs
                .last()
                .is_some_and(|last| match (self.stretch(last), self.stretch(&job)) {
                    (Some((a, at)), Some((b, next))) => Arc::ptr_eq(a, b) && at == next,
                    _ => false,
                });
        if !goes_on {
            self.flush()?;
        }
        self.jobs.push(job);
        Ok(())
    }

    /// Returns the stretch that contains all pieces of a job.
    fn stretch<'a>(&self, job: &'a FrameJob<H>) -> Option<(&'a Arc<ScheduleShared<H>>, u64)> {
        let run_of = |wanted: &'a WantedRun<H>| match &wanted.of {
            RunOwner::Part(shared, offset) => {
                let [first, last] = [*offset, offset + u64::from(wanted.len).max(1) - 1]
                    .map(|position| position / self.bytes);
                (first == last).then_some((shared, first))
            }
            RunOwner::Whole(_) => None,
        };
        let first = run_of(job.pieces.first()?)?;
        job.pieces
            .iter()
            .all(|wanted| {
                run_of(wanted)
                    .is_some_and(|other| Arc::ptr_eq(first.0, other.0) && first.1 == other.1)
            })
            .then_some(first)
    }

    /// Sends the remaining jobs.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn flush(&mut self) -> Result<()> {
        if self.jobs.is_empty() {
            Ok(())
        } else {
            (self.send)(take(&mut self.jobs))
        }
    }
}
