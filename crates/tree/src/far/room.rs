//! The memory that a question takes where it is answered: counted before anything of it is decoded.

use super::{listed::MAX_PAGE_BYTES, words::MAX_VALUES};
use fullbore_format::{cbor::count_values, page::plain_bytes};
use minicbor::{Decoder, decode::Error};

/// Bytes of a buffer at most: the largest frame of a backup that reads another host, and 64 KiB.
pub(super) const MAX_CAPACITY: u32 = MAX_FRAME_BYTES + (64 << 10);

/// Bytes of the largest frame of a backup that reads another host.
pub const MAX_FRAME_BYTES: u32 = 16 << 20;

/// Bytes that a value of a question takes. An entry has six values or more beside its page.
const VALUE_BYTES: usize = 64;

/// Bytes that a byte of a page takes: as a column, as an entry, and as a part of the frame and of the
/// answer. An attribute without content has 4 bytes, and takes 104.
const PAGE_TIMES: usize = 32;

/// Bytes of the entries of a scan, as they are listed and as they are sent.
const SCAN_BYTES: usize = 2 << 20;

/// Bytes of memory that a question takes, until its answer is sent.
pub fn question_room(question: &[u8]) -> usize {
    let values = count_values(question, MAX_VALUES).unwrap_or(0); // it will be refused
    values * VALUE_BYTES + read_room(question).unwrap_or(SCAN_BYTES)
}

/// Bytes of the frame and of the entries of `[2, [source, capacity, slice]]`.
fn read_room(question: &[u8]) -> Result<usize, Error> {
    let mut decoder = Decoder::new(question);
    decoder.array()?;
    if decoder.u32()? != 2 {
        return Err(Error::message("it reads nothing"));
    }
    decoder.array()?;
    decoder.u32()?;
    let capacity = decoder.u32()?;
    let page = read_page(&mut decoder).unwrap_or_default(); // a piece has none
    let page_bytes = plain_bytes(page).unwrap_or(0).min(MAX_PAGE_BYTES);
    Ok(2 * capacity.min(MAX_CAPACITY) as usize + page_bytes * PAGE_TIMES)
}

/// The page of the slice `[0, [[page, facts], large]]`.
fn read_page<'q>(decoder: &mut Decoder<'q>) -> Result<&'q [u8], Error> {
    decoder.array()?;
    if decoder.u32()? != 0 {
        return Err(Error::message("it has no members"));
    }
    decoder.array()?;
    decoder.array()?;
    decoder.bytes()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            question::{SliceWords, SourceQuestion},
            words::encoded,
        },
        *,
    };
    use fullbore_format::entry::Entry;
    use fullbore_pipeline::frame::Scanned;

    #[test]
    fn a_question_takes_room_by_its_frame_and_its_values() {
        let read = |capacity| {
            let slice = SliceWords::of_members(&[], None).unwrap();
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

    #[test]
    fn a_page_takes_room_by_its_bytes_before_compression() {
        let listed: Vec<Scanned> = (0..1000)
            .map(|number| {
                let path = format!("a-long-name-of-a-directory/{number:04}").into_bytes();
                Scanned::new(
                    Entry {
                        path,
                        ..Entry::default()
                    },
                    Default::default(),
                )
            })
            .collect();
        let slice = SliceWords::of_members(&listed, None).unwrap();
        let question = encoded(&SourceQuestion::Read(0, 0, slice));
        assert!(question.len() < 20_000, "{}", question.len());
        assert!(question_room(&question) > 40_000 * PAGE_TIMES);
    }
}
