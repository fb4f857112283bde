//! Tests of roots: every damage is found.

use super::*;

fn root() -> Root {
    Root {
        format: 1,
        id: "20261121T054501Z-k3f9qz".into(),
        source: SourceInfo {
            host: "h".into(),
            paths: vec![EntryName(b"/a\xff".to_vec())],
            contents: true,
        },
        segments: vec![Segment {
            stream: 1,
            number: 1,
            parts: "ab".into(),
            ..Default::default()
        }],
        tags: [("a".into(), "b \"c\"".into())].into(),
        ..Default::default()
    }
}

#[test]
fn a_void_root_is_known_by_its_bytes_and_is_no_root() {
    let void = void_root().unwrap();
    assert_eq!(void.len() as u64, VOID_ROOT_BYTES);
    assert!(is_void(&void) && !is_void(&void[1..]));
    let root = seal(&Root::default()).unwrap();
    assert!(root.len() as u64 > VOID_ROOT_BYTES && !is_void(&root));
    let error = Root::open(&void, "the root").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
}

#[test]
fn a_sealed_root_reads_back_as_it_was_written() {
    let bytes = seal(&root()).unwrap();
    assert_eq!(Root::open(&bytes, "the root").unwrap(), root());
    assert!(serde_json::from_slice::<serde_json::Value>(&bytes).is_ok());
}

#[test]
fn every_flipped_bit_of_a_root_is_found() {
    let bytes = seal(&root()).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            Root::open(&bytes, "the root").unwrap_err().kind,
            ErrorKind::Corrupt,
            "bit {bit}"
        );
    }
}

#[test]
fn a_root_with_control_characters_is_corrupt() {
    for bad in ["\u{1b}[2J", "a\nb"] {
        for root in [
            Root {
                id: bad.into(),
                ..root()
            },
            Root {
                time: bad.into(),
                ..root()
            },
        ] {
            assert_eq!(
                Root::open(&seal(&root).unwrap(), "the root")
                    .unwrap_err()
                    .kind,
                ErrorKind::Corrupt
            );
        }
    }
}

#[test]
fn a_root_with_an_invalid_backup_id_is_corrupt() {
    let page = |backup: &str| PageAt {
        backup: backup.into(),
        ..PageAt::default()
    };
    let live = |backup: &str| Live {
        backup: backup.into(),
        ..Live::default()
    };
    for (bad, is_corrupt) in [
        ("../../x", true),
        ("..", true),
        ("/x", true),
        ("20261121T054501Z-aaaaaa", false),
    ] {
        for root in [
            Root {
                id: bad.into(),
                ..root()
            },
            Root {
                bases: vec![bad.into()],
                ..root()
            },
            Root {
                pages: vec![page(""), page(bad)],
                ..root()
            },
            Root {
                liveness: vec![live(""), live(bad)],
                ..root()
            },
        ] {
            let opened = Root::open(&seal(&root).unwrap(), "the root").map_err(|error| error.kind);
            assert_eq!(
                opened.err(),
                is_corrupt.then_some(ErrorKind::Corrupt),
                "{bad}"
            );
        }
    }
}

#[test]
fn every_cut_of_a_root_is_found() {
    let bytes = seal(&root()).unwrap();
    for len in 0..bytes.len() {
        assert!(
            Root::open(&bytes[..len], "the root").is_err(),
            "{len} bytes"
        );
    }
}

#[test]
fn a_newer_format_is_unsupported_not_corrupt() {
    let bytes = seal(&Root {
        format: FORMAT + 1,
        ..root()
    })
    .unwrap();
    assert_eq!(
        Root::open(&bytes, "the root").unwrap_err().kind,
        ErrorKind::Unsupported
    );
}
