//! One part of a backup on tapes, open for reading.

use super::reader::TapeReader;
use fullbore_crypt::{KIND_BYTES, PositionalBytes, SealedFile, is_sealed};
use fullbore_format::{
    error::{Error, Result},
    root::TapePlace,
    segment::Label,
    segment_reader::SegmentReader,
    sizes,
};
use fullbore_storage::Storages;
use std::{io, sync::Arc};

/// The records of a part.
pub(super) struct PartBytes {
    reader: Arc<TapeReader>,
    /// Id of the backup.
    set: String,
    place: TapePlace,
}

impl PositionalBytes for PartBytes {
    fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        self.reader
            .read_at((&self.set, &self.place), offset, len, out)
    }
}

/// A part, opened if it is encrypted.
pub(super) struct Part {
    name: String,
    content: PartContent,
    /// Bytes after opening.
    pub(super) bytes: u64,
}

enum PartContent {
    Clear(PartBytes),
    Sealed(Box<SealedFile<PartBytes>>),
}

impl Part {
    /// Opens the part of backup `set` at a place; messages call it `name`.
    ///
    /// # Errors
    /// Those of reading its begin, unless the place has it; those of keys.
    pub(super) fn open(
        storages: &Storages,
        reader: &Arc<TapeReader>,
        set: &str,
        place: TapePlace,
        name: &str,
    ) -> Result<Self> {
        let stored_bytes = sizes::sum(place.extents.iter().map(|extent| extent.bytes));
        let known = bytes_of(&place.header);
        let records = PartBytes {
            reader: reader.clone(),
            set: set.to_owned(),
            place,
        };
        let mut head = Vec::new();
        let kind = match known.get(..KIND_BYTES) {
            Some(kind) => kind,
            None => {
                let len = stored_bytes.min(KIND_BYTES as u64) as usize;
                let read = records.read_at(0, len, &mut head);
                read.map_err(|error| failed(name, error))?;
                &head[..]
            }
        };
        if !is_sealed(kind) {
            return Ok(Self {
                name: name.to_owned(),
                content: PartContent::Clear(records),
                bytes: stored_bytes,
            });
        }
        let keys = storages.archive_keys(kind, name)?;
        let sealed = if known.is_empty() {
            SealedFile::open(records, stored_bytes, &keys, name)?
        } else {
            SealedFile::open_with_header(records, &known, stored_bytes, &keys, name)?
        };
        Ok(Self {
            name: name.to_owned(),
            bytes: sealed.plain_bytes(),
            content: PartContent::Sealed(sealed.into()),
        })
    }

    /// Returns whether the part is encrypted.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(self.content, PartContent::Sealed(_))
    }

    /// Replaces the contents of `out` by `len` bytes at `offset`.
    ///
    /// # Errors
    /// [`fullbore_format::error::ErrorKind::Corrupt`] if it ends before or is damaged, `NotFound` if a tape does not come; those of the drive.
    pub(super) fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        // Before memory is taken: the length comes from a page.
        if offset.saturating_add(len as u64) > self.bytes {
            return Err(failed(&self.name, io::ErrorKind::UnexpectedEof.into()));
        }
        match &self.content {
            PartContent::Clear(records) => {
                let read = records.read_at(offset, len, out);
                read.map_err(|error| failed(&self.name, error))
            }
            PartContent::Sealed(sealed) => sealed.read_at(offset, len, out),
        }
    }

    /// Returns a reader of its frames.
    pub(super) fn reader(
        &self,
    ) -> SegmentReader<impl Fn(u64, usize, &mut Vec<u8>) -> Result<()> + '_> {
        SegmentReader::new(self.bytes, |offset, len, out: &mut Vec<u8>| {
            self.read_at(offset, len, out)
        })
    }

    /// Returns the label behind the empty first frame.
    ///
    /// # Errors
    /// `Corrupt` if there is none; those of reading.
    pub(super) fn label(&self) -> Result<Label> {
        self.reader().label()?.ok_or_else(|| {
            Error::corrupt(format!("{} is no part of a backup", self.name))
                .because("it does not begin with a label")
        })
    }
}

fn failed(name: &str, error: io::Error) -> Error {
    let message = format!("could not read {name}");
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::corrupt(message).because("it ends too early"),
        io::ErrorKind::InvalidData => Error::corrupt(message).because(error),
        _ => Error::io(message, error),
    }
}

/// Returns the bytes of hexadecimal digits; none if they are no digits.
fn bytes_of(digits: &str) -> Vec<u8> {
    let pair = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok()
    };
    let bytes: Option<Vec<_>> = digits.as_bytes().chunks(2).map(pair).collect();
    bytes.unwrap_or_default()
}
