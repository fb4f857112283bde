//! Looks for the content of lost files in other backups of the repository.

use crate::verify::losses::EntryLoss;
use fullbore_format::{
    digest::Digest,
    entry::{EntryKind, EntryPath},
    error::quoted,
    page::{Extent, PageItem, SegmentId},
    root::{Live, Root},
};
use fullbore_repository::{
    archive::{Archive, Selection},
    inventory::{files, full},
};
use std::collections::{HashMap, HashSet};

/// Size and digest: files that have both alike have the same content.
pub(super) type ContentKey = (u64, [u8; 32]);

/// Lost files of which another backup has the content. Memory grows with the lost files and their extents.
#[derive(Debug, Default)]
pub(crate) struct SameContent {
    /// For each content one place of each source.
    places: HashMap<ContentKey, Vec<ContentPlace>>,
    /// The segments of the backups with these places, under their full names.
    segments: HashMap<SegmentId, Live>,
}

/// A file that has the content of a lost one.
#[derive(Debug)]
pub(super) struct ContentPlace {
    /// Its backup.
    pub(super) backup: String,
    pub(super) path: EntryPath,
    pub(super) kind: EntryKind,
    pub(super) parts: Vec<ContentPart>,
    /// The index of its backup.
    archive: usize,
}

/// The part of a file that one record describes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentPart {
    pub(super) from: u64,
    pub(super) bytes: u64,
    pub(super) is_last: bool,
    /// Each with the full name of its segment.
    pub(super) extents: Vec<(SegmentId, Extent)>,
}

impl ContentPart {
    fn of(archive: &Archive, item: &PageItem) -> Self {
        let extents = item.extents.iter();
        let named = extents.map(|extent| (full(archive, item.segment(&extent.frame)), *extent));
        Self {
            from: item.from,
            bytes: item.described_bytes(),
            is_last: !item.more,
            extents: named.collect(),
        }
    }
}

impl SameContent {
    /// Looks through all `archives` for the content of the files that these `losses` name.
    pub(crate) fn find(archives: &[Archive], losses: &[EntryLoss]) -> Self {
        let mut wanted = HashSet::new();
        let lost = Losses::new(losses);
        for archive in archives {
            lost.each(archive, true, |key, _| _ = wanted.insert(key));
        }
        let mut found = Self::default();
        if wanted.is_empty() {
            return found;
        }
        for (index, archive) in archives.iter().enumerate() {
            let mut is_used = false;
            lost.each(archive, false, |key, parts| {
                is_used |= wanted.contains(&key) && found.add(archives, index, key, parts);
            });
            if is_used {
                found.note_segments(archive);
            }
        }
        found
    }

    /// Adds a file, unless a backup that serves the same ones has the content already. The oldest backup comes first.
    fn add(
        &mut self,
        archives: &[Archive],
        at: usize,
        key: ContentKey,
        parts: &[PageItem],
    ) -> bool {
        let archive = &archives[at];
        let places = self.places.entry(key).or_default();
        let serves_same = |place: &ContentPlace| {
            let root = &archives[place.archive].root;
            root.source == archive.root.source && root.options.codec == archive.root.options.codec
        };
        if places.iter().any(serves_same) {
            return false;
        }
        let parts_of = parts.iter().map(|item| ContentPart::of(archive, item));
        places.push(ContentPlace {
            backup: archive.root.id.clone(),
            path: parts[0].entry.path.clone(),
            kind: parts[0].entry.kind.clone(),
            parts: parts_of.collect(),
            archive: at,
        });
        true
    }

    fn note_segments(&mut self, archive: &Archive) {
        let Root {
            segments, liveness, ..
        } = &archive.root;
        let own = segments.iter().map(|segment| segment.fully_live());
        for live in liveness.iter().cloned().chain(own) {
            self.segments.insert(full(archive, &live.id()), live);
        }
    }

    /// Returns a place of this content, with the backups that it belongs to, if there is any.
    pub(super) fn places(&self, key: &ContentKey) -> &[ContentPlace] {
        self.places.get(key).map_or(&[], |places| places)
    }

    /// Returns whether nothing was found.
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the description of a segment with such content.
    pub(super) fn segment(&self, id: &SegmentId) -> Option<&Live> {
        self.segments.get(id)
    }
}

impl ContentPlace {
    /// Returns whether the other backup may refer to this content: its source is the same and is known, and so is the codec.
    pub(super) fn serves(&self, root: &Root, archives: &[Archive]) -> bool {
        let own = &archives[self.archive].root;
        !root.source.is_unknown()
            && own.source == root.source
            && own.options.codec == root.options.codec
    }

    /// Returns in words where the content is.
    pub(super) fn line(&self) -> String {
        format!(
            "backup {:?} has the same content, as {}",
            self.backup,
            quoted(&self.path)
        )
    }
}

/// The lost files of each backup.
struct Losses<'a>(HashMap<&'a str, HashSet<&'a EntryPath>>);

impl<'a> Losses<'a> {
    fn new(losses: &'a [EntryLoss]) -> Self {
        let files_of = |loss: &'a EntryLoss| (&*loss.backup, loss.files.iter().collect());
        Self(losses.iter().map(files_of).collect())
    }

    /// Calls `take` for each file with a digest, of those that are lost or of all others.
    fn each(
        &self,
        archive: &Archive,
        are_lost: bool,
        mut take: impl FnMut(ContentKey, &[PageItem]),
    ) {
        let lost = self.0.get(&*archive.root.id);
        if are_lost && lost.is_none() {
            return;
        }
        for parts in files(archive.records(&Selection::default(), false)) {
            let path = &parts[0].entry.path;
            let is_lost = lost.is_some_and(|lost| lost.contains(path));
            if is_lost == are_lost
                && let Some(key) = key_of(&parts)
            {
                take(key, &parts);
            }
        }
    }
}

/// Returns the key of a file's content; `None` if its digest is unknown.
pub(super) fn key_of(parts: &[PageItem]) -> Option<ContentKey> {
    let last = parts.last().filter(|last| last.state.is_stored())?;
    match last.digest? {
        Digest::Blake3(digest) => Some((last.entry.size(), digest)),
        // Another content can have the same checksum.
        Digest::Crc32c(_) => None,
    }
}
