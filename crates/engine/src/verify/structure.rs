//! Checks the structure of backups: segments, pages, and the references between them.
//!
//! Reads roots, pages and seek tables, but no frame with data.

use super::{RunningCheck, SegmentTables, portions::CheckedPage, seek_tables};
use crate::report::damage::{frame_damage, missing_end};
use fullbore_format::{
    entry::{EntryKind, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
    page::{Extent, FrameAt, ManifestPage, PageItem, SegmentId, describe_whole_file},
    seal::MAX_BYTES,
    text::counted,
};
use fullbore_pipeline::workers;
use fullbore_platform::queue::Locked;
use fullbore_repository::{
    archive::{object::ObjectName, schedule::misfit},
    inventory::{PageKey, PageRef, SegmentPlace, full, items, page_key},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
};

impl RunningCheck<'_> {
    /// Checks all but the data, and returns the frames of the segments.
    pub(crate) fn structure(&self, workers: NonZeroUsize) -> Result<SegmentTables> {
        if self.is_locked() {
            return self.stored_objects();
        }
        for archive in &self.stock.archives {
            if let Some(error) = missing_end(&archive.root) {
                self.report.add((error, Vec::new()))?;
            }
        }
        let tables = self.segments(workers)?;
        self.pages(workers, &tables)?;
        self.lists()?;
        self.mentions()?;
        Ok(tables)
    }

    /// Checks sizes and seek tables. A segment that is missing or has no table gives no frames, and
    /// is reported.
    fn segments(&self, workers: NonZeroUsize) -> Result<SegmentTables> {
        let mut known = std::mem::take(&mut self.known.locked().frames);
        let mut tables = SegmentTables::default();
        let mut unknown = Vec::new();
        for place in &self.stock.segments {
            match known.remove(&place.id) {
                Some(frames) => drop(tables.frames.insert(place.id.clone(), frames)),
                None => unknown.push(place),
            }
        }
        let tables = Mutex::new(tables);
        let check = |place: &&SegmentPlace| {
            let archive = &self.stock.archives[place.archive];
            let table = seek_tables::read(archive, place, self.data);
            let mut tables = tables.locked();
            match table {
                Ok(table) => drop(tables.frames.insert(place.id.clone(), table)),
                Err(error) => self.bad_segment(place, error, &mut tables)?,
            }
            Ok(())
        };
        workers::work(
            &workers.into(),
            || (),
            |(), place| check(place),
            |send| unknown.iter().try_for_each(send),
        )?;
        Ok(tables.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn bad_segment(
        &self,
        place: &SegmentPlace,
        error: Error,
        tables: &mut SegmentTables,
    ) -> Result<()> {
        self.report.mark_damaged_backup(&place.id.backup);
        match error.kind {
            ErrorKind::NotFound => {
                tables.missing.insert(place.id.clone());
                self.bad.missing(place.id.clone());
                self.report.add((
                    Error {
                        kind: ErrorKind::Corrupt,
                        ..error
                    },
                    Vec::new(),
                ))
            }
            ErrorKind::Corrupt if self.data => self.report.add((error, Vec::new())),
            ErrorKind::Corrupt => self.report.add((
                error.detail("`--data` finds out which of its frames are intact"),
                Vec::new(),
            )),
            _ => Err(error),
        }
    }

    /// Checks every copy of every page, and the references of its records.
    pub(super) fn pages(&self, workers: NonZeroUsize, tables: &SegmentTables) -> Result<()> {
        let known = std::mem::take(&mut self.known.locked().pages);
        workers::work(
            &workers.into(),
            || (),
            |(), sheet| self.sheet(sheet, &known, tables),
            |send| self.stock.sheets.iter().try_for_each(send),
        )
    }

    /// Checks the pages of lists, each once. The lists themselves are known: a backup without any is reported as one that lost its root.
    fn lists(&self) -> Result<()> {
        let mut checked = HashSet::new();
        for archive in &self.stock.archives {
            let root = &archive.root;
            let Some(at) = &root.lists_at else { continue };
            if !checked.insert(root.lists_name()) {
                continue;
            }
            let manifest = ObjectName::Manifest(root.lists_of.clone());
            let mut stored = Vec::new();
            let len = at.bytes.min(MAX_BYTES) as usize;
            let read = { archive.store() }.read_at(&manifest, at.offset, len, &mut stored);
            let error = match read.and_then(|()| at.lists(&stored)) {
                Ok(_) => continue,
                Err(error) if error.kind.is_loss() => error,
                Err(error) => return Err(error),
            };
            let name = archive.store().name(&manifest);
            self.report.mark_damaged_backup(&root.lists_of);
            self.report
                .warn(Error::corrupt(format!("{name} is damaged")).because(error.line()));
        }
        Ok(())
    }

    fn sheet(
        &self,
        sheet: &PageRef,
        known: &HashMap<PageKey, CheckedPage>,
        tables: &SegmentTables,
    ) -> Result<()> {
        let known = match known.is_empty() {
            true => None,
            false => known.get(&self.page_key(sheet)),
        };
        if let Some(page) = known.filter(|page| page.is_sound) {
            self.note_page(sheet, page.clone());
            return Ok(());
        }
        let is_counted = known.is_some();
        let (archive, place) = (&self.stock.archives[sheet.at.0], self.stock.page_at(sheet));
        let owner = if place.backup.is_empty() {
            &archive.root.id
        } else {
            &place.backup
        };
        let (mut whole, mut errors) = (None, Vec::new());
        for copy in archive.copies(place) {
            match archive.read_copy(place, &copy) {
                Ok(page) if page.records.len() as u64 == place.entries => {
                    whole = whole.or(Some(page))
                }
                Ok(_) => {
                    let message = "a manifest page and the root differ in the number of entries";
                    errors.push((copy.0, Error::corrupt(message)));
                }
                Err(error) if error.kind == ErrorKind::Gone => return Err(error),
                Err(error) => errors.push((copy.0, error)),
            }
        }
        let Some(page) = whole else {
            return errors
                .into_iter()
                .next()
                .map_or(Ok(()), |(_, error)| self.lost_page(sheet, error));
        };
        // A missing segment is reported by itself.
        let is_told = |object: &ObjectName| matches!(object, ObjectName::Segment(id) if tables.missing.contains(&full(archive, id)));
        for (_, error) in errors.into_iter().filter(|(object, _)| !is_told(object)) {
            self.report.mark_damaged_backup(owner);
            self.report.warn(error);
        }
        self.records(sheet, page, is_counted, tables)
    }

    fn page_key(&self, sheet: &PageRef) -> PageKey {
        let (archive, index) = sheet.at;
        page_key(&self.stock.archives[archive].root, index)
    }

    /// Notes which segments a page uses.
    fn note_page(&self, sheet: &PageRef, page: CheckedPage) {
        let mut all = self.used.locked();
        for archive in &sheet.of {
            all[*archive].extend(page.used.iter().cloned());
        }
        drop(all);
        if self.is_known_kept {
            let key = self.page_key(sheet);
            self.known.locked().pages.insert(key, page);
        }
    }

    fn lost_page(&self, sheet: &PageRef, error: Error) -> Result<()> {
        if error.kind != ErrorKind::Corrupt {
            return Err(error);
        }
        let page = self.stock.page_at(sheet);
        let message = format!(
            "{} from {} on",
            counted(page.entries, "entry"),
            quoted(&page.first.0)
        );
        sheet
            .of
            .iter()
            .for_each(|archive| self.bad.page(*archive, &message));
        let backups = if self.stock.archives.len() > 1 {
            format!(" of {}", self.stock.names(&sheet.of))
        } else {
            String::new()
        };
        self.report.add((
            error.detail(format!(
                "it describes {message}{backups}; there is no intact copy"
            )),
            Vec::new(),
        ))
    }

    /// Checks that the extents of a page lie in existing frames, and cover each file. With `data`,
    /// the content check covers that, even for files that continue over pages.
    fn records(
        &self,
        sheet: &PageRef,
        page: ManifestPage,
        is_counted: bool,
        tables: &SegmentTables,
    ) -> Result<()> {
        let archive = &self.stock.archives[sheet.at.0];
        let (mut used, mut bad) = (HashSet::new(), BTreeMap::new());
        let mut is_sound = true;
        for item in items(archive, page) {
            let is_new = item.from == 0 && !is_counted;
            self.meter.entries.fetch_add(u64::from(is_new), Relaxed);
            if !matches!(item.entry.kind, EntryKind::File { .. }) || !item.state.is_stored() {
                continue;
            }
            // With `data`, the check of the contents reports such a file.
            if !self.data && !item.more && item.from == 0 && !describe_whole_file(&[&*item]) {
                is_sound = false;
                self.bad.file(archive, &item);
                self.report.add((misfit(&item.entry.path), Vec::new()))?;
            }
            for extent in &item.extents {
                self.extent(&item, extent, tables, &mut used, &mut bad);
            }
        }
        let page = CheckedPage {
            is_sound: is_sound && bad.is_empty(),
            used: Arc::new(used),
        };
        self.note_page(sheet, page);
        bad.into_values()
            .try_for_each(|(frame, error, files): MisplacedFrame| {
                let damage = frame_damage(archive, &frame, error, files);
                if self.bad.frame(&frame.0, &frame.1, false) {
                    self.report.add(damage)
                } else {
                    Ok(())
                }
            })
    }

    pub(super) fn extent(
        &self,
        item: &PageItem,
        extent: &Extent,
        tables: &SegmentTables,
        used: &mut HashSet<SegmentId>,
        bad: &mut BTreeMap<(String, u32, u32, u64), MisplacedFrame>,
    ) {
        let (segment, frame) = (item.segment(&extent.frame), extent.frame);
        // Many extents name one segment: its name is copied once.
        if !used.contains(segment) {
            used.insert(segment.clone());
        }
        let fits = extent
            .inner
            .checked_add(extent.len)
            .is_some_and(|end| end <= frame.plain_len);
        let checked = match tables.frames.get(segment) {
            Some(table) => table.check(&frame),
            None => Ok(()),
        };
        let error = match checked {
            Ok(()) if fits || tables.missing.contains(segment) => return,
            Ok(()) => Error::corrupt("the manifest refers to bytes beyond its end"),
            Err(error) => error,
        };
        let key = (
            segment.backup.clone(),
            segment.stream,
            segment.number,
            frame.offset,
        );
        bad.entry(key)
            .or_insert_with(|| ((segment.clone(), frame), error, Vec::new()))
            .2
            .push(item.entry.path.clone());
    }

    /// Checks that the root lists every segment that its pages refer to: a prune would delete the
    /// others.
    fn mentions(&self) -> Result<()> {
        let used = std::mem::take(&mut *self.used.locked());
        for (archive, used) in self.stock.archives.iter().zip(used) {
            let root = &archive.root;
            let mentioned: HashSet<SegmentId> = root
                .liveness
                .iter()
                .map(|live| full(archive, &live.id()))
                .collect();
            let mut unknown: Vec<_> = used.iter().filter(|id| !mentioned.contains(id)).collect();
            // A hash set has another order in each run; the report must not.
            unknown.sort_by_key(|id| (id.backup.clone(), id.stream, id.number));
            for id in unknown {
                let name = archive.store().name(&ObjectName::Segment(id.clone()));
                let message = format!("the root of backup {:?} is wrong", root.id);
                let why = format!("it does not list segment {name}, which its pages refer to");
                self.report.mark_damaged_backup(&root.id);
                self.report
                    .add((Error::corrupt(message).because(why), Vec::new()))?;
            }
        }
        Ok(())
    }
}

/// A frame that is not where records expect it, and the files of those records.
type MisplacedFrame = ((SegmentId, FrameAt), Error, Vec<EntryPath>);
