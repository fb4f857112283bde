//! The memory that a question takes where it is answered: counted before anything of it is decoded.

use super::words::MAX_VALUES;
use fullbore_format::cbor::count_values;
use minicbor::{Decoder, decode::Error};

/// Bytes of a buffer at most: the largest frame of a backup that reads another host, and 64 KiB.
pub(super) const MAX_CAPACITY: u32 = MAX_FRAME_BYTES + (64 << 10);

/// Bytes of the largest frame of a backup that reads another host.
pub const MAX_FRAME_BYTES: u32 = 16 << 20;

/// Bytes of a part of a frame, as it is sent, without its path.
pub(super) const PART_BYTES: usize = 128;

/// Bytes that a value takes: an entry has 25 of them, and is kept as words, as an entry, and as a part of the frame and of the answer.
const VALUE_BYTES: usize = 64;

/// Bytes of the entries of a scan, as they are listed and as they are sent.
const SCAN_BYTES: usize = 2 << 20;

/// Bytes of memory that a question takes, until its answer is sent.
pub fn question_room(question: &[u8]) -> usize {
    let values = count_values(question, MAX_VALUES).unwrap_or(0); // it will be refused
    let frame = match read_capacity(question) {
        Ok(capacity) => 2 * capacity.min(MAX_CAPACITY) as usize,
        Err(_) => SCAN_BYTES,
    };
    values * VALUE_BYTES + frame
}

/// The third value of `[2, [source, capacity, slice]]`.
fn read_capacity(question: &[u8]) -> Result<u32, Error> {
    let mut decoder = Decoder::new(question);
    decoder.array()?;
    match decoder.u32()? {
        2 => {
            decoder.array()?;
            decoder.u32()?;
            decoder.u32()
        }
        _ => Err(Error::message("it reads nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{SliceWords, SourceQuestion, words::encoded},
        *,
    };

    #[test]
    fn a_question_takes_room_by_its_frame_and_its_values() {
        let read = |capacity| {
            let slice = SliceWords::Members(Vec::new(), None);
            question_room(&encoded(&SourceQuestion::Read(3, capacity, slice)))
        };
        assert!((2 << 20..3 << 20).contains(&read(1 << 20)));
        assert_eq!(read(1 << 21) - read(1 << 20), 2 << 20);
        assert_eq!(read(u32::MAX), read(MAX_CAPACITY));
        let scan = question_room(&encoded(&SourceQuestion::Scan(0)));
        assert!((SCAN_BYTES..2 * SCAN_BYTES).contains(&scan));
        let many = vec![0x60; 100_000];
        assert_eq!(question_room(&many), SCAN_BYTES + 100_000 * VALUE_BYTES);
    }
}
