//! Check backups: their structure, or every byte.
//!
//! Structure is each root, every copy of every page, the size and seek table of every segment, that each extent lies in a
//! frame that the seek table knows, that those of a file are all of it, and that the root mentions what is referred to. With
//! `data`, all stored bytes are compared with their checksums, all frames decoded and all files digested. What several
//! backups share is looked at once; what is damaged is said with the files of each backup that are lost with it.

pub mod compare_tree;
pub(crate) mod data;
pub mod losses;
pub mod sample;
pub(crate) mod seek_tables;
pub(crate) mod stored_content;
mod stored_objects;
pub(crate) mod stream;
pub(crate) mod tree_roots;

use crate::{
    archive::{Archive, object::ObjectName, schedule::misfit},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        entry::{EntryKind, EntryPath},
        page::{Extent, FrameAt, ManifestPage, PageItem, SegmentId, describe_whole_file},
        sizes,
    },
    metrics::meter::Meter,
    pipeline::workers,
    queue::Locked,
    repo::{
        annotations::Annotations,
        inventory::{Inventory, NoRoots, PageRef, SegmentPlace, bad_words, full, items, open_some},
        open::{backup_ids, is_repository, place, repository_at},
        select::BackupFilter,
    },
    report::damage::{Damage, Report, frame_damage},
    storage::Objects,
    text::counted,
};
use data::ContentCheck;
use losses::{DamageSet, EntryLoss, blame};
use seek_tables::SegmentFrames;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ffi::OsString,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Instant,
};
use stream::{Looked, look};

/// What to check, and how.
#[derive(Debug, Clone)]
pub struct Verify {
    /// `FROM[@BACKUP]`, or `-` for standard input; of a repository without a backup named, all of them.
    pub from: OsString,
    /// Selects the backups that are checked.
    pub filter: BackupFilter,
    /// Every byte?
    pub data: bool,
    /// A tree on disk to compare with; then of a repository the last backup is meant.
    pub against: Option<PathBuf>,
    /// Threads that read, decode and digest at first; more while they only wait.
    pub workers: NonZeroUsize,
}

/// What was found.
#[derive(Debug, Default)]
pub struct VerifyVerdict {
    /// The backup; empty if there are several, or none.
    pub id: String,
    /// How many backups were looked at.
    pub backups: usize,
    /// How many there are, with those whose roots cannot be read.
    pub of: usize,
    /// Those of which something is damaged, whether that does harm or not, oldest first.
    pub damaged: Vec<String>,
    /// Was every byte looked at?
    pub data: bool,
    /// Was no key given that opens pages and segments, so that only roots, lengths and stored bytes were checked?
    pub is_locked: bool,
    /// Was it a tar of which nothing says what should be in it?
    pub is_bare: bool,
    /// Of a stream: did something follow the end of the tar that is none of it?
    pub is_trailed: bool,
    /// Entries that were looked at; those that several backups share, once.
    pub entries: u64,
    /// Entries of all of them that were not captured: there is nothing to check.
    pub not_captured: u64,
    /// Pages that had wrong checksums in the server's files, as their backups noted.
    pub bad_pages: u64,
    /// Everything that is damaged.
    pub damage: Vec<Damage>,
    /// What is lost with it, by backup.
    pub lost: Vec<EntryLoss>,
    /// Damage that does no harm, as another copy is whole.
    pub warnings: Vec<String>,
    /// How the tree on disk differs, in path order.
    pub differences: Vec<crate::verify::compare_tree::Difference>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl VerifyVerdict {
    /// 4 for damage, even if it does no harm yet; 1 for differences; 0.
    pub fn exit_code(&self) -> u8 {
        match (
            self.damage.is_empty() && self.warnings.is_empty(),
            self.differences.is_empty(),
        ) {
            (false, _) => 4,
            (true, false) => 1,
            (true, true) => 0,
        }
    }

    /// Print damage, what is lost and differences, one a line or paragraph.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut dyn std::io::Write) -> Result<()> {
        let mut line = |text: &str| crate::text::line(out, text);
        for damage in &self.damage {
            line(&format!("damage: {}", damage.what))?;
            damage
                .detail
                .iter()
                .try_for_each(|detail| line(&format!("        {detail}")))?;
        }
        for loss in &self.lost {
            let all = loss.all.then(|| "everything".to_owned());
            let files = loss.files.iter().map(|path| quoted(path));
            let what = all
                .into_iter()
                .chain(loss.unnamed.iter().cloned())
                .chain(files);
            what.into_iter()
                .try_for_each(|what| line(&format!("lost: {}: {what}", loss.backup)))?;
        }
        self.warnings
            .iter()
            .try_for_each(|warning| line(&format!("harmless: {warning}")))?;
        self.differences
            .iter()
            .try_for_each(|difference| line(&difference.to_string()))
    }
}

impl Verify {
    /// Do it.
    ///
    /// # Errors
    /// What makes checking impossible: FROM is not there, or the root of the one backup is damaged. Other damage is in
    /// the verdict.
    pub fn run(&self, meter: &Meter) -> Result<VerifyVerdict> {
        if self.against.is_none() && is_repository(&self.from) {
            return self.run_repository(&repository_at(&self.from)?, meter);
        }
        match look(&self.from, &self.filter)? {
            Looked::Backup(archive) => self.run_archive(*archive, meter),
            Looked::Stream(_) if self.against.is_some() => Err(Error::new(
                ErrorKind::Usage,
                "cannot compare a stream, or a tar of another program, with a tree",
            )
            .hint("put it into a file that fullbore wrote, or restore it")),
            Looked::Stream(input) => stream::verify(input, meter),
        }
    }

    /// Check a backup that is open.
    ///
    /// # Errors
    /// As [`Verify::run`].
    pub fn run_archive(&self, archive: Archive, meter: &Meter) -> Result<VerifyVerdict> {
        let start = Instant::now();
        if self.against.is_some() {
            archive.store().check_readable()?;
        }
        let repository = place(&self.from)
            .ok()
            .and_then(|(location, _)| location.objects().ok());
        let check = Check::new(vec![archive], repository.as_deref(), self.data, meter);
        let lost = check.run(self.workers)?;
        let archive = &check.stock.archives[0];
        let differences = match &self.against {
            Some(dir) => crate::verify::compare_tree::compare(archive, dir, self.workers, meter)?,
            None => Vec::new(),
        };
        Ok(VerifyVerdict {
            differences,
            ..check.verdict(lost, start)
        })
    }

    /// The backups to check, and those of which the root is damaged: what they are of is not known.
    fn selected(&self, repository: &Arc<dyn Objects>) -> Result<(Vec<Archive>, NoRoots)> {
        let (mut archives, lost_roots) = open_some(repository)?;
        archives.retain_mut(|archive| self.filter.selects_in(repository, &mut archive.root));
        match archives.is_empty() && lost_roots.is_empty() {
            true => Err(self.filter.none_selected(repository)?),
            false => Ok((archives, lost_roots)),
        }
    }

    /// Check the backups of a repository. What is not there because a backup was forgotten in the meantime is no damage: then it
    /// is looked at again, what is left.
    fn run_repository(
        &self,
        repository: &Arc<dyn Objects>,
        meter: &Meter,
    ) -> Result<VerifyVerdict> {
        let start = Instant::now();
        until_final(|| {
            meter.entries.store(0, Relaxed);
            let (archives, lost_roots) = self.selected(repository)?;
            let check = Check::new(archives, Some(&**repository), self.data, meter);
            let lost = lost_roots
                .into_iter()
                .map(|(id, error)| check.no_root(id, error))
                .collect::<Result<Vec<_>>>()?;
            let files = check.run(self.workers)?;
            check.notes(&**repository)?;
            let verdict = check.verdict(lost.into_iter().chain(files).collect(), start);
            Ok(check.is_final(&verdict, &**repository)?.then_some(verdict))
        })
    }
}

/// Look again until nothing that was looked at was forgotten in the meantime.
pub(crate) fn until_final<T>(look: impl Fn() -> Result<Option<T>>) -> Result<T> {
    loop {
        match look() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) if error.kind == ErrorKind::Gone => {}
            Err(error) => return Err(error),
        }
    }
}

/// A check under way.
pub(crate) struct Check<'a> {
    pub(crate) stock: Inventory,
    pub(crate) bad: DamageSet,
    pub(crate) report: Report,
    pub(crate) meter: &'a Meter,
    data: bool,
    /// The segments that each backup was seen to refer to.
    used: Mutex<Vec<HashSet<SegmentId>>>,
}

/// What is known of segments: their frames, and which are not there at all. Of a damaged one only decoding can tell.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) frames: HashMap<SegmentId, SegmentFrames>,
    missing: HashSet<SegmentId>,
}

impl<'a> Check<'a> {
    pub(crate) fn new(
        archives: Vec<Archive>,
        repository: Option<&dyn Objects>,
        data: bool,
        meter: &'a Meter,
    ) -> Self {
        let stock = Inventory::new(archives, repository);
        let used = Mutex::new(vec![HashSet::new(); stock.archives.len()]);
        Self {
            stock,
            bad: DamageSet::default(),
            report: Report::new(true),
            meter,
            data,
            used,
        }
    }

    /// What was noted of backups after they were made.
    fn notes(&self, repository: &dyn Objects) -> Result<()> {
        let damage = |archive: &Archive| Annotations::read(repository, &archive.root.id).err();
        let lost = "tags that it was given later are lost, and whether it is pinned";
        for (_, error, root) in bad_words(&self.stock.archives, repository) {
            self.report.mark_damaged_backup(&root.id);
            self.report.note(format!(
                "{}; what others need of that backup is not in it",
                error.line()
            ));
        }
        self.stock
            .archives
            .iter()
            .filter_map(damage)
            .try_for_each(|error| self.report.add((error.detail(lost), Vec::new())))
    }

    /// Is the verdict good, or at least of backups that are all still there? What was missing of one that was forgotten in the
    /// meantime may have been pruned.
    pub(crate) fn is_final(
        &self,
        verdict: &VerifyVerdict,
        repository: &dyn Objects,
    ) -> Result<bool> {
        if verdict.exit_code() == 0 {
            return Ok(true);
        }
        let listed = backup_ids(repository)?;
        Ok(self
            .stock
            .archives
            .iter()
            .all(|archive| listed.contains(&archive.root.id)))
    }

    fn run(&self, workers: NonZeroUsize) -> Result<Vec<EntryLoss>> {
        self.structure(workers)?;
        let Self {
            stock,
            bad,
            report,
            meter,
            ..
        } = self;
        let content = ContentCheck {
            stock,
            bad,
            report,
            meter,
        };
        match (self.data, self.is_locked()) {
            (true, false) => content.check(workers)?,
            (true, true) => content.check_stored(workers)?,
            (false, _) => {}
        }
        if self.is_locked() {
            // Which files are lost, pages say.
            return Ok(Vec::new());
        }
        Ok(blame(&self.stock, &self.bad, &self.report))
    }

    /// Everything but the data; gives the frames of the segments.
    pub(crate) fn structure(&self, workers: NonZeroUsize) -> Result<Tables> {
        if self.is_locked() {
            return self.stored_objects();
        }
        let tables = self.segments()?;
        self.pages(workers, &tables)?;
        self.mentions()?;
        Ok(tables)
    }

    pub(crate) fn verdict(&self, lost: Vec<EntryLoss>, start: Instant) -> VerifyVerdict {
        let archives = &self.stock.archives;
        let without_root = lost.iter().filter(|loss| loss.all).map(|loss| &loss.backup);
        let mut ids: Vec<&String> = archives
            .iter()
            .map(|archive| &archive.root.id)
            .chain(without_root)
            .collect();
        ids.sort_unstable();
        let damaged_backups = self.report.damaged_backups();
        let is_damaged = |id: &&&String| {
            lost.iter().any(|loss| loss.backup == ***id) || damaged_backups.contains(**id)
        };
        let mut damaged: BTreeSet<&String> = ids.iter().filter(is_damaged).copied().collect();
        // What was forgotten is of those that refer to it.
        let gone: Vec<&str> = damaged_backups
            .iter()
            .filter(|id| !ids.contains(id))
            .map(String::as_str)
            .collect();
        let refers = |archive: &&Archive| {
            archive
                .root
                .referenced_backups()
                .iter()
                .any(|other| gone.contains(other))
        };
        damaged.extend(
            archives
                .iter()
                .filter(refers)
                .map(|archive| &archive.root.id),
        );
        let id = if ids.len() == 1 {
            ids[0].clone()
        } else {
            String::new()
        };
        VerifyVerdict {
            id,
            of: ids.len(),
            damaged: damaged.into_iter().cloned().collect(),
            backups: self.stock.archives.len(),
            data: self.data,
            is_bare: false,
            is_trailed: false,
            entries: self.meter.entries.load(Relaxed),
            is_locked: self.is_locked(),
            not_captured: sizes::sum(
                archives
                    .iter()
                    .map(|archive| archive.root.totals.unreadable),
            ),
            bad_pages: sizes::sum(archives.iter().map(|archive| archive.root.totals.bad_pages)),
            damage: self.report.damage(),
            lost,
            warnings: self.report.warnings(),
            differences: Vec::new(),
            seconds: start.elapsed().as_secs_f64(),
        }
    }

    pub(crate) fn no_root(&self, backup: String, error: Error) -> Result<EntryLoss> {
        let detail = format!(
            "all of backup {backup:?} is lost with it until `fullbore repair` has rebuilt it"
        );
        self.report.add((error.detail(detail), Vec::new()))?;
        Ok(EntryLoss {
            backup,
            all: true,
            ..EntryLoss::default()
        })
    }

    /// Sizes and seek tables. A segment that is not there or has no table gives no frames, and is reported.
    fn segments(&self) -> Result<Tables> {
        let mut tables = Tables::default();
        for place in &self.stock.segments {
            match seek_tables::read(&self.stock.archives[place.archive], place, self.data) {
                Ok(table) => drop(tables.frames.insert(place.id.clone(), table)),
                Err(error) => self.bad_segment(place, error, &mut tables)?,
            }
        }
        Ok(tables)
    }

    fn bad_segment(&self, place: &SegmentPlace, error: Error, tables: &mut Tables) -> Result<()> {
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
                error.detail("`--data` finds out which of its frames are whole"),
                Vec::new(),
            )),
            _ => Err(error),
        }
    }

    /// Every copy of every page, and what its records refer to.
    fn pages(&self, workers: NonZeroUsize, tables: &Tables) -> Result<()> {
        workers::work(
            &workers.into(),
            || (),
            |(), sheet| self.sheet(sheet, tables),
            |send| self.stock.sheets.iter().try_for_each(send),
        )
    }

    fn sheet(&self, sheet: &PageRef, tables: &Tables) -> Result<()> {
        let (archive, at) = (&self.stock.archives[sheet.at.0], self.stock.page_at(sheet));
        let owner = if at.backup.is_empty() {
            &archive.root.id
        } else {
            &at.backup
        };
        let (mut whole, mut errors) = (None, Vec::new());
        for copy in archive.copies(at) {
            match archive.read_copy(at, &copy) {
                Ok(page) if page.records.len() as u64 == at.entries => whole = whole.or(Some(page)),
                Ok(_) => {
                    let what = "a manifest page has another number of entries than the root says";
                    errors.push((copy.0, Error::corrupt(what)));
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
        // A segment that is not there is told of by itself.
        let is_told = |object: &ObjectName| matches!(object, ObjectName::Segment(id) if tables.missing.contains(&full(archive, id)));
        for (_, error) in errors.into_iter().filter(|(object, _)| !is_told(object)) {
            self.report.mark_damaged_backup(owner);
            self.report.warn(error);
        }
        self.records(sheet, page, tables)
    }

    fn lost_page(&self, sheet: &PageRef, error: Error) -> Result<()> {
        if error.kind != ErrorKind::Corrupt {
            return Err(error);
        }
        let at = self.stock.page_at(sheet);
        let what = format!(
            "{} from {} on",
            counted(at.entries, "entry"),
            quoted(&at.first.0)
        );
        sheet
            .of
            .iter()
            .for_each(|archive| self.bad.page(*archive, &what));
        let of = if self.stock.archives.len() > 1 {
            format!(" of {}", self.stock.names(&sheet.of))
        } else {
            String::new()
        };
        self.report.add((
            error.detail(format!("it describes {what}{of}; no other copy is whole")),
            Vec::new(),
        ))
    }

    /// Do the extents of a page lie in frames that there are, and are they all of each file? With `data` a look at the content tells that,
    /// also of files that go on over pages.
    fn records(&self, sheet: &PageRef, page: ManifestPage, tables: &Tables) -> Result<()> {
        let archive = &self.stock.archives[sheet.at.0];
        let (mut used, mut bad) = (HashSet::new(), BTreeMap::new());
        for item in items(archive, page) {
            self.meter
                .entries
                .fetch_add(u64::from(item.from == 0), Relaxed);
            if !matches!(item.entry.kind, EntryKind::File { .. }) || !item.state.is_stored() {
                continue;
            }
            if !self.data && !item.more && item.from == 0 && !describe_whole_file(&[&*item]) {
                self.bad.file(archive, &item);
                self.report.add((misfit(&item.entry.path), Vec::new()))?;
            }
            for extent in &item.extents {
                self.extent(&item, extent, tables, &mut used, &mut bad);
            }
        }
        let mut all = self.used.locked();
        sheet
            .of
            .iter()
            .for_each(|archive| all[*archive].extend(used.iter().cloned()));
        drop(all);
        bad.into_values()
            .try_for_each(|(frame, error, files): Misplaced| {
                let damage = frame_damage(archive, &frame, error, files);
                if self.bad.frame(&frame.0, &frame.1, false) {
                    self.report.add(damage)
                } else {
                    Ok(())
                }
            })
    }

    fn extent(
        &self,
        item: &PageItem,
        extent: &Extent,
        tables: &Tables,
        used: &mut HashSet<SegmentId>,
        bad: &mut BTreeMap<(String, u32, u32, u64), Misplaced>,
    ) {
        let (segment, frame) = (item.segment(&extent.frame), extent.frame);
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
            Ok(()) => Error::corrupt("the manifest wants more of it than it holds"),
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

    /// A root mentions every segment that its pages speak of: what is not mentioned would be removed as not needed.
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
            unknown.sort_by_key(|id| (id.backup.clone(), id.stream, id.number));
            for id in unknown {
                let name = archive.store().name(&ObjectName::Segment(id.clone()));
                let what = format!("the root of backup {:?} is wrong", root.id);
                let why = format!("it does not mention segment {name}, which its pages refer to");
                self.report.mark_damaged_backup(&root.id);
                self.report
                    .add((Error::corrupt(what).because(why), Vec::new()))?;
            }
        }
        Ok(())
    }
}

/// A frame that is not where records say, and whose they are.
type Misplaced = ((SegmentId, FrameAt), Error, Vec<EntryPath>);
