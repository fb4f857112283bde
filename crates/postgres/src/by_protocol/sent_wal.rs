//! The WAL as it is sent, searched for databases that the server copied file by file.
//!
//! Segments are kept in a temporary file until all their records were read: mostly two at a time.

use crate::{
    file_copies::{Copies, FileCopies},
    lsn::Lsn,
    wal_reader::{SegmentFiles, WalSegments},
};
use fullbore_format::error::{Error, Result};
use fullbore_platform as platform;
use fullbore_platform::write::{self, anonymous_file};
use std::{collections::BTreeMap, fs::File, io, os::unix::fs::FileExt};

/// The OID of template1, and from version 15 on that of template0.
const TEMPLATE1: u32 = 1;
const TEMPLATE0: u32 = 4;
const TEMPLATE0_SINCE: u32 = 15;

/// The WAL from the start of the backup on.
pub(super) struct SentWal {
    /// Number of the first segment.
    first: u64,
    bytes: u64,
    /// `None` if the WAL is not understood.
    copies: Option<Copies>,
    /// The names of the segments that have arrived, from the first one on.
    names: Vec<Vec<String>>,
    kept: KeptSegments,
}

/// Segments in a temporary file, by name: each has a slot in it.
#[derive(Default)]
struct KeptSegments {
    bytes: u64,
    file: Option<File>,
    slots: BTreeMap<String, u64>,
    free: Vec<u64>,
}

impl SentWal {
    pub(super) fn new(start: Lsn, bytes: u64) -> Self {
        Self {
            first: start.0 / bytes,
            bytes,
            copies: Some(Copies::since(start)),
            names: Vec::new(),
            kept: KeptSegments {
                bytes,
                ..KeptSegments::default()
            },
        }
    }

    /// Adds content of a segment. Segments arrive one after the other.
    ///
    /// # Errors
    /// The system's, about the temporary file.
    pub(super) fn add(&mut self, name: &str, offset: u64, content: &[u8]) -> Result<()> {
        let Some(number) = segment_number(name, self.bytes) else {
            return Ok(());
        };
        if !self.kept.slots.contains_key(name) && !self.begin(name, number) {
            return Ok(());
        }
        let hint = "TMPDIR names another directory for temporary files";
        self.kept
            .write(name, offset, content)
            .map_err(|error| Error::io("could not write WAL to a temporary file", error).hint(hint))
    }

    /// Begins a segment. Returns false for one that is not the next.
    fn begin(&mut self, name: &str, number: u64) -> bool {
        let next = self.first + self.names.len() as u64;
        if number == next {
            self.read(Lsn(next * self.bytes));
            self.drop_read();
            self.names.push(vec![name.to_owned()]);
        } else if number + 1 == next
            && let Some(same) = self.names.last_mut()
        {
            same.insert(0, name.to_owned()); // of a later timeline
        } else {
            return false;
        }
        self.kept.begin(name);
        true
    }

    /// Returns a database that was copied until `stop` in a way that recovery may not be able to redo.
    /// Recovery can redo a copy of a template. `None` if there is none, or if the WAL is not understood.
    pub(super) fn spoiled_copy(&mut self, stop: Lsn, major: u32) -> Option<FileCopies> {
        self.read(stop);
        let is_template = |oid| oid == TEMPLATE1 || oid == TEMPLATE0 && major >= TEMPLATE0_SINCE;
        let found = self.copies.as_ref()?.found().iter().copied();
        let mut spoiled =
            found.filter(|copy| copy.from == copy.database || !is_template(copy.from));
        spoiled.next()
    }

    /// Returns whether the WAL was read and understood.
    pub(super) fn is_understood(&self) -> bool {
        self.copies.is_some()
    }

    fn read(&mut self, end: Lsn) {
        let segments = WalSegments {
            files: &self.kept,
            names: &self.names,
            bytes: self.bytes,
        };
        let read = self
            .copies
            .as_mut()
            .map(|copies| copies.read(&segments, end));
        if let Some(Err(error)) = read {
            platform::debug(|| format!("could not search the WAL for copied databases: {error}"));
            self.copies = None;
        }
    }

    /// Drops the segments all of whose records were read.
    fn drop_read(&mut self) {
        let offset = self
            .copies
            .as_ref()
            .map_or(u64::MAX, |copies| copies.at().0 / self.bytes);
        let done = offset
            .saturating_sub(self.first)
            .min(self.names.len() as u64);
        for name in self.names[..done as usize].iter().flatten() {
            self.kept.free.extend(self.kept.slots.remove(name));
        }
    }
}

impl KeptSegments {
    fn begin(&mut self, name: &str) {
        let unused = (self.slots.len() + self.free.len()) as u64;
        let slot = self.free.pop().unwrap_or(unused);
        self.slots.insert(name.to_owned(), slot);
    }

    fn write(&mut self, name: &str, offset: u64, content: &[u8]) -> io::Result<()> {
        let place = self.place(name, offset, content.len() as u64)?;
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(anonymous_file(&std::env::temp_dir())?),
        };
        write::pwrite_all(&*file, content, place)
    }

    fn place(&self, name: &str, offset: u64, len: u64) -> io::Result<u64> {
        let slot = self.slots.get(name).ok_or(io::ErrorKind::NotFound)?;
        let end = offset.checked_add(len);
        let is_inside = end.is_some_and(|end| end <= self.bytes);
        match is_inside {
            true => Ok(slot * self.bytes + offset),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl SegmentFiles for KeptSegments {
    fn read_segment(&self, name: &str, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let place = self.place(name, offset, len)?;
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, place)?;
        Ok(bytes)
    }
}

/// Returns the number of the segment of this name; `None` for other files.
fn segment_number(name: &str, bytes: u64) -> Option<u64> {
    if name.len() != 24 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let high = u64::from_str_radix(&name[8..16], 16).ok()?;
    let low = u64::from_str_radix(&name[16..], 16).ok()?;
    Some(high * ((1 << 32) / bytes) + low)
}
