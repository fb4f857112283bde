//! Repairs a repository: rebuilds the objects that can be rebuilt, and drops files that cannot be
//! restored.
//!
//! The plan comes first, and changes nothing. Manifests are rebuilt from the copies of their pages
//! in segments; roots from labels, page copies and seek tables; the repository file from any label.
//! Files that cannot be restored are marked as not captured, so that the others restore without
//! complaint. Every object that is written is durable and takes its place at once. No segment is
//! ever changed or removed.
//!
//! Belongs here: changes that undo damage. Does not belong here: finding the damage (`verify`), and
//! deleting unused objects (`repo`).

pub(crate) mod cluster_facts;
pub(crate) mod cut_off;
mod found_page;
pub(crate) mod frame_index;
pub(crate) mod give_up;
mod rely;
pub(crate) mod remade_sums;
mod reused;
pub(crate) mod root;
mod same_content;
mod shared_lists;
pub(crate) mod totals;

use crate::verify::{Verify, VerifyVerdict};
use fullbore_format::{
    digest::hex,
    error::{Error, ErrorKind, Result, quoted},
    layout::{self, Repository},
    page::SegmentId,
    root::{FORMAT, Lists, Live, Root},
    seal::seal,
    text::counted,
};
use fullbore_platform as platform;
use fullbore_platform::metrics::meter::Meter;
use fullbore_repository::{
    annotations::Annotations,
    archive::{Archive, object::ObjectName},
    content_lists::{MissingList, missing_lists},
    inventory::{Inventory, bad_words},
    open::{backup_ids, read_repository},
    protocol::intent_key,
    roots::{self, BackupState, key},
    scan::{FoundDirectory, open_all},
    select::BackupFilter,
    verify_memory::VerifyMemory,
    writer::lacks_conditions,
};
use fullbore_storage::{Leased, Objects, PutIf, Storages, Take, read_lists, whole_root};
use give_up::{RemainingBackup, forgo};
use rely::IntentLease;
use reused::ReusedContent;
use root::{RebuiltRoot, label, rebuild};
use same_content::SameContent;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::OsString,
    num::NonZeroUsize,
    sync::Arc,
};

/// Bytes of a manifest that are read at once,
const MANY_BYTES: u64 = 1 << 20;
/// and where some of them are unreadable.
const SECTOR_BYTES: u64 = 4096;

/// A repository to repair, and how thoroughly to check it.
#[derive(Debug, Clone)]
pub struct Repair {
    /// How storages are reached.
    pub storages: Storages,
    /// The repository.
    pub repository: OsString,
    /// Whether to check every byte, not only the structure.
    pub data: bool,
    /// Threads that read, decode and digest.
    pub workers: NonZeroUsize,
}

/// A step of the repair.
pub struct RepairStep {
    /// The step, in words.
    pub what: String,
    /// The losses that it causes, or that exist already.
    pub detail: Vec<String>,
    objects: Arc<dyn Objects>,
    action: RepairAction,
}

enum RepairAction {
    /// Stores the document that makes this a repository.
    Repository(Repository),
    /// Stores the document of this forgotten backup.
    Forgotten(String, Vec<u8>),
    /// Stores the manifest of this backup again, with these pages at their places.
    Manifest(String, Vec<(u64, Vec<u8>)>),
    /// Adds pages to the manifest, then stores the rebuilt root.
    Root(Vec<(u64, Vec<u8>)>, Box<Root>),
    /// Adds pages to the manifest, then replaces the root.
    Rewrite(Box<RewrittenRoot>),
    /// Stores the annotations of this backup again: a pin.
    Pin(String),
    /// Stores the list of contents of a backup again.
    Contents(MissingList),
    /// No repair is possible.
    Nothing,
}

/// A root that replaces another one.
struct RewrittenRoot {
    root: Root,
    /// The root that must be there still.
    planned: Root,
    /// Pages to add to the manifest.
    pages: Vec<(u64, Vec<u8>)>,
    /// Backups whose content the root refers to for the first time, and the parts of segments.
    bases: Vec<String>,
    reused: Vec<Live>,
}

impl Repair {
    /// Returns the steps. Only the first step is known if the repository cannot be opened because
    /// its own file is damaged.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no repository, nor the remains of one; [`ErrorKind::Unsupported`];
    /// the system's.
    pub fn plan(&self, meter: &Meter) -> Result<Vec<RepairStep>> {
        let objects = &self.storages.repository_at(&self.repository)?;
        // What no key opens looks as if it were lost.
        if let Some(sealed) = objects.as_sealed() {
            sealed.check_readable("")?;
        }
        match read_repository(&**objects) {
            Ok(_) => {}
            Err(error) if error.kind.is_loss() => {
                return repository_file(objects).ok_or(error).map(|step| vec![step]);
            }
            Err(error) => return Err(error),
        }
        let mut steps = damaged_roots(objects)?;
        let stock = Inventory::new(archives(objects)?, Some(&**objects));
        steps.extend(manifests(objects, &stock));
        for (key, error, root) in bad_words(&stock.archives, &**objects, |_| true) {
            let detail = vec![
                error.line(),
                "the checksums of the objects that other backups need of it will be unknown"
                    .to_owned(),
            ];
            let message = format!(
                "write {} again, the document of forgotten backup {:?}",
                objects.describe(&key),
                root.id
            );
            let action = RepairAction::Forgotten(root.id.clone(), seal(&root)?);
            steps.push(RepairStep::new(objects, message, detail, action));
        }
        steps.extend(self.lost(objects, meter)?);
        steps.extend(damaged_notes(objects)?);
        steps.extend(lost_lists(objects)?);
        Ok(steps)
    }

    /// Returns the backups of which earlier verifications found that they have lost files, oldest first.
    ///
    /// # Errors
    /// Those of opening the repository.
    pub fn known_losses(&self) -> Result<Vec<String>> {
        let objects = &self.storages.repository_at(&self.repository)?;
        let memory = VerifyMemory::read(&**objects);
        let mut ids = backup_ids(&**objects)?;
        ids.retain(|id| memory.loss(id).is_some());
        Ok(ids)
    }

    /// Returns the steps for files that cannot be restored.
    fn lost(&self, objects: &Arc<dyn Objects>, meter: &Meter) -> Result<Vec<RepairStep>> {
        let all = archives(objects)?;
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let verify = Verify {
            storages: self.storages.clone(),
            from: self.repository.clone(),
            filter: BackupFilter::default(),
            data: self.data,
            against: None,
            shard: None,
            workers: self.workers,
        };
        let VerifyVerdict { lost, .. } = verify.run(meter)?;
        let missing = missing(&Inventory::new(all, Some(&**objects)));
        let mut steps = Vec::new();
        let archives = archives(objects)?;
        let same = SameContent::find(&archives, &lost);
        for archive in &archives {
            let loss = lost
                .iter()
                .find(|loss| loss.backup == archive.root.id && !loss.all);
            let mentions =
                |id: &SegmentId| {
                    archive.root.liveness.iter().any(|live| {
                        fullbore_repository::inventory::full(archive, &live.id()) == *id
                    })
                };
            if loss.is_some() || missing.iter().any(mentions) {
                let reused = ReusedContent::find(&archives, archive, loss, &same);
                let rest = forgo(archive, loss, &missing, (&reused, &same))?;
                steps.push(forgo_step(objects, archive, rest, reused));
            }
        }
        Ok(steps)
    }
}

/// Returns all backups with an intact root.
fn archives(objects: &Arc<dyn Objects>) -> Result<Vec<Archive>> {
    let found = open_all(objects)?.into_iter();
    let backups = found.filter_map(|(_, found)| match found {
        FoundDirectory::Backup(archive) => Some(*archive),
        _ => None,
    });
    Ok(backups.collect())
}

/// Returns the steps for lost or damaged roots.
fn damaged_roots(objects: &Arc<dyn Objects>) -> Result<Vec<RepairStep>> {
    let whole = archives(objects)?;
    let mut steps = Vec::new();
    let (mut ids, mut without_lists) = (BTreeSet::new(), Vec::new());
    for (id, found) in open_all(objects)? {
        let why = match found {
            FoundDirectory::Damaged(error) if shared_lists::are_shared(&**objects, &id) => {
                without_lists.push((id, error));
                continue;
            }
            FoundDirectory::Damaged(error) => error.line(),
            FoundDirectory::NoRoot => "it is missing".to_owned(),
            FoundDirectory::Backup(_) | FoundDirectory::Leftover => continue,
        };
        steps.push(match rebuild(objects, &id, &whole) {
            Ok(rebuilt) => {
                ids.insert(id.clone());
                root_step(objects, &id, &why, rebuilt)
            }
            Err(error) => RepairStep::new(
                objects,
                error.line(),
                vec![why, last_resort(), way_out(&id)],
                RepairAction::Nothing,
            ),
        });
    }
    for (id, error) in without_lists {
        match shared_lists::steps(objects, &id, &error, &whole, &ids) {
            Some(more) => steps.extend(more),
            None => steps.push(RepairStep::new(
                objects,
                format!("cannot rebuild the lists of backup {id:?}"),
                vec![error.line(), way_out(&id)],
                RepairAction::Nothing,
            )),
        }
    }
    Ok(steps)
}

/// Returns the steps for unreadable annotations. A backup that was pinned must not be forgotten
/// because of the damage.
fn damaged_notes(objects: &Arc<dyn Objects>) -> Result<Vec<RepairStep>> {
    let step = |archive: Archive| {
        let id = archive.root.id;
        let why = Annotations::read(&**objects, &id)
            .err()
            .filter(|error| error.kind.is_loss())?;
        let action = format!(
            "pin backup {id:?}, because it may have been pinned; `fullbore unpin` undoes that"
        );
        let detail = vec![why.line(), "tags that were added later are lost".to_owned()];
        Some(RepairStep::new(
            objects,
            action,
            detail,
            RepairAction::Pin(id),
        ))
    };
    Ok(archives(objects)?.into_iter().filter_map(step).collect())
}

/// Returns the steps for lists of contents that are missing.
fn lost_lists(objects: &Arc<dyn Objects>) -> Result<Vec<RepairStep>> {
    let lists = missing_lists(&**objects, &archives(objects)?)?.into_iter();
    let step = |list: MissingList| {
        let key = key(&list.backup, layout::CONTENTS);
        let what = format!("write {} again", objects.describe(&key));
        let detail =
            vec!["until then backups of other sources store that content again".to_owned()];
        RepairStep::new(objects, what, detail, RepairAction::Contents(list))
    };
    Ok(lists.map(step).collect())
}

impl RepairStep {
    fn new(
        objects: &Arc<dyn Objects>,
        what: String,
        detail: Vec<String>,
        action: RepairAction,
    ) -> Self {
        Self {
            what,
            detail,
            objects: objects.clone(),
            action,
        }
    }

    /// Returns whether the step is possible.
    pub fn can_be_done(&self) -> bool {
        !matches!(self.action, RepairAction::Nothing)
    }

    /// Returns whether the other steps are only known after this one.
    pub fn is_first(&self) -> bool {
        matches!(
            self.action,
            RepairAction::Repository(..) | RepairAction::Forgotten(..) | RepairAction::Root(..)
        )
    }

    /// Runs the step. A step that is not needed any more counts as done; returns the reason if it
    /// must wait for the next run.
    ///
    /// # Errors
    /// The storage's; then the repository is unchanged.
    pub fn execute(&self) -> Result<Option<&'static str>> {
        let objects = &*self.objects;
        match &self.action {
            RepairAction::Repository(facts) => {
                let facts = Repository {
                    lacks_conditions: lacks_conditions(objects)?,
                    ..facts.clone()
                };
                put(objects, layout::REPOSITORY, &seal(&facts)?).map(|()| None)
            }
            RepairAction::Forgotten(id, bytes) => locked(objects, id, |_| {
                put(objects, &key(id, layout::FORGOTTEN), bytes).map(|()| None)
            }),
            RepairAction::Manifest(id, pages) => locked(objects, id, |_| {
                write_manifest(objects, id, pages).map(|()| None)
            }),
            RepairAction::Root(pages, root) => locked(objects, &root.id, |_| {
                // Another process may have restored the right root meanwhile.
                let state = roots::state(objects, &root.id)?;
                let is_over = matches!(state, Some(BackupState::Forgotten | BackupState::Void));
                if is_over || is_back(objects, &root.id) {
                    return Ok(None);
                }
                write_root(objects, pages, root)
            }),
            RepairAction::Rewrite(new) => locked(objects, &new.root.id, |intent| {
                let left = match intent.rely_on(&new.root, &new.bases, &new.reused)? {
                    None => rewrite(objects, new)?,
                    left => left,
                };
                if left.is_none() {
                    forget_loss(objects, &new.root.id);
                }
                Ok(left)
            }),
            RepairAction::Pin(id) => Annotations {
                pinned: true,
                ..Annotations::default()
            }
            .write(objects, id)
            .map(|()| None),
            RepairAction::Contents(list) => locked(objects, &list.backup, |_| {
                list.write(objects).map(|()| None)
            }),
            RepairAction::Nothing => Ok(None),
        }
    }
}

fn put(objects: &dyn Objects, key: &str, bytes: &[u8]) -> Result<()> {
    objects.put(key, bytes, &PutIf::Always).map(drop)
}

/// Changes a backup under the lease on its intent, so that no prune and no copy runs beside it. A
/// backup without objects needs no change.
fn locked(
    objects: &dyn Objects,
    id: &str,
    work: impl FnOnce(&mut IntentLease<'_>) -> Result<Option<&'static str>>,
) -> Result<Option<&'static str>> {
    let key = intent_key(id);
    let mut is_made = true;
    let mut taken = Leased::Held;
    if !objects.abilities().has_locks {
        taken = objects.lease(&key, b"", Take::New)?;
        is_made = matches!(taken, Leased::Ours(_));
    }
    if matches!(taken, Leased::Held) {
        taken = objects.lease(&key, b"", Take::DeadOrNew)?;
    }
    let lease = match taken {
        Leased::Held => {
            return Ok(Some("the backup is being pruned or copied, or is running"));
        }
        Leased::Ours(lease) => Some(lease),
        Leased::Unknown | Leased::Absent => None,
    };
    let mut intent = IntentLease {
        objects,
        key,
        is_made,
        lease,
    };
    // Only under the lease: a prune may have removed the backup before.
    if roots::files_of(objects, id)?.is_empty() {
        return Ok(None);
    }
    work(&mut intent)
}

/// Returns whether this backup has a root, even one of a newer program.
fn is_back(objects: &dyn Objects, id: &str) -> bool {
    let found = objects.get(&key(id, layout::ROOT));
    found.is_ok_and(|root| {
        root.is_some_and(|(bytes, _)| {
            Root::of_backup_as_stored(id, &bytes, "")
                .and_then(|root| whole_root(objects, root, ""))
                .map_or_else(|error| error.kind != ErrorKind::Corrupt, |_| true)
        })
    })
}

fn rewrite(objects: &dyn Objects, new: &RewrittenRoot) -> Result<Option<&'static str>> {
    match objects.get(&key(&new.root.id, layout::ROOT))? {
        Some((bytes, _)) if is_planned(objects, &bytes, new) => {
            write_root(objects, &new.pages, &new.root)
        }
        Some(_) => Ok(Some("its root has changed since the repair was planned")),
        None => Ok(None), // forgotten
    }
}

fn is_planned(objects: &dyn Objects, bytes: &[u8], new: &RewrittenRoot) -> bool {
    let found = Root::open_as_stored(bytes, "").and_then(|root| whole_root(objects, root, ""));
    found.is_ok_and(|found| found == new.planned)
}

/// Removes the damage of a backup from the results of verifications: the repaired backup marks it itself.
fn forget_loss(objects: &dyn Objects, id: &str) {
    let mut memory = VerifyMemory::read(objects);
    if memory.loss(id).is_none() {
        return;
    }
    memory.forget_loss(id);
    if let Err(error) = memory.write(objects) {
        platform::debug(|| error.line());
    }
}

fn write_root(
    objects: &dyn Objects,
    pages: &[(u64, Vec<u8>)],
    root: &Root,
) -> Result<Option<&'static str>> {
    write_manifest(objects, &root.id, pages)?;
    let mut root = root.clone();
    root.forget_stale_lists();
    let stored = seal(root.shortened().as_ref().unwrap_or(&root))?;
    put(objects, &key(&root.id, layout::ROOT), &stored).map(|()| None)
}

/// Stores a manifest as a new object: its readable bytes, with these pages at their places, and
/// zeros elsewhere.
fn write_manifest(objects: &dyn Objects, id: &str, pages: &[(u64, Vec<u8>)]) -> Result<()> {
    if pages.is_empty() {
        return Ok(());
    }
    let key = key(id, layout::MANIFEST);
    let there = objects.stat(&key)?.unwrap_or(0);
    let ends = pages
        .iter()
        .map(|(position, page)| position + page.len() as u64);
    let end = ends.fold(there, u64::max);
    let mut upload = objects.create(&key)?;
    let mut start = 0;
    while start < end {
        let piece_end = end.min(start + MANY_BYTES);
        let mut piece = readable(objects, &key, start, piece_end.min(there))?;
        piece.resize((piece_end - start) as usize, 0);
        pages
            .iter()
            .for_each(|(offset, page)| overlay(&mut piece, start, page, *offset));
        upload.append(&piece)?;
        start = piece_end;
    }
    upload.finish().map(drop)
}

/// Returns the bytes of an object between two offsets; unreadable sectors are zeros.
fn readable(objects: &dyn Objects, key: &str, from: u64, to: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if from >= to {
        return Ok(bytes);
    }
    match objects.read_at(key, from, (to - from) as usize, &mut bytes) {
        Err(error) if error.kind == ErrorKind::Corrupt => {}
        read => return read.map(|()| bytes),
    }
    let mut all = Vec::new();
    for offset in (from..to).step_by(SECTOR_BYTES as usize) {
        let len = SECTOR_BYTES.min(to - offset) as usize;
        match objects.read_at(key, offset, len, &mut bytes) {
            Err(error) if error.kind == ErrorKind::Corrupt => all.resize(all.len() + len, 0),
            read => {
                read?;
                all.extend_from_slice(&bytes);
            }
        }
    }
    Ok(all)
}

/// Copies the part of a page that overlaps a piece into the piece; both have offsets in the same
/// object.
fn overlay(piece: &mut [u8], piece_at: u64, page: &[u8], page_at: u64) {
    let start = page_at.max(piece_at);
    let end = (page_at + page.len() as u64).min(piece_at + piece.len() as u64);
    if start < end {
        let source = &page[(start - page_at) as usize..(end - page_at) as usize];
        piece[(start - piece_at) as usize..(end - piece_at) as usize].copy_from_slice(source);
    }
}

/// Returns the step that rebuilds the repository file from the label of any segment.
fn repository_file(objects: &Arc<dyn Objects>) -> Option<RepairStep> {
    let ids = roots::ids(&**objects).ok()?;
    let label = ids.iter().find_map(|id| label(objects, id))?;
    let facts = Repository {
        format: FORMAT,
        id: label.repository,
        ..Repository::default()
    };
    let file = objects.describe(layout::REPOSITORY);
    Some(RepairStep::new(
        objects,
        format!("write {file} again, from the label of a segment"),
        vec!["when the repository was made is unknown".to_owned()],
        RepairAction::Repository(facts),
    ))
}

/// Returns the advice for a backup whose root cannot be rebuilt.
fn way_out(id: &str) -> String {
    format!("`fullbore forget` of {id} gives the backup up; until then no prune is possible")
}

/// Returns the advice for files without a record.
fn last_resort() -> String {
    "`fullbore restore - < SEGMENT` restores the readable part of the tar in a segment".to_owned()
}

fn root_step(objects: &Arc<dyn Objects>, id: &str, why: &str, rebuilt: RebuiltRoot) -> RepairStep {
    let RebuiltRoot { root, pages, notes } = rebuilt;
    let entries = counted(root.totals.entries, "entry");
    let detail = std::iter::once(why.to_owned()).chain(notes).collect();
    let action = format!("rebuild the root of backup {id:?}, with {entries}");
    RepairStep::new(
        objects,
        action,
        detail,
        RepairAction::Root(pages, Box::new(root)),
    )
}

/// Returns the steps for manifests with a damaged page whose copy in a segment is intact.
fn manifests(objects: &Arc<dyn Objects>, stock: &Inventory) -> Vec<RepairStep> {
    let mut by_backup: BTreeMap<String, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for sheet in &stock.sheets {
        let (archive, place) = (&stock.archives[sheet.at.0], stock.page_at(sheet));
        let Some(offset) = place.manifest_offset else {
            continue;
        };
        let copies = archive.copies(place);
        let is_whole = |copy: &(ObjectName, u64)| archive.read_copy(place, copy).is_ok();
        let in_manifest = copies
            .iter()
            .any(|copy| matches!(copy.0, ObjectName::Manifest(_)) && is_whole(copy));
        // If another manifest has the page whole, every reader falls back to it.
        if !in_manifest && let Some(copy) = copies.iter().find(|copy| is_whole(copy)) {
            let mut stored = Vec::new();
            if archive
                .store()
                .read_at(&copy.0, copy.1, place.bytes as usize, &mut stored)
                .is_ok()
            {
                let id = if place.backup.is_empty() {
                    &archive.root.id
                } else {
                    &place.backup
                };
                by_backup
                    .entry(id.clone())
                    .or_default()
                    .push((offset, stored));
            }
        }
    }
    for (backup, offset, page) in lost_pages_of_lists(objects, &stock.archives) {
        by_backup.entry(backup).or_default().push((offset, page));
    }
    let step = |(id, pages): (String, Vec<_>)| {
        let action = format!(
            "write {} of the manifest of backup {id:?} again, from their copies",
            counted(pages.len() as u64, "page")
        );
        RepairStep::new(
            objects,
            action,
            Vec::new(),
            RepairAction::Manifest(id, pages),
        )
    };
    by_backup.into_iter().map(step).collect()
}

/// Returns the pages of lists that are damaged, made anew from a root that has the same lists: backup, offset, bytes.
fn lost_pages_of_lists(
    objects: &Arc<dyn Objects>,
    archives: &[Archive],
) -> BTreeSet<(String, u64, Vec<u8>)> {
    let made_anew = |archive: &Archive| {
        let root = &archive.root;
        let at = root.lists_at.as_ref()?;
        if read_lists(&**objects, &root.lists_of, at).is_ok() {
            return None;
        }
        let page = Lists::of(root).page(&root.lists_of).ok()?;
        let is_it = hex(blake3::hash(&page).as_bytes()) == at.digest;
        is_it.then(|| (root.lists_of.clone(), at.offset, page))
    };
    archives.iter().filter_map(made_anew).collect()
}

/// Returns the segments that a backup refers to and that are missing.
fn missing(stock: &Inventory) -> HashSet<SegmentId> {
    let is_missing = |place: &&fullbore_repository::inventory::SegmentPlace| {
        let len = stock.archives[place.archive]
            .store()
            .len(&ObjectName::Segment(place.id.clone()));
        len.is_err_and(|error| error.kind == ErrorKind::NotFound)
    };
    stock
        .segments
        .iter()
        .filter(is_missing)
        .map(|place| place.id.clone())
        .collect()
}

fn forgo_step(
    objects: &Arc<dyn Objects>,
    archive: &Archive,
    rest: RemainingBackup,
    reused: ReusedContent<'_>,
) -> RepairStep {
    let id = &archive.root.id;
    let with_place = |path: &Vec<u8>| match reused.elsewhere.get(path) {
        Some(place) => format!("{}: {place}", quoted(path)),
        None => quoted(path),
    };
    let files = rest.lost.iter().map(with_place);
    let lost: Vec<String> = rest.unnamed.iter().cloned().chain(files).collect();
    let action = forgo_words(id, &rest, &lost, &reused);
    let hint = (!rest.unnamed.is_empty()).then(last_resort);
    let detail = reused.lines.into_iter().chain(hint).chain(lost).collect();
    let new = RewrittenRoot {
        root: rest.root,
        planned: archive.root.clone(),
        pages: rest.added,
        bases: reused.bases.into_iter().collect(),
        reused: rest.reused,
    };
    RepairStep::new(
        objects,
        action,
        detail,
        RepairAction::Rewrite(Box::new(new)),
    )
}

/// Returns in words how a backup changes.
fn forgo_words(
    id: &str,
    rest: &RemainingBackup,
    lost: &[String],
    reused: &ReusedContent<'_>,
) -> String {
    let taken = (reused.count() > 0).then(|| {
        let files = counted(reused.count(), "file");
        format!("take the content of {files} of backup {id:?} from other backups of its source")
    });
    let marked = (!lost.is_empty()).then(|| {
        let why = if reused.elsewhere.is_empty() {
            "no intact copy is left"
        } else {
            "no copy that this backup refers to is intact"
        };
        let things = things(rest, lost);
        format!("mark {things} of backup {id:?} as not captured, because {why}")
    });
    let parts: Vec<String> = taken.into_iter().chain(marked).collect();
    if parts.is_empty() {
        format!("remove missing segments that no file needs from the root of backup {id:?}")
    } else {
        parts.join("; ")
    }
}

/// Returns the number of lost entries, in words.
fn things(rest: &RemainingBackup, lost: &[String]) -> String {
    if rest.unnamed.is_empty() {
        counted(lost.len() as u64, "file")
    } else {
        "entries".to_owned()
    }
}

/// Runs these steps in order, and returns the steps that must wait for the next run, with the
/// reasons.
///
/// # Errors
/// The first error of [`RepairStep::execute`]; the steps after it do not run.
pub fn execute(steps: &[RepairStep]) -> Result<Vec<String>> {
    let failed =
        |error: Error| error.detail("the earlier steps are done; run the same command again");
    let left = |step: &RepairStep| Ok(step.execute()?.map(|why| format!("{}: {why}", step.what)));
    steps
        .iter()
        .filter_map(|step| left(step).transpose())
        .collect::<Result<_>>()
        .map_err(failed)
}
