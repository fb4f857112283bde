//! The pages of a backup that are nowhere, made anew from the tar headers in its segments.
//!
//! The root still says which pages there were, and where their copies. If every frame of a segment is whole, what is damaged in
//! it can only be what stands between frames: then its checksums are made anew as well, of what is there.

use super::{
    frame_index::{Index, Stretch},
    root::sum,
    tar_scan::Tar,
};
use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, Result},
    format::{
        digest::CHUNK,
        entry::EntryKind,
        page::{EntryState, ManifestPage, SegmentId},
        root::{FORMAT, FORMAT_ALONE, PageAt, Root, Segment},
    },
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What is said of another name of a file that nothing is known of.
const NO_TARGET: &str = "the file it is another name of is lost";

/// Pages made anew.
#[derive(Default)]
pub(crate) struct RebuiltPages {
    /// By the index of the page in the root's list that they take the place of.
    pub(crate) pages: HashMap<usize, Vec<ManifestPage>>,
    /// Length and checksums of the parts of segments; whether a segment has its seek table still.
    sums: Vec<(SegmentId, (u64, String), bool)>,
    /// What cannot be had, in words.
    pub(crate) notes: Vec<String>,
}

impl RebuiltPages {
    /// Of what is lost of `archive`.
    ///
    /// # Errors
    /// If a page cannot be encoded.
    pub(crate) fn of(archive: &Archive) -> Result<Self> {
        let mut anew = Self::default();
        for (id, lost) in lost(archive) {
            let index = match Index::read(archive.store(), archive.codec, &id) {
                Ok(index) => index,
                Err(error) => {
                    anew.notes.push(unreadable(&error));
                    continue;
                }
            };
            anew.segment(archive, &id, &lost, &index)?;
        }
        anew.check_links(archive);
        Ok(anew)
    }

    /// How many pages there are.
    pub(crate) fn len(&self) -> usize {
        self.pages.values().map(Vec::len).sum()
    }

    fn segment(
        &mut self,
        archive: &Archive,
        id: &SegmentId,
        lost: &[usize],
        index: &Index,
    ) -> Result<()> {
        let stretch = |at: &usize| archive.root.pages[*at].offset;
        let wanted: HashSet<Stretch> = lost.iter().map(stretch).collect();
        let mut found = tar(archive, id).recover(index, &wanted)?;
        for at in lost {
            // One page for all of them, where there is nothing between frames.
            for stored in found.pages.remove(&stretch(at)).unwrap_or_default() {
                self.pages
                    .entry(*at)
                    .or_default()
                    .push(ManifestPage::decode(&stored)?);
            }
        }
        if found.pieces > 0 {
            self.notes.push(pieces(found.pieces));
        }
        match found.damage {
            Some(error) => self.notes.push(unreadable(&error)),
            None if id.backup.is_empty() => {
                let sums = sum(archive.store(), &ObjectName::Segment(id.clone()))?;
                self.sums.push((id.clone(), sums, index.has_table));
            }
            None => {}
        }
        Ok(())
    }

    /// Another name of a file is of use only if the file is known.
    fn check_links(&mut self, archive: &Archive) {
        let records = || self.pages.values().flatten().flat_map(|page| &page.records);
        let files: HashSet<Vec<u8>> = records()
            .filter(|record| !matches!(record.entry.kind, EntryKind::HardLink(_)))
            .map(|record| record.entry.path.clone())
            .collect();
        for record in self
            .pages
            .values_mut()
            .flatten()
            .flat_map(|page| &mut page.records)
        {
            let EntryKind::HardLink(target) = &record.entry.kind else {
                continue;
            };
            if !files.contains(target) && !archive.find(target).is_ok_and(|found| !found.is_empty())
            {
                record.state = EntryState::Unreadable(NO_TARGET.to_owned());
            }
        }
    }

    /// Put what is known of segments now into a root. One without a seek table is like that of a backup that died.
    pub(crate) fn correct(&self, root: &mut Root) {
        for (id, (bytes, parts), has_table) in &self.sums {
            let is_it =
                |segment: &Segment| (segment.stream, segment.number) == (id.stream, id.number);
            if *has_table {
                root.segments
                    .iter_mut()
                    .filter(|own| is_it(own))
                    .for_each(|own| own.parts.clone_from(parts));
            } else {
                root.segments.retain(|own| !is_it(own));
                root.liveness
                    .iter_mut()
                    .filter(|live| live.id() == *id)
                    .for_each(|live| live.of_bytes = *bytes);
            }
        }
    }
}

/// How it is said that there are pieces of files.
pub(crate) fn pieces(count: u64) -> String {
    format!(
        "{count} pieces of files that had changed are in the tar: without the manifest no file can be made of them"
    )
}

/// How it is said that a tar, or the rest of it, cannot be read.
pub(crate) fn unreadable(error: &Error) -> String {
    let detail: String = error
        .detail
        .iter()
        .map(|line| format!("; {line}"))
        .collect();
    format!(
        "the headers of the tar cannot be read on: {}{detail}",
        error.line()
    )
}

fn tar<'a>(archive: &'a Archive, id: &SegmentId) -> Tar<'a> {
    let options = &archive.root.options;
    // A backup that others refer to may itself have referred to some.
    let format = if id.backup.is_empty() {
        archive.root.format
    } else {
        FORMAT.max(FORMAT_ALONE + 1)
    };
    Tar {
        store: archive.store(),
        codec: archive.codec,
        id: id.clone(),
        format,
        algorithm: options.digest,
        // A root may say anything.
        block_bytes: options
            .block_bytes
            .checked_next_power_of_two()
            .map_or(CHUNK, |bytes| bytes.max(CHUNK)),
    }
}

fn segment_of(page: &PageAt) -> SegmentId {
    SegmentId {
        backup: page.backup.clone(),
        stream: page.stream,
        number: page.segment,
    }
}

/// The pages of which no copy is whole, by the segment that had one.
fn lost(archive: &Archive) -> BTreeMap<SegmentId, Vec<usize>> {
    let mut lost: BTreeMap<SegmentId, Vec<usize>> = BTreeMap::new();
    for (index, page) in archive
        .root
        .pages
        .iter()
        .enumerate()
        .filter(|(_, page)| page.segment > 0)
    {
        if !archive
            .copies(page)
            .iter()
            .any(|copy| archive.read_copy(page, copy).is_ok())
        {
            lost.entry(segment_of(page)).or_default().push(index);
        }
    }
    lost
}
