//! Determines the losses that damage causes: the files of each backup that can no longer be
//! restored.
//!
//! Damage is found once, however many backups share the damaged object. Only if there is damage,
//! the records of each backup are searched for affected files. Memory grows only with the number of
//! lost files.

use super::{
    data::{StoredPart, part_count},
    stored_content::StoredContent,
};
use crate::report::damage::{Report, names};
use fullbore_format::{
    entry::{EntryKind, EntryPath},
    page::{FrameAt, PageItem, SegmentId, describe_whole_file},
    text::counted,
};
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    archive::{Archive, Selection, object::ObjectName},
    inventory::{Inventory, files, full},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, MutexGuard},
};

/// The losses of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryLoss {
    /// The backup.
    pub backup: String,
    /// Whether the whole backup is lost.
    pub all: bool,
    /// Files, and other names of them, that cannot be restored, in order.
    pub files: Vec<EntryPath>,
    /// Those of them that are lost only because a record of the file is lost, with that file.
    pub cut_off: BTreeMap<EntryPath, EntryPath>,
    /// Descriptions of losses with missing pages, whose names are unknown.
    pub unnamed: Vec<String>,
}

/// All damage found.
#[derive(Debug, Default)]
pub(crate) struct DamageSet(Mutex<FoundDamage>);

#[derive(Debug, Default)]
pub(crate) struct FoundDamage {
    /// Missing segments.
    missing: HashSet<SegmentId>,
    /// Damaged frames, and whether digests can identify the intact files in them.
    frames: HashMap<(SegmentId, u64), bool>,
    /// Files with intact frames but wrong content, by their fingerprints.
    files: HashSet<u64>,
    /// Frames with content of these files, of their first records.
    frames_of_files: HashSet<(SegmentId, u64)>,
    /// Bytes of segments that differ from their checksum as stored.
    parts: Vec<DamagedRange>,
    /// Descriptions of the entries on missing pages, by backup.
    pages: BTreeMap<usize, Vec<String>>,
}

impl FoundDamage {
    /// Returns the damaged bytes of each segment: of a damaged frame its first byte, of a missing segment all.
    fn damaged_ranges(&self) -> HashMap<SegmentId, Vec<(u64, u64)>> {
        let mut ranges: HashMap<SegmentId, Vec<(u64, u64)>> = HashMap::new();
        let frames = self.frames.keys().chain(&self.frames_of_files);
        for (segment, offset) in frames {
            let damaged = ranges.entry(segment.clone()).or_default();
            damaged.push((*offset, offset.saturating_add(1)));
        }
        for (segment, start, end, _) in &self.parts {
            ranges
                .entry(segment.clone())
                .or_default()
                .push((*start, *end));
        }
        let missing = self.missing.iter().cloned();
        ranges.extend(missing.map(|segment| (segment, vec![(0, u64::MAX)])));
        ranges
    }

    fn has_file(&self, archive: &Archive, item: &PageItem) -> bool {
        !self.files.is_empty() && self.files.contains(&fingerprint(archive, item))
    }
}

impl DamageSet {
    fn things(&self) -> MutexGuard<'_, FoundDamage> {
        self.0.locked()
    }

    pub(crate) fn missing(&self, segment: SegmentId) {
        self.things().missing.insert(segment);
    }

    /// Returns whether a segment is known to be missing.
    pub(crate) fn is_missing(&self, segment: &SegmentId) -> bool {
        self.things().missing.contains(segment)
    }

    /// Records a damaged frame, and whether its content could be decoded anyway. Returns whether
    /// this is new.
    pub(crate) fn frame(&self, segment: &SegmentId, frame: &FrameAt, is_out: bool) -> bool {
        self.things()
            .frames
            .insert((segment.clone(), frame.offset), is_out)
            .is_none()
    }

    /// Records a damaged file, by its first record.
    pub(crate) fn file(&self, archive: &Archive, item: &PageItem) {
        let mut things = self.things();
        things.files.insert(fingerprint(archive, item));
        let frames = item.extents.iter().map(|extent| &extent.frame);
        let frames = frames.map(|frame| (full(archive, item.segment(frame)), frame.offset));
        things.frames_of_files.extend(frames);
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

    /// Returns the parts of segments that have damaged bytes, frames, or content of damaged files.
    pub(crate) fn parts_around(&self, stock: &Inventory) -> Vec<StoredPart> {
        let things = self.things();
        let ranges = things.damaged_ranges();
        let places = stock.segments.iter().enumerate();
        let damaged = places.filter_map(|(number, place)| Some((number, ranges.get(&place.id)?)));
        let touches = |part: &StoredPart, ranges: &[(u64, u64)]| {
            let (start, end) = part.plain_span(stock);
            ranges.iter().any(|range| range.0 < end && range.1 > start)
        };
        let parts = damaged.flat_map(|(place, ranges)| {
            let count = part_count(&stock.segments[place]);
            let parts = (0..count).map(move |index| StoredPart { place, index });
            // The part behind the last one begins and ends where the segment ends.
            let there = parts.take_while(|part| {
                let (start, end) = part.stored_span(stock);
                start < end
            });
            there.filter(move |part| touches(part, ranges))
        });
        parts.collect()
    }

    /// Returns whether a frame is known to be unreadable.
    pub(crate) fn has(&self, segment: &SegmentId, offset: u64) -> bool {
        let things = self.things();
        things.missing.contains(segment) || things.frames.contains_key(&(segment.clone(), offset))
    }
}

/// Returns the same value for equal records in any backup.
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

/// The number of files of one backup with frames in one place, and the first of them.
type AffectedFiles = BTreeMap<(usize, usize), (u64, Vec<EntryPath>)>;

/// Names the lost files, and reports the affected files with each missing segment and damaged part.
pub(crate) fn blame(stock: &Inventory, bad: &DamageSet, report: &Report) -> Vec<EntryLoss> {
    let mut things = std::mem::take(&mut *bad.things());
    let nothing = things.missing.is_empty() && things.frames.is_empty() && things.files.is_empty();
    if nothing && things.parts.is_empty() && things.pages.is_empty() {
        return Vec::new();
    }
    let places = places(stock, &things, report);
    let mut touched = AffectedFiles::new();
    let mut losses = Vec::new();
    for (index, archive) in stock.archives.iter().enumerate() {
        let (files, cut_off) = lost_files(index, archive, &things, &places, &mut touched);
        let unnamed = things.pages.remove(&index).unwrap_or_default();
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
        let backup = if stock.archives.len() > 1 {
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
                "with the frames of {}{backup}: {}{more}",
                counted(count, "file"),
                names(&first)
            ),
        );
    }
    losses
}

/// A damaged range whose files are to be reported: segment, from, to, and the first words of its
/// error.
type DamagedRange = (SegmentId, u64, u64, String);

fn places(stock: &Inventory, things: &FoundDamage, report: &Report) -> Vec<DamagedRange> {
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
        .filter(|(.., word)| report.has(word))
        .collect()
}

/// Returns the lost files, and those of them that are lost only because a record is: see
/// [`EntryLoss`].
fn lost_files(
    at: usize,
    archive: &Archive,
    things: &FoundDamage,
    places: &[DamagedRange],
    touched: &mut AffectedFiles,
) -> (Vec<EntryPath>, BTreeMap<EntryPath, EntryPath>) {
    let (mut lost, mut cut_off) = (BTreeSet::new(), BTreeMap::new());
    let (all, mut stored) = (Selection::default(), StoredContent::salvaging());
    for parts in files(archive.records(&all, false)) {
        let Some(first) = parts.first().filter(|first| first.state.is_stored()) else {
            continue;
        };
        let path = &first.entry.path;
        let (is_lost, first_name) = match &first.entry.kind {
            // A link comes after the file that it names, so the fate of the file is known.
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
            first_name
                .cloned()
                .into_iter()
                .for_each(|first_name| drop(cut_off.insert(path.clone(), first_name)));
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
    things: &FoundDamage,
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

fn touches(archive: &Archive, item: &PageItem, (segment, from, to, _): &DamagedRange) -> bool {
    item.extents
        .iter()
        .map(|extent| &extent.frame)
        .any(|frame| {
            let overlaps = frame.offset < *to && frame.offset + u64::from(frame.stored_len) > *from;
            overlaps && full(archive, item.segment(frame)) == *segment
        })
}
