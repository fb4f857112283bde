//! Reads a backup from a series of volumes.
//!
//! The newest volume that is there has the root and the pages of all. A volume is opened when its
//! first frame is read: it must say that it is this volume of this backup. If it is not there, it
//! is asked for, once. The volumes of earlier backups, which this one refers to, are opened in the same way.

mod volume_file;

use super::{
    media_turns::MediaTurns,
    object::{ArchiveFile, ObjectName, ObjectReader},
    stored_root::read_root,
};
use crate::{
    volume_catalog::CatalogedBackup,
    volume_files::{VolumeFiles, found_sets},
    volume_series::VolumeSeries,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::{EntryName, NotCaptured, PageAt, Root, VolumeFacts},
    segment::{Locator, SERVICE_HEADER_BYTES},
};
use fullbore_pipeline::sink::{Place, place_of};
use fullbore_platform::{queue::Locked, write};
use fullbore_storage::{ChangeAction, ChangeRequest, Changed, Storages};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};
use volume_file::VolumeFile;

/// Volumes that are open at the same time, at most.
const OPEN_VOLUMES: usize = 16;
/// Nobody reads a volume any more if none has for this time.
const QUIET: Duration = Duration::from_millis(300);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of pages that are copied at once.
const COPIED_BYTES: u64 = 1 << 20;

/// A series of volumes with one backup.
pub(super) struct VolumeSet {
    storages: Storages,
    prefix: PathBuf,
    files: VolumeFiles,
    /// The newest volume that is there.
    newest: u32,
    is_sealed: bool,
    /// Id of the backup.
    set: String,
    /// The volumes of earlier backups that it refers to.
    earlier: BTreeSet<VolumeId>,
    root: Locator,
    /// The pages of the manifest in the newest volume, ascending.
    pages: Vec<PagePlace>,
    open: Mutex<OpenVolumes>,
}

/// A volume: the id of its backup, and its number there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct VolumeId {
    set: String,
    number: u32,
}

/// The place of a page in the newest volume.
struct PagePlace {
    /// Bytes before it in the manifest.
    from: u64,
    bytes: u64,
    /// Its offset in the volume.
    offset: u64,
}

/// What a look for a volume finds.
enum FoundVolume {
    Open(Arc<VolumeFile>),
    /// It is not there, and somebody may bring it.
    Absent(Error),
}

#[derive(Default)]
struct OpenVolumes {
    files: BTreeMap<VolumeId, Arc<VolumeFile>>,
    /// Volumes that did not come, and why.
    lost: BTreeMap<VolumeId, String>,
    turns: MediaTurns<VolumeId>,
    /// The manifest, once the newest volume may have been taken out.
    manifest: Option<Arc<File>>,
}

/// Notes in a root that the volumes behind it are missing: the backup was cut off, or its last volumes are lost.
pub(super) fn note_missing_end(root: &mut Root) {
    let Some(VolumeFacts {
        number,
        is_last: false,
        ..
    }) = root.volume
    else {
        return;
    };
    let (part, media) = match root.tapes().is_empty() {
        true => ("volume", "volumes"),
        false => ("part", "tapes"),
    };
    root.not_captured.push(NotCaptured {
        path: EntryName::default(),
        reason: format!("the backup goes on behind {part} {number}: the later {media} are missing, or were never written"),
    });
    root.totals.unreadable += 1;
}

impl VolumeSet {
    /// Opens the newest backup in the volumes with this prefix whose id begins with `set`, and its root. The catalog of
    /// this host is used if it has this backup and describes more of it, or if no volume of such a backup is there.
    ///
    /// # Errors
    /// As [`VolumeSet::open`]; [`ErrorKind::Corrupt`] for a root of another backup.
    pub(super) fn open_with_root(
        storages: &Storages,
        prefix: &Path,
        set: &str,
    ) -> Result<(Self, Root)> {
        let series = VolumeSeries::of(storages, prefix);
        let sets = found_sets(prefix)?;
        let newest = sets.iter().rev().find(|found| found.starts_with(set));
        let Some(newest) = newest else {
            let kept = series.and_then(|series| series.newest(set));
            return kept.map_or_else(
                || Err(not_found(prefix, set)),
                |kept| Ok(Self::of_catalog(storages, prefix, kept)),
            );
        };
        let kept = series.and_then(|series| series.read(newest));
        let on_media = Self::open(storages, prefix, newest).and_then(|mut set| {
            let root = read_root(&set)?;
            set.place_pages(&root)?;
            set.earlier = earlier_volumes(&root);
            Ok((set, root))
        });
        match (on_media, kept) {
            (Ok((_, root)), Some(kept)) if kept.root.id == root.id && kept.is_newer(&root) => {
                Ok(Self::of_catalog(storages, prefix, kept))
            }
            (Err(error), Some(kept))
                if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt) =>
            {
                Ok(Self::of_catalog(storages, prefix, kept))
            }
            (on_media, _) => on_media,
        }
    }

    /// The backup as the catalog describes it.
    pub(super) fn of_catalog(
        storages: &Storages,
        prefix: &Path,
        kept: CatalogedBackup,
    ) -> (Self, Root) {
        let CatalogedBackup { root, manifest } = kept;
        let facts = root.volume.unwrap_or_default();
        let own = root.pages.iter().filter(|page| page.backup.is_empty());
        let place = |page: &PageAt| {
            let from = page.manifest_offset?;
            let (bytes, offset) = (page.bytes, from);
            Some(PagePlace {
                from,
                bytes,
                offset,
            })
        };
        let set = Self {
            storages: storages.clone(),
            prefix: prefix.to_owned(),
            files: VolumeFiles::new(prefix, &root.id),
            newest: facts.number,
            is_sealed: facts.is_sealed,
            set: root.id.clone(),
            earlier: earlier_volumes(&root),
            root: Locator { offset: 0, len: 0 },
            pages: own.filter_map(place).collect(),
            open: Mutex::new(OpenVolumes {
                manifest: Some(Arc::new(manifest)),
                ..OpenVolumes::default()
            }),
        };
        (set, root)
    }

    /// Opens the volumes of a backup, by the newest one that is there and has a root.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none; [`ErrorKind::Corrupt`] if all are damaged; those of keys.
    fn open(storages: &Storages, prefix: &Path, set: &str) -> Result<Self> {
        let files = VolumeFiles::new(prefix, set);
        let mut damage = None;
        for (number, path) in files.found()?.into_iter().rev() {
            match Self::open_newest(storages, prefix, set, number, &path) {
                Err(error) if error.kind == ErrorKind::Corrupt => damage = damage.or(Some(error)),
                opened => return opened,
            }
        }
        Err(damage.unwrap_or_else(|| not_found(prefix, set)))
    }

    fn open_newest(
        storages: &Storages,
        prefix: &Path,
        set: &str,
        number: u32,
        path: &Path,
    ) -> Result<Self> {
        let volume = VolumeFile::open(storages, path)?;
        volume.check(set, number)?;
        let root = volume.reader().locator()?.ok_or_else(|| {
            Error::corrupt(format!("volume {path:?} is damaged"))
                .because("its end does not contain the place of its root")
        })?;
        let is_sealed = matches!(volume.file, ArchiveFile::Sealed(_));
        let mut open = OpenVolumes::default();
        let set = set.to_owned();
        let id = VolumeId {
            set: set.clone(),
            number,
        };
        open.files.insert(id, Arc::new(volume));
        Ok(Self {
            storages: storages.clone(),
            prefix: prefix.to_owned(),
            files: VolumeFiles::new(prefix, &set),
            newest: number,
            is_sealed,
            set,
            earlier: BTreeSet::new(),
            root,
            pages: Vec::new(),
            open: Mutex::new(open),
        })
    }

    /// Learns the places of pages from the root, which is the one of the newest volume.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the root is of another backup or volume.
    fn place_pages(&mut self, root: &Root) -> Result<()> {
        let number = root.volume.map(|VolumeFacts { number, .. }| number);
        if root.id != self.set || number != Some(self.newest) {
            let name = self.name(&ObjectName::Root);
            return Err(Error::corrupt(format!("{name} is of another volume")));
        }
        let mut offset =
            self.with_volume(&self.newest_id(), |volume| volume.reader().label_end())?;
        for page in root.pages.iter().filter(|page| page.backup.is_empty()) {
            let Some(from) = page.manifest_offset else {
                continue;
            };
            let place = if page.segment == self.newest {
                page.offset
            } else {
                let place = offset.saturating_add(SERVICE_HEADER_BYTES as u64);
                offset = place.saturating_add(page.bytes);
                place
            };
            self.pages.push(PagePlace {
                from,
                bytes: page.bytes,
                offset: place,
            });
        }
        Ok(())
    }

    fn newest_id(&self) -> VolumeId {
        VolumeId {
            set: self.set.clone(),
            number: self.newest,
        }
    }

    /// Reads from a volume.
    fn with_volume<T>(
        &self,
        id: &VolumeId,
        read: impl FnOnce(&VolumeFile) -> Result<T>,
    ) -> Result<T> {
        let (volume, mut open) = self.volume(id)?;
        open.turns.begin_read();
        drop(open);
        let done = read(&volume);
        self.open.locked().turns.end_read();
        done
    }

    /// Returns an open volume. If it is not there, waits until nobody reads the one that is.
    fn volume(&self, id: &VolumeId) -> Result<(Arc<VolumeFile>, MutexGuard<'_, OpenVolumes>)> {
        let mut open = self.open.locked();
        let mut is_waiting = false;
        loop {
            let found = self.volume_there(id, &mut open);
            let is_next = open.turns.is_next(id, QUIET);
            if let (Ok(FoundVolume::Absent(_)), false) = (&found, is_next) {
                if !is_waiting {
                    open.turns.begin_wait(id);
                    is_waiting = true;
                }
                drop(open);
                thread::sleep(LOOK);
                open = self.open.locked();
                continue;
            }
            if is_waiting {
                open.turns.end_wait(id);
            }
            let volume = match found? {
                FoundVolume::Open(volume) => volume,
                FoundVolume::Absent(error) => {
                    let asked = self.ask_for(id, error, &mut open);
                    self.opened(id, asked, &mut open)?
                }
            };
            return Ok((volume, open));
        }
    }

    /// Returns a volume that is open or there.
    fn volume_there(&self, id: &VolumeId, open: &mut OpenVolumes) -> Result<FoundVolume> {
        if let Some(volume) = open.files.get(id) {
            return Ok(FoundVolume::Open(volume.clone()));
        }
        if let Some(reason) = open.lost.get(id) {
            return Err(self.missing(id, reason));
        }
        match self.open_volume(id) {
            Err(error)
                if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Corrupt)
                    && self.storages.media_change().is_possible() =>
            {
                Ok(FoundVolume::Absent(error))
            }
            opened => self.opened(id, opened, open).map(FoundVolume::Open),
        }
    }

    /// Notes that a volume is open, or why not.
    fn opened(
        &self,
        id: &VolumeId,
        volume: Result<VolumeFile>,
        open: &mut OpenVolumes,
    ) -> Result<Arc<VolumeFile>> {
        match volume {
            Ok(volume) => {
                if open.files.len() >= OPEN_VOLUMES {
                    open.files.pop_first();
                }
                let volume = Arc::new(volume);
                open.files.insert(id.clone(), volume.clone());
                Ok(volume)
            }
            Err(error) => {
                let reason = match error.kind {
                    ErrorKind::NotFound => format!("volume {} is missing", id.number),
                    _ => error.line(),
                };
                let missing = self.missing(id, &reason);
                open.lost.insert(id.clone(), reason);
                Err(missing)
            }
        }
    }

    fn open_volume(&self, id: &VolumeId) -> Result<VolumeFile> {
        let volume = VolumeFile::open(&self.storages, &self.path_of(id))?;
        volume.check(&id.set, id.number)?;
        Ok(volume)
    }

    /// Returns the path of a volume. Earlier backups may be encrypted or not; where none is there, they are taken for
    /// stored as this one.
    fn path_of(&self, id: &VolumeId) -> PathBuf {
        let path = |is_sealed| VolumeFiles::new(&self.prefix, &id.set).path(id.number, is_sealed);
        let own = path(self.is_sealed);
        let other = path(!self.is_sealed);
        if id.set == self.set || own.exists() || !other.exists() {
            own
        } else {
            other
        }
    }

    /// Returns the name of a volume, as it stands on a medium.
    fn label_of(&self, id: &VolumeId) -> String {
        let path = self.path_of(id);
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Asks for a volume, once. All others are closed before, since their medium may be taken out.
    fn ask_for(&self, id: &VolumeId, error: Error, open: &mut OpenVolumes) -> Result<VolumeFile> {
        let change = self.storages.media_change();
        if !change.is_possible() {
            return Err(error);
        }
        if open.manifest.is_none() {
            open.manifest = Some(Arc::new(self.copied_manifest(open)?));
        }
        open.files.clear();
        let request = ChangeRequest {
            action: ChangeAction::Want,
            drive: self.files.dir().display().to_string(),
            set: id.set.clone(),
            volume: id.number,
            label: self.label_of(id),
            reason: error.line(),
        };
        match change.ask(&request)? {
            Changed::Yes => self.open_volume(id),
            Changed::No => Err(error),
        }
    }

    /// Copies the manifest of the newest volume into a temporary file.
    fn copied_manifest(&self, open: &OpenVolumes) -> Result<File> {
        let failed = |error| Error::io("could not write pages to a temporary file", error);
        let file = write::anonymous_file(&std::env::temp_dir()).map_err(failed)?;
        let Some(volume) = open.files.get(&self.newest_id()) else {
            return Ok(file);
        };
        self.each_piece(
            |offset, len, out| volume.read_at(offset, len, out),
            |bytes, from| write::pwrite_all(&file, bytes, from).map_err(failed),
        )?;
        Ok(file)
    }

    /// Writes the manifest into a file.
    ///
    /// # Errors
    /// Those of reading; the system's.
    pub(super) fn copy_manifest(&self, file: &mut dyn Write) -> Result<()> {
        let copied = self.open.locked().manifest.clone();
        if let Some(copied) = copied {
            let mut reader = &*copied;
            return io::Seek::rewind(&mut reader)
                .and_then(|()| io::copy(&mut reader, file))
                .map(drop)
                .map_err(|error| Error::io("could not copy a manifest", error));
        }
        let newest = self.newest_id();
        self.each_piece(
            |offset, len, out| self.with_volume(&newest, |volume| volume.read_at(offset, len, out)),
            |bytes, _| {
                let written = file.write_all(bytes);
                written.map_err(|error| Error::io("could not write a catalog", error))
            },
        )
    }

    /// Reads the pages of the manifest in order, by at most [`COPIED_BYTES`], and passes them with their places in the manifest.
    fn each_piece(
        &self,
        read: impl Fn(u64, usize, &mut Vec<u8>) -> Result<()>,
        mut write: impl FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let mut buffer = Vec::new();
        for page in &self.pages {
            let mut done = 0;
            while done < page.bytes {
                let len = COPIED_BYTES.min(page.bytes - done) as usize;
                read(page.offset.saturating_add(done), len, &mut buffer)?;
                write(&buffer, page.from.saturating_add(done))?;
                done += len as u64;
            }
        }
        Ok(())
    }

    fn missing(&self, id: &VolumeId, reason: &str) -> Error {
        let label = self.label_of(id);
        let message = format!("could not read volume {}, {label:?}", id.number);
        Error::new(ErrorKind::NotFound, message).because(reason.to_owned())
    }

    fn read_manifest(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let damaged = || Error::corrupt("could not read the manifest of the volumes");
        let index = self.pages.partition_point(|page| page.from <= offset);
        let page = index
            .checked_sub(1)
            .map(|index| &self.pages[index])
            .ok_or_else(damaged)?;
        let inner = offset - page.from;
        if inner.saturating_add(len as u64) > page.bytes {
            return Err(damaged().because("it has no such page"));
        }
        let copied = self.open.locked().manifest.clone();
        if let Some(file) = copied {
            // All pages were copied, so there are as many bytes.
            out.clear();
            out.resize(len, 0);
            return file
                .read_exact_at(out, offset)
                .map_err(|error| damaged().because(error));
        }
        self.with_volume(&self.newest_id(), |volume| {
            volume.read_at(page.offset.saturating_add(inner), len, out)
        })
    }

    /// Returns the volume that an object is, if it is one of this backup, or one that it refers to.
    fn id_of(&self, object: &ObjectName) -> Option<VolumeId> {
        let segment = match object {
            ObjectName::Root => return Some(self.newest_id()),
            ObjectName::Segment(segment) if segment.stream == 1 => segment,
            _ => return None,
        };
        let is_own = segment.backup.is_empty() || segment.backup == self.set;
        let id = VolumeId {
            set: if is_own { &self.set } else { &segment.backup }.clone(),
            number: segment.number,
        };
        let is_known = match is_own {
            true => (1..=self.newest).contains(&id.number),
            false => self.earlier.contains(&id),
        };
        is_known.then_some(id)
    }

    fn with_volume_of<T>(
        &self,
        object: &ObjectName,
        read: impl FnOnce(&VolumeFile) -> Result<T>,
    ) -> Result<T> {
        let id = self.id_of(object).ok_or_else(|| {
            let message = format!("could not find {}", self.name(object));
            Error::new(ErrorKind::NotFound, message)
        })?;
        self.with_volume(&id, read)
    }
}

/// Returns the volumes of earlier backups that a backup refers to.
fn earlier_volumes(root: &Root) -> BTreeSet<VolumeId> {
    let others = root.liveness.iter().filter(|live| {
        let is_own = live.backup.is_empty() || live.backup == root.id;
        !is_own && live.stream == 1
    });
    others
        .map(|live| VolumeId {
            set: live.backup.clone(),
            number: live.number,
        })
        .collect()
}

fn not_found(prefix: &Path, set: &str) -> Error {
    let of = match set {
        "" => String::new(),
        set => format!(" of a backup {set:?}"),
    };
    let message = format!("could not find the volumes {prefix:?}{of}");
    let name = VolumeFiles::new(prefix, "BACKUP").path(1, false);
    Error::new(ErrorKind::NotFound, message).hint(format!(
        "the first one is called {name:?}; is the disk mounted?"
    ))
}

impl ObjectReader for VolumeSet {
    fn read_at(
        &self,
        object: &ObjectName,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match object {
            ObjectName::Manifest(backup) if backup.is_empty() || *backup == self.set => {
                self.read_manifest(offset, len, out)
            }
            ObjectName::Root => {
                let offset = self.root.offset.saturating_add(offset);
                self.with_volume_of(object, |volume| volume.read_at(offset, len, out))
            }
            _ => self.with_volume_of(object, |volume| volume.read_at(offset, len, out)),
        }
    }

    fn len(&self, object: &ObjectName) -> Result<u64> {
        match object {
            ObjectName::Root => Ok(self.root.len),
            _ => self.with_volume_of(object, |volume| Ok(volume.bytes)),
        }
    }

    fn name(&self, object: &ObjectName) -> String {
        let newest = || self.files.path(self.newest, self.is_sealed);
        match object {
            ObjectName::Root => format!("the root of {:?}", newest()),
            ObjectName::Manifest(_) => format!("the manifest in {:?}", newest()),
            ObjectName::Segment(id) => {
                let is_own = id.backup.is_empty();
                let set = if is_own { &self.set } else { &id.backup };
                let volume = VolumeId {
                    set: set.clone(),
                    number: id.number,
                };
                format!("{:?}", self.path_of(&volume))
            }
        }
    }

    fn is_one_file(&self) -> bool {
        true
    }

    fn has_root(&self, object: &ObjectName) -> bool {
        self.id_of(object) == Some(self.newest_id())
    }

    fn places(&self) -> Vec<Place> {
        let earlier = self.earlier.iter().map(|id| self.path_of(id));
        let found = self.files.found().unwrap_or_default();
        found
            .into_values()
            .chain(earlier)
            .filter_map(|path| place_of(&path))
            .collect()
    }
}
