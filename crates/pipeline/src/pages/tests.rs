use super::*;
use crate::frame::{LargeFile, Scanned};

/// Many blocks in few frames: no extents to speak of, and digests without end.
#[test]
fn a_page_is_closed_before_its_digests_are_too_many_to_be_read_again() {
    let mut pages = PageWriter::new(0, 4096, Arc::new(|_, _| {}));
    let scanned = Scanned::new(
        Entry {
            path: b"large".to_vec(),
            kind: EntryKind::File {
                size: u64::MAX >> 1,
                map: None,
            },
            ..Entry::default()
        },
        EntryState::Whole,
    );
    let file = LargeFile::new(scanned.clone(), u64::MAX >> 1, u64::MAX);
    let frame = |offset| FrameAt {
        segment: 0,
        offset,
        stored_len: 1,
        plain_len: 64 << 20,
    };
    let part = |what, len, piece| FrameEntry {
        what,
        inner: 0,
        len,
        known: None,
        runs: None,
        piece,
        crcs: Vec::new(),
        chunks: Vec::new(),
        is_first: false,
        replaced: false,
    };
    pages.add(
        frame(0),
        part(
            FrameContent::Head(scanned.entry, file.clone()),
            0,
            Piece::None,
        ),
    );
    let mut count = 0;
    while !pages.is_full() {
        let what = FrameContent::Piece {
            file: file.clone(),
            offset: count << 26,
            last: false,
        };
        pages.add(
            frame(count + 1),
            part(what, 64 << 20, Piece::Blocks(vec![[7; 32]; 16_384])),
        );
        count += 1;
        assert!(count < 1000, "{count}");
    }
    pages.close_page();
    let closed = pages.take(&SegmentId::default());
    let Some(ClosedPage::Own(page)) = closed.first() else {
        panic!("no page")
    };
    assert!(ManifestPage::decode(&page.encode().unwrap()).is_ok());
}

/// A file is read after its other names, which became links, and has been replaced by then.
#[test]
fn other_names_of_a_file_that_was_replaced_are_not_captured() {
    let mut pages = PageWriter::new(0, 0, Arc::new(|_, _| {}));
    let mut add = |path: &str, kind: EntryKind, replaced: bool| {
        let entry = Entry {
            path: path.into(),
            kind,
            ..Entry::default()
        };
        let what = FrameContent::Whole(entry, EntryState::Whole);
        let (runs, crcs, chunks) = (None, Vec::new(), Vec::new());
        let frame = FrameAt {
            segment: 0,
            offset: 0,
            stored_len: 1,
            plain_len: 1,
        };
        let part = FrameEntry {
            what,
            inner: 0,
            len: 0,
            known: None,
            runs,
            piece: Piece::None,
            crcs,
            chunks,
            is_first: true,
            replaced,
        };
        pages.add(frame, part);
    };
    for (name, replaced) in [("a", true), ("b", false)] {
        add(name, EntryKind::File { size: 0, map: None }, replaced);
        add(
            &format!("other {name}"),
            EntryKind::HardLink(name.into()),
            false,
        );
    }
    let named: Vec<_> = pages
        .not_captured
        .iter()
        .map(|lost| (&lost.path.0[..], &lost.reason[..]))
        .collect();
    assert_eq!(
        (named, pages.totals.unreadable),
        (vec![(&b"other a"[..], LOST_LINK)], 1)
    );
}
