//! The objects of a repository, wherever they are: on this machine, in an object store, or in memory.
//!
//! [`Objects`] is the only way to them. A key is a path of plain names, such as `backups/20261121T054501Z-k3f9qz/root.json`; an
//! object is bytes. Members are [`LocalObjects`], [`CloudObjects`], [`MemoryObjects`] and, of another host,
//! [`WireObjects`](wire::WireObjects). [`SealedObjects`], [`KeptBackups`], [`CachedObjects`], [`CoalescedObjects`], [`Confined`], [`Recording`] and
//! [`Faulty`] wrap any of them. One suite of tests, `tests/storage`, holds for each of them.
//!
//! Here belongs how bytes are stored, read and leased. What the bytes mean does not: no function here reads a root or knows when a
//! backup may be removed.

#![warn(missing_docs)]

mod append;
mod cached;
mod change;
mod clock;
mod cloud;
mod coalesced;
mod confined;
mod far_rights;
mod faulty;
pub mod foreign_words;
mod generation;
mod install;
mod kept;
mod key_change;
mod key_file;
pub mod keys;
mod last_backups;
mod lease;
mod local;
mod location;
pub mod lost_keys;
pub mod members;
mod memory;
mod parts;
mod probe;
mod recording;
mod remembered;
mod remembered_file;
mod robot;
mod root_document;
mod rotation;
pub mod sealed;
pub mod seen_keys;
mod server;
pub mod ssh;
mod storages;
mod trust;
mod watched;
mod whole_root;
pub mod wire;

pub use append::{AppendRules, check_host_name};
pub use cached::{CacheSpec, CachedObjects};
pub use change::{ChangeAction, ChangeRequest, Changed, MediaChange, MediaChanger};
pub use clock::{Clock, SystemClock, TestClock};
pub use cloud::{
    AUTO_CONNECTIONS, AUTO_PARTS, CloudAddress, CloudCounts, CloudEnvironment, CloudObjects,
    CloudService, CloudSettings, ObjectRetention, RetryPolicy, SETTING_KEYS, SETTING_VARIABLES,
    ServerEncryption, StoreSettings, UploadChecksum,
};
pub use coalesced::CoalescedObjects;
pub use confined::{Allowed, Confined};
pub use far_rights::{FarBackup, FarRestore};
pub use faulty::{Fault, Faulty};
pub use fullbore_wire::key::{MAX_KEY_BYTES, MAX_NAME_BYTES, check_key};
pub use fullbore_wire::object::{ListedObject, PutIf, Take, Version};
pub use kept::KeptBackups;
pub use last_backups::{LastBackup, LastBackups};
pub use lease::{LeaseTaker, RENEWAL, is_released, lease_body};
pub use local::{
    LocalObjects, Storing, asked_twice, failed_to_read,
    place::{clear_remains, refuse_other_contents},
};
pub use location::{CloudStore, Found, Location, repository_around};
pub use memory::MemoryObjects;
pub use probe::probe;
pub use recording::{Operation, OperationCount, Recording};
pub use root_document::ProvenRoot;
pub use sealed::{SealedObjects, as_stored};
pub use storages::{StorageAccess, Storages};
pub use trust::{ClearUse, RepositoryTrust};
pub use whole_root::{KeptLists, read_lists, whole_root};

use fullbore_format::error::Result;
use std::fmt;

/// See [`at_once`].
const REQUESTS_AT_ONCE: usize = 16;

/// The objects of one repository.
///
/// Every function may be called from any thread. Every function but [`Objects::describe`] refuses a key that [`check_key`] refuses,
/// with [`ErrorKind::Usage`]. A prefix is empty or such a key, and means what is below it: `backups/a` does not cover `backups/ab`.
///
/// What one call stored, every later call sees, whoever makes it. That an object is absent is not an error, but for
/// [`Objects::read_at`]. After an error of a call that changes something, the change may have happened or not, but never a part of
/// it to one object.
///
/// No function has a default body, so that a wrapper cannot forget one.
///
/// [`ErrorKind::Usage`]: fullbore_format::error::ErrorKind::Usage
pub trait Objects: fmt::Debug + Send + Sync {
    /// Returns the objects below `prefix`, at any depth, in the order of the bytes of their keys.
    ///
    /// An object that is stored or deleted meanwhile is listed or not. Uploads that are not finished are not listed, nor is anything that
    /// has no valid key. With an empty prefix, a storage that is shared with others lists the directories of a repository only.
    ///
    /// # Errors
    /// The storage's.
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>>;

    /// Replaces the contents of `out` by the `len` bytes of an object that begin at `offset`.
    ///
    /// The object may still be read for a while after another process deleted or replaced it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the object is absent, [`ErrorKind::Corrupt`] if it ends before `offset + len`, or the storage's; `out` is
    /// undefined then.
    ///
    /// [`ErrorKind::NotFound`]: fullbore_format::error::ErrorKind::NotFound
    /// [`ErrorKind::Corrupt`]: fullbore_format::error::ErrorKind::Corrupt
    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()>;

    /// Returns all bytes of a small object, and their version.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it has more than [`max_document_bytes`] bytes, or the storage's.
    ///
    /// [`ErrorKind::Corrupt`]: fullbore_format::error::ErrorKind::Corrupt
    /// [`max_document_bytes`]: fullbore_format::key_kind::max_document_bytes
    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>>;

    /// Returns the bytes of an object; `None` if it is absent.
    ///
    /// # Errors
    /// The storage's.
    fn stat(&self, key: &str) -> Result<Option<u64>>;

    /// Stores a small object if the condition holds: durable, and seen by all, when this returns.
    ///
    /// Of several puts with [`PutIf::Absent`], or with [`PutIf::Version`] and one version, one is done. A local directory does not
    /// check a version against puts with [`PutIf::Always`] and deletes of the same moment: do not mix them on one key.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the storage has no such condition, or the storage's.
    ///
    /// [`ErrorKind::Unsupported`]: fullbore_format::error::ErrorKind::Unsupported
    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put>;

    /// Begins an object of any size, which is written front to back. It takes the place of an object of the same key when it is
    /// finished, and is not seen before.
    ///
    /// # Errors
    /// The storage's; of another host by a later call of the upload.
    fn create(&self, key: &str) -> Result<Box<dyn Upload>>;

    /// Deletes objects, in any order; those that are absent are skipped. After a crash of the system an object may be there again
    /// unless [`Objects::settle`] followed.
    ///
    /// # Errors
    /// The first one; all other objects were tried.
    fn delete(&self, keys: &[String]) -> Result<()>;

    /// Frees the room of uploads below `prefix` whose writers died.
    ///
    /// The caller knows that they are dead, as it holds the lease on the intent that these uploads belong to: not every storage can tell.
    /// A local directory can, and keeps the uploads of living writers.
    ///
    /// # Errors
    /// The storage's.
    fn abort_uploads(&self, prefix: &str) -> Result<()>;

    /// Makes durable which objects are below `prefix`, whoever stored or deleted them: a writer may have been killed before it saw
    /// to that.
    ///
    /// # Errors
    /// The storage's.
    fn settle(&self, prefix: &str) -> Result<()>;

    /// Takes the lease on an intent, an object that says who is at work.
    ///
    /// `body` becomes the content of an intent that is made. One that is taken from the dead keeps its content until
    /// [`Lease::update`]. Where the storage has no locks, the content has a last line about the lease, see [`lease_body`], and this
    /// call waits until it knows whether a holder is alive: up to 3 [`RENEWAL`]s.
    ///
    /// # Errors
    /// The storage's.
    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased>;

    /// Returns what this storage can do beyond what every storage can.
    fn abilities(&self) -> StorageAbilities;

    /// Returns whether a request is slow to answer, as over a network. Then several requests at the same time, or
    /// one for all, take less time than one after the other. Asks the storage nothing.
    fn answers_late(&self) -> bool;

    /// Returns the name of an object for messages, in quotes; the name of the storage itself for an empty key.
    fn describe(&self, key: &str) -> String;

    /// Returns the local directory that the objects are in, if they are. Only to keep a repository out of its own source, and to change its
    /// modes.
    fn as_local(&self) -> Option<&LocalObjects>;

    /// Returns the wrapper that seals these objects, if there is one. Only for what concerns stored bytes, which the checksums in a root are
    /// over, and the key that opens them.
    fn as_sealed(&self) -> Option<&SealedObjects>;
}

/// An object that is being written. Dropped before [`Upload::finish`], it is aborted.
pub trait Upload: fmt::Debug + Send {
    /// Appends bytes. They may be stored behind this call; an error of that is returned by a later call.
    ///
    /// # Errors
    /// The storage's; every later call fails too.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;

    /// Replaces bytes that were appended, all of them within the first 8 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the storage does not [amend](StorageAbilities::amends), or the storage's.
    ///
    /// [`ErrorKind::Unsupported`]: fullbore_format::error::ErrorKind::Unsupported
    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes the object durable, and gives it its key.
    ///
    /// # Errors
    /// The storage's; the object may have its key then.
    fn finish(self: Box<Self>) -> Result<StoredObject>;

    /// Gives the object up, and frees its room.
    fn abort(self: Box<Self>);
}

/// Returns how many requests are made at the same time where many are to be made, each by a thread. A root can have megabytes, and
/// reading a file takes less time than starting a thread.
pub fn at_once(objects: &dyn Objects) -> usize {
    if objects.answers_late() {
        REQUESTS_AT_ONCE
    } else {
        1
    }
}

/// A lease that is held. Dropped, it is let go at once: the intent stays, and anyone may take it.
pub trait Lease: fmt::Debug + Send + Sync {
    /// Replaces the content of the intent; others see the old or the new one.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`] if the lease is not ours any more, or the storage's.
    ///
    /// [`ErrorKind::Gone`]: fullbore_format::error::ErrorKind::Gone
    fn update(&mut self, body: &[u8]) -> Result<()>;

    /// Returns whether the lease is surely held still: false once it is known that it was taken or that the intent was deleted, and where the lease
    /// must be renewed and was not in time. Asks no other machine.
    fn is_ours(&self) -> bool;
}

/// An object that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its length.
    pub bytes: u64,
    /// CRC-64/NVME of each 8 MiB ([`PART_BYTES`](fullbore_format::root::PART_BYTES)) as stored; the last part may be shorter.
    pub parts: Vec<u64>,
}

/// What came of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// The object is stored, with this version.
    Done(Version),
    /// The condition did not hold.
    Refused,
}

/// What came of an attempt to take a lease.
#[derive(Debug)]
pub enum Leased {
    /// The lease is held until this is dropped.
    Ours(Box<dyn Lease>),
    /// Another holder is alive; for [`Take::New`]: the intent is there.
    Held,
    /// The intent is absent, and was not made.
    Absent,
    /// The storage cannot tell whether another holder is alive. Nothing was made.
    Unknown,
}

/// What a storage can do beyond what every storage can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageAbilities {
    /// Does a lease last exactly as long as its holder lives? Otherwise a holder that was asleep may find it taken, and
    /// whoever removes something must first make sure that this holder cannot commit.
    pub has_locks: bool,
    /// Can bytes of an open upload be replaced?
    pub amends: bool,
}
