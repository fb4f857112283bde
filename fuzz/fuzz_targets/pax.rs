//! Any bytes are read as a tar without harm, and what was read is written and read back as the same.
//!
//! Checksums are put right first: a fuzzer does not find them.
#![no_main]

use fullbore_format::{
    entry::{Entry, EntryKind, is_safe},
    pax::{BLOCK, PaxReader, TarItem, skip, storable_map, write_header},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    bytes.chunks_exact_mut(BLOCK).for_each(seal);
    let (mut reader, mut input) = (PaxReader::new(), &bytes[..]);
    while let Ok(Some(found)) = reader.next(&mut input) {
        let len = match found {
            TarItem::Member(member) => {
                let data_len = member.entry.data_len();
                assert!(
                    data_len == member.stored_len
                        || !matches!(member.entry.kind, EntryKind::File { .. })
                );
                comes_back(member.entry);
                member.stored_len
            }
            TarItem::Outside(unknown) | TarItem::Unknown(unknown) => unknown.stored_len,
        };
        if skip(&mut input, len).is_err() {
            return;
        }
    }
});

/// Put the checksum of a block right, if it looks like a header at all.
fn seal(block: &mut [u8]) {
    if block[257..262] == *b"ustar" {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn comes_back(mut entry: Entry) {
    assert!(is_safe(&entry.path));
    entry.ctime = Default::default();
    if let EntryKind::File { size, map } = &mut entry.kind {
        *map = map.take().and_then(|map| storable_map(map, *size));
    }
    let mut header = Vec::new();
    if write_header(&entry, &mut header).is_err() {
        return;
    }
    match PaxReader::new().next(&mut &header[..]) {
        Ok(Some(TarItem::Member(member))) => assert_eq!(member.entry, entry),
        other => panic!("{other:?}"),
    }
}
