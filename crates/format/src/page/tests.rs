//! Properties of pages with any content: they decode to the same records, and damage is refused.

use crate::{
    entry::{ByteRun, Device, EntryKind, Owner, Time},
    page::*,
};
use proptest::{collection::vec, option, prelude::*};

fn kind() -> impl Strategy<Value = EntryKind> {
    let run = (1u64..1 << 40, 1u64..1 << 40);
    let map = vec(run, 0..4).prop_map(|gaps| {
        let mut end = 0;
        let run = |(gap, len)| {
            let offset = end + gap;
            end = offset + len;
            ByteRun { offset, len }
        };
        gaps.into_iter().map(run).collect::<Vec<_>>()
    });
    let device = (any::<u32>(), any::<u32>()).prop_map(|(major, minor)| Device { major, minor });
    prop_oneof![
        (0..1u64 << 63).prop_map(|size| EntryKind::File { size, map: None }),
        map.prop_map(|map| EntryKind::File {
            size: 1 << 60,
            map: Some(map.into())
        }),
        Just(EntryKind::Directory),
        vec(1u8.., 1..20).prop_map(EntryKind::Symlink),
        "[a-z]{1,9}".prop_map(|name| EntryKind::HardLink(name.into())),
        Just(EntryKind::Fifo),
        device.clone().prop_map(EntryKind::CharDevice),
        device.prop_map(EntryKind::BlockDevice),
        Just(EntryKind::Socket),
    ]
}

fn state() -> impl Strategy<Value = EntryState> {
    let reason = "[ -~]{0,12}".prop_map(EntryState::Unreadable);
    prop_oneof![5 => Just(EntryState::Whole), 1 => Just(EntryState::Changed), 1 => reason, 1 => Just(EntryState::Vanished),
        1 => proptest::collection::vec(any::<u32>(), 1..9).prop_map(EntryState::bad_pages)]
}

fn time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn extent() -> impl Strategy<Value = Extent> {
    (
        0u32..2,
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
    )
        .prop_map(|(segment, offset, stored_len, a, b)| {
            let frame = FrameAt {
                segment,
                offset,
                stored_len,
                plain_len: a.max(b),
            };
            Extent {
                frame,
                inner: a.min(b),
                len: a.max(b) - a.min(b),
            }
        })
}

fn entry() -> impl Strategy<Value = Entry> {
    let owner = (any::<u32>(), any::<u32>(), "[a-z]{0,4}", "[a-z]{0,4}").prop_map(
        |(uid, gid, user, group)| Owner {
            uid,
            gid,
            user: user.into(),
            group: group.into(),
        },
    );
    let xattrs = vec((vec(any::<u8>(), 1..9), vec(any::<u8>(), 0..30)), 0..3);
    (
        kind(),
        0u32..0o10000,
        owner,
        time(),
        time(),
        any::<u64>(),
        xattrs,
    )
        .prop_map(|(kind, mode, owner, mtime, ctime, inode, xattrs)| Entry {
            path: Vec::new(),
            kind,
            mode,
            owner,
            mtime,
            ctime,
            inode,
            xattrs,
        })
}

fn record() -> impl Strategy<Value = Record> {
    let digest = prop_oneof![
        any::<[u8; 32]>().prop_map(Digest::Blake3),
        any::<u32>().prop_map(Digest::Crc32c)
    ];
    let cut = |mut digest: [u8; BLOCK_DIGEST_BYTES]| {
        digest[SHORT_DIGEST_BYTES..].fill(0);
        digest
    };
    let long = || any::<[u8; BLOCK_DIGEST_BYTES]>();
    let blocks = prop_oneof![vec(long(), 0..4), vec(long().prop_map(cut), 0..4)];
    let carried = prop_oneof![4 => Just(0u64), 1 => any::<u64>()];
    let crcs = vec(any::<u32>(), 0..4);
    let chunk = (any::<u32>(), any::<[u8; BLOCK_DIGEST_BYTES]>())
        .prop_map(|(len, digest)| ContentChunk { len, digest });
    let chunks = vec(chunk, 0..4);
    (
        entry(),
        state(),
        option::of(digest),
        (blocks, crcs, chunks),
        vec(extent(), 0..4),
        carried,
    )
        .prop_map(
            |(entry, mut state, digest, (blocks, crcs, chunks), extents, start)| {
                if entry.kind == EntryKind::Socket {
                    state = EntryState::Noted;
                }
                let extents = if matches!(entry.kind, EntryKind::File { .. }) {
                    extents
                } else {
                    Vec::new()
                };
                Record {
                    entry,
                    state,
                    digest,
                    blocks,
                    crcs,
                    chunks,
                    extents,
                    from: start,
                    more: false,
                }
            },
        )
}

fn page() -> impl Strategy<Value = ManifestPage> {
    (vec(record(), 0..20), any::<bool>()).prop_map(|(mut records, more)| {
        for (i, record) in records.iter_mut().enumerate() {
            record.entry.path = format!("dir/{i:04}-\u{e9}").into_bytes();
        }
        records
            .iter_mut()
            .last()
            .into_iter()
            .for_each(|last| last.more = more);
        let segment = |number| SegmentId {
            backup: String::new(),
            stream: 1,
            number,
        };
        ManifestPage {
            segments: vec![segment(1), segment(2)],
            records,
            origin: None,
        }
    })
}

proptest! {
    #[test]
    fn a_page_reads_back_as_it_was_written(page in page()) {
        prop_assert_eq!(ManifestPage::decode(&page.encode().unwrap()).unwrap(), page);
    }

    #[test]
    fn a_damaged_page_is_an_error_and_never_a_panic(page in page(), flips in vec((any::<u16>(), any::<u8>()), 1..6)) {
        let mut columns = zstd_safe_plain(&page.encode().unwrap());
        for (index, value) in flips {
            let offset = index as usize % columns.len();
            columns[offset] = value;
        }
        let mut stored = Vec::with_capacity(zstd_safe::compress_bound(columns.len()));
        zstd_safe::compress(&mut stored, &columns, 1).unwrap();
        let _ = ManifestPage::decode(&stored);
    }

    #[test]
    fn any_bytes_are_an_error_and_never_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert!(ManifestPage::decode(&bytes).is_err());
    }
}

proptest! {
    #[test]
    fn entries_arrive_as_they_were_sent(page in page()) {
        let sent: Vec<_> = page.records.into_iter().map(|record| (record.entry, record.state)).collect();
        let stored = encode_entries(sent.iter().map(|(entry, state)| (entry, state))).unwrap();
        let size = plain_bytes(&stored).unwrap();
        prop_assert!(decode_entries(&stored, size - 1).is_err());
        prop_assert_eq!(decode_entries(&stored, size).unwrap(), sent);
    }
}

/// Sends entries in one page.
fn sent(entries: &[Entry]) -> crate::error::Result<Vec<(Entry, EntryState)>> {
    let whole = EntryState::Whole;
    let stored = encode_entries(entries.iter().map(|entry| (entry, &whole))).unwrap();
    decode_entries(&stored, 1 << 20)
}

#[test]
fn entries_that_an_archive_may_not_hold_are_refused() {
    let entry_at = |path: &[u8]| Entry {
        path: path.to_vec(),
        ..Entry::default()
    };
    let of_kind = |kind| Entry {
        kind,
        ..entry_at(b"f")
    };
    let sparse = |runs: &[(u64, u64)]| {
        let runs = runs.iter().map(|&(offset, len)| ByteRun { offset, len });
        of_kind(EntryKind::File {
            size: 100,
            map: Some(runs.collect()),
        })
    };
    let file = |size| of_kind(EntryKind::File { size, map: None });
    let nanos = |nanos| Entry {
        mtime: Time { seconds: 0, nanos },
        ..entry_at(b"f")
    };
    for good in [
        vec![
            entry_at(b""),
            entry_at(b"a"),
            entry_at(b"a/b"),
            entry_at(b"a.b"),
        ],
        vec![sparse(&[(0, 10), (50, 50)])],
        vec![sparse(&[])],
        vec![file(i64::MAX as u64)],
        vec![nanos(999_999_999)],
        vec![of_kind(EntryKind::Symlink(b"../x".to_vec()))],
    ] {
        assert_eq!(sent(&good).unwrap().len(), good.len(), "{good:?}");
    }
    for bad in [
        vec![entry_at(b"../x")],
        vec![entry_at(b"/x")],
        vec![entry_at(b"a//b")],
        vec![entry_at(b"b"), entry_at(b"a")],
        vec![entry_at(b"a"), entry_at(b"a")],
        vec![of_kind(EntryKind::HardLink(b"a/../../x".to_vec()))],
        vec![file(1 << 63)],
        vec![sparse(&[(10, 10), (20, 5)])],
        vec![sparse(&[(50, 5), (10, 5)])],
        vec![sparse(&[(90, 11)])],
        vec![sparse(&[(0, 0)])],
        vec![nanos(1_000_000_000)],
    ] {
        assert!(sent(&bad).is_err(), "{bad:?}");
    }
}

fn zstd_safe_plain(stored: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(1 << 20);
    zstd_safe::decompress(&mut plain, stored).unwrap();
    plain
}

#[test]
fn a_page_that_says_a_socket_is_stored_is_damaged() {
    let entry = Entry {
        path: b"socket".to_vec(),
        kind: EntryKind::Socket,
        ..Entry::default()
    };
    for (state, is_right) in [(EntryState::Noted, true), (EntryState::Whole, false)] {
        let record = Record {
            entry: entry.clone(),
            state,
            ..Record::default()
        };
        let page = ManifestPage {
            records: vec![record],
            ..ManifestPage::default()
        };
        let decoded = ManifestPage::decode(&page.encode().unwrap());
        assert_eq!(decoded.is_ok(), is_right);
    }
}

#[test]
fn a_page_with_an_invalid_backup_id_is_damaged() {
    for (backup, is_whole) in [
        ("", true),
        ("20261121T054501Z-k3f9qz", true),
        ("../../x", false),
        ("a/b", false),
    ] {
        let id = SegmentId {
            backup: backup.into(),
            stream: 1,
            number: 1,
        };
        let page = ManifestPage {
            segments: vec![SegmentId::default(), id],
            ..ManifestPage::default()
        };
        assert_eq!(
            ManifestPage::decode(&page.encode().unwrap()).is_ok(),
            is_whole,
            "{backup}"
        );
    }
}

#[test]
fn a_page_beyond_its_limits_is_not_written() {
    let record = |index: usize| {
        let entry = Entry {
            path: format!("{index:08}").into_bytes(),
            kind: EntryKind::Directory,
            ..Entry::default()
        };
        Record {
            entry,
            ..Record::default()
        }
    };
    let records = |count| ManifestPage {
        records: (0..count).map(record).collect(),
        ..ManifestPage::default()
    };
    assert!(ManifestPage::decode(&records(2 * MAX_RECORDS).encode().unwrap()).is_ok());
    assert!(records(9 * MAX_RECORDS).encode().is_err());

    let frame = FrameAt {
        segment: 0,
        offset: 0,
        stored_len: 1,
        plain_len: 1,
    };
    let extents = |count| {
        let kind = EntryKind::File {
            size: count as u64,
            map: None,
        };
        let extents = vec![
            Extent {
                frame,
                inner: 0,
                len: 1
            };
            count
        ];
        let entry = Entry {
            path: b"f".to_vec(),
            kind,
            ..Entry::default()
        };
        let records = vec![Record {
            entry,
            extents,
            ..Record::default()
        }];
        ManifestPage {
            segments: vec![SegmentId::default()],
            records,
            ..ManifestPage::default()
        }
    };
    assert!(ManifestPage::decode(&extents(2 * MAX_EXTENTS).encode().unwrap()).is_ok());
    assert!(extents(17 * MAX_EXTENTS).encode().is_err());
}
