//! Objects in memory, as an object store has them: conditional puts with versions, leases by renewal, no locks.
//!
//! For the simulation and for tests of whole commands. Clones share their objects; clones with clocks of their own are as many hosts.

use super::{
    Clock, LeaseTaker, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, RENEWAL,
    SealedObjects, StorageAbilities, StoredObject, SystemClock, Take, Upload, Version,
    parts::{amended_range, part_digests_of},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::max_document_bytes,
};
use fullbore_platform::queue::Locked;
use fullbore_wire::key::{check_key, check_prefix, is_below};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Objects in memory.
#[derive(Debug, Clone)]
pub struct MemoryObjects {
    contents: Arc<Mutex<Contents>>,
    leases: Arc<LeaseTaker>,
    has_conditions: bool,
}

#[derive(Debug, Default)]
struct Contents {
    objects: BTreeMap<String, MemoryObject>,
    /// Uploads that are open, by number.
    uploads: BTreeMap<u64, OpenUpload>,
    /// Numbers of versions and uploads.
    last_number: u64,
}

#[derive(Debug)]
struct MemoryObject {
    bytes: Arc<Vec<u8>>,
    version: u64,
}

#[derive(Debug)]
struct OpenUpload {
    key: String,
    bytes: Vec<u8>,
}

impl Contents {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn store(&mut self, key: &str, bytes: Vec<u8>) -> Version {
        let version = self.next_number();
        self.objects.insert(
            key.to_owned(),
            MemoryObject {
                bytes: Arc::new(bytes),
                version,
            },
        );
        version_of(version)
    }
}

fn version_of(number: u64) -> Version {
    Version::new(number.to_string())
}

impl Default for MemoryObjects {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryObjects {
    /// Returns a storage without objects, and with the clock of the system.
    pub fn new() -> Self {
        let leases = Arc::new(LeaseTaker::new(Arc::new(SystemClock), RENEWAL));
        Self {
            contents: Arc::default(),
            leases,
            has_conditions: true,
        }
    }

    /// Returns the same objects, as a host with this clock has them; all hosts have the same time between `renewal`s.
    #[must_use]
    pub fn with_clock(&self, clock: Arc<dyn Clock>, renewal: Duration) -> Self {
        Self {
            leases: Arc::new(LeaseTaker::new(clock, renewal)),
            ..self.clone()
        }
    }

    /// Returns the same objects in a store that refuses every conditional put.
    #[must_use]
    pub fn without_conditions(&self) -> Self {
        Self {
            has_conditions: false,
            ..self.clone()
        }
    }

    /// Returns the number of uploads that take room and are neither finished nor aborted.
    pub fn open_uploads(&self) -> usize {
        self.contents.locked().uploads.len()
    }

    fn bytes(&self, key: &str) -> Result<Option<Arc<Vec<u8>>>> {
        check_key(key)?;
        let contents = self.contents.locked();
        Ok(contents.objects.get(key).map(|object| object.bytes.clone()))
    }
}

impl Objects for MemoryObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        check_prefix(prefix)?;
        let contents = self.contents.locked();
        let below = contents
            .objects
            .iter()
            .filter(|(key, _)| is_below(key, prefix));
        let listed = below.map(|(key, object)| ListedObject {
            key: key.clone(),
            bytes: object.bytes.len() as u64,
            version: Some(version_of(object.version)),
        });
        Ok(listed.collect())
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let message = || {
            format!(
                "could not read {len} bytes at byte {offset} of {}",
                self.describe(key)
            )
        };
        let Some(bytes) = self.bytes(key)? else {
            return Err(Error::new(ErrorKind::NotFound, message()).because("it is not there"));
        };
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= bytes.len() as u64);
        let Some(end) = end else {
            return Err(Error::corrupt(message()).because("it ends too early"));
        };
        out.clear();
        out.extend_from_slice(&bytes[offset as usize..end as usize]);
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        check_key(key)?;
        let contents = self.contents.locked();
        let Some(object) = contents.objects.get(key) else {
            return Ok(None);
        };
        if object.bytes.len() as u64 > max_document_bytes(key) {
            return Err(
                Error::corrupt(format!("cannot read {}", self.describe(key)))
                    .because("it is too large"),
            );
        }
        Ok(Some((object.bytes.to_vec(), version_of(object.version))))
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        Ok(self.bytes(key)?.map(|bytes| bytes.len() as u64))
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        check_key(key)?;
        if !self.has_conditions && *condition != PutIf::Always {
            let message = format!("cannot write {} on a condition", self.describe(key));
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // Locked until the object is stored, so that the condition still holds then.
        let mut contents = self.contents.locked();
        let there = contents
            .objects
            .get(key)
            .map(|object| version_of(object.version));
        let holds = match condition {
            PutIf::Always => true,
            PutIf::Absent => there.is_none(),
            PutIf::Version(version) => there.as_ref() == Some(version),
        };
        if !holds {
            return Ok(Put::Refused);
        }
        Ok(Put::Done(contents.store(key, bytes.to_vec())))
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        check_key(key)?;
        let mut contents = self.contents.locked();
        let number = contents.next_number();
        contents.uploads.insert(
            number,
            OpenUpload {
                key: key.to_owned(),
                bytes: Vec::new(),
            },
        );
        Ok(Box::new(MemoryUpload {
            contents: self.contents.clone(),
            key: key.to_owned(),
            number,
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut first_error = Ok(());
        let mut contents = self.contents.locked();
        for key in keys {
            match check_key(key) {
                Ok(()) => drop(contents.objects.remove(key)),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        drop(contents);
        self.leases.end_deleted(keys);
        first_error
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        self.contents
            .locked()
            .uploads
            .retain(|_, upload| !is_below(&upload.key, prefix));
        Ok(())
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        self.leases.take(Arc::new(self.clone()), key, body, take)
    }

    fn abilities(&self) -> StorageAbilities {
        StorageAbilities {
            has_locks: false,
            amends: true,
        }
    }

    fn answers_late(&self) -> bool {
        true
    }

    fn describe(&self, key: &str) -> String {
        format!("{:?}", format!("memory:{key}"))
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        None
    }
}

#[derive(Debug)]
struct MemoryUpload {
    contents: Arc<Mutex<Contents>>,
    key: String,
    number: u64,
}

impl MemoryUpload {
    fn gone(&self) -> Error {
        Error::new(
            ErrorKind::Gone,
            format!(
                "cannot write {:?}: its upload was aborted",
                format!("memory:{}", self.key)
            ),
        )
    }
}

impl Upload for MemoryUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let mut contents = self.contents.locked();
        let upload = contents
            .uploads
            .get_mut(&self.number)
            .ok_or_else(|| self.gone())?;
        upload.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut contents = self.contents.locked();
        let upload = contents
            .uploads
            .get_mut(&self.number)
            .ok_or_else(|| self.gone())?;
        let range = amended_range(offset, bytes.len(), upload.bytes.len() as u64)?;
        upload.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<StoredObject> {
        let mut contents = self.contents.locked();
        let upload = contents
            .uploads
            .remove(&self.number)
            .ok_or_else(|| self.gone())?;
        let stored = StoredObject {
            bytes: upload.bytes.len() as u64,
            parts: part_digests_of(&upload.bytes),
        };
        contents.store(&upload.key, upload.bytes);
        Ok(stored)
    }

    fn abort(self: Box<Self>) {}
}

impl Drop for MemoryUpload {
    fn drop(&mut self) {
        self.contents.locked().uploads.remove(&self.number);
    }
}
