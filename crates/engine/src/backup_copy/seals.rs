//! Copies between repositories of which one or both are encrypted.
//!
//! The checksums of segments in a root are over bytes as stored. So a copy that opens and seals objects gives the root new ones.
//! Objects that the destination had already are read for that.

use super::tasks::{CopyTask, PartSum, with_gaps};
use fullbore_format::{
    digest::Crc64,
    error::{Error, ErrorKind, Result},
    layout::{FORGOTTEN, MANIFEST, segment},
    root::{PART_BYTES, Root},
    seal::seal,
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::queue::Locked;
use fullbore_repository::{archive::object::Sealing, import::IncomingBackup, roots};
use fullbore_storage::{Objects, PutIf, Upload, keys};
use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex},
};

/// The form in which an object is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyWay {
    /// The bytes that are stored: of clear repositories, and of encrypted ones with the same keys.
    AsStored,
    /// The bytes that a key opens, which are stored anew.
    Resealed,
}

impl CopyWay {
    /// Chooses the way of backups that are read from `from`, and returns the destination. A new destination gets the keys of an
    /// encrypted repository that is copied without one.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if a key is missing, [`ErrorKind::Usage`] if the two have different keys and none was given.
    pub(super) fn choose(
        from: &Arc<dyn Objects>,
        to: &Arc<dyn Objects>,
    ) -> Result<(Self, Arc<dyn Objects>)> {
        let cannot = |kind, why: &str| {
            let message = format!("cannot copy {} to {}", from.describe(""), to.describe(""));
            Error::new(kind, message).because(why.to_owned())
        };
        match (Sealing::of(&**from), Sealing::of(&**to)) {
            (Sealing::Clear, Sealing::Clear) => Ok((Self::AsStored, to.clone())),
            (Sealing::Locked, _) => {
                // Bytes that cannot be read here are copied as they are: both sides need the same keys.
                match keys::share_keys(&**from, to)? {
                    Some(to) => Ok((Self::AsStored, to)),
                    None => Err(cannot(
                        ErrorKind::Permission,
                        "it is encrypted, no key was given that reads it, and the destination has not the same keys",
                    )
                    .hint("give a key that reads it (--key FILE), or copy to a new repository, which gets the same keys")),
                }
            }
            (_, Sealing::Locked) => Err(cannot(
                ErrorKind::Permission,
                "the destination is encrypted, and no key was given that reads it",
            )
            .hint("give a key of the destination too: --key can be repeated")),
            _ => Ok((Self::Resealed, to.clone())),
        }
    }

    /// Makes a task one of stored bytes, or drops checksums that are of none of the bytes that are read.
    pub(super) fn fit(self, task: &mut CopyTask, sealing: Sealing) {
        task.needed_bytes = task.min_bytes();
        if sealing == Sealing::Clear {
            return;
        }
        // Bytes that a key opens are authentic: no checksum is needed.
        let is_segment = task.name != MANIFEST;
        match self {
            Self::Resealed if is_segment => task.sums = with_gaps(Vec::new(), task.bytes),
            Self::Resealed => {}
            Self::AsStored => {
                let bytes = sealing.stored_bytes(task.bytes);
                let known = task.sums.drain(..).filter(|_| is_segment);
                let digits = known.filter_map(|(_, _, sum)| match sum {
                    PartSum::Crc64(digits) => Some(digits),
                    _ => None,
                });
                let parts = digits.zip((0..bytes).step_by(PART_BYTES as usize));
                let pieces = parts.map(|(digits, start)| {
                    let len = PART_BYTES.min(bytes - start);
                    (start, len, PartSum::Crc64(digits))
                });
                task.sums = with_gaps(pieces.collect(), bytes);
                task.bytes = bytes;
                task.is_opaque = true;
            }
        }
    }

    /// Begins the copy of an object.
    pub(super) fn create(
        self,
        incoming: &IncomingBackup,
        task: &CopyTask,
    ) -> Result<Box<dyn Upload>> {
        match self {
            Self::AsStored => incoming.create_stored(&task.backup, &task.name),
            Self::Resealed => incoming.create(&task.backup, &task.name),
        }
    }

    /// The length of an object that the destination has.
    pub(super) fn len_there(
        self,
        incoming: &IncomingBackup,
        task: &CopyTask,
    ) -> Result<Option<u64>> {
        match self {
            Self::AsStored => incoming.stored_len(&task.backup, &task.name),
            Self::Resealed => incoming.len(&task.backup, &task.name),
        }
    }

    /// A root for the time until all is copied: without checksums, if they will be others.
    pub(super) fn draft_of(self, root: Cow<'_, [u8]>) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::AsStored => Ok(root),
            Self::Resealed => {
                let mut draft = Root::open_as_stored(&root, "a root")?;
                draft.segments.iter_mut().for_each(|own| own.parts.clear());
                Ok(seal(&draft)?.into())
            }
        }
    }
}

/// Checksums of segments as the destination stores them, by backup and name.
#[derive(Debug, Default)]
pub(super) struct CopiedSums(Mutex<HashMap<(String, String), String>>);

impl CopiedSums {
    /// Notes an object that was uploaded.
    pub(super) fn note(&self, task: &CopyTask, parts: &[u64]) {
        let digits: String = parts.iter().map(|part| format!("{part:016x}")).collect();
        self.0
            .locked()
            .insert((task.backup.clone(), task.name.clone()), digits);
    }

    /// Reads a segment that the destination had, and notes its checksums.
    pub(super) fn note_there(
        &self,
        incoming: &IncomingBackup,
        buf: &mut Vec<u8>,
        task: &CopyTask,
    ) -> Result<()> {
        let object = (&task.backup[..], &task.name[..]);
        let len = incoming.stored_len(object.0, object.1)?.unwrap_or(0);
        let mut parts = Vec::new();
        for start in (0..len).step_by(PART_BYTES as usize) {
            let mut crc = Crc64::default();
            let part = PART_BYTES.min(len - start) as usize;
            incoming.read_stored_at(object, start, part, buf)?;
            crc.update(buf);
            parts.push(crc.value().0);
        }
        self.note(task, &parts);
        Ok(())
    }

    /// The final root. Documents of forgotten backups get what is known now of their segments.
    pub(super) fn complete(
        &self,
        way: CopyWay,
        root: &[u8],
        others: &[(&str, &[u8])],
        to: &dyn Objects,
    ) -> Result<Vec<u8>> {
        if way == CopyWay::AsStored {
            return Ok(root.to_vec());
        }
        for (id, _) in others {
            self.complete_forgotten(id, to)?;
        }
        let mut root = Root::open_as_stored(root, "a root")?;
        self.correct(&mut root)?;
        seal(&root)
    }

    fn complete_forgotten(&self, id: &str, to: &dyn Objects) -> Result<()> {
        let key = roots::key(id, FORGOTTEN);
        let Some((bytes, _)) = to.get(&key)? else {
            return Ok(());
        };
        let name = to.describe(&key);
        let mut root = Root::open_as_stored(&bytes, &name)?;
        let unchanged = root.clone();
        self.correct(&mut root)?;
        if root == unchanged {
            return Ok(());
        }
        to.put(&key, &seal(&root)?, &PutIf::Always).map(drop)
    }

    fn correct(&self, root: &mut Root) -> Result<()> {
        let suffix = Codec::named(&root.options.codec)?.suffix();
        let known = self.0.locked();
        for own in &mut root.segments {
            let name = segment(own.stream, own.number, suffix);
            if let Some(parts) = known.get(&(root.id.clone(), name)) {
                own.parts.clone_from(parts);
            }
        }
        Ok(())
    }
}
