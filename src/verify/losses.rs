//! What damage costs: which files of which backups cannot be had because of it.
//!
//! Damage is found once, however many backups share what is damaged. Only if there is some, each backup is gone through for
//! the files that want it. Memory grows with what is lost, and with nothing else.

use super::stored_content::StoredContent;
use crate::{
    archive::{Archive, Selection, object::ObjectName},
    format::{
        entry::{EntryKind, EntryPath},
        page::{FrameAt, PageItem, SegmentId, describe_whole_file},
    },
    queue::Locked,
    repo::inventory::{Inventory, files, full},
    report::damage::{Report, names},
    text::counted,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard},
};

/// What a backup has lost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryLoss {
    /// The backup.
    pub backup: String,
    /// All of it?
    pub all: bool,
    /// Files, and other names of them, that no restore gives, in order.
    pub files: Vec<EntryPath>,
    /// Those of them that are lost only because nothing says where all of a file is, with that file.
    pub cut_off: BTreeMap<EntryPath, EntryPath>,
    /// What is lost with pages that are nowhere, in words: nobody knows the names.
    pub unnamed: Vec<String>,
}

/// Everything that is damaged.
#[derive(Debug, Default)]
pub(crate) struct DamageSet(Mutex<Things>);

#[derive(Debug, Default)]
pub(crate) struct Things {
    /// Segments that are not there.
    missing: HashSet<SegmentId>,
    /// Damaged frames, and whether digests can tell what of them is whole.
    frames: HashMap<(SegmentId, u64), bool>,
    /// Files whose frames are whole and whose content is not, by their fingerprints.
    files: HashSet<u64>,
    /// Bytes of segments that are stored otherwise than their checksum says.
    parts: Vec<Hole>,
    /// What pages described that are nowhere, by backup.
    pages: BTreeMap<usize, Vec<String>>,
}

impl Things {
    fn has_file(&self, archive: &Archive, item: &PageItem) -> bool {
        !self.files.is_empty() && self.files.contains(&fingerprint(archive, item))
    }
}

impl DamageSet {
    fn things(&self) -> MutexGuard<'_, Things> {
        self.0.locked()
    }

    pub(crate) fn missing(&self, segment: SegmentId) {
        self.things().missing.insert(segment);
    }

    /// Is it known that a segment is not there?
    pub(crate) fn is_missing(&self, segment: &SegmentId) -> bool {
        self.things().missing.contains(segment)
    }

    /// A frame that is damaged, and whether what it holds came out all the same; is that news?
    pub(crate) fn frame(&self, segment: &SegmentId, frame: &FrameAt, is_out: bool) -> bool {
        self.things()
            .frames
            .insert((segment.clone(), frame.offset), is_out)
            .is_none()
    }

    /// A file, by its first record.
    pub(crate) fn file(&self, archive: &Archive, item: &PageItem) {
        self.things().files.insert(fingerprint(archive, item));
    }

    /// Bytes of a segment that depend on damaged ones, and how the report of that begins.
    pub(crate) fn part(&self, segment: &SegmentId, (from, to): (u64, u64), report: String) {
        self.things()
            .parts
            .push((segment.clone(), from, to, report));
    }

    pub(crate) fn page(&self, archive: usize, what: &str) {
        self.things()
            .pages
            .entry(archive)
            .or_default()
            .push(what.to_owned());
    }

    /// Is it known already that a frame cannot be had?
    pub(crate) fn has(&self, segment: &SegmentId, offset: u64) -> bool {
        let things = self.things();
        things.missing.contains(segment) || things.frames.contains_key(&(segment.clone(), offset))
    }
}

/// The same for records that say the same, in any backup.
fn fingerprint(archive: &Archive, item: &PageItem) -> u64 {
    let mut hasher = DefaultHasher::new();
    item.entry.path.hash(&mut hasher);
    (item.entry.size(), item.digest).hash(&mut hasher);
    for extent in &item.extents {
        full(archive, item.segment(&extent.frame)).hash(&mut hasher);
        (extent.frame.offset, extent.inner, extent.len).hash(&mut hasher);
    }
    hasher.finish()
}

/// Files of one backup with frames in one place: how many, and the first of them.
type Touched = BTreeMap<(usize, usize), (u64, Vec<EntryPath>)>;

/// Name what is lost, and say with each missing segment and damaged part which files have to do with it.
pub(crate) fn blame(stock: &Inventory, bad: &DamageSet, report: &Report) -> Vec<EntryLoss> {
    let mut things = std::mem::take(&mut *bad.things());
    let nothing = things.missing.is_empty() && things.frames.is_empty() && things.files.is_empty();
    if nothing && things.parts.is_empty() && things.pages.is_empty() {
        return Vec::new();
    }
    let places = places(stock, &things, report);
    let mut touched = Touched::new();
    let mut losses = Vec::new();
    for (at, archive) in stock.archives.iter().enumerate() {
        let (files, cut_off) = lost_files(at, archive, &things, &places, &mut touched);
        let unnamed = things.pages.remove(&at).unwrap_or_default();
        if !files.is_empty() || !unnamed.is_empty() {
            losses.push(EntryLoss {
                backup: archive.root.id.clone(),
                all: false,
                files,
                cut_off,
                unnamed,
            });
        }
    }
    for ((place, archive), (count, first)) in touched {
        let of = if stock.archives.len() > 1 {
            format!(" of backup {}", stock.names(&[archive]))
        } else {
            String::new()
        };
        let more = count - first.len() as u64;
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        report.detail(
            &places[place].3,
            &format!(
                "with the frames of {}{of}: {}{more}",
                counted(count, "file"),
                names(&first)
            ),
        );
    }
    losses
}

/// Where frames are of which it is said whose they are: segment, from, to, and how its damage begins.
type Hole = (SegmentId, u64, u64, String);

fn places(stock: &Inventory, things: &Things, report: &Report) -> Vec<Hole> {
    let name = |segment: &SegmentId| {
        let reads = stock
            .segments
            .iter()
            .find(|place| place.id == *segment)
            .map_or(0, |place| place.archive);
        stock.archives[reads]
            .store()
            .name(&ObjectName::Segment(segment.clone()))
    };
    let missing = things
        .missing
        .iter()
        .map(|id| (id.clone(), 0, u64::MAX, format!("segment {} ", name(id))));
    missing
        .chain(things.parts.iter().cloned())
        .filter(|(.., what)| report.has(what))
        .collect()
}

/// Files that are lost, and which of them are only cut off: see [`Loss`].
fn lost_files(
    at: usize,
    archive: &Archive,
    things: &Things,
    places: &[Hole],
    touched: &mut Touched,
) -> (Vec<EntryPath>, BTreeMap<EntryPath, EntryPath>) {
    let (mut lost, mut cut_off) = (BTreeSet::new(), BTreeMap::new());
    let (all, mut stored) = (Selection::default(), StoredContent::salvaging());
    for parts in files(archive.records(&all, false)) {
        let Some(first) = parts.first().filter(|first| first.state.is_stored()) else {
            continue;
        };
        let path = &first.entry.path;
        let (is_lost, of) = match &first.entry.kind {
            EntryKind::HardLink(target) => (lost.contains(target), cut_off.get(target)),
            EntryKind::File { .. } => {
                let lacks_frames = parts
                    .iter()
                    .any(|part| lacks_frames(archive, part, things, &mut stored));
                let is_lost =
                    lacks_frames || parts.iter().any(|part| things.has_file(archive, part));
                (
                    is_lost,
                    (!lacks_frames && !describe_whole_file(&parts)).then_some(path),
                )
            }
            _ => (false, None),
        };
        if is_lost {
            lost.insert(path.clone());
            of.cloned()
                .into_iter()
                .for_each(|of| drop(cut_off.insert(path.clone(), of)));
        }
        for (place, hole) in places.iter().enumerate() {
            if parts.iter().any(|part| touches(archive, part, hole)) {
                let (count, first) = touched.entry((place, at)).or_default();
                *count += 1;
                if first.len() < 5 {
                    first.push(path.clone());
                }
            }
        }
    }
    (lost.into_iter().collect(), cut_off)
}

fn lacks_frames(
    archive: &Archive,
    item: &PageItem,
    things: &Things,
    stored: &mut StoredContent,
) -> bool {
    let mut frames = item.extents.iter().map(|extent| {
        (
            full(archive, item.segment(&extent.frame)),
            extent.frame.offset,
        )
    });
    frames.any(|(segment, offset)| {
        let is_missing = things.missing.contains(&segment);
        is_missing
            || things
                .frames
                .get(&(segment, offset))
                .is_some_and(|is_out| !is_out || !stored.saves(archive, item))
    })
}

fn touches(archive: &Archive, item: &PageItem, (segment, from, to, _): &Hole) -> bool {
    item.extents
        .iter()
        .map(|extent| &extent.frame)
        .any(|frame| {
            let within = frame.offset < *to && frame.offset + u64::from(frame.stored_len) > *from;
            within && full(archive, item.segment(frame)) == *segment
        })
}
