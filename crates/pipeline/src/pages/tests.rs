use super::*;
use crate::frame::{LargeFile, Scanned};

/// Many blocks in few frames: no extents to speak of, and digests without end.
#[test]
fn a_page_is_closed_before_its_digests_are_too_many_to_be_read_again() {
    let mut pages = PageWriter::new(0, 4096, Arc::new(|_, _| {}), RecordOrder::Sorted);
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
    let part = |content, len, piece| FrameEntry {
        what: content,
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
        let content = FrameContent::Piece {
            file: file.clone(),
            offset: count << 26,
            last: false,
        };
        pages.add(
            frame(count + 1),
            part(content, 64 << 20, Piece::Blocks(vec![[7; 32]; 16_384])),
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
    let mut pages = PageWriter::new(0, 0, Arc::new(|_, _| {}), RecordOrder::Sorted);
    let mut add = |path: &str, kind: EntryKind, replaced: bool| {
        let entry = Entry {
            path: path.into(),
            kind,
            ..Entry::default()
        };
        let content = FrameContent::Whole(entry, EntryState::Whole);
        let (runs, crcs, chunks) = (None, Vec::new(), Vec::new());
        let frame = FrameAt {
            segment: 0,
            offset: 0,
            stored_len: 1,
            plain_len: 1,
        };
        let part = FrameEntry {
            what: content,
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

/// A small file at an offset of the open segment.
fn add_file(pages: &mut PageWriter, path: &str, offset: u64) {
    let entry = Entry {
        path: path.as_bytes().to_vec(),
        kind: EntryKind::File { size: 5, map: None },
        ..Entry::default()
    };
    let frame = FrameAt {
        segment: 0,
        offset,
        stored_len: 9,
        plain_len: 9,
    };
    let part = FrameEntry {
        what: FrameContent::Whole(entry, EntryState::Whole),
        inner: 0,
        len: 5,
        known: None,
        runs: None,
        piece: Piece::None,
        crcs: Vec::new(),
        chunks: Vec::new(),
        is_first: true,
        replaced: false,
    };
    pages.add(frame, part);
}

/// A writer of a source that is not sorted, which marks the files it settles.
fn unsorted() -> PageWriter {
    let settle = Arc::new(|record: &mut Record| record.entry.mode = 0o600);
    let order = RecordOrder::Unsorted(settle);
    PageWriter::new(3, 4096, Arc::new(|_, _| {}), order)
}

#[test]
fn records_of_a_source_that_is_not_sorted_keep_their_segments() {
    let mut pages = unsorted();
    for (number, path) in [(1, "b"), (2, "c"), (2, "a/x"), (4, "a")] {
        pages.begin_segment(number);
        add_file(&mut pages, path, 100 * u64::from(number));
        pages.close_page();
    }
    assert!(!pages.has_own_pages() && !pages.is_empty());
    assert_eq!(
        pages.totals.entries, 0,
        "they are counted when they are sorted"
    );
    while pages.add_sorted_page().unwrap() {}
    pages.end();
    let id = |number| SegmentId {
        backup: String::new(),
        stream: 3,
        number,
    };
    let closed = pages.take(&id(5));
    let [ClosedPage::Own(page)] = &closed[..] else {
        panic!("one page");
    };
    let found: Vec<_> = page
        .records
        .iter()
        .map(|record| {
            let frame = record.extents[0].frame;
            let number = page.segments[frame.segment as usize].number;
            (
                &record.entry.path[..],
                number,
                frame.offset,
                record.entry.mode,
            )
        })
        .collect();
    let wanted: [(&[u8], u32, u64, u32); 4] = [
        (b"a", 4, 400, 0o600),
        (b"a/x", 2, 200, 0o600),
        (b"b", 1, 100, 0o600),
        (b"c", 2, 200, 0o600),
    ];
    assert_eq!(found, wanted);
    assert_eq!(page.segments[0], id(5), "that of the page");
    assert_eq!(pages.totals.entries, 4);
    assert!(pages.kept_of(&id(2)) > 0 && pages.kept_of(&id(5)) == 0);
}

#[test]
fn an_entry_that_a_source_delivers_twice_is_an_error() {
    let mut pages = unsorted();
    for path in ["b", "a", "b"] {
        add_file(&mut pages, path, 1);
    }
    let error = pages.add_sorted_page().unwrap_err();
    assert!(error.line().contains("twice"), "{error:?}");
}
