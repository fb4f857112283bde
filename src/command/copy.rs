//! Copy a backup to another repository, with everything that it refers to.
//!
//! Objects are copied byte by byte under their names, and compared with their checksums on the way: segments with those in
//! the roots, pages with their digests. What is there already is not copied again. Tags go with the copy, a pin does not: it is a
//! decision of the one repository.

use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, ErrorKind, Result},
    format::{
        digest::{crc64, hex},
        layout::{self, MANIFEST},
        page::SegmentId,
        root::{PART_BYTES, Segment},
        seal::seal,
        sizes,
    },
    metrics::meter::{Meter, lap},
    pipeline::workers,
    platform::Tricks,
    repo::{
        annotations::Annotations,
        import::Incoming,
        inventory::{KnownFrames, nothing_known},
        open::{open, place},
    },
    sink::local_file::name as file_name,
};
use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fs::File,
    num::NonZeroUsize,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

/// What to copy, and where to.
#[derive(Debug, Clone)]
pub struct Copy {
    /// `REPOSITORY[@BACKUP]`.
    pub from: OsString,
    /// The other repository.
    pub to: PathBuf,
    /// Objects that are copied at the same time.
    pub workers: NonZeroUsize,
    /// May the system's special calls be used?
    pub tricks: Tricks,
}

/// What was copied.
#[derive(Debug, Default)]
pub struct CopiedBackup {
    /// The backup.
    pub id: String,
    /// The backups it refers to.
    pub others: Vec<String>,
    /// Objects that were copied.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were there.
    pub there: u64,
    /// Their bytes.
    pub there_bytes: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// What could not be noted of the copy, which is whole.
    pub warnings: Vec<String>,
}

/// One object that the backup needs.
struct CopyTask {
    object: ObjectName,
    backup: String,
    name: String,
    bytes: u64,
    /// Offset, length and checksum of pieces of it, ascending.
    sums: Vec<(u64, u64, PartSum)>,
}

impl CopyTask {
    /// Bytes that the copy has at least: all, but of a manifest those that this backup needs.
    fn least(&self) -> u64 {
        if self.name != MANIFEST {
            return self.bytes;
        }
        self.needed()
            .map(|(offset, len, _)| offset.saturating_add(*len))
            .max()
            .unwrap_or(0)
    }

    /// The pieces that this backup speaks of.
    fn needed(&self) -> impl Iterator<Item = &(u64, u64, PartSum)> {
        self.sums
            .iter()
            .filter(|(.., sum)| !matches!(sum, PartSum::Unknown))
    }
}

enum PartSum {
    Unknown,
    Crc64(String),
    Blake3(String),
}

impl Copy {
    /// Do it.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] if something is missing or damaged; else those of the destination. Nothing is committed then.
    pub fn run(&self, meter: &Meter) -> Result<CopiedBackup> {
        let start = Instant::now();
        let archive = open(&self.from)?;
        if archive.repository.is_empty() {
            let what = format!(
                "cannot copy {:?}: it is no backup of a repository",
                self.from
            );
            return Err(Error::new(ErrorKind::Usage, what)
                .hint("an archive is one file: copy it as such, or export it"));
        }
        let repository = place(&self.from)?.0;
        let others = archive.root.others();
        let known: Vec<_> = others
            .iter()
            .filter_map(|id| KnownFrames::read(&repository, id))
            .collect();
        let tasks = tasks(&archive, &known)?;
        let root = whole(&archive, &ObjectName::Root)?;
        meter
            .total_bytes
            .store(sizes::sum(tasks.iter().map(|task| task.bytes)), Relaxed);
        meter.share(self.workers.get());
        let unknown = others
            .iter()
            .filter(|id| known.iter().all(|(known, _)| known.root.id != **id));
        let unknown: Vec<_> = unknown
            .map(|id| Ok((*id, seal(&nothing_known(id, &archive.root))?)))
            .collect::<Result<_>>()?;
        let words = known
            .iter()
            .map(|(known, sealed)| (&known.root.id[..], &sealed[..]));
        let sealed: Vec<_> = words
            .chain(unknown.iter().map(|(id, sealed)| (*id, &sealed[..])))
            .collect();
        let incoming = Incoming::begin(&self.to, root, &archive.root, &sealed, self.tricks)?;
        let run = CopyRun {
            archive: &archive,
            incoming: &incoming,
            meter,
            there: Default::default(),
        };
        let copied = run.all(self.workers, &tasks);
        let (there, there_bytes) = (run.there.0.load(Relaxed), run.there.1.load(Relaxed));
        if let Err(error) = copied {
            incoming.abort();
            return Err(error);
        }
        let objects: Vec<_> = tasks
            .iter()
            .map(|t| (t.backup.clone(), t.name.clone(), t.least()))
            .collect();
        incoming.commit(&objects)?;
        // It is listed there.
        let untagged = self.tag(&repository, &archive.root.id).err();
        let warning = |error: Error| {
            format!(
                "the copy was not given the tags of the backup: {}",
                error.line()
            )
        };
        Ok(CopiedBackup {
            id: archive.root.id.clone(),
            others: others.into_iter().map(str::to_owned).collect(),
            objects: tasks.len() as u64 - there,
            bytes: meter.bytes.load(Relaxed),
            there,
            there_bytes,
            seconds: start.elapsed().as_secs_f64(),
            warnings: untagged.map(warning).into_iter().collect(),
        })
    }

    /// Give the copy the tags that were set after the backup was made, unless it has notes of its own.
    fn tag(&self, repository: &Path, id: &str) -> Result<()> {
        let Ok(Annotations {
            tags: Some(tags), ..
        }) = Annotations::read(repository, id)
        else {
            return Ok(());
        };
        match Annotations::read(&self.to, id)? {
            own if own == Annotations::default() => Annotations {
                tags: Some(tags),
                ..own
            }
            .write(&self.to, id),
            _ => Ok(()),
        }
    }
}

/// What one copy is made with.
struct CopyRun<'a> {
    archive: &'a Archive,
    incoming: &'a Incoming,
    meter: &'a Meter,
    /// Objects that need not be copied, and their bytes.
    there: (AtomicU64, AtomicU64),
}

impl CopyRun<'_> {
    fn all(&self, workers: NonZeroUsize, tasks: &[CopyTask]) -> Result<()> {
        workers::work(
            &workers.into(),
            Vec::new,
            |buf, task| self.one(buf, task),
            |send| tasks.iter().try_for_each(send),
        )
    }

    fn one(&self, buf: &mut Vec<u8>, task: &CopyTask) -> Result<()> {
        if self.is_there(buf, task)? {
            self.there.0.fetch_add(1, Relaxed);
            sizes::add_shared(&self.there.1, task.bytes);
            return Ok(());
        }
        let mut clock = Instant::now();
        let mut arriving = self.incoming.create(&task.backup, &task.name)?;
        for (offset, len, sum) in &task.sums {
            self.archive
                .store()
                .read_at(&task.object, *offset, *len as usize, buf)?;
            lap(&self.meter.source.busy, &mut clock);
            self.check(task, *offset, buf, sum)?;
            lap(&self.meter.workers.busy, &mut clock);
            arriving.write(buf, *offset)?;
            self.meter.bytes.fetch_add(*len, Relaxed);
            lap(&self.meter.sink.busy, &mut clock);
        }
        arriving.finish()
    }

    /// Is what is needed of an object there? It is replaced only by one that has all that it has.
    fn is_there(&self, buf: &mut Vec<u8>, task: &CopyTask) -> Result<bool> {
        let Some(there) = self.incoming.open(&task.backup, &task.name)? else {
            return Ok(false);
        };
        let len = there
            .metadata()
            .ok()
            .filter(|found| found.is_file())
            .map_or(u64::MAX, |found| found.len());
        let is_enough = match &*task.name {
            MANIFEST => self.has_pages(buf, task, &there),
            _ => len == task.bytes,
        };
        if is_enough {
            return Ok(true);
        }
        let (mut is_more, mut bytes) = (len <= task.bytes, Vec::new());
        for (offset, len, _) in with_gaps(Vec::new(), len.min(task.bytes)) {
            self.archive
                .store()
                .read_at(&task.object, offset, len as usize, buf)?;
            bytes.resize(len as usize, 0);
            is_more &= there.read_exact_at(&mut bytes, offset).is_ok() && bytes == *buf;
        }
        if is_more {
            return Ok(false);
        }
        let what = format!(
            "could not copy to {}",
            file_name(&self.incoming.path(&task.backup, &task.name))
        );
        Err(Error::corrupt(what)
            .because("it is another than that of this repository: it is damaged, or one of them was repaired")
            .detail("nothing was committed")
            .hint("`fullbore repair` the other repository and try again, or copy to a new one"))
    }

    /// Has a manifest the pages that this backup needs? It can be longer where pages were made anew by a repair.
    fn has_pages(&self, buf: &mut Vec<u8>, task: &CopyTask, manifest: &File) -> bool {
        task.needed().all(|(offset, len, sum)| {
            buf.resize(*len as usize, 0);
            manifest.read_exact_at(buf, *offset).is_ok()
                && self.check(task, *offset, buf, sum).is_ok()
        })
    }

    fn check(&self, task: &CopyTask, offset: u64, bytes: &[u8], sum: &PartSum) -> Result<()> {
        let (wanted, found) = match sum {
            PartSum::Unknown => return Ok(()),
            PartSum::Crc64(wanted) => (wanted, format!("{:016x}", crc64(bytes))),
            PartSum::Blake3(wanted) => (wanted, hex(blake3::hash(bytes).as_bytes())),
        };
        if *wanted == found {
            return Ok(());
        }
        let (name, to) = (
            self.archive.store().name(&task.object),
            offset + bytes.len() as u64,
        );
        Err(
            Error::corrupt(format!("bytes {offset} to {to} of {name} are damaged"))
                .because(format!("their checksum is {found}, the root says {wanted}"))
                .detail("nothing was committed")
                .hint("`fullbore export --keep-going` writes what is whole of a damaged backup"),
        )
    }
}

fn whole(archive: &Archive, object: &ObjectName) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    archive
        .store()
        .read_at(object, 0, archive.store().len(object)? as usize, &mut bytes)?;
    Ok(bytes)
}

/// Everything that a backup refers to but its root: segments of each backup, manifests.
fn tasks(archive: &Archive, known: &[(KnownFrames, Vec<u8>)]) -> Result<Vec<CopyTask>> {
    let own = archive.root.segments.iter().map(own_id);
    let referred = archive.root.liveness.iter().map(|live| live.id());
    let segments: BTreeSet<_> = own
        .chain(referred)
        .map(|id| (id.backup, id.stream, id.number))
        .collect();
    let facts = facts(archive, known);
    let mut tasks = Vec::new();
    for (backup, stream, number) in segments {
        let id = SegmentId {
            backup,
            stream,
            number,
        };
        tasks.push(segment(archive, &id, facts.get(&id))?);
    }
    let others = archive.root.others();
    for backup in others.into_iter().chain([""]) {
        tasks.extend(manifest(archive, backup)?);
    }
    Ok(tasks)
}

fn own_id(segment: &Segment) -> SegmentId {
    SegmentId {
        backup: String::new(),
        stream: segment.stream,
        number: segment.number,
    }
}

/// What is known of the segments of all backups that are referred to, and whether they were surely ended.
fn facts<'a>(
    archive: &'a Archive,
    known: &'a [(KnownFrames, Vec<u8>)],
) -> HashMap<SegmentId, (&'a Segment, bool)> {
    let own = archive
        .root
        .segments
        .iter()
        .map(|own| (own_id(own), (own, true)));
    let others = known.iter().flat_map(|(known, _)| {
        let id = |segment| SegmentId {
            backup: known.root.id.clone(),
            ..own_id(segment)
        };
        known
            .root
            .segments
            .iter()
            .map(move |segment| (id(segment), (segment, known.is_ended(segment))))
    });
    own.chain(others).collect()
}

/// An object and its length, before anything is known of its bytes: that may be far too long to be cut in pieces.
fn task(archive: &Archive, object: ObjectName, backup: &str, name: String) -> Result<CopyTask> {
    let bytes = archive
        .store()
        .len(&object)
        .map_err(|error| match error.kind {
            ErrorKind::NotFound => {
                Error::corrupt(format!("{} is missing", archive.store().name(&object)))
            }
            _ => error,
        })?;
    let backup = if backup.is_empty() {
        &archive.root.id
    } else {
        backup
    }
    .to_owned();
    Ok(CopyTask {
        object,
        backup,
        name,
        bytes,
        sums: Vec::new(),
    })
}

/// All bytes of a segment. If it was not surely ended, more may be there than anybody knows of.
fn segment(
    archive: &Archive,
    id: &SegmentId,
    known: Option<&(&Segment, bool)>,
) -> Result<CopyTask> {
    let name = layout::segment(id.stream, id.number, archive.codec.suffix());
    let mut task = task(archive, ObjectName::Segment(id.clone()), &id.backup, name)?;
    let live = archive
        .root
        .liveness
        .iter()
        .find(|live| live.id() == *id)
        .map_or(0, |live| live.of_bytes);
    let (bytes, parts, ended) = known.map_or((live, "", false), |(known, ended)| {
        (known.bytes, &known.parts, *ended)
    });
    if task.bytes < bytes || (ended && task.bytes > bytes) {
        let name = archive.store().name(&task.object);
        let why = format!("it has {} bytes, the root says {bytes}", task.bytes);
        return Err(Error::corrupt(format!("segment {name} is damaged")).because(why));
    }
    let part = |(digits, number): (&[u8], u64)| {
        let from = number * PART_BYTES;
        let sum = PartSum::Crc64(String::from_utf8_lossy(digits).into_owned());
        (from, PART_BYTES.min(bytes.saturating_sub(from)), sum)
    };
    task.sums = with_gaps(
        parts.as_bytes().chunks(16).zip(0..).map(part).collect(),
        task.bytes,
    );
    Ok(task)
}

/// The pages of a backup. One that is not there is not missed if it had none for this backup.
fn manifest(archive: &Archive, backup: &str) -> Result<Option<CopyTask>> {
    let object = ObjectName::Manifest(backup.to_owned());
    let mut pages = archive
        .root
        .pages
        .iter()
        .filter(|page| page.backup == backup)
        .peekable();
    if pages.peek().is_none()
        && archive
            .store()
            .len(&object)
            .is_err_and(|error| error.kind == ErrorKind::NotFound)
    {
        return Ok(None);
    }
    let mut task = task(archive, object, backup, MANIFEST.to_owned())?;
    let place = |page: &crate::format::root::PageAt| {
        Some((
            page.manifest_offset?,
            page.bytes,
            PartSum::Blake3(page.digest.clone()),
        ))
    };
    let mut sums: Vec<_> = pages.filter_map(place).collect();
    sums.sort_by_key(|(offset, ..)| *offset);
    if sums
        .iter()
        .any(|(offset, len, _)| offset.saturating_add(*len) > task.bytes)
    {
        let name = archive.store().name(&task.object);
        return Err(Error::corrupt(format!("{name} is damaged"))
            .because("it ends before a page that the root speaks of"));
    }
    task.sums = with_gaps(sums, task.bytes);
    Ok(Some(task))
}

/// The pieces, and what is between them in pieces of at most 8 MiB.
fn with_gaps(pieces: Vec<(u64, u64, PartSum)>, bytes: u64) -> Vec<(u64, u64, PartSum)> {
    let (mut all, mut at) = (Vec::new(), 0);
    let fill = |all: &mut Vec<_>, from: u64, to: u64| {
        let starts = (from..to).step_by(PART_BYTES as usize);
        all.extend(starts.map(|start| (start, PART_BYTES.min(to - start), PartSum::Unknown)));
    };
    for (offset, len, sum) in pieces.into_iter().filter(|(_, len, _)| *len > 0) {
        // A piece that the one before it reaches into has been copied; what it is, that one has shown.
        if offset < at {
            continue;
        }
        fill(&mut all, at, offset);
        all.push((offset, len, sum));
        at = offset + len;
    }
    fill(&mut all, at, bytes);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_in_one_piece() {
        let sum = || PartSum::Crc64(String::new());
        let pieces = vec![
            (3, 4, sum()),
            (3, 4, sum()),
            (7, 0, sum()),
            (10, PART_BYTES, sum()),
        ];
        let bytes = 3 * PART_BYTES;
        let (mut at, all) = (0, with_gaps(pieces, bytes));
        for (offset, len, _) in &all {
            assert_eq!(*offset, at);
            at += len;
        }
        assert_eq!((at, all.len()), (bytes, 6));
    }
}
