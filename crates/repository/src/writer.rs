//! Stores a backup into a repository.
//!
//! The order makes it a transaction: intent, segments, manifest, root, each durable before the
//! next; then the intent is removed. A backup without a root does not exist. The next backup
//! removes the remains of a dead one; a backup is dead if its lease can be taken. [`protocol`] has
//! the rules for backups beside prunes.

pub use super::local_place::{is_absent, must_be_possible, places};

use super::{
    first_look::FirstLook,
    intent::{HeldIntent, taken_for_dead},
    large_listing::LargeListing,
    local_place,
    page_spool::PageSpool,
    protocol,
    repository_file::{no_repository, parse_repository},
    roots::{self, dir, key},
};
use fullbore_crypt::Access;
use fullbore_format::{
    content_list::MAGIC,
    error::{Error, ErrorKind, Result},
    layout::{
        BACKUPS, CONTENTS, INTENTS, MANIFEST, PARTIAL, REPOSITORY, ROOT, Repository, letters,
        segment,
    },
    root::{FORMAT, Lists, Root, VOID_ROOT_BYTES, is_void},
    seal::seal,
};
use fullbore_pipeline::sink::{
    Abilities, Destination, Partial, Place, Placed, Referred, Role, Sink, StoredSegment,
    commit_flag, place_of,
};
use fullbore_platform as platform;
use fullbore_platform::queue::{Locked, run_both, start};
use fullbore_storage::{
    Objects, PutIf, SealedObjects, StoredObject, Upload, as_stored, clear_remains, probe,
};
use std::{
    collections::VecDeque,
    hash::{BuildHasher, Hasher, RandomState},
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

/// The destination of one backup in a repository.
pub struct RepositoryWriter {
    objects: Arc<dyn Objects>,
    id: String,
    suffix: &'static str,
    repository: Repository,
    is_new: bool,
    intent: HeldIntent,
    spool: Arc<Mutex<PageSpool>>,
    /// The list of contents so far.
    contents: Arc<Mutex<PageSpool>>,
    /// Was a partial root stored, or tried to be?
    has_partial: Arc<AtomicBool>,
    /// The first look, of a repository with very many objects.
    look: Option<LargeListing>,
}

impl RepositoryWriter {
    /// Opens or makes the repository of these objects, removes the remains of dead backups, and
    /// announces backup `id`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a directory holds something else, [`ErrorKind::Permission`] without a key
    /// of an encrypted repository; errors of the storage.
    pub fn begin(
        objects: Arc<dyn Objects>,
        id: &str,
        time: &str,
        suffix: &'static str,
    ) -> Result<Self> {
        let look = FirstLook::take(&*objects)?;
        Self::begin_after(&look, objects, "", id, time, suffix)
    }

    /// As [`RepositoryWriter::begin`], of a backup of `host`, after a look at the repository.
    ///
    /// # Errors
    /// As [`RepositoryWriter::begin`].
    pub fn begin_after(
        look: &FirstLook,
        objects: Arc<dyn Objects>,
        host: &str,
        id: &str,
        time: &str,
        suffix: &'static str,
    ) -> Result<Self> {
        if let Some(sealed) = objects.as_sealed() {
            sealed.check_writable()?;
        }
        let known = look.repository.as_deref();
        let OpenedRepository { repository, is_new } = open_or_make(&*objects, time, known)?;
        let is_far = objects.answers_late();
        let settle = || match is_new {
            true => Ok(()),
            // The process that made it may have been killed right after.
            false => objects.settle(INTENTS),
        };
        let prepare = || {
            // Where leases prove nothing, the backup that left something may be alive.
            run_both(
                is_far,
                || (!repository.lacks_conditions).then(|| clear(&objects, &look.intents)),
                settle,
            )
            .1
        };
        let announce = || HeldIntent::announce(&objects, host, id, time);
        // Intents that were left are removed first: each takes several steps.
        let at_once = is_far && look.intents.is_empty();
        let (prepared, intent) = match at_once {
            true => run_both(true, prepare, announce),
            false => (prepare(), announce()),
        };
        let intent = intent?;
        if let Err(error) = prepared {
            intent.withdraw();
            return Err(error);
        }
        Ok(Self {
            objects,
            id: id.to_owned(),
            suffix,
            repository,
            is_new,
            intent,
            spool: Arc::default(),
            contents: Arc::default(),
            has_partial: Arc::default(),
            look: look.large.clone(),
        })
    }

    /// Opens the segments of one stream; numbers start at 1.
    pub fn segments(&self, number: u32) -> SegmentWriter {
        SegmentWriter {
            objects: self.objects.clone(),
            backup: self.id.clone(),
            suffix: self.suffix,
            stream: number,
            spool: self.spool.clone(),
            contents: self.contents.clone(),
            open: None,
            finishing: VecDeque::new(),
            stored: Vec::new(),
        }
    }

    /// Names the segments of one stream.
    pub fn segment_key(&self, stream: u32) -> SegmentKey {
        SegmentKey {
            backup: self.id.clone(),
            suffix: self.suffix,
            stream,
        }
    }

    /// The pages of the backup, until they are stored as its manifest.
    pub fn pages(&self) -> Arc<Mutex<PageSpool>> {
        self.spool.clone()
    }

    /// The list of contents so far.
    pub fn contents(&self) -> Arc<Mutex<PageSpool>> {
        self.contents.clone()
    }

    /// The storage.
    pub fn objects(&self) -> &Arc<dyn Objects> {
        &self.objects
    }

    /// The objects that a root needs and this repository does not have, except the own manifest.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn lacks(&self, root: &Root) -> Result<bool> {
        let mut root = root.clone();
        if !self.may_share_lists() {
            root.forget_lists();
        }
        let listed = protocol::listed_needs_after(&*self.objects, self.look.as_ref(), &root)?;
        let own = key(&self.id, MANIFEST);
        for (key, bytes) in roots::needs(&root)? {
            let is_listed = listed.get(&key).is_some_and(|there| *there >= bytes);
            if key == own || is_listed {
                continue;
            }
            if self.objects.stat(&key)?.is_none_or(|there| there < bytes) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends this backup without a commit, for a copy of it from another repository that uses the
    /// stored segments: a partial root keeps them.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn hand_over(self, root: &[u8]) -> Result<()> {
        let partial = key(&self.id, PARTIAL);
        self.objects.put(&partial, root, &PutIf::Always)?;
        self.intent.withdraw();
        Ok(())
    }

    /// Stores the pages, and behind them that of the lists.
    fn store_manifest(&self, lists: &[u8]) -> Result<StoredObject> {
        let mut upload = self.objects.create(&key(&self.id, MANIFEST))?;
        self.spool.locked().copy_to(&mut *upload)?;
        if !lists.is_empty() {
            upload.append(lists)?;
        }
        upload.finish()
    }

    /// Returns the page with the lists of a root, and names it there; empty if it has none.
    fn own_lists(&self, root: &mut Root) -> Result<Vec<u8>> {
        let lists = Lists::of(root);
        let are_stored = !root.lists_of.is_empty();
        if are_stored || !self.may_share_lists() || !lists.are_worth_sharing() {
            return Ok(Vec::new());
        }
        let page = lists.page(&root.id)?;
        root.note_own_lists(&lists, self.spool.locked().bytes(), &page);
        Ok(page)
    }

    /// Returns whether this backup may leave the lists to another one. A host that only adds could not read them there.
    fn may_share_lists(&self) -> bool {
        let access = self.objects.as_sealed().and_then(SealedObjects::access);
        access != Some(Access::Put)
    }

    /// Stores the list of contents, if there are any.
    fn store_contents(&self) -> Result<()> {
        let contents = self.contents.locked();
        if contents.is_empty() {
            return Ok(());
        }
        let mut upload = self.objects.create(&key(&self.id, CONTENTS))?;
        upload.append(MAGIC)?;
        contents.copy_to(&mut *upload)?;
        upload.finish().map(drop)
    }

    /// Stores all objects that the root needs, and checks again that the objects of the bases
    /// exist.
    ///
    /// Returns the root as it is to be stored.
    fn prepare_commit(&self, root: &[u8]) -> Result<Vec<u8>> {
        // Before and after: if the lease was lost meanwhile, a prune may have deleted what the root
        // names.
        self.intent.check()?;
        let root_name = self.objects.describe(&key(&self.id, ROOT));
        let mut root = Root::open(root, &root_name)?;
        if !self.may_share_lists() {
            root.forget_lists();
        }
        let lists = self.own_lists(&mut root)?;
        let bases = root.referenced_backups();
        let is_far = self.objects.answers_late();
        let store = || {
            run_both(
                is_far,
                || self.store_manifest(&lists),
                || self.store_contents(),
            )
        };
        let ((manifest, contents), (settled, listed)) = run_both(is_far, store, || {
            run_both(
                is_far,
                || protocol::settle_all(&*self.objects, &bases),
                || protocol::listed_needs_after(&*self.objects, self.look.as_ref(), &root),
            )
        });
        let StoredObject { bytes, .. } = manifest?;
        contents?;
        settled?;
        let mut listed = listed?;
        listed.insert(key(&self.id, MANIFEST), bytes);
        protocol::check(&*self.objects, &root, &listed)?;
        self.intent.check()?;
        seal(&root.shortened().unwrap_or(root))
    }
}

impl Destination for RepositoryWriter {
    fn abilities(&self) -> Abilities {
        Abilities {
            objects: true,
            repository: self.repository.id.clone(),
            is_new: self.is_new,
        }
    }

    /// A second call adds to the bases in the intent.
    fn announce_bases(&mut self, bases: &[String]) -> Result<Referred> {
        if !bases.is_empty() {
            self.intent.rely_on(bases)?;
        }
        protocol::refer_after(&*self.objects, self.look.as_ref(), bases)
    }

    fn stream(&mut self, number: u32) -> Result<Box<dyn Sink>> {
        Ok(Box::new(self.segments(number)))
    }

    /// Includes the directories of the repository: they may be mounted elsewhere.
    fn places(&self) -> Vec<Place> {
        let Some(local) = self.objects.as_local() else {
            return Vec::new();
        };
        let own = place_of(&local.root().join(dir(&self.id)));
        places(local.root()).into_iter().chain(own).collect()
    }

    fn commit(self: Box<Self>, root: &[u8]) -> Result<()> {
        let root_key = key(&self.id, ROOT);
        let put = self
            .prepare_commit(root)
            .and_then(|root| put_root(&*self.objects, &self.id, &root))
            .map_err(|error| self.explained(error));
        match put {
            Ok(()) => {
                // A partial root exists only if the run was long.
                if self.has_partial.load(Relaxed) {
                    remove_partial_root(&*self.objects, &self.id);
                }
                self.intent.withdraw();
                Ok(())
            }
            // The prune that put a void root in place removes the rest.
            Err(error) if error.kind == ErrorKind::Gone => Err(error),
            Err(error) => {
                let objects = self.objects.clone();
                self.abort(false);
                Err(is_left(&*objects, &root_key, "backup", error))
            }
        }
    }

    fn partial(&self) -> Option<Partial> {
        let objects = self.objects.clone();
        let key_of = |file| key(&self.id, file);
        let manifest = key_of(MANIFEST);
        let partial = key_of(PARTIAL);
        let has_partial = self.has_partial.clone();
        Some(Box::new(move |root| {
            has_partial.store(true, Relaxed);
            // A backup that refers to this one relies on its manifest. The pages are in the
            // segments so far.
            objects.put(&manifest, &[], &PutIf::Absent)?;
            objects.put(&partial, root, &PutIf::Always).map(drop)
        }))
    }

    /// Whoever took the lease may have removed what was stored.
    fn explained(&self, error: Error) -> Error {
        if self.objects.abilities().has_locks || self.intent.is_ours() {
            return error;
        }
        match error.kind {
            ErrorKind::Gone => error,
            ErrorKind::NotFound | ErrorKind::Corrupt => taken_for_dead(&*self.objects, &self.id),
            // What keeps a store from being reached keeps a lease from being renewed.
            _ => {
                let error = error.detail(
                    "another process took it for dead: it did not renew its lease in time, and commits nothing",
                );
                match error.hint.is_some() {
                    true => error,
                    false => error.hint("run the same command again"),
                }
            }
        }
    }

    fn abort(self: Box<Self>, keep: bool) {
        // The process that took over the lease decides about the rest.
        if !self.intent.is_ours() {
            return;
        }
        let has_partial = || matches!(self.objects.stat(&key(&self.id, PARTIAL)), Ok(Some(_)));
        if keep && has_partial() || remove_backup(&self.objects, &self.id) {
            self.intent.withdraw();
        }
    }
}

/// Stores the root, which makes a backup of this process a listed one, unless another object is in
/// its place.
pub(super) fn put_root(objects: &dyn Objects, id: &str, root: &[u8]) -> Result<()> {
    protocol::store_root(objects, id, root)?;
    commit_flag::set(true);
    Ok(())
}

/// Completes the error of a commit that was undone as far as possible: notes whether the root still
/// exists.
pub(super) fn is_left(objects: &dyn Objects, root_key: &str, message: &str, error: Error) -> Error {
    let is_listed = match objects.stat(root_key) {
        Ok(None) => false,
        Ok(Some(bytes)) => !is_void_root(objects, root_key, bytes),
        Err(_) => true,
    };
    commit_flag::set(is_listed);
    if is_listed {
        error.detail(format!("the {message} is listed, but may not be durable"))
    } else {
        error
    }
}

fn is_void_root(objects: &dyn Objects, root_key: &str, bytes: u64) -> bool {
    bytes == VOID_ROOT_BYTES
        && matches!(objects.get(root_key), Ok(Some((root, _))) if is_void(&root))
}

/// Removes the partial root of a listed backup: it is of no use any more, and harmless.
pub(super) fn remove_partial_root(objects: &dyn Objects, id: &str) {
    if let Err(error) = objects.delete(&[key(id, PARTIAL)]) {
        platform::debug(|| error.line());
    }
}

/// Makes the repository of these objects unless it exists. Returns whether it was made.
///
/// # Errors
/// [`ErrorKind::Usage`] if a directory holds something else, [`ErrorKind::NotFound`] if its parent is missing; errors of the storage.
pub fn init(objects: &dyn Objects, time: &str) -> Result<bool> {
    let is_there = matches!(objects.stat(REPOSITORY), Ok(Some(_)));
    open_or_make(objects, time, None)?;
    objects.settle(INTENTS)?;
    Ok(!is_there)
}

/// A repository, and whether this process made it.
#[derive(Debug)]
pub(super) struct OpenedRepository {
    repository: Repository,
    is_new: bool,
}

/// Opens a repository, or makes it. `known` is the content of its file, if that was read already. The names of a repository that
/// another process has made may not be durable.
pub(super) fn open_or_make(
    objects: &dyn Objects,
    time: &str,
    known: Option<&[u8]>,
) -> Result<OpenedRepository> {
    if let Some(local) = objects.as_local()
        && local.root().is_file()
    {
        local_place::check_new(local.root())?;
    }
    let stored = match known {
        Some(bytes) => Some(bytes.to_vec()),
        None => objects.get(REPOSITORY)?.map(|(bytes, _)| bytes),
    };
    if let Some(bytes) = stored {
        if let Some(local) = objects.as_local() {
            local.check_backups_link()?;
        }
        let repository = open(objects, &bytes)?;
        let is_new = false;
        return Ok(OpenedRepository { repository, is_new });
    }
    if let Some(local) = objects.as_local() {
        local_place::check_new(local.root())?;
    }
    if !objects.list(BACKUPS)?.is_empty() {
        return Err(no_repository(objects));
    }
    let facts = seal(&Repository {
        lacks_conditions: lacks_conditions(objects)?,
        format: FORMAT,
        id: letters(RandomState::new().build_hasher().finish(), 12),
        created: time.to_owned(),
    })?;
    let put = objects.put(REPOSITORY, &facts, &PutIf::Absent);
    // A faster process may have removed incomplete files.
    let put = put.map(|_| None).or_else(|error| match error.kind {
        ErrorKind::NotFound => Ok(Some(error)),
        _ => Err(error),
    })?;
    // Two first backups at the same time may both get here: the file that exists now defines the
    // repository.
    let Some((bytes, _)) = objects.get(REPOSITORY)? else {
        put.map_or(Ok(()), Err)?;
        let message = format!("could not find {}", objects.describe(REPOSITORY));
        return Err(Error::new(ErrorKind::NotFound, message).because("it was removed meanwhile"));
    };
    let repository = open(objects, &bytes)?;
    let is_new = true;
    Ok(OpenedRepository { repository, is_new })
}

/// Returns whether the storage stores objects that a conditional put should refuse.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the storage refuses conditional puts: it gets no repository; errors of the storage.
pub fn lacks_conditions(objects: &dyn Objects) -> Result<bool> {
    if objects.abilities().has_locks {
        return Ok(false);
    }
    // A key that only adds backups could not read what the probe stores.
    Ok(!probe(as_stored(objects))?)
}

fn open(objects: &dyn Objects, bytes: &[u8]) -> Result<Repository> {
    let repository = parse_repository(bytes, &objects.describe(REPOSITORY))?;
    if repository.format > FORMAT {
        let message = format!(
            "cannot write to a repository of format {}: this program knows {FORMAT}",
            repository.format
        );
        return Err(Error::new(ErrorKind::Unsupported, message).hint("use a newer fullbore"));
    }
    Ok(repository)
}

/// Removes the remains of earlier runs, whose intents have these ids. Their errors do not fail the
/// backup that begins.
fn clear(objects: &Arc<dyn Objects>, intents: &[String]) {
    if let Some(local) = objects.as_local() {
        clear_remains(local.root());
    }
    // A lock takes no request.
    let most = match objects.abilities().has_locks {
        true => intents.len(),
        false => intents.len().min(LOOKED_AT),
    };
    let cleared = abort_dead_uploads(&**objects, intents)
        .and_then(|()| protocol::remove_abandoned_of(&**objects, &intents[..most]));
    if let Err(error) = cleared {
        platform::debug(|| error.line());
    }
}

/// Other backups without a root that a new one looks at, to remove them if they are dead; a prune
/// looks at all.
const LOOKED_AT: usize = 16;

/// Aborts the uploads of dead backups, if the storage can tell them from live ones.
fn abort_dead_uploads(objects: &dyn Objects, intents: &[String]) -> Result<()> {
    if !objects.abilities().has_locks {
        return Ok(());
    }
    intents
        .iter()
        .try_for_each(|id| objects.abort_uploads(&dir(id)))
}

/// Removes all objects that this run stored. Returns false on failure: then the intent must stay,
/// so that the next backup removes them.
pub(super) fn remove_backup(objects: &Arc<dyn Objects>, id: &str) -> bool {
    let given_up = protocol::give_up(&**objects, id);
    given_up
        .inspect_err(|error| platform::debug(|| error.line()))
        .is_ok()
}

/// Segments of a stream that may still be uploading while the next one is written.
const FINISHING: usize = 1;

/// The names of the segments of one stream.
#[derive(Debug, Clone)]
pub struct SegmentKey {
    backup: String,
    suffix: &'static str,
    stream: u32,
}

impl SegmentKey {
    /// Returns the key of a segment.
    pub fn of(&self, number: u32) -> String {
        key(&self.backup, &segment(self.stream, number, self.suffix))
    }
}

/// Stores the segments of one stream.
pub struct SegmentWriter {
    objects: Arc<dyn Objects>,
    backup: String,
    suffix: &'static str,
    stream: u32,
    spool: Arc<Mutex<PageSpool>>,
    contents: Arc<Mutex<PageSpool>>,
    open: Option<OpenSegment>,
    finishing: VecDeque<FinishingSegment>,
    /// Durable segments that have not been returned yet.
    stored: Vec<StoredSegment>,
}

struct OpenSegment {
    number: u32,
    bytes: u64,
    upload: Box<dyn Upload>,
}

/// A segment that is being made durable.
struct FinishingSegment {
    number: u32,
    thread: JoinHandle<Result<StoredObject>>,
}

impl SegmentWriter {
    /// Returns the upload of segment `number`, and begins it if none is open.
    fn segment(&mut self, number: u32) -> Result<&mut OpenSegment> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let name = segment(self.stream, number, self.suffix);
                OpenSegment {
                    number,
                    bytes: 0,
                    upload: self.objects.create(&key(&self.backup, &name))?,
                }
            }
        };
        Ok(self.open.insert(open))
    }

    /// Adds the next bytes of a segment.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] if they are not the next ones; errors of the storage.
    pub fn append(&mut self, segment: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        let open = self.segment(segment)?;
        if open.number != segment || open.bytes != offset {
            let message = "cannot write a segment of a repository out of order";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        open.bytes += bytes.len() as u64;
        open.upload.append(bytes)
    }

    /// Returns the durable segments that were not returned before, without waiting for others.
    pub fn take_stored(&mut self) -> Vec<StoredSegment> {
        mem::take(&mut self.stored)
    }

    /// Waits until at most `most` of the ended segments are not durable.
    fn wait_for_finishing(&mut self, most: usize) -> Result<()> {
        while self.finishing.len() > most
            && let Some(FinishingSegment { number, thread }) = self.finishing.pop_front()
        {
            let StoredObject { bytes, parts } = thread.join().unwrap_or_else(|_| {
                let message = "a thread that finishes segments stopped";
                Err(Error::new(ErrorKind::Bug, message))
            })?;
            self.stored.push(StoredSegment {
                number,
                bytes,
                parts,
            });
        }
        Ok(())
    }
}

impl Sink for SegmentWriter {
    fn put(&mut self, placed: Placed) -> Result<()> {
        if placed.role != Role::Stream {
            let message = "cannot amend a segment of a repository";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.append(placed.segment, placed.offset, &placed.data)
    }

    fn put_page(&mut self, page: &[u8]) -> Result<Option<u64>> {
        self.spool.locked().add(page).map(Some)
    }

    fn put_contents(&mut self, group: &[u8]) -> Result<()> {
        self.contents.locked().add(group).map(drop)
    }

    fn end_segment(&mut self) -> Result<()> {
        let Some(OpenSegment { number, upload, .. }) = self.open.take() else {
            return Ok(());
        };
        self.wait_for_finishing(FINISHING - 1)?;
        let thread = start(move || upload.finish())?;
        self.finishing
            .push_back(FinishingSegment { number, thread });
        Ok(())
    }

    fn sync(&mut self) -> Result<Vec<StoredSegment>> {
        self.wait_for_finishing(0)?;
        Ok(mem::take(&mut self.stored))
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<StoredSegment>> {
        self.end_segment()?;
        self.sync()
    }
}

impl Drop for SegmentWriter {
    /// After an error the stored segments are removed next, so no thread may store one later.
    fn drop(&mut self) {
        for FinishingSegment { thread, .. } in self.finishing.drain(..) {
            let _ = thread.join(); // the first error is reported already
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::layout::backup_id;
    use fullbore_storage::{MemoryObjects, Operation, Recording, SystemClock, Take};
    use std::time::Duration;

    #[test]
    fn a_backup_beside_many_others_looks_at_few_of_them() {
        // To look at a lease takes one period of its renewal.
        let memory =
            MemoryObjects::new().with_clock(Arc::new(SystemClock), Duration::from_millis(100));
        let recording = Recording::new(Arc::new(memory));
        let objects: Arc<dyn Objects> = Arc::new(recording.clone());
        let begin = |number: u32| {
            let id = backup_id("20261121T054501Z", number, "aaaa");
            let key = protocol::intent_key(&id);
            objects.lease(&key, b"", Take::New).unwrap()
        };
        let _living: Vec<_> = (0..200).map(begin).collect();
        let look = FirstLook::take(&*objects).unwrap();
        recording.reset();
        clear(&objects, &look.intents);
        let leases = recording.count(Operation::Lease).calls;
        assert_eq!(leases, LOOKED_AT as u64);
    }
}
