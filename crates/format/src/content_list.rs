//! The list of contents of a backup: which digests the files in its pages have.
//!
//! By it a backup of another source finds content that is stored already. It is a hint and no more: a reader compares the record in the
//! page, and where the author of the page is not trusted, the content. So the list has no checksum; it may be lost, old or wrong.
//!
//! Behind [`MAGIC`] stands a group for each page: its offset in the manifest, the count of its files, and of each file the first bytes
//! of its digest, its size and the number of its record.

use super::{
    digest::Digest,
    page::{EntryState, ManifestPage, Record},
};

/// The first bytes of a list.
pub const MAGIC: &[u8; 8] = b"FBCONT_1";

/// Bytes of the smallest file that is listed. For a file of a few bytes, the header in the tar that is saved has more than the list.
pub const LEAST_BYTES: u64 = 1;

/// Files of a page at most: the number of a record has two bytes.
const MAX_FILES: usize = 1 << 16;

const HEADER_BYTES: usize = 12;
const FILE_BYTES: usize = 16;
/// Bytes of a size. Larger files are not listed.
const SIZE_BYTES: usize = 6;

/// A file in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedContent {
    /// The offset in the manifest of the page that has its record.
    pub page: u64,
    /// The number of the record in its page.
    pub record: u16,
    /// The first bytes of the digest.
    pub digest: u64,
    /// Bytes of the file.
    pub size: u64,
}

/// Returns the first bytes of a digest, as a list has them; `None` of a digest that is no proof of equal content.
pub fn short_digest(digest: &Digest) -> Option<u64> {
    let Digest::Blake3(bytes) = digest else {
        return None;
    };
    let first = bytes.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*first))
}

/// Returns the group of a page at this offset of the manifest; nothing if no file of it is listed.
pub fn encode_page(page: &ManifestPage, offset: u64) -> Vec<u8> {
    let files: Vec<[u8; FILE_BYTES]> = { page.records.iter().enumerate() }
        .take(MAX_FILES)
        .filter_map(|(number, record)| encode_file(record, number as u16))
        .collect();
    if files.is_empty() {
        return Vec::new();
    }
    let mut group = offset.to_le_bytes().to_vec();
    group.extend((files.len() as u32).to_le_bytes());
    group.extend(files.as_flattened());
    group
}

/// Returns a listed file. Of a file that goes on over pages, the first part is listed, without its digest.
fn encode_file(record: &Record, number: u16) -> Option<[u8; FILE_BYTES]> {
    let size = record.entry.size();
    let is_whole = record.entry.is_file() && record.state == EntryState::Whole;
    let is_listed = size >= LEAST_BYTES && size >> (8 * SIZE_BYTES) == 0;
    if !is_whole || !is_listed || record.entry.is_sparse() || record.from > 0 {
        return None;
    }
    let digest = match record.more {
        true => 0,
        false => short_digest(record.digest.as_ref()?)?,
    };
    let mut file = [0; FILE_BYTES];
    file[..8].copy_from_slice(&digest.to_le_bytes());
    file[8..14].copy_from_slice(&size.to_le_bytes()[..SIZE_BYTES]);
    file[14..].copy_from_slice(&number.to_le_bytes());
    Some(file)
}

/// Reads a list that comes in pieces of any length. Memory: what is left of the last piece.
#[derive(Debug, Default)]
pub struct ContentListReader {
    /// Bytes that are no whole element yet.
    rest: Vec<u8>,
    /// Whether the first bytes were read, and were right.
    has_begun: bool,
    /// The offset of the open page, and its files that are still to come.
    page: u64,
    left: u32,
}

impl ContentListReader {
    /// Takes the next bytes, and calls `each` for the files in them. Returns false if these bytes are no list.
    pub fn add(&mut self, bytes: &[u8], mut each: impl FnMut(ListedContent)) -> bool {
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut left = &rest[..];
        if !self.has_begun {
            let Some((magic, behind)) = left.split_first_chunk::<8>() else {
                self.rest = rest;
                return true;
            };
            if magic != MAGIC {
                return false;
            }
            self.has_begun = true;
            left = behind;
        }
        loop {
            if self.left == 0 {
                let Some((header, behind)) = left.split_first_chunk::<HEADER_BYTES>() else {
                    break;
                };
                self.page = number(&header[..8]);
                self.left = number(&header[8..]) as u32;
                if self.left as usize > MAX_FILES {
                    return false;
                }
                left = behind;
                continue;
            }
            let Some((file, behind)) = left.split_first_chunk::<FILE_BYTES>() else {
                break;
            };
            each(ListedContent {
                page: self.page,
                digest: number(&file[..8]),
                size: number(&file[8..14]),
                record: number(&file[14..]) as u16,
            });
            self.left -= 1;
            left = behind;
        }
        self.rest = left.to_vec();
        true
    }
}

fn number(bytes: &[u8]) -> u64 {
    { bytes.iter().rev() }.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, EntryKind};
    use proptest::prelude::*;

    fn record(size: u64, digest: u8) -> Record {
        Record {
            entry: Entry {
                kind: EntryKind::File { size, map: None },
                ..Entry::default()
            },
            digest: Some(Digest::Blake3([digest; 32])),
            ..Record::default()
        }
    }

    fn read(list: &[u8], piece: usize) -> (bool, Vec<ListedContent>) {
        let mut reader = ContentListReader::default();
        let mut files = Vec::new();
        let is_list =
            { list.chunks(piece.max(1)) }.all(|piece| reader.add(piece, |file| files.push(file)));
        (is_list, files)
    }

    #[test]
    fn files_come_back_whatever_the_pieces() {
        let mut page = ManifestPage {
            records: vec![record(0, 1), record(5000, 2), record(1 << 41, 3)],
            ..ManifestPage::default()
        };
        page.records.push(Record {
            state: EntryState::Changed,
            ..record(9999, 4)
        });
        page.records.push(Record {
            more: true,
            ..record(1 << 30, 5)
        });
        let mut list = MAGIC.to_vec();
        list.extend(encode_page(&page, 77));
        page.records.truncate(1);
        list.extend(encode_page(&page, 88));
        page.records.push(record(1024, 6));
        list.extend(encode_page(&page, 1 << 40));
        let file = |page, record, digest: u8, size| ListedContent {
            page,
            record,
            digest: u64::from_le_bytes([digest; 8]),
            size,
        };
        let wanted = [
            file(77, 1, 2, 5000),
            file(77, 2, 3, 1 << 41),
            file(77, 4, 0, 1 << 30),
            file(1 << 40, 1, 6, 1024),
        ];
        for piece in [1, 7, 16, 1000] {
            assert_eq!(read(&list, piece), (true, wanted.to_vec()), "{piece}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_in_bounds(bytes in prop::collection::vec(any::<u8>(), 0..200), piece in 1usize..50, begins: bool) {
            let mut list = if begins { MAGIC.to_vec() } else { Vec::new() };
            list.extend(&bytes);
            let (_, files) = read(&list, piece);
            prop_assert!(files.len() * FILE_BYTES <= list.len());
        }
    }
}
