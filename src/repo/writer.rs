//! Stores a backup into a repository.
//!
//! The order is the transaction: intent, segments, manifest, root, each durable before the next; then the intent goes.
//! A backup without a root does not exist. The next backup removes what a dead one left, and the proof of death is that
//! nobody holds the lock on its intent. What it must do beside prunes is in [`protocol`].

use super::{
    objects::{
        LocalObjects, Objects, Seized, is_at, is_left, place, random_letters, write_new, write_root,
    },
    open::{directories, no_repository, not_led_away, parse_repository},
    permissions,
    protocol::{self, Intent, intent_key},
    roots::key,
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::{
        layout::{
            BACKUPS, COVERED, INTENTS, MANIFEST, PARTIAL, REPOSITORY, ROOT, Repository, TOMBSTONES,
            segment,
        },
        root::{FORMAT, Root},
        seal::{MAX_BYTES, seal},
    },
    platform::{
        self, Tricks, dir,
        safe_file::{self, Access},
        write,
    },
    queue::start,
    sink::{
        Abilities, Destination, Partial, Place, Placed, Referred, Role, Sink,
        local_file::{Output, name, sync_dir},
        place_of,
    },
};
use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread::JoinHandle,
};

/// The destination of one backup in a repository.
pub struct RepositoryWriter {
    root: PathBuf,
    id: String,
    suffix: &'static str,
    repository: Repository,
    intent: (File, Intent),
    manifest: Arc<Mutex<Output>>,
    tricks: Tricks,
}

impl RepositoryWriter {
    /// Open or make the repository at `root`, remove what dead backups left, and announce backup `id`.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the directory holds something else; else the system's.
    pub fn begin(
        root: &Path,
        id: &str,
        time: &str,
        suffix: &'static str,
        tricks: Tricks,
    ) -> Result<Self> {
        let repository = open_or_make(root, time)?;
        clear(root);
        let dir = root.join(BACKUPS).join(id);
        let intent = announce(root, id, time).inspect_err(|_| withdraw(root, id))?;
        let made = safe_file::create_dir(&dir, permissions::of_dir(root))
            .map_err(|e| Error::io(format!("could not create {}", name(&dir)), e));
        made.inspect_err(|_| withdraw(root, id))?;
        let manifest = Output::create(&dir.join(MANIFEST), permissions::of_file(root), tricks)
            .inspect_err(|_| {
                if remove_backup(root, id) {
                    withdraw(root, id);
                }
            })?;
        let (root, id, manifest) = (
            root.to_owned(),
            id.to_owned(),
            Arc::new(Mutex::new(manifest)),
        );
        Ok(Self {
            root,
            id,
            suffix,
            repository,
            intent,
            manifest,
            tricks,
        })
    }

    fn dir(&self) -> PathBuf {
        self.root.join(BACKUPS).join(&self.id)
    }

    fn make_durable(&self, root: &[u8]) -> Result<()> {
        locked(&self.manifest)?.sync()?;
        let dir = self.dir();
        sync_dir(&dir)?;
        sync_dir(&self.root.join(BACKUPS))?;
        let (objects, parsed) = (
            LocalObjects::new(&self.root),
            Root::open(root, &name(&dir.join(ROOT)))?,
        );
        parsed
            .others()
            .iter()
            .try_for_each(|id| protocol::settle(&objects, id))?;
        protocol::check(&objects, &parsed)?;
        write_root(&self.root, &key(&self.id, ROOT), root)
    }

    fn withdraw(&self) {
        let _lock = &self.intent;
        withdraw(&self.root, &self.id);
    }
}

impl Destination for RepositoryWriter {
    fn abilities(&self) -> Abilities {
        Abilities {
            objects: true,
            amends: true,
            repository: self.repository.id.clone(),
        }
    }

    /// In the intent, a second call adds to the first.
    fn refer(&mut self, bases: &[String]) -> Result<Referred> {
        rely_on(&self.root, &mut self.intent, bases)?;
        protocol::refer(&LocalObjects::new(&self.root), bases)
    }

    fn stream(&mut self, number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(SegmentWriter {
            dir: self.dir(),
            suffix: self.suffix,
            access: permissions::of_file(&self.root),
            stream: number,
            manifest: self.manifest.clone(),
            open: None,
            syncing: VecDeque::new(),
            tricks: self.tricks,
        }))
    }

    /// With its parts: they may be mounted elsewhere.
    fn places(&self) -> Vec<Place> {
        places(&self.root)
            .into_iter()
            .chain(place_of(&self.dir()))
            .collect()
    }

    fn commit(self: Box<Self>, root: &[u8]) -> Result<()> {
        match self.make_durable(root) {
            Ok(()) => {
                let _ = fs::remove_file(self.dir().join(PARTIAL)); // there only if the run was long
                self.withdraw();
                Ok(())
            }
            Err(error) => {
                let root = self.dir().join(ROOT);
                self.abort(false);
                Err(is_left(&root, "backup", error))
            }
        }
    }

    fn partial(&self) -> Option<Partial> {
        let (repository, key) = (self.root.clone(), key(&self.id, PARTIAL));
        Some(Box::new(move |root| write_new(&repository, &key, root)))
    }

    fn abort(self: Box<Self>, keep: bool) {
        if keep && self.dir().join(PARTIAL).exists() || remove_backup(&self.root, &self.id) {
            self.withdraw();
        }
    }
}

/// The repository at `root`, as far as it is there, and the directories in it.
pub fn places(root: &Path) -> Vec<Place> {
    let parts = [
        root.to_owned(),
        root.join(BACKUPS),
        root.join(INTENTS),
        root.join(TOMBSTONES),
    ];
    parts.iter().filter_map(|path| place_of(path)).collect()
}

/// Give a file its final name, unless another has it. Where there are no hard links, the last one wins.
fn if_absent(dir: &OwnedFd, partial: &str, name: &str) -> io::Result<()> {
    let (partial, name) = (partial.as_bytes(), name.as_bytes());
    match write::link_at(dir, partial, dir, name) {
        Err(_) if dir::stat(dir, name).is_ok() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        Err(_) => write::rename_at(dir, partial, dir, name),
        Ok(()) => Ok(()),
    }
}

pub(super) fn open_or_make(root: &Path, time: &str) -> Result<Repository> {
    let path = root.join(REPOSITORY);
    match safe_file::read(&path, MAX_BYTES) {
        // Whoever made it may not have come further.
        Ok(bytes) => {
            sync_dir(root)?;
            not_led_away(&root.join(BACKUPS))?;
            return open(&bytes, &path);
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(_) if root.is_file() => {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("cannot make a repository of {}: it is a file", name(root)),
            )
            .hint("an archive has a name that ends in .tar.zst or .tar.lz4"));
        }
        Err(e) => return Err(Error::io(format!("could not read {}", name(&path)), e)),
    }
    refuse_other_contents(root)?;
    if directories(root).is_ok_and(|ids| !ids.is_empty()) {
        return Err(no_repository(root));
    }
    for dir in [root.to_owned(), root.join(BACKUPS), root.join(INTENTS)] {
        safe_file::create_dirs(&dir, 0o700)
            .map_err(|e| Error::io(format!("could not create {}", name(&dir)), e))?;
    }
    let id = random_letters(12);
    let facts = seal(&Repository {
        format: FORMAT,
        id,
        created: time.to_owned(),
    })?;
    let made = dir::open_root(root)
        .and_then(|dir| place(&dir, REPOSITORY, (&facts, 0o600.into()), if_absent));
    made.map_err(|e| Error::io(format!("could not write {}", name(&path)), e))
        .and_then(|()| sync_dir(root))?;
    safe_file::sync_above(root)
        .map_err(|e| Error::io(format!("could not sync the directory of {}", name(root)), e))?;
    // Two first backups at once may both have got here: what stands there now is the repository.
    let bytes = safe_file::read(&path, MAX_BYTES)
        .map_err(|e| Error::io(format!("could not read {}", name(&path)), e))?;
    open(&bytes, &path)
}

fn open(bytes: &[u8], path: &Path) -> Result<Repository> {
    let repository = parse_repository(bytes, &name(path))?;
    if repository.format > FORMAT {
        let what = format!(
            "cannot write to a repository of format {}: this program knows {FORMAT}",
            repository.format
        );
        return Err(Error::new(ErrorKind::Unsupported, what).hint("use a newer fullbore"));
    }
    Ok(repository)
}

/// A repository is made in an empty place, or where an attempt to make one was cut off, or where one appears meanwhile.
fn refuse_other_contents(root: &Path) -> Result<()> {
    let known = |name: &OsStr| {
        [REPOSITORY, BACKUPS, INTENTS, TOMBSTONES, "lost+found"]
            .iter()
            .any(|known| name == *known)
            || is_partial(name)
    };
    let other = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .find(|entry| !known(&entry.file_name()));
    match other {
        None => Ok(()),
        Some(_) => Err(Error::new(ErrorKind::Usage, format!("cannot make a repository in {}: it is not empty", name(root)))
            .hint("choose a directory that is empty, absent or a repository, or a file name such as x.tar.zst")),
    }
}

/// What an attempt to make a repository leaves if it is killed.
fn is_partial(name: &OsStr) -> bool {
    let begins = [REPOSITORY, COVERED]
        .iter()
        .any(|file| name.as_bytes().starts_with(file.as_bytes()));
    begins && name.as_bytes().ends_with(b".partial")
}

fn intent_path(root: &Path, id: &str) -> PathBuf {
    root.join(intent_key(id))
}

/// Write the intent and take its lock. Whoever finds it unlocked may remove it, so it is looked at again once locked.
pub(super) fn announce(root: &Path, id: &str, time: &str) -> Result<(File, Intent)> {
    let path = intent_path(root, id);
    let failed = |e| Error::io(format!("could not write {}", name(&path)), e);
    // A copy of a repository may have lost what was empty.
    let (of_file, of_dir) = (permissions::of_file(root), permissions::of_dir(root));
    [BACKUPS, INTENTS]
        .iter()
        .try_for_each(|dir| safe_file::create_dirs(&root.join(dir), of_dir))
        .map_err(failed)?;
    loop {
        // What it says stays until it is ours.
        let dir = safe_file::open_dir(&root.join(INTENTS)).map_err(failed)?;
        let file =
            safe_file::open_or_create(dir, &format!("{id}.json"), of_file).map_err(failed)?;
        match write::lock_exclusive(&file) {
            Ok(true) => {}
            // Another backup looks whether we are dead; it lets go at once.
            Ok(false) => {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            }
            Err(error) => platform::debug(|| format!("no lock on {}: {error}", name(&path))),
        }
        let (host, boot) = (platform::host_name(), platform::boot_id());
        let (id, time, pid) = (id.to_owned(), time.to_owned(), std::process::id());
        let intent = Intent {
            id,
            host,
            boot,
            pid,
            time,
            bases: Vec::new(),
        };
        write_intent(&file, &seal(&intent)?).map_err(failed)?;
        if is_at(&file, &path) {
            sync_dir(&root.join(INTENTS))?;
            return Ok((file, intent));
        }
    }
}

/// Add to the backups that an intent names.
pub(super) fn rely_on(
    root: &Path,
    (file, intent): &mut (File, Intent),
    bases: &[String],
) -> Result<()> {
    intent.bases.extend_from_slice(bases);
    intent.bases.sort_unstable();
    intent.bases.dedup();
    let failed = |e| {
        Error::io(
            format!("could not write {}", name(&intent_path(root, &intent.id))),
            e,
        )
    };
    write_intent(file, &seal(intent)?).map_err(failed)
}

/// In place, as the lock is on this file. Who reads it meanwhile takes it for one without bases.
fn write_intent(file: &File, bytes: &[u8]) -> io::Result<()> {
    write::pwrite_all(file, bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    write::fsync(file)
}

/// Is nobody making the backup `id` any more?
pub(super) fn is_dead(root: &Path, id: &str) -> bool {
    matches!(
        LocalObjects::new(root).seize(&intent_key(id)),
        Ok(Seized::Free(_) | Seized::Absent)
    )
}

pub(super) fn withdraw(root: &Path, id: &str) {
    let path = intent_path(root, id);
    if let Err(error) = fs::remove_file(&path) {
        platform::debug(|| format!("could not remove {}: {error}", name(&path)));
    }
}

/// Clear away what runs that ended left. No failure of this is one of the backup that begins.
///
/// Now that there is a repository, half of one is of no use even to its writer.
fn clear(root: &Path) {
    for entry in fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| is_partial(&entry.file_name()))
    {
        if let Err(error) = fs::remove_file(entry.path()) {
            platform::debug(|| format!("could not remove {}: {error}", name(&entry.path())));
        }
    }
    if let Err(error) = protocol::remove_abandoned(&LocalObjects::new(root)) {
        platform::debug(|| error.line());
    }
}

/// Remove what this run has stored. False if that failed: then its intent is to stay, by which the next backup removes it.
pub(super) fn remove_backup(root: &Path, id: &str) -> bool {
    let given_up = protocol::give_up(&LocalObjects::new(root), id);
    given_up
        .inspect_err(|error| platform::debug(|| error.line()))
        .is_ok()
}

fn locked(manifest: &Mutex<Output>) -> Result<MutexGuard<'_, Output>> {
    manifest.lock().map_err(|_| {
        Error::new(
            ErrorKind::Bug,
            "a stream stopped while it wrote the manifest",
        )
    })
}

/// Segments that may be on their way to the device while the next is written.
const SYNCING: usize = 4;

/// The segments of one stream.
struct SegmentWriter {
    dir: PathBuf,
    suffix: &'static str,
    access: Access,
    stream: u32,
    manifest: Arc<Mutex<Output>>,
    open: Option<OpenSegment>,
    syncing: VecDeque<JoinHandle<Result<()>>>,
    tricks: Tricks,
}

/// The segment that is being written.
struct OpenSegment {
    number: u32,
    output: Output,
}

impl SegmentWriter {
    /// The segment `number`; the one before it is made durable meanwhile.
    fn segment(&mut self, number: u32) -> Result<&mut Output> {
        if self.open.as_ref().is_none_or(|open| open.number != number) {
            let output = Output::create(&self.path(number), self.access, self.tricks)?;
            if let Some(done) = self.open.replace(OpenSegment { number, output }) {
                self.syncing.push_back(start(move || done.output.sync())?);
                self.synced(SYNCING)?;
            }
        }
        self.open
            .as_mut()
            .map(|open| &mut open.output)
            .ok_or_else(|| Error::new(ErrorKind::Bug, "no segment is open"))
    }

    /// Wait until all but the last few, at most so many, of the segments before this one are durable.
    fn synced(&mut self, but: usize) -> Result<()> {
        let lost = |_| Err(Error::new(ErrorKind::Bug, "a thread that syncs stopped"));
        let first = self.syncing.len().saturating_sub(but);
        self.syncing
            .drain(..first)
            .try_for_each(|thread| thread.join().unwrap_or_else(lost))
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dir.join(segment(self.stream, number, self.suffix))
    }
}

impl Sink for SegmentWriter {
    fn put(&mut self, placed: Placed) -> Result<()> {
        let Placed {
            segment: number,
            offset,
            data,
            role,
        } = placed;
        match role {
            Role::Stream | Role::Amend => self.segment(number)?.write(&data, offset),
            Role::Page => locked(&self.manifest)?.write(&data, offset),
        }
    }

    fn sync(&mut self) -> Result<()> {
        self.synced(0)?;
        self.open
            .as_ref()
            .map_or(Ok(()), |open| open.output.sync())?;
        sync_dir(&self.dir)?;
        locked(&self.manifest)?.sync()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.open.take().map_or(Ok(()), |open| open.output.sync())?;
        self.synced(0)
    }
}
