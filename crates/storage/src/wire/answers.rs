//! Answers that are read from the storage. A worker waits for room before it reads, so a side that takes no answers
//! holds little memory here, and it is given up when it takes none for too long.

use super::server::{ServedAnswer, Server};
use crate::Objects;
use fullbore_format::{
    error::{Error, Result},
    seal::MAX_BYTES,
};
use fullbore_platform::queue::Locked;
use fullbore_wire::key::check_key;
use fullbore_wire::{
    frame::MAX_DATA,
    listing::{MAX_OBJECTS, pages, too_many},
    message::Message,
    object_call::ObjectAnswer,
};

/// Bytes that are read from the storage at once for one answer.
const READ_PIECE: u64 = 4 << 20;

impl Server {
    /// Sends all but the last page of a listing; the answer takes that.
    pub(super) fn list(&self, id: u64, prefix: &str) -> Result<ServedAnswer<'_>> {
        let objects = self.objects()?;
        let _alone = self.listing.locked();
        let listed = objects.list(prefix)?;
        if listed.len() > MAX_OBJECTS {
            return Err(too_many(&objects.describe(prefix)));
        }
        let mut answer = ServedAnswer::bytes(Vec::new());
        for page in pages(&listed) {
            if !answer.data.is_empty() {
                self.line
                    .send_or_end(&Message::AnswerPart { id }, &answer.data);
            }
            if let Some(error) = self.line.ended() {
                return Err(error);
            }
            answer.data = page;
        }
        Ok(answer)
    }

    /// Returns a small object, as a whole.
    pub(super) fn get(&self, key: &str) -> Result<ServedAnswer<'_>> {
        let objects = self.objects()?;
        let Some(bytes) = objects.stat(key)? else {
            return Ok(ServedAnswer::of_objects(&ObjectAnswer::Got(None)));
        };
        self.whole.check_read(&*objects, key, bytes)?;
        // A longer one is refused by the storage.
        let room = self.answer_room(bytes.min(MAX_BYTES) as usize);
        let Some((data, version)) = objects.get(key)? else {
            return Ok(ServedAnswer::of_objects(&ObjectAnswer::Got(None)));
        };
        let got = ObjectAnswer::Got(Some(version.as_str().to_owned()));
        Ok(ServedAnswer {
            data,
            room: Some(room),
            ..ServedAnswer::of_objects(&got)
        })
    }

    /// Sends all but the last piece of a range; the answer takes that.
    pub(super) fn read(
        &self,
        id: u64,
        key: &str,
        mut offset: u64,
        mut len: u64,
    ) -> Result<ServedAnswer<'_>> {
        let objects = self.objects()?;
        if len > READ_PIECE {
            check_range(&*objects, key, offset, len)?;
        }
        let mut piece = Vec::new();
        loop {
            let piece_bytes = len.min(READ_PIECE);
            let room = self.answer_room(piece_bytes as usize);
            if let Some(error) = self.line.ended() {
                return Err(error);
            }
            objects.read_at(key, offset, piece_bytes as usize, &mut piece)?;
            if piece_bytes == len {
                return Ok(ServedAnswer {
                    room: Some(room),
                    ..ServedAnswer::bytes(piece)
                });
            }
            for part in piece.chunks(MAX_DATA) {
                self.line.send_or_end(&Message::AnswerPart { id }, part);
            }
            offset += piece_bytes;
            len -= piece_bytes;
            // Whoever has room must not wait for more.
            piece = Vec::new();
            drop(room);
        }
    }
}

/// Refuses a range that is longer than its object: damage may claim any length.
fn check_range(objects: &dyn Objects, key: &str, offset: u64, len: u64) -> Result<()> {
    check_key(key)?;
    let Some(bytes) = objects.stat(key)? else {
        return Ok(()); // the read says so
    };
    if offset.checked_add(len).is_some_and(|end| end <= bytes) {
        return Ok(());
    }
    let name = objects.describe(key);
    let message = format!("could not read {len} bytes at byte {offset} of {name}");
    Err(Error::corrupt(message).because("it ends too early"))
}
