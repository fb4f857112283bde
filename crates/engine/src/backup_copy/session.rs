//! Copies backups one after the other, and keeps what it learned about the objects of both
//! repositories.
//!
//! An object that was found in the destination, or copied there, is not looked at again for the
//! next backup. Before each commit the destination is asked for all objects, so an object that was
//! removed meanwhile makes no backup incomplete.

use super::{
    copied::CopiedBackup,
    seals::{CopiedSums, CopyWay},
    tasks::{CopyTask, PartSum, copy_tasks, with_gaps},
    wal::{CopiedWalOf, WalCopies},
};
use fullbore_format::{
    digest::{crc64, hex},
    error::{Error, ErrorKind, Result},
    layout::{self, CONTENTS, MANIFEST},
    seal::seal,
    sizes,
};
use fullbore_pipeline::{stage::codec::Codec, workers};
use fullbore_platform as platform;
use fullbore_platform::{
    metrics::{
        cpu::ThreadClock,
        meter::{Meter, lap},
    },
    queue::Locked,
};
use fullbore_repository::{
    annotations::Annotations,
    archive::{
        Archive,
        object::{ObjectName, Sealing},
    },
    import::IncomingBackup,
    inventory::{KnownFrames, nothing_known},
    roots,
};
use fullbore_storage::Objects;
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// Backup and name of an object.
type ObjectKey = (String, String);

/// The fate of the objects that a failed copy of a backup has left in the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// They are removed.
    Removed,
    /// They stay, unless they are damaged: the next copy goes on from there.
    Kept,
}

/// Copies of several backups from one repository to another one.
pub struct CopySession {
    from: Arc<dyn Objects>,
    to: Arc<dyn Objects>,
    way: CopyWay,
    workers: NonZeroUsize,
    rest: Rest,
    seen: SeenObjects,
    /// Documents of the backups that the last copied one refers to.
    known: HashMap<String, Option<(KnownFrames, Vec<u8>)>>,
    wal: WalCopies,
}

/// Objects about which nothing more has to be found out.
#[derive(Debug, Default)]
struct SeenObjects {
    /// Whole segments that the destination has.
    segments: Mutex<HashSet<ObjectKey>>,
    /// Pages in manifests of the destination: backup, offset and digest.
    pages: Mutex<HashSet<(String, u64, String)>>,
    /// Objects that cannot be copied, with the reason.
    damaged: Mutex<HashMap<ObjectKey, Damage>>,
}

#[derive(Debug, Clone)]
struct Damage {
    message: String,
    reason: String,
}

impl Damage {
    fn error(&self) -> Error {
        Error::corrupt(self.message.clone())
            .because(self.reason.clone())
            .detail("nothing was committed")
            .hint("`fullbore export --keep-going` writes the undamaged files of a damaged backup")
    }
}

impl CopySession {
    /// Begins copies of backups in `from`, of which `workers` objects are copied at the same time.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if a key is missing; those of the storages.
    pub fn begin(
        from: Arc<dyn Objects>,
        to: &Arc<dyn Objects>,
        workers: NonZeroUsize,
    ) -> Result<Self> {
        let (way, to) = CopyWay::choose(&from, to)?;
        Ok(Self {
            from,
            to,
            way,
            workers,
            rest: Rest::Removed,
            seen: SeenObjects::default(),
            known: HashMap::new(),
            wal: WalCopies::default(),
        })
    }

    /// Keeps in the destination what was copied of a backup before its copy was cut off.
    pub(super) fn keeping_rest(self) -> Self {
        Self {
            rest: Rest::Kept,
            ..self
        }
    }

    /// Copies the WAL of clusters from these backups on.
    pub(super) fn with_wal(self, wal: WalCopies) -> Self {
        Self { wal, ..self }
    }

    /// Copies the rest of the WAL, that of clusters without a new backup.
    ///
    /// # Errors
    /// As [`WalCopies::copy_rest`].
    pub(super) fn copy_rest_of_wal(&mut self) -> Result<CopiedWalOf> {
        self.wal.copy_rest(&self.from, &self.to)
    }

    /// Copies a backup of the source repository.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if something is missing or damaged; errors of the destination.
    /// After an error the destination has no new backup.
    pub fn copy(&mut self, archive: &Archive, meter: &Meter) -> Result<CopiedBackup> {
        let start = Instant::now();
        let others = archive.root.referenced_backups();
        self.read_known(&others);
        let known: Vec<_> = others
            .iter()
            .filter_map(|id| self.known.get(*id)?.as_ref())
            .collect();
        let tasks = copy_tasks(archive, &known, self.way)?;
        self.seen.check_damage(&tasks)?;
        let sums = CopiedSums::default();
        let root = read_whole(archive, &ObjectName::Root)?;
        let sealed = base_roots(archive, &known)?
            .into_iter()
            .map(|(id, root)| Ok((id, self.way.draft_of(root)?)))
            .collect::<Result<Vec<SealedRoot<'_>>>>()?;
        let drafts: Vec<_> = sealed.iter().map(|(id, root)| (*id, &root[..])).collect();
        // It stands before the manifest of which it may share the lists. Without a key it cannot be changed.
        let draft = match archive.store().sealing() {
            Sealing::Locked => self.way.draft_of((&root[..]).into())?,
            _ => self.way.draft_of(seal(&archive.root)?.into())?,
        };
        let with_sums = self.with_sums(&others);
        let mut incoming =
            IncomingBackup::begin(self.to.clone(), draft.into_owned(), &archive.root, &drafts)?;
        let before = meter.bytes.load(Relaxed);
        let run = CopyRun {
            archive,
            incoming: &incoming,
            way: self.way,
            sums: &sums,
            seen: &self.seen,
            with_sums: &with_sums,
            meter,
            there: Default::default(),
        };
        let wal = &mut self.wal;
        let (from, to) = (&self.from, &self.to);
        let copied = run
            .copy_all(self.workers, &tasks)
            .and_then(|()| sums.complete(self.way, &root, &drafts, &**to))
            // Before the destination lists the backup: without its WAL it may not be consistent.
            .and_then(|root| Ok((root, wal.copy_for(from, to, &archive.root)?)));
        let there = run.there;
        let (wal, mut warnings) = match copied {
            Ok((root, (wal, warnings))) => {
                incoming.set_root(root);
                (wal, warnings)
            }
            Err(error) => {
                self.end_failed(incoming, &error);
                return Err(error);
            }
        };
        let (there, there_bytes) = (there.0.into_inner(), there.1.into_inner());
        let objects: Vec<_> = tasks
            .iter()
            .map(|task| (task.backup.clone(), task.name.clone(), task.needed_bytes))
            .collect();
        incoming.commit(&objects).inspect_err(|_| {
            // What the destination has may be less than it was.
            self.seen.forget_there();
        })?;
        // The destination lists the backup from here on, so a failure is only a warning.
        if let Err(error) = self.copy_tags(&archive.root.id) {
            warnings.push(format!(
                "could not copy the tags of the backup: {}",
                error.line()
            ));
        }
        self.copy_lists(&others, &archive.root.id);
        Ok(CopiedBackup {
            id: archive.root.id.clone(),
            others: others.into_iter().map(str::to_owned).collect(),
            objects: tasks.len() as u64 - there,
            bytes: meter.bytes.load(Relaxed) - before,
            there,
            there_bytes,
            wal,
            seconds: start.elapsed().as_secs_f64(),
            warnings,
        })
    }

    /// Reads the documents of these backups, and drops those of others.
    fn read_known(&mut self, ids: &[&str]) {
        self.known.retain(|id, _| ids.contains(&&id[..]));
        for id in ids {
            if !self.known.contains_key(*id) {
                let known = KnownFrames::read(&*self.from, id);
                self.known.insert((*id).to_owned(), known);
            }
        }
    }

    /// Returns the segments of these backups of which the destination has checksums already, where
    /// a copy makes others.
    fn with_sums(&self, ids: &[&str]) -> HashSet<ObjectKey> {
        let mut found = HashSet::new();
        if self.way == CopyWay::AsStored {
            return found;
        }
        for id in ids {
            let Some((known, _)) = KnownFrames::read(&*self.to, id) else {
                continue;
            };
            let Ok(codec) = Codec::named(&known.root.options.codec) else {
                continue;
            };
            let segments = known.root.segments.iter();
            let summed = segments.filter(|segment| !segment.parts.is_empty());
            let name = |own: &fullbore_format::root::Segment| {
                layout::segment(own.stream, own.number, codec.suffix())
            };
            found.extend(summed.map(|own| ((*id).to_owned(), name(own))));
        }
        found
    }

    /// Ends a copy that failed.
    fn end_failed(&self, incoming: IncomingBackup, error: &Error) {
        // A full storage gets its space back, and a damaged backup is never completed.
        let is_hopeless = matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Full);
        if self.rest == Rest::Kept && !is_hopeless {
            incoming.suspend();
        } else {
            incoming.abort();
            self.seen.forget_there();
        }
    }

    /// Copies the lists of contents of a backup and of those that it refers to, unless they are there. They are of use for other sources
    /// only, and `repair` makes them anew.
    fn copy_lists(&self, others: &[&str], id: &str) {
        for id in others.iter().copied().chain([id]) {
            if let Err(error) = self.copy_list(id) {
                platform::debug(|| error.line());
            }
        }
    }

    fn copy_list(&self, id: &str) -> Result<()> {
        let key = roots::key(id, CONTENTS);
        let is_opened = Sealing::of(&*self.from) != Sealing::Locked;
        let Some(bytes) = self.from.stat(&key)?.filter(|_| is_opened) else {
            return Ok(());
        };
        if self.to.stat(&key)?.is_some() {
            return Ok(());
        }
        let mut upload = self.to.create(&key)?;
        let mut piece = Vec::new();
        for (offset, len, _) in with_gaps(Vec::new(), bytes) {
            piece.clear();
            self.from.read_at(&key, offset, len as usize, &mut piece)?;
            upload.append(&piece)?;
        }
        upload.finish().map(drop)
    }

    /// Copies the tags that were set after the backup was made, unless the copy has notes of its
    /// own.
    fn copy_tags(&self, id: &str) -> Result<()> {
        let Ok(Annotations {
            tags: Some(tags), ..
        }) = Annotations::read(&*self.from, id)
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

impl SeenObjects {
    /// Refuses a backup that needs an object of which damage is known, before anything is copied.
    fn check_damage(&self, tasks: &[CopyTask]) -> Result<()> {
        let damaged = self.damaged.locked();
        let found = tasks.iter().find_map(|task| damaged.get(&task.key()));
        found.map_or(Ok(()), |damage| Err(damage.error()))
    }

    fn is_there(&self, task: &CopyTask) -> bool {
        if task.name != MANIFEST {
            return self.segments.locked().contains(&task.key());
        }
        let pages = self.pages.locked();
        // Encrypted pages that are copied as they are have no digests.
        !task.is_opaque
            && task.page_keys().next().is_some()
            && task.page_keys().all(|key| pages.contains(&key))
    }

    fn note_there(&self, task: &CopyTask) {
        if task.name == MANIFEST {
            self.pages.locked().extend(task.page_keys());
        } else {
            self.segments.locked().insert(task.key());
        }
    }

    fn forget_there(&self) {
        self.segments.locked().clear();
        self.pages.locked().clear();
    }
}

/// The state that all workers of a copy share.
struct CopyRun<'a> {
    archive: &'a Archive,
    incoming: &'a IncomingBackup,
    way: CopyWay,
    sums: &'a CopiedSums,
    seen: &'a SeenObjects,
    /// Segments of which the destination has checksums.
    with_sums: &'a HashSet<ObjectKey>,
    meter: &'a Meter,
    /// Number and bytes of objects that need not be copied.
    there: (AtomicU64, AtomicU64),
}

impl CopyRun<'_> {
    fn copy_all(&self, workers: NonZeroUsize, tasks: &[CopyTask]) -> Result<()> {
        let bytes = sizes::sum(tasks.iter().map(|task| task.bytes));
        let total = sizes::sum([self.meter.bytes.load(Relaxed), bytes]);
        self.meter.total_bytes.fetch_max(total, Relaxed);
        self.meter.share_threads(workers.get());
        workers::work(
            &workers.into(),
            Vec::new,
            |buf, task| self.copy_one(buf, task),
            |send| tasks.iter().try_for_each(send),
        )
    }

    fn copy_one(&self, buf: &mut Vec<u8>, task: &CopyTask) -> Result<()> {
        if self.seen.is_there(task) || self.is_copied(buf, task)? {
            self.note_sums(buf, task)?;
            self.seen.note_there(task);
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
            self.seen.note_there(task);
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
        let damage = Damage {
            message: format!("bytes {offset} to {end} of {name} are damaged"),
            reason: format!("their checksum is {found}, the root says {wanted}"),
        };
        let error = damage.error();
        self.seen.damaged.locked().insert(task.key(), damage);
        Err(error)
    }

    /// Takes the checksums of a segment that the destination has, if the root needs others and the
    /// destination has no document with them.
    fn note_sums(&self, buf: &mut Vec<u8>, task: &CopyTask) -> Result<()> {
        let are_known = task.name == MANIFEST || self.with_sums.contains(&task.key());
        match self.way {
            CopyWay::Resealed if !are_known => self.sums.note_there(self.incoming, buf, task),
            _ => Ok(()),
        }
    }
}

/// ID and sealed root of a backup.
type SealedRoot<'a> = (&'a str, Cow<'a, [u8]>);

/// Returns the sealed roots of all backups that `archive` refers to, with placeholders for those
/// whose roots are lost.
fn base_roots<'a>(
    archive: &'a Archive,
    known: &'a [&'a (KnownFrames, Vec<u8>)],
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
