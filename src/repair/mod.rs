//! Put a repository in order: rebuild what can be rebuilt, and drop what nothing can restore.
//!
//! First it is found what would be done; nothing is changed by that. Manifests are put together from the copies of their
//! pages in segments; roots from labels, page copies and seek tables; the file that makes a directory a repository from any label. Files that nothing can restore are marked as not captured, so that the rest restores without complaint. What is
//! written is durable and takes its place at once. No segment is ever changed or removed.

pub(crate) mod cluster_facts;
pub(crate) mod cut_off;
pub(crate) mod frame_index;
pub(crate) mod give_up;
pub(crate) mod remade_sums;
pub(crate) mod root;
pub(crate) mod totals;

use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, ErrorKind, Result, quoted},
    format::{
        layout::{self, Repository},
        page::SegmentId,
        root::{FORMAT, Root},
        seal::{MAX_BYTES, seal},
    },
    metrics::meter::Meter,
    platform::safe_file,
    repo::{
        annotations::Annotations,
        atomic_file::{Replacement, replace},
        inventory::{Inventory, bad_words},
        objects::{LocalObjects, Objects, Seized},
        open::{directories, read_repository},
        protocol::intent_key,
        roots,
        scan::{FoundDirectory, open_all},
        select::BackupFilter,
    },
    text::counted,
    verify::{Verify, VerifyVerdict, losses::EntryLoss},
};
use give_up::{Rest, forgo};
use root::{Rebuilt, label, rebuild};
use std::{
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    fs::File,
    io,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

/// What to repair, and how thoroughly to look.
#[derive(Debug, Clone)]
pub struct Repair {
    /// The repository.
    pub repository: PathBuf,
    /// Look at every byte, and not at the structure only?
    pub data: bool,
    /// Threads that read, decode and digest.
    pub workers: NonZeroUsize,
}

/// One thing that is to be done.
pub struct RepairStep {
    /// What, in words.
    pub what: String,
    /// What is lost by it, or was lost already.
    pub detail: Vec<String>,
    action: RepairAction,
}

enum RepairAction {
    /// Write the file that makes a directory a repository, or the one that says of a backup that it was forgotten.
    File(PathBuf, Vec<u8>),
    /// Write these pages of the manifest in a directory.
    Manifest(PathBuf, Vec<(u64, Vec<u8>)>),
    /// Add pages to a manifest, then write the root that was rebuilt.
    Root(PathBuf, Vec<(u64, Vec<u8>)>, Box<Root>),
    /// Add pages to a manifest, then write the root anew in place of the second, if that is there still.
    Rewrite(PathBuf, Vec<(u64, Vec<u8>)>, Box<(Root, Root)>),
    /// Write what was noted of this backup anew: that it is pinned.
    Pin(PathBuf, String),
    /// There is nothing that can be done.
    Nothing,
}

impl Repair {
    /// What is to be done. Only the first thing is known if the repository cannot be opened for want of its own file.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if there is no repository, nor anything that was one; [`Kind::Unsupported`]; the system's.
    pub fn plan(&self, meter: &Meter) -> Result<Vec<RepairStep>> {
        match read_repository(&self.repository) {
            Ok(_) => {}
            Err(error) if error.kind.is_loss() => {
                return repository_file(&self.repository)
                    .ok_or(error)
                    .map(|step| vec![step]);
            }
            Err(error) => return Err(error),
        }
        let mut steps = self.roots()?;
        let stock = Inventory::new(self.archives()?, Some(&self.repository));
        steps.extend(manifests(&self.repository, &stock));
        for (path, error, root) in bad_words(&stock.archives, &self.repository) {
            let detail = vec![
                error.line(),
                "checksums of what others need of that backup are not known then".to_owned(),
            ];
            let what = format!(
                "write {path:?} again, which says that backup {:?} was forgotten",
                root.id
            );
            steps.push(RepairStep {
                what,
                detail,
                action: RepairAction::File(path, seal(&root)?),
            });
        }
        steps.extend(self.lost(meter)?);
        steps.extend(self.notes()?);
        Ok(steps)
    }

    fn archives(&self) -> Result<Vec<Archive>> {
        let backups =
            open_all(&self.repository)?
                .into_iter()
                .filter_map(|(_, found)| match found {
                    FoundDirectory::Backup(archive) => Some(*archive),
                    _ => None,
                });
        Ok(backups.collect())
    }

    /// Roots that are lost or damaged.
    fn roots(&self) -> Result<Vec<RepairStep>> {
        let archives = self.archives()?;
        let mut steps = Vec::new();
        for (id, found) in open_all(&self.repository)? {
            let why = match found {
                FoundDirectory::Damaged(error) => error.line(),
                FoundDirectory::NoRoot => "it is missing".to_owned(),
                FoundDirectory::Backup(_) | FoundDirectory::Leftover => continue,
            };
            steps.push(match rebuild(&self.repository, &id, &archives) {
                Ok(rebuilt) => root_step(&self.repository, &id, &why, rebuilt),
                Err(error) => RepairStep {
                    what: error.line(),
                    detail: vec![why, last_resort(), way_out(&id)],
                    action: RepairAction::Nothing,
                },
            });
        }
        Ok(steps)
    }

    /// Notes that cannot be read. What was pinned must not be forgotten for that.
    fn notes(&self) -> Result<Vec<RepairStep>> {
        let step = |archive: Archive| {
            let id = archive.root.id;
            let why = Annotations::read(&self.repository, &id)
                .err()
                .filter(|error| error.kind.is_loss())?;
            let what = format!(
                "pin backup {id:?}, as nobody knows whether it was: `fullbore unpin` undoes that"
            );
            let detail = vec![
                why.line(),
                "tags that it was given later are lost".to_owned(),
            ];
            Some(RepairStep {
                what,
                detail,
                action: RepairAction::Pin(self.repository.clone(), id),
            })
        };
        Ok(self.archives()?.into_iter().filter_map(step).collect())
    }

    /// What nothing can restore.
    fn lost(&self, meter: &Meter) -> Result<Vec<RepairStep>> {
        let archives = self.archives()?;
        if archives.is_empty() {
            return Ok(Vec::new());
        }
        let from = self.repository.clone().into_os_string();
        let verify = Verify {
            from,
            filter: BackupFilter::default(),
            data: self.data,
            against: None,
            workers: self.workers,
        };
        let VerifyVerdict { lost, .. } = verify.run(meter)?;
        let missing = missing(&Inventory::new(archives, Some(&self.repository)));
        let mut steps = Vec::new();
        for archive in self.archives()? {
            let loss = lost
                .iter()
                .find(|loss| loss.backup == archive.root.id && !loss.all);
            let mentions = |id: &SegmentId| {
                archive
                    .root
                    .liveness
                    .iter()
                    .any(|live| crate::repo::inventory::full(&archive, &live.id()) == *id)
            };
            if loss.is_some() || missing.iter().any(mentions) {
                steps.push(forgo_step(&self.repository, &archive, loss, &missing)?);
            }
        }
        Ok(steps)
    }
}

impl RepairStep {
    /// Can it be done?
    pub fn can_be_done(&self) -> bool {
        !matches!(self.action, RepairAction::Nothing)
    }

    /// Can it be known only after it what else is to be done?
    pub fn is_first(&self) -> bool {
        matches!(self.action, RepairAction::File(..) | RepairAction::Root(..))
    }

    /// Do it. What is not needed any more is done; why it is left for the next run is said if it is.
    ///
    /// # Errors
    /// The system's; then what was there is there still.
    pub fn execute(&self) -> Result<Option<&'static str>> {
        match &self.action {
            RepairAction::File(path, bytes) => {
                let write = || replace(path, bytes).map(|()| None);
                // The repository itself may be a link; the directory of a backup not.
                let of_backup = path.parent().filter(|dir| {
                    dir.parent()
                        .is_some_and(|above| above.ends_with(layout::BACKUPS))
                });
                of_backup.map_or_else(write, |dir| locked(dir, write))
            }
            RepairAction::Manifest(dir, pages) => locked(dir, || {
                manifest(&dir.join(layout::MANIFEST), pages).map(|()| None)
            }),
            RepairAction::Root(dir, pages, root) => locked(dir, || {
                // Somebody may have brought back the right one since this was planned.
                if dir.join(layout::FORGOTTEN).exists()
                    || is_back(&dir.join(layout::ROOT), &root.id)
                {
                    return Ok(None);
                }
                write_root(dir, pages, root)
            }),
            RepairAction::Rewrite(dir, pages, roots) => {
                locked(dir, || rewrite(dir, pages, &roots.0, &roots.1))
            }
            RepairAction::Pin(repository, id) => Annotations {
                pinned: true,
                ..Annotations::default()
            }
            .write(repository, id)
            .map(|()| None),
            RepairAction::Nothing => Ok(None),
        }
    }
}

/// Change a backup under the lock of its intent: beside no prune, and no copy. If nothing of it is left, nothing is to be done.
fn locked(
    dir: &Path,
    work: impl FnOnce() -> Result<Option<&'static str>>,
) -> Result<Option<&'static str>> {
    let (Some(repository), Some(id)) = (
        dir.parent().and_then(Path::parent),
        dir.file_name().and_then(OsStr::to_str),
    ) else {
        return Err(Error::new(
            ErrorKind::Bug,
            "what is repaired is in no repository",
        ));
    };
    let (objects, key) = (LocalObjects::new(repository), intent_key(id));
    let file = match objects.claim(&key)? {
        Seized::Held => {
            return Ok(Some(
                "the backup is being pruned or copied, or is under way",
            ));
        }
        Seized::Free(file) => file,
        Seized::Unknown | Seized::Absent => None,
    };
    let lock = IntentLock { objects, key, file };
    if lock.objects.list(&roots::dir(id))?.is_empty() {
        return Ok(None);
    }
    not_a_link(dir)?;
    work()
}

/// Is a root there of this backup, be it of a newer program?
fn is_back(path: &Path, id: &str) -> bool {
    let found = safe_file::read(path, MAX_BYTES);
    found.is_ok_and(|bytes| {
        Root::of_backup(id, &bytes, "")
            .map_or_else(|error| error.kind != ErrorKind::Corrupt, |_| true)
    })
}

fn rewrite(
    dir: &Path,
    pages: &[(u64, Vec<u8>)],
    root: &Root,
    planned: &Root,
) -> Result<Option<&'static str>> {
    let path = dir.join(layout::ROOT);
    match safe_file::read(&path, MAX_BYTES) {
        Ok(bytes) if Root::open(&bytes, "").is_ok_and(|found| found == *planned) => {
            write_root(dir, pages, root)
        }
        Ok(_) => Ok(Some("its root is another than when this was found")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None), // forgotten
        Err(e) => Err(Error::io(format!("could not read {path:?}"), e)),
    }
}

fn write_root(dir: &Path, pages: &[(u64, Vec<u8>)], root: &Root) -> Result<Option<&'static str>> {
    manifest(&dir.join(layout::MANIFEST), pages)?;
    replace(&dir.join(layout::ROOT), &seal(root)?).map(|()| None)
}

/// Of an intent, which goes with it.
struct IntentLock {
    objects: LocalObjects,
    key: String,
    file: Option<File>,
}

impl Drop for IntentLock {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = self.objects.remove(&self.key); // the next backup removes it
        }
    }
}

/// Nothing is changed through a link in place of the directory of a backup.
fn not_a_link(dir: &Path) -> Result<()> {
    safe_file::open_dir(dir)
        .map(drop)
        .map_err(|e| Error::io(format!("could not open {dir:?}"), e))
}

/// Write a manifest: what is there of it, with these pages at their places.
fn manifest(path: &Path, pages: &[(u64, Vec<u8>)]) -> Result<()> {
    if pages.is_empty() {
        return Ok(());
    }
    let file = Replacement::new(path)?;
    file.keep()?;
    pages
        .iter()
        .try_for_each(|(at, page)| file.write(page, *at))?;
    file.commit()
}

/// The file that makes a directory a repository, from the label of any segment.
fn repository_file(repository: &Path) -> Option<RepairStep> {
    let ids = directories(repository).ok()?;
    let label = ids.iter().find_map(|id| label(repository, id))?;
    let facts = Repository {
        format: FORMAT,
        id: label.repository,
        ..Repository::default()
    };
    let path = repository.join(layout::REPOSITORY);
    Some(RepairStep {
        what: format!("write {path:?} again, from the label of a segment"),
        detail: vec!["when the repository was made is unknown".to_owned()],
        action: RepairAction::File(path, seal(&facts).ok()?),
    })
}

/// What is left to do about a backup whose root nothing says anything of.
fn way_out(id: &str) -> String {
    format!("`fullbore forget` of {id} gives it up: until then nothing can be pruned")
}

/// How to get at files that no page describes any more.
fn last_resort() -> String {
    "`fullbore restore - < SEGMENT` restores what the tar in a segment still holds".to_owned()
}

fn root_step(repository: &Path, id: &str, why: &str, rebuilt: Rebuilt) -> RepairStep {
    let Rebuilt { root, pages, notes } = rebuilt;
    let entries = counted(root.totals.entries, "entry");
    let detail = std::iter::once(why.to_owned()).chain(notes).collect();
    let dir = repository.join(layout::BACKUPS).join(id);
    RepairStep {
        what: format!("rebuild the root of backup {id:?}, with {entries}"),
        detail,
        action: RepairAction::Root(dir, pages, Box::new(root)),
    }
}

/// Manifests of which some page is damaged and its copy in a segment is not.
fn manifests(repository: &Path, stock: &Inventory) -> Vec<RepairStep> {
    let mut of: BTreeMap<String, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for sheet in &stock.sheets {
        let (archive, at) = (&stock.archives[sheet.at.0], stock.page_at(sheet));
        let Some(offset) = at.manifest_offset else {
            continue;
        };
        let copies = archive.copies(at);
        let is_whole = |copy: &(ObjectName, u64)| archive.read_copy(at, copy).is_ok();
        let in_manifest = copies
            .iter()
            .any(|copy| matches!(copy.0, ObjectName::Manifest(_)) && is_whole(copy));
        if !in_manifest && let Some(copy) = copies.iter().find(|copy| is_whole(copy)) {
            let mut stored = Vec::new();
            if archive
                .store()
                .read_at(&copy.0, copy.1, at.bytes as usize, &mut stored)
                .is_ok()
            {
                let id = if at.backup.is_empty() {
                    &archive.root.id
                } else {
                    &at.backup
                };
                of.entry(id.clone()).or_default().push((offset, stored));
            }
        }
    }
    let step = |(id, pages): (String, Vec<_>)| {
        let what = format!(
            "write {} of the manifest of backup {id:?} again, from their copies",
            counted(pages.len() as u64, "page")
        );
        let dir = repository.join(layout::BACKUPS).join(&id);
        RepairStep {
            what,
            detail: Vec::new(),
            action: RepairAction::Manifest(dir, pages),
        }
    };
    of.into_iter().map(step).collect()
}

/// The segments that are referred to and not there.
fn missing(stock: &Inventory) -> HashSet<SegmentId> {
    let is_missing = |place: &&crate::repo::inventory::SegmentPlace| {
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
    repository: &Path,
    archive: &Archive,
    loss: Option<&EntryLoss>,
    missing: &HashSet<SegmentId>,
) -> Result<RepairStep> {
    let rest = forgo(archive, loss, missing)?;
    let id = &archive.root.id;
    let files = rest.lost.iter().map(|path| quoted(path));
    let lost: Vec<String> = rest.unnamed.iter().cloned().chain(files).collect();
    let mark = format!(
        "mark {} of backup {id:?}, which nothing can restore, as not captured",
        things(&rest, &lost)
    );
    let hint = (!rest.unnamed.is_empty()).then(last_resort);
    let what = if lost.is_empty() {
        format!(
            "take segments that are gone, and that no file needs, out of the root of backup {id:?}"
        )
    } else {
        mark
    };
    Ok(RepairStep {
        what,
        detail: hint.into_iter().chain(lost).collect(),
        action: RepairAction::Rewrite(
            repository.join(layout::BACKUPS).join(id),
            rest.added,
            Box::new((rest.root, archive.root.clone())),
        ),
    })
}

/// What is lost, counted.
fn things(rest: &Rest, lost: &[String]) -> String {
    if rest.unnamed.is_empty() {
        counted(lost.len() as u64, "file")
    } else {
        "entries".to_owned()
    }
}

/// Do these, one after the other; what is left for the next run, and why.
///
/// # Errors
/// The first of those of [`Step::execute`]; the steps after it are not done.
pub fn execute(steps: &[RepairStep]) -> Result<Vec<String>> {
    let failed =
        |error: Error| error.detail("what was done before is done; run the same command again");
    let left = |step: &RepairStep| Ok(step.execute()?.map(|why| format!("{}: {why}", step.what)));
    steps
        .iter()
        .filter_map(|step| left(step).transpose())
        .collect::<Result<_>>()
        .map_err(failed)
}
