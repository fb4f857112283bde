//! The objects of the other side of a connection.

use super::{
    credit::append_cost,
    delete_keys::{encode_keys, key_batches},
    line::Line,
};
use crate::{
    Lease, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects,
    StorageAbilities, StoredObject, Take, Upload, Version, parts::amended_range,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::max_document_bytes,
    root::PART_BYTES,
};
use fullbore_wire::key::{check_key, check_prefix};
use fullbore_wire::{
    frame::MAX_DATA,
    listing::{ListingReader, MAX_LISTING_BYTES},
    message::{Call, CallAnswer, MAX_VALUES, Message, decode, encode},
    object_call::{Condition, LeasedWord, ObjectAnswer, ObjectCall, TakeWord},
    service::ServiceNumber,
};
use std::{
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    sync::{Arc, OnceLock},
};

/// The objects of another process.
#[derive(Debug, Clone)]
pub struct WireObjects {
    line: Arc<Line>,
    /// The session, which ends with the last of the objects.
    _session: Option<Arc<dyn fmt::Debug + Send + Sync>>,
    name: String,
    opening: Arc<Opening>,
}

/// The call that opens the objects. Other calls follow it without waiting.
#[derive(Debug)]
struct Opening {
    call: u64,
    abilities: OnceLock<StorageAbilities>,
}

/// Returns the error of an answer to another question.
pub(super) fn wrong_answer(line: &Line) -> Error {
    let message = format!("cannot go on with {}", line.peer);
    let error = Error::corrupt(message).because("it answers something else than was asked");
    line.end(&error);
    error
}

/// Returns a call of the service of objects.
fn object_call(call: &ObjectCall) -> Call {
    Call::new(ServiceNumber::OBJECTS, encode(call))
}

/// Returns the words of an answer; `None` if it is nothing but its data.
fn words_of(line: &Line, answer: &CallAnswer) -> Result<Option<ObjectAnswer>> {
    match answer {
        CallAnswer::Done(words) if words.is_empty() => Ok(None),
        CallAnswer::Done(words) => decode(words, MAX_VALUES)
            .map(Some)
            .map_err(|_| wrong_answer(line)),
        CallAnswer::Failed(_) => Err(wrong_answer(line)),
    }
}

impl WireObjects {
    /// Opens the objects at a location of the other side. Keeps `session` as long as the objects.
    pub(super) fn open(
        line: Arc<Line>,
        session: Option<Arc<dyn fmt::Debug + Send + Sync>>,
        location: &OsStr,
        name: &str,
    ) -> Result<Self> {
        let location = location.as_bytes().to_vec().into();
        let call = line.begin_call(object_call(&ObjectCall::Open { location }), b"", 0)?;
        let abilities = OnceLock::new();
        Ok(Self {
            line,
            _session: session,
            name: name.to_owned(),
            opening: Arc::new(Opening { call, abilities }),
        })
    }

    /// Returns the abilities that the other side has told; none if it could not open the objects: then every call fails with the
    /// reason.
    fn told_abilities(&self) -> StorageAbilities {
        let none = StorageAbilities {
            has_locks: false,
            amends: false,
        };
        let Ok((answer, _)) = self.line.end_call(self.opening.call) else {
            return none;
        };
        match words_of(&self.line, &answer) {
            Ok(Some(ObjectAnswer::Opened { has_locks, amends })) => {
                StorageAbilities { has_locks, amends }
            }
            _ => {
                wrong_answer(&self.line);
                none
            }
        }
    }

    /// Makes a call. Returns its number, the words of the answer and its data.
    fn call(
        &self,
        call: &ObjectCall,
        body: &[u8],
        max_bytes: u64,
    ) -> Result<(u64, Option<ObjectAnswer>, Vec<u8>)> {
        let (id, answer, data) = self.line.call(object_call(call), body, max_bytes)?;
        Ok((id, words_of(&self.line, &answer)?, data))
    }

    /// Makes a call whose answer is nothing but its data.
    fn ask(&self, call: &ObjectCall, body: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        match self.call(call, body, max_bytes)? {
            (_, None, data) => Ok(data),
            _ => Err(wrong_answer(&self.line)),
        }
    }
}

impl Objects for WireObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        check_prefix(prefix)?;
        let call = ObjectCall::List {
            prefix: prefix.to_owned(),
        };
        let mut reader = ListingReader::new(prefix);
        let take = |page: &[u8]| reader.take(page);
        let answer = self
            .line
            .call_in_parts(object_call(&call), MAX_LISTING_BYTES, take)?;
        match words_of(&self.line, &answer)? {
            None => Ok(reader.listed),
            Some(_) => Err(wrong_answer(&self.line)),
        }
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        check_key(key)?;
        let call = ObjectCall::ReadAt {
            key: key.to_owned(),
            offset,
            len: len as u64,
        };
        *out = self.ask(&call, b"", len as u64)?;
        if out.len() == len {
            Ok(())
        } else {
            Err(wrong_answer(&self.line))
        }
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        check_key(key)?;
        let call = ObjectCall::Get {
            key: key.to_owned(),
        };
        match self.call(&call, b"", max_document_bytes(key))? {
            (_, Some(ObjectAnswer::Got(version)), data) => {
                Ok(version.map(|version| (data, Version::new(version))))
            }
            _ => Err(wrong_answer(&self.line)),
        }
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        check_key(key)?;
        let call = ObjectCall::Stat {
            key: key.to_owned(),
        };
        match self.call(&call, b"", 0)? {
            (_, Some(ObjectAnswer::Size(bytes)), _) => Ok(bytes),
            _ => Err(wrong_answer(&self.line)),
        }
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        check_key(key)?;
        let call = ObjectCall::Put {
            key: key.to_owned(),
            condition: Condition::of(condition),
        };
        match self.call(&call, bytes, 0)? {
            (_, Some(ObjectAnswer::Put(Some(version))), _) => Ok(Put::Done(Version::new(version))),
            (_, Some(ObjectAnswer::Put(None)), _) => Ok(Put::Refused),
            _ => Err(wrong_answer(&self.line)),
        }
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        check_key(key)?;
        let upload = self.line.calls.new_number()?;
        let create = Message::Create {
            upload,
            key: key.to_owned(),
        };
        self.line.send_or_end(&create, b"");
        Ok(Box::new(WireUpload {
            objects: self.clone(),
            id: upload,
            key: key.to_owned(),
            bytes: 0,
            is_open: true,
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut deleted = Ok(());
        for batch in key_batches(keys) {
            let asked = self.ask(&ObjectCall::Delete, &encode_keys(batch), 0);
            if asked.is_ok() {
                self.line.calls.end_deleted_leases(batch);
            }
            deleted = deleted.and(asked.map(drop));
        }
        deleted
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        let call = ObjectCall::AbortUploads {
            prefix: prefix.to_owned(),
        };
        self.ask(&call, b"", 0).map(drop)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        let call = ObjectCall::Settle {
            prefix: prefix.to_owned(),
        };
        self.ask(&call, b"", 0).map(drop)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        let call = ObjectCall::Lease {
            key: key.to_owned(),
            take: TakeWord::of(take),
        };
        let (id, answer, _) = self.call(&call, body, 0)?;
        let Some(ObjectAnswer::Leased(word)) = answer else {
            return Err(wrong_answer(&self.line));
        };
        Ok(match word {
            LeasedWord::Held => Leased::Held,
            LeasedWord::Absent => Leased::Absent,
            LeasedWord::Unknown => Leased::Unknown,
            LeasedWord::Ours => {
                self.line.calls.hold_lease(id, key);
                Leased::Ours(Box::new(WireLease {
                    objects: self.clone(),
                    id,
                }))
            }
        })
    }

    fn abilities(&self) -> StorageAbilities {
        let abilities = &self.opening.abilities;
        *abilities.get_or_init(|| self.told_abilities())
    }

    fn answers_late(&self) -> bool {
        true
    }

    fn describe(&self, key: &str) -> String {
        if key.is_empty() {
            format!("{:?}", self.name)
        } else {
            format!("{:?}", format!("{}/{key}", self.name))
        }
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        None
    }
}

/// An upload that the other side writes.
#[derive(Debug)]
struct WireUpload {
    objects: WireObjects,
    id: u64,
    key: String,
    bytes: u64,
    is_open: bool,
}

/// Bytes of a checksum of a part, as CBOR, and of the length of their list, at most.
const CHECKSUM_BYTES: u64 = 9;

impl WireUpload {
    fn parts(&self) -> u64 {
        self.bytes.div_ceil(PART_BYTES)
    }

    fn end(&mut self, call: &ObjectCall) -> Result<(Option<ObjectAnswer>, Vec<u8>)> {
        self.is_open = false;
        let max_bytes = (self.parts() + 1) * CHECKSUM_BYTES;
        let ended = self.objects.call(call, b"", max_bytes);
        self.objects.line.calls.forget_upload(self.id);
        ended.map(|(_, answer, data)| (answer, data))
    }
}

impl Upload for WireUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let line = &self.objects.line;
        let upload = self.id;
        for part in bytes.chunks(MAX_DATA) {
            line.calls.take_credit(upload, append_cost(part.len()))?;
            line.send_or_end(&Message::Append { upload }, part);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.objects.abilities().amends {
            let message = format!("cannot amend {}", self.objects.describe(&self.key));
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        amended_range(offset, bytes.len(), self.bytes)?;
        let call = ObjectCall::Amend {
            upload: self.id,
            offset,
        };
        self.objects.ask(&call, bytes, 0).map(drop)
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        let upload = self.id;
        let (answer, data) = self.end(&ObjectCall::Finish { upload })?;
        let parts: Vec<u64> = decode(&data, self.parts() as usize + 1)?;
        let is_whole = parts.len() as u64 == self.parts();
        match answer {
            Some(ObjectAnswer::Finished(bytes)) if is_whole && bytes == self.bytes => {
                Ok(StoredObject { bytes, parts })
            }
            _ => Err(wrong_answer(&self.objects.line)),
        }
    }

    fn abort(self: Box<Self>) {}
}

impl Drop for WireUpload {
    fn drop(&mut self) {
        if self.is_open {
            let upload = self.id;
            let _ = self.end(&ObjectCall::Abort { upload }); // if it cannot be told, the connection has ended, and the upload with it
        }
    }
}

/// A lease that the other side holds for this one.
#[derive(Debug)]
struct WireLease {
    objects: WireObjects,
    id: u64,
}

impl Lease for WireLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        self.objects
            .ask(&ObjectCall::UpdateLease { lease: self.id }, body, 0)
            .map(drop)
    }

    fn is_ours(&self) -> bool {
        self.objects.line.calls.has_lease(self.id)
    }
}

impl Drop for WireLease {
    fn drop(&mut self) {
        // The other side has let go of it with the intent.
        if !self.objects.line.calls.forget_lease(self.id) {
            return;
        }
        // If it cannot be told, the connection has ended, and the lease with it.
        let _ = self
            .objects
            .ask(&ObjectCall::DropLease { lease: self.id }, b"", 0);
    }
}
