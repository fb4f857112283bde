//! Stores a backup into a repository.
//!
//! The order is the transaction: intent, segments, manifest, root, each durable before the next; then the intent goes.
//! A backup without a root does not exist. The next backup removes what a dead one left, and the proof of death is that
//! nobody holds the lock on its intent. What it must do beside prunes is in [`protocol`].

use super::{
    objects::{is_at, is_left, place, random_letters, write_new, write_root},
    open::{is_repository, no_repository, parse_repository, read_repository},
    permissions,
    protocol::{self, Intent, intent_key},
    roots::{self, key},
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
        self, dir,
        safe_file::{self, Access},
        write,
    },
    queue::start,
    sink::{
        Abilities, Destination, Partial, Place, Placed, Referred, Role, Sink,
        local_file::{Output, check_parent_exists, name, sync_dir},
        place_of,
    },
    storage::LocalObjects,
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
}

impl RepositoryWriter {
    /// Open or make the repository at `root`, remove what dead backups left, and announce backup `id`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the directory holds something else; else the system's.
    pub fn begin(root: &Path, id: &str, time: &str, suffix: &'static str) -> Result<Self> {
        let repository = open_or_make(root, time)?;
        clear(root);
        let dir = root.join(BACKUPS).join(id);
        let intent = announce(root, id, time).inspect_err(|_| withdraw(root, id))?;
        let made = safe_file::create_dir(&dir, permissions::of_dir(root))
            .map_err(|e| Error::io(format!("could not create {}", name(&dir)), e));
        made.inspect_err(|_| withdraw(root, id))?;
        let manifest = Output::create(&dir.join(MANIFEST), permissions::of_file(root))
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
            .referenced_backups()
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
    fn announce_bases(&mut self, bases: &[String]) -> Result<Referred> {
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

/// Makes the repository at `root` unless it is there. Was it made?
///
/// # Errors
/// As [`must_be_possible`]; [`ErrorKind::Usage`] if the directory holds something else; else the system's.
pub fn init(root: &Path, time: &str) -> Result<bool> {
    let is_there = is_repository(root.as_os_str());
    open_or_make(root, time).map(|_| !is_there)
}

/// Refuses a place where a repository is not to be made, or can only be there by mistake. With `no_create` it must be there.
///
/// A missing parent is a typo, or a disk that is not mounted: only the last directory of a path is made.
///
/// # Errors
/// [`ErrorKind::NotFound`] if it, or its parent, is not there; as [`read_repository`].
pub fn must_be_possible(root: &Path, no_create: bool) -> Result<()> {
    if is_repository(root.as_os_str()) {
        return Ok(());
    }
    if no_create {
        return Err(match read_repository(&LocalObjects::new(root)) {
            Err(error) if error.kind == ErrorKind::NotFound && error.source.is_none() => {
                Error::new(
                    ErrorKind::NotFound,
                    format!("could not find a repository at {}", name(root)),
                )
                .because("--no-create makes none")
                .hint("is its disk mounted? `fullbore init` makes an empty repository")
            }
            Err(error) => error,
            Ok(_) => return Ok(()), // it has appeared
        });
    }
    check_parent_exists(root)?;
    refuse_other_contents(root)
}

pub(super) fn open_or_make(root: &Path, time: &str) -> Result<Repository> {
    let path = root.join(REPOSITORY);
    match safe_file::read(&path, MAX_BYTES) {
        // Whoever made it may not have come further.
        Ok(bytes) => {
            sync_dir(root)?;
            LocalObjects::new(root).check_backups_link()?;
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
    check_parent_exists(root)?;
    refuse_other_contents(root)?;
    let objects = LocalObjects::new(root);
    if roots::ids(&objects).is_ok_and(|ids| !ids.is_empty()) {
        return Err(no_repository(&objects));
    }
    match safe_file::create_dir(root, 0o700) {
        Err(error) if !root.is_dir() => {
            return Err(Error::io(format!("could not create {}", name(root)), error));
        }
        _ => {}
    }
    for dir in [root.join(BACKUPS), root.join(INTENTS)] {
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

/// The directory that ext2, ext3 and ext4 have in the root of a file system.
const LOST_AND_FOUND: &str = "lost+found";

/// A repository is made in an empty place, or where an attempt to make one was cut off, or where one appears meanwhile.
fn refuse_other_contents(root: &Path) -> Result<()> {
    let known = |name: &OsStr| {
        [REPOSITORY, BACKUPS, INTENTS, TOMBSTONES]
            .iter()
            .any(|known| name == *known)
            || is_partial(name)
    };
    let others = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| !known(&entry.file_name()));
    let other = others.max_by_key(|entry| entry.file_name() != LOST_AND_FOUND);
    match other {
        None => Ok(()),
        Some(other) if other.file_name() == LOST_AND_FOUND => {
            let what = format!("cannot make a repository in {}: it is the root of a file system", name(root));
            let own = root.join("fullbore");
            Err(Error::new(ErrorKind::Usage, what)
                .because(format!("it holds {LOST_AND_FOUND:?}"))
                .hint(format!("give the repository a directory of its own, such as {}", name(&own))))
        }
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
            let output = Output::create(&self.path(number), self.access)?;
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
