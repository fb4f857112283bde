//! Copies a backup to another repository, with everything that it refers to.
//!
//! Objects are copied byte by byte under their names and checked on the way: segments against the
//! checksums in the roots, pages against their digests. Objects that the destination has are not
//! copied again. Tags are copied; a pin is not, because it is a decision of one repository.
//!
//! Where one of the repositories is encrypted, objects are opened and sealed anew, and the root gets
//! checksums of what the destination stores (`seals`). Without a key, objects are copied as they
//! are stored, and only to a repository that has the same keys.

mod seals;
mod tasks;
mod wal;

use self::{
    seals::{CopiedSums, CopyWay},
    tasks::{CopyTask, PartSum, copy_tasks, with_gaps},
};
use fullbore_format::{
    digest::{crc64, hex},
    error::{Error, ErrorKind, Result},
    layout::MANIFEST,
    seal::seal,
    sizes,
};
use fullbore_pipeline::workers;
use fullbore_platform::metrics::{
    cpu::ThreadClock,
    meter::{Meter, lap},
};
use fullbore_repository::{
    annotations::Annotations,
    archive::{Archive, object::ObjectName},
    import::IncomingBackup,
    inventory::{KnownFrames, nothing_known},
    open::{open, place},
    select::BackupFilter,
    wal::CopiedWal,
    writer::must_be_possible,
};
use fullbore_storage::{Objects, Storages};
use std::{
    borrow::Cow,
    ffi::OsString,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// The backup to copy and the destination.
#[derive(Debug, Clone)]
pub struct BackupCopy {
    /// How storages are reached.
    pub storages: Storages,
    /// `REPOSITORY[@BACKUP]`.
    pub from: OsString,
    /// Selects the backups of which the latest is copied.
    pub filter: BackupFilter,
    /// Whether the destination repository must exist already.
    pub no_create: bool,
    /// The destination repository.
    pub to: Arc<dyn Objects>,
    /// Number of objects copied at the same time.
    pub workers: NonZeroUsize,
}

/// The outcome of a copy.
#[derive(Debug, Default)]
pub struct CopiedBackup {
    /// ID of the backup.
    pub id: String,
    /// IDs of the backups that it refers to.
    pub others: Vec<String>,
    /// Number of copied objects.
    pub objects: u64,
    /// Bytes of the copied objects.
    pub bytes: u64,
    /// Number of objects that the destination had already.
    pub there: u64,
    /// Bytes of these objects.
    pub there_bytes: u64,
    /// The WAL of the cluster that the repository has, from the backup on.
    pub wal: CopiedWal,
    /// Wall-clock time in seconds.
    pub seconds: f64,
    /// Notes that could not be copied; the backup itself is complete.
    pub warnings: Vec<String>,
}

impl BackupCopy {
    /// Copies the backup.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if something is missing or damaged; errors of the destination.
    /// After an error the destination has no new backup.
    pub fn run(&self, meter: &Meter) -> Result<CopiedBackup> {
        let start = Instant::now();
        must_be_possible(&*self.to, self.no_create)?;
        let archive = self.open_backup()?;
        let (way, target) = CopyWay::choose(&self.storages, &self.from, &archive, &self.to)?;
        let repository = self.storages.objects(&place(&self.from)?.0)?;
        let others = archive.root.referenced_backups();
        let known: Vec<_> = others
            .iter()
            .filter_map(|id| KnownFrames::read(&*repository, id))
            .collect();
        let tasks = copy_tasks(&archive, &known, way)?;
        let sums = CopiedSums::default();
        let root = read_whole(&archive, &ObjectName::Root)?;
        let sealed = base_roots(&archive, &known)?
            .into_iter()
            .map(|(id, root)| Ok((id, way.draft_of(root)?)))
            .collect::<Result<Vec<SealedRoot<'_>>>>()?;
        let drafts: Vec<_> = sealed.iter().map(|(id, root)| (*id, &root[..])).collect();
        let draft = way.draft_of((&root[..]).into())?;
        let mut incoming =
            IncomingBackup::begin(target.clone(), draft.into_owned(), &archive.root, &drafts)?;
        let run = CopyRun {
            archive: &archive,
            incoming: &incoming,
            way,
            sums: &sums,
            meter,
            there: Default::default(),
        };
        let copied = run
            .copy_all(self.workers, &tasks)
            .and_then(|()| sums.complete(way, &root, &drafts, &*target))
            // Before the destination lists the backup: without its WAL it may not be consistent.
            .and_then(|root| Ok((root, wal::copy_wal(&repository, &target, &archive.root)?)));
        let there = run.there;
        let (wal, mut warnings) = match copied {
            Ok((root, (wal, warnings))) => {
                incoming.set_root(root);
                (wal, warnings)
            }
            Err(error) => {
                incoming.abort();
                return Err(error);
            }
        };
        let (there, there_bytes) = (there.0.into_inner(), there.1.into_inner());
        let objects: Vec<_> = tasks
            .iter()
            .map(|task| (task.backup.clone(), task.name.clone(), task.needed_bytes))
            .collect();
        incoming.commit(&objects)?;
        // The destination lists the backup from here on, so a failure is only a warning.
        if let Err(error) = self.copy_tags(&*repository, &archive.root.id) {
            warnings.push(format!(
                "could not copy the tags of the backup: {}",
                error.line()
            ));
        }
        Ok(CopiedBackup {
            id: archive.root.id.clone(),
            others: others.into_iter().map(str::to_owned).collect(),
            objects: tasks.len() as u64 - there,
            bytes: meter.bytes.load(Relaxed),
            there,
            there_bytes,
            wal,
            seconds: start.elapsed().as_secs_f64(),
            warnings,
        })
    }

    /// Opens the backup to copy.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a one-file archive; those of opening the backup.
    fn open_backup(&self) -> Result<Archive> {
        let archive = open(&self.storages, &self.from, &self.filter)?;
        if !archive.repository.is_empty() {
            return Ok(archive);
        }
        let message = format!(
            "cannot copy {:?}: it is not a backup in a repository",
            self.from
        );
        Err(Error::new(ErrorKind::Usage, message)
            .hint("an archive is one file: copy that file, or use `fullbore export`"))
    }

    /// Copies the tags that were set after the backup was made, unless the copy has notes of its
    /// own.
    fn copy_tags(&self, repository: &dyn Objects, id: &str) -> Result<()> {
        let Ok(Annotations {
            tags: Some(tags), ..
        }) = Annotations::read(repository, id)
        else {
            return Ok(());
        };
        match Annotations::read(&*self.to, id)? {
            own if own == Annotations::default() => Annotations {
                tags: Some(tags),
                ..own
            }
            .write(&*self.to, id),
            _ => Ok(()),
        }
    }
}

/// The state that all workers of a copy share.
struct CopyRun<'a> {
    archive: &'a Archive,
    incoming: &'a IncomingBackup,
    way: CopyWay,
    sums: &'a CopiedSums,
    meter: &'a Meter,
    /// Number and bytes of objects that need not be copied.
    there: (AtomicU64, AtomicU64),
}

impl CopyRun<'_> {
    fn copy_all(&self, workers: NonZeroUsize, tasks: &[CopyTask]) -> Result<()> {
        let bytes = sizes::sum(tasks.iter().map(|task| task.bytes));
        self.meter.total_bytes.store(bytes, Relaxed);
        self.meter.share_threads(workers.get());
        workers::work(
            &workers.into(),
            Vec::new,
            |buf, task| self.copy_one(buf, task),
            |send| tasks.iter().try_for_each(send),
        )
    }

    fn copy_one(&self, buf: &mut Vec<u8>, task: &CopyTask) -> Result<()> {
        if self.is_copied(buf, task)? {
            self.sums.note_there(self, buf, task)?;
            self.there.0.fetch_add(1, Relaxed);
            sizes::add_shared(&self.there.1, task.bytes);
            return Ok(());
        }
        let mut clock = ThreadClock::now();
        let mut upload = self.way.create(self.incoming, task)?;
        for (offset, len, sum) in &task.sums {
            self.read(task, *offset, *len as usize, buf)?;
            lap(&self.meter.source, &mut clock);
            // Before it is sent: damage of this repository must not reach the other one.
            self.check_piece(task, *offset, buf, sum)?;
            lap(&self.meter.workers, &mut clock);
            upload.append(buf)?;
            self.meter.bytes.fetch_add(*len, Relaxed);
            lap(&self.meter.sink, &mut clock);
        }
        let stored = upload.finish()?;
        lap(&self.meter.sink, &mut clock);
        if stored.bytes == task.bytes {
            self.sums.note(task, &stored.parts);
            return Ok(());
        }
        let object = self.incoming.describe(&task.backup, &task.name);
        let message = format!(
            "{object} has {} bytes, and not {}",
            stored.bytes, task.bytes
        );
        Err(Error::new(ErrorKind::Bug, message))
    }

    /// Returns whether the destination has all needed bytes of an object. An existing object is
    /// replaced only by one that contains all its bytes.
    fn is_copied(&self, buf: &mut Vec<u8>, task: &CopyTask) -> Result<bool> {
        let Some(len) = self.way.len_there(self.incoming, task)? else {
            return Ok(false);
        };
        let is_enough = match &*task.name {
            // A repair appends pages to a manifest, so its length may differ: only the pages count.
            MANIFEST if !task.is_opaque => self.has_pages(buf, task),
            _ => len == task.bytes,
        };
        if is_enough {
            return Ok(true);
        }
        let mut is_more = len <= task.bytes;
        let mut bytes = Vec::new();
        for (offset, len, _) in with_gaps(Vec::new(), len.min(task.bytes)) {
            self.read(task, offset, len as usize, buf)?;
            let read = self.read_there(task, offset, len as usize, &mut bytes);
            is_more &= read.is_ok() && bytes == *buf;
        }
        if is_more {
            return Ok(false);
        }
        let message = format!(
            "could not copy to {}",
            self.incoming.describe(&task.backup, &task.name)
        );
        Err(Error::corrupt(message)
            .because("it differs from the object in this repository: it is damaged, or one of both was repaired")
            .detail("nothing was committed")
            .hint("run `fullbore repair` on the destination and try again, or copy to a new repository"))
    }

    /// Returns whether a manifest has the pages that this backup needs. It may be longer if a
    /// repair has rebuilt pages.
    fn has_pages(&self, buf: &mut Vec<u8>, task: &CopyTask) -> bool {
        task.needed_pieces().all(|(offset, len, sum)| {
            let read = self.read_there(task, *offset, *len as usize, buf);
            read.is_ok() && self.check_piece(task, *offset, buf, sum).is_ok()
        })
    }

    fn read(&self, task: &CopyTask, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let store = self.archive.store();
        match self.way {
            CopyWay::AsStored => store.read_stored_at(&task.object, offset, len, out),
            CopyWay::Resealed => store.read_at(&task.object, offset, len, out),
        }
    }

    fn read_there(&self, task: &CopyTask, at: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let object = (&task.backup[..], &task.name[..]);
        match self.way {
            CopyWay::AsStored => self.incoming.read_stored_at(object, at, len, out),
            CopyWay::Resealed => self.incoming.read_at(object, at, len, out),
        }
    }

    fn check_piece(&self, task: &CopyTask, offset: u64, bytes: &[u8], sum: &PartSum) -> Result<()> {
        let (wanted, found) = match sum {
            PartSum::Unknown => return Ok(()),
            PartSum::Crc64(wanted) => (wanted, format!("{:016x}", crc64(bytes))),
            PartSum::Blake3(wanted) => (wanted, hex(blake3::hash(bytes).as_bytes())),
        };
        if *wanted == found {
            return Ok(());
        }
        let name = self.archive.store().name(&task.object);
        let end = offset + bytes.len() as u64;
        Err(
            Error::corrupt(format!("bytes {offset} to {end} of {name} are damaged"))
                .because(format!("their checksum is {found}, the root says {wanted}"))
                .detail("nothing was committed")
                .hint(
                    "`fullbore export --keep-going` writes the undamaged files of a damaged backup",
                ),
        )
    }
}

/// ID and sealed root of a backup.
type SealedRoot<'a> = (&'a str, Cow<'a, [u8]>);

/// Returns the sealed roots of all backups that `archive` refers to, with placeholders for those
/// whose roots are lost.
fn base_roots<'a>(
    archive: &'a Archive,
    known: &'a [(KnownFrames, Vec<u8>)],
) -> Result<Vec<SealedRoot<'a>>> {
    let mut roots: Vec<_> = known
        .iter()
        .map(|(known, sealed)| (&known.root.id[..], Cow::from(sealed)))
        .collect();
    for id in archive.root.referenced_backups() {
        if known.iter().all(|(known, _)| known.root.id != id) {
            let placeholder = seal(&nothing_known(id, &archive.root))?;
            roots.push((id, placeholder.into()));
        }
    }
    Ok(roots)
}

fn read_whole(archive: &Archive, object: &ObjectName) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    archive
        .store()
        .read_at(object, 0, archive.store().len(object)? as usize, &mut bytes)?;
    Ok(bytes)
}
