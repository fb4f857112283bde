//! The objects of the other side of a connection.

use super::{
    Wire,
    bodies::{encode_keys, key_batches},
    credit::append_cost,
    link::Link,
};
use crate::{
    Lease, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, SealedObjects,
    StorageAbilities, StoredObject, Take, Upload, Version, parts::amended_range,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::max_document_bytes,
    root::PART_BYTES,
};
use fullbore_wire::key::{check_key, check_prefix};
use fullbore_wire::{
    frame::MAX_DATA,
    listing::{ListingReader, MAX_LISTING_BYTES},
    message::{Call, CallAnswer, Condition, LeasedWord, Message, TakeWord, decode},
};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{Arc, OnceLock},
};

/// The objects of another process.
#[derive(Debug, Clone)]
pub struct WireObjects {
    link: Arc<Link>,
    /// Ends with the last of the objects.
    _wire: Option<Arc<Wire>>,
    name: String,
    opening: Arc<Opening>,
}

/// The call that opens the objects. Other calls follow it without waiting.
#[derive(Debug)]
struct Opening {
    call: u64,
    abilities: OnceLock<StorageAbilities>,
}

/// The error of an answer to another question.
pub(super) fn wrong_answer(link: &Link) -> Error {
    let what = format!("cannot go on with {}", link.peer);
    let error = Error::corrupt(what).because("it answers something else than was asked");
    link.end(&error);
    error
}

impl WireObjects {
    pub(super) fn open(
        link: Arc<Link>,
        wire: Option<Arc<Wire>>,
        location: &OsStr,
        name: &str,
    ) -> Result<Self> {
        let location = location.as_bytes().to_vec().into();
        let call = link.begin_call(Call::Open { location }, b"", 0)?;
        let abilities = OnceLock::new();
        Ok(Self {
            link,
            _wire: wire,
            name: name.to_owned(),
            opening: Arc::new(Opening { call, abilities }),
        })
    }

    /// The abilities that the other side has told; none if it could not open the objects: then every call fails with the reason.
    fn told_abilities(&self) -> StorageAbilities {
        let told = self.link.end_call(self.opening.call);
        if let Ok((CallAnswer::Opened { has_locks, amends }, _)) = told {
            return StorageAbilities { has_locks, amends };
        }
        if told.is_ok() {
            wrong_answer(&self.link);
        }
        StorageAbilities {
            has_locks: false,
            amends: false,
        }
    }

    /// A call whose answer is nothing but its data.
    fn ask(&self, call: Call, body: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        match self.link.call(call, body, max_bytes)? {
            (_, CallAnswer::Bytes, data) => Ok(data),
            _ => Err(wrong_answer(&self.link)),
        }
    }
}

impl Objects for WireObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        check_prefix(prefix)?;
        let call = Call::List {
            prefix: prefix.to_owned(),
        };
        let mut reader = ListingReader::new(prefix);
        let answered = self
            .link
            .call_in_parts(call, MAX_LISTING_BYTES, |page| reader.take(page))?;
        match answered {
            CallAnswer::Bytes => Ok(reader.listed),
            _ => Err(wrong_answer(&self.link)),
        }
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        check_key(key)?;
        let call = Call::ReadAt {
            key: key.to_owned(),
            offset,
            len: len as u64,
        };
        *out = self.ask(call, b"", len as u64)?;
        if out.len() == len {
            Ok(())
        } else {
            Err(wrong_answer(&self.link))
        }
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        check_key(key)?;
        let call = Call::Get {
            key: key.to_owned(),
        };
        match self.link.call(call, b"", max_document_bytes(key))? {
            (_, CallAnswer::Got(version), data) => {
                Ok(version.map(|version| (data, Version::new(version))))
            }
            _ => Err(wrong_answer(&self.link)),
        }
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        check_key(key)?;
        let call = Call::Stat {
            key: key.to_owned(),
        };
        match self.link.call(call, b"", 0)? {
            (_, CallAnswer::Size(bytes), _) => Ok(bytes),
            _ => Err(wrong_answer(&self.link)),
        }
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        check_key(key)?;
        let call = Call::Put {
            key: key.to_owned(),
            condition: Condition::of(condition),
        };
        match self.link.call(call, bytes, 0)? {
            (_, CallAnswer::Put(Some(version)), _) => Ok(Put::Done(Version::new(version))),
            (_, CallAnswer::Put(None), _) => Ok(Put::Refused),
            _ => Err(wrong_answer(&self.link)),
        }
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        check_key(key)?;
        let upload = self.link.calls.new_number()?;
        let create = Message::Create {
            upload,
            key: key.to_owned(),
        };
        self.link.send_or_end(&create, b"");
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
            let asked = self.ask(Call::Delete, &encode_keys(batch), 0);
            if asked.is_ok() {
                self.link.calls.end_deleted_leases(batch);
            }
            deleted = deleted.and(asked.map(drop));
        }
        deleted
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        let call = Call::AbortUploads {
            prefix: prefix.to_owned(),
        };
        self.ask(call, b"", 0).map(drop)
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix)?;
        let call = Call::Settle {
            prefix: prefix.to_owned(),
        };
        self.ask(call, b"", 0).map(drop)
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        let call = Call::Lease {
            key: key.to_owned(),
            take: TakeWord::of(take),
        };
        let (id, answer, _) = self.link.call(call, body, 0)?;
        let CallAnswer::Leased(word) = answer else {
            return Err(wrong_answer(&self.link));
        };
        Ok(match word {
            LeasedWord::Held => Leased::Held,
            LeasedWord::Absent => Leased::Absent,
            LeasedWord::Unknown => Leased::Unknown,
            LeasedWord::Ours => {
                self.link.calls.hold_lease(id, key);
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

    fn end(&mut self, call: Call) -> Result<(CallAnswer, Vec<u8>)> {
        self.is_open = false;
        let link = &self.objects.link;
        let ended = link.call(call, b"", (self.parts() + 1) * CHECKSUM_BYTES);
        link.calls.forget_upload(self.id);
        ended.map(|(_, answer, data)| (answer, data))
    }
}

impl Upload for WireUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let link = &self.objects.link;
        let upload = self.id;
        for part in bytes.chunks(MAX_DATA) {
            link.calls.take_credit(upload, append_cost(part.len()))?;
            link.send_or_end(&Message::Append { upload }, part);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.objects.abilities().amends {
            let what = format!("cannot amend {}", self.objects.describe(&self.key));
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        amended_range(offset, bytes.len(), self.bytes)?;
        let call = Call::Amend {
            upload: self.id,
            offset,
        };
        self.objects.ask(call, bytes, 0).map(drop)
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        let upload = self.id;
        let (answer, data) = self.end(Call::Finish { upload })?;
        let parts: Vec<u64> = decode(&data, self.parts() as usize + 1)?;
        let is_whole = parts.len() as u64 == self.parts();
        match answer {
            CallAnswer::Finished(bytes) if is_whole && bytes == self.bytes => {
                Ok(StoredObject { bytes, parts })
            }
            _ => Err(wrong_answer(&self.objects.link)),
        }
    }

    fn abort(self: Box<Self>) {}
}

impl Drop for WireUpload {
    fn drop(&mut self) {
        if self.is_open {
            let upload = self.id;
            let _ = self.end(Call::Abort { upload }); // if it cannot be told, the connection has ended, and the upload with it
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
            .ask(Call::UpdateLease { lease: self.id }, body, 0)
            .map(drop)
    }

    fn is_ours(&self) -> bool {
        self.objects.link.calls.has_lease(self.id)
    }
}

impl Drop for WireLease {
    fn drop(&mut self) {
        // The other side has let go of it with the intent.
        if !self.objects.link.calls.forget_lease(self.id) {
            return;
        }
        // If it cannot be told, the connection has ended, and the lease with it.
        let _ = self.objects.ask(Call::DropLease { lease: self.id }, b"", 0);
    }
}
