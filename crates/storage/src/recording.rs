//! A wrapper that counts operations and bytes: tests say how many requests a command makes, not how long it takes.

use super::{
    Lease, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects,
    StorageAbilities, StoredObject, Take, Upload, Version,
};
use fullbore_format::error::Result;
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// The functions of a storage, its uploads and its leases that ask for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Objects::list`].
    List,
    /// [`Objects::read_at`]; bytes that were read.
    ReadAt,
    /// [`Objects::get`]; bytes that were read.
    Get,
    /// [`Objects::stat`].
    Stat,
    /// [`Objects::put`]; bytes that were given.
    Put,
    /// [`Objects::create`].
    Create,
    /// [`Upload::append`]; bytes that were given.
    Append,
    /// [`Upload::amend`]; bytes that were given.
    Amend,
    /// [`Upload::finish`].
    Finish,
    /// [`Upload::abort`].
    Abort,
    /// [`Objects::delete`], once for any number of objects.
    Delete,
    /// [`Objects::abort_uploads`].
    AbortUploads,
    /// [`Objects::settle`].
    Settle,
    /// [`Objects::lease`].
    Lease,
    /// [`Lease::update`]; bytes that were given.
    UpdateLease,
}

/// How often an operation was called, and the bytes that went either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OperationCount {
    /// Calls, those that failed too.
    pub calls: u64,
    /// Bytes of content.
    pub bytes: u64,
}

/// Counts what is asked of the storage inside. Clones count together.
#[derive(Debug, Clone)]
pub struct Recording {
    inner: Arc<dyn Objects>,
    record: Arc<RecordedCalls>,
}

#[derive(Debug, Default)]
struct RecordedCalls {
    counts: Mutex<BTreeMap<Operation, OperationCount>>,
    log: Mutex<Vec<(Operation, String)>>,
}

impl RecordedCalls {
    fn call(&self, operation: Operation, key: &str) {
        self.counts.locked().entry(operation).or_default().calls += 1;
        self.log.locked().push((operation, key.to_owned()));
    }

    fn bytes(&self, operation: Operation, bytes: usize) {
        self.counts.locked().entry(operation).or_default().bytes += bytes as u64;
    }
}

impl Recording {
    /// Counts from zero.
    pub fn new(inner: Arc<dyn Objects>) -> Self {
        Self {
            inner,
            record: Arc::default(),
        }
    }

    /// Returns the calls and bytes of one operation so far.
    pub fn count(&self, operation: Operation) -> OperationCount {
        self.record
            .counts
            .locked()
            .get(&operation)
            .copied()
            .unwrap_or_default()
    }

    /// Returns the calls of all operations that an object store would be sent a request for: all but [`Operation::Append`] and
    /// [`Operation::Amend`], whose requests depend on bytes and not on calls.
    pub fn requests(&self) -> u64 {
        let counts = self.record.counts.locked();
        let sent = counts
            .iter()
            .filter(|(operation, _)| !matches!(operation, Operation::Append | Operation::Amend));
        sent.map(|(_, count)| count.calls).sum()
    }

    /// Returns every call so far in order, with its key or prefix; a delete has the first key.
    pub fn log(&self) -> Vec<(Operation, String)> {
        self.record.log.locked().clone()
    }

    /// Counts from zero again.
    pub fn reset(&self) {
        self.record.counts.locked().clear();
        self.record.log.locked().clear();
    }
}

impl Objects for Recording {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        self.record.call(Operation::List, prefix);
        self.inner.list(prefix)
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        self.record.call(Operation::ReadAt, key);
        self.inner.read_at(key, offset, len, out)?;
        self.record.bytes(Operation::ReadAt, len);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        self.record.call(Operation::Get, key);
        let got = self.inner.get(key)?;
        let bytes = got.as_ref().map_or(0, |(bytes, _)| bytes.len());
        self.record.bytes(Operation::Get, bytes);
        Ok(got)
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        self.record.call(Operation::Stat, key);
        self.inner.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        self.record.call(Operation::Put, key);
        self.record.bytes(Operation::Put, bytes.len());
        self.inner.put(key, bytes, condition)
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        self.record.call(Operation::Create, key);
        let inner = self.inner.create(key)?;
        Ok(Box::new(RecordedUpload {
            inner,
            record: self.record.clone(),
            key: key.to_owned(),
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        self.record
            .call(Operation::Delete, keys.first().map_or("", String::as_str));
        self.inner.delete(keys)
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        self.record.call(Operation::AbortUploads, prefix);
        self.inner.abort_uploads(prefix)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        self.record.call(Operation::Settle, prefix);
        self.inner.settle(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        self.record.call(Operation::Lease, key);
        let leased = self.inner.lease(key, body, take)?;
        let Leased::Ours(inner) = leased else {
            return Ok(leased);
        };
        Ok(Leased::Ours(Box::new(RecordedLease {
            inner,
            record: self.record.clone(),
            key: key.to_owned(),
        })))
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        self.inner.as_local()
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        self.inner.as_sealed()
    }
}

#[derive(Debug)]
struct RecordedUpload {
    inner: Box<dyn Upload>,
    record: Arc<RecordedCalls>,
    key: String,
}

impl Upload for RecordedUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.record.call(Operation::Append, &self.key);
        self.record.bytes(Operation::Append, bytes.len());
        self.inner.append(bytes)
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.record.call(Operation::Amend, &self.key);
        self.record.bytes(Operation::Amend, bytes.len());
        self.inner.amend(offset, bytes)
    }

    fn finish(self: Box<Self>) -> Result<StoredObject> {
        self.record.call(Operation::Finish, &self.key);
        self.inner.finish()
    }

    fn abort(self: Box<Self>) {
        self.record.call(Operation::Abort, &self.key);
        self.inner.abort();
    }
}

#[derive(Debug)]
struct RecordedLease {
    inner: Box<dyn Lease>,
    record: Arc<RecordedCalls>,
    key: String,
}

impl Lease for RecordedLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        self.record.call(Operation::UpdateLease, &self.key);
        self.record.bytes(Operation::UpdateLease, body.len());
        self.inner.update(body)
    }

    fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }
}
