//! The thread that stores one stream in one repository.

use super::stream::{FannedStream, Step};
use fullbore_format::error::Result;
use fullbore_pipeline::sink::Sink;
use fullbore_platform::queue::Locked;
use fullbore_repository::writer::{SegmentKey, SegmentWriter};
use fullbore_storage::Objects;
use std::sync::{Arc, Mutex};

pub(super) struct MemberThread {
    pub(super) index: usize,
    pub(super) stream: Arc<FannedStream>,
    pub(super) writer: SegmentWriter,
    /// The storages of all repositories, from which a repository that fell behind reads.
    pub(super) others: Vec<Option<Arc<dyn Objects>>>,
    pub(super) name: SegmentKey,
    /// Bytes that were read from others.
    pub(super) fetched: Arc<Mutex<u64>>,
}

impl MemberThread {
    pub(super) fn run(mut self) {
        let result = self.store();
        let (stream, index) = (self.stream.clone(), self.index);
        // Before others hear of the end: the threads that finish segments end here.
        drop(self);
        stream.over(index, result);
    }

    fn store(&mut self) -> Result<()> {
        loop {
            match self.stream.next(self.index)? {
                Step::Bytes(segment, (place, offset), bytes) => {
                    self.writer.append(segment, offset, &bytes)?;
                    let end = offset + bytes.len() as u64;
                    self.stream.stored_to(self.index, (place, end));
                }
                Step::Fetch {
                    segment,
                    at,
                    bytes,
                    from,
                } => {
                    let key = self.name.of(segment);
                    if let Some(read) = self.fetch(&key, at.1, bytes, from) {
                        self.writer.append(segment, at.1, &read)?;
                        *self.fetched.locked() += bytes;
                        self.stream.stored_to(self.index, (at.0, at.1 + bytes));
                    }
                }
                Step::End(place) => {
                    self.writer.end_segment()?;
                    let stored = self.writer.take_stored();
                    self.stream.ended(self.index, place, stored);
                }
                Step::Sync => {
                    let stored = self.writer.sync()?;
                    self.stream.durable(self.index, stored);
                }
                Step::Done => return Ok(()),
            }
        }
    }

    /// Reads bytes of a segment of another repository; `None` if they cannot be read there.
    fn fetch(&self, key: &str, offset: u64, len: u64, from: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let objects = self.others.get(from)?.as_ref()?;
        let read = objects.read_at(key, offset, len as usize, &mut bytes);
        if read.is_ok() && bytes.len() as u64 == len {
            return Some(bytes);
        }
        // Another one may have it, too.
        self.stream.unreadable(from);
        None
    }
}
