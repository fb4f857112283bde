//! The other side may say anything: nothing is written outside of the target.

use crate::runs::{names, temp, write};
use fullbore::{
    copy::{
        CopyTarget,
        call::{CopyCall, OpenTarget, encode_call},
        far::answer,
        near::NearTarget,
    },
    error::ErrorKind,
    format::{
        entry::{Entry, EntryKind},
        pax::write_header,
    },
};
use proptest::prelude::*;
use std::{fs, os::unix::fs::symlink};

fn opened(dir: &std::path::Path) -> NearTarget {
    let target = NearTarget::at(dir);
    target
        .ask(CopyCall::Open(OpenTarget::default()), b"")
        .unwrap();
    target
}

fn header(path: &str, kind: EntryKind) -> Vec<u8> {
    let mut bytes = Vec::new();
    let entry = Entry {
        path: path.into(),
        kind,
        mode: 0o644,
        ..Entry::default()
    };
    write_header(&entry, &mut bytes).unwrap();
    bytes
}

#[test]
fn no_question_leads_out_of_the_target() {
    let dir = temp();
    let (to, outside) = (dir.path().join("to"), dir.path().join("outside"));
    write(outside.join("kept"), "kept");
    write(to.join("file"), "there");
    symlink(&outside, to.join("link")).unwrap();
    let target = opened(&to);
    let ask = |call: CopyCall, body: &[u8]| target.ask(call, body);
    let is_refused = |call: CopyCall, body: &[u8]| match ask(call.clone(), body) {
        Ok(answer) => !answer.refused.is_empty(),
        Err(error) => error.kind == ErrorKind::Corrupt,
    };
    let put = || CopyCall::Put {
        is_compressed: false,
    };
    // A header for a path outside, made of one that is as long.
    let mut out = header("aa/outside/new", EntryKind::default());
    out[..2].copy_from_slice(b"..");
    let sum = out[..148]
        .iter()
        .chain(&out[156..512])
        .map(|b| u32::from(*b))
        .sum::<u32>()
        + 8 * 32;
    out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert!(is_refused(put(), &out));
    assert!(is_refused(put(), &header("link/new", EntryKind::default())));
    assert!(is_refused(CopyCall::Link, b"../outside/new\0file\0"));
    assert!(is_refused(CopyCall::Link, b"link/new\0file\0"));
    assert!(is_refused(CopyCall::Link, b"new\0../outside/kept\0"));
    assert!(is_refused(CopyCall::Link, b"new\0link/kept\0"));
    for with_content in [true, false] {
        assert!(is_refused(
            CopyCall::Remove { with_content },
            b"../outside/kept\0"
        ));
        let _ = ask(CopyCall::Remove { with_content }, b"link/kept\0");
        assert!(is_refused(CopyCall::Remove { with_content }, b"/etc/x\0"));
        assert!(is_refused(CopyCall::Remove { with_content }, b"\0"));
    }
    let large = EntryKind::File {
        size: 9 << 20,
        map: None,
    };
    assert!(is_refused(
        CopyCall::Begin { from: None },
        &header("link/large", large.clone())
    ));
    let from = Some(b"../outside/kept".to_vec().into());
    assert!(is_refused(
        CopyCall::Begin { from },
        &header("large", large.clone())
    ));
    let from = Some(b"link/kept".to_vec().into());
    ask(CopyCall::Begin { from }, &header("large", large)).unwrap();
    let path = || b"large".to_vec().into();
    assert!(is_refused(
        CopyCall::Write {
            path: path(),
            pieces: vec![(u64::MAX, 1)]
        },
        b"x"
    ));
    assert!(is_refused(
        CopyCall::Write {
            path: path(),
            pieces: vec![(0, 2)]
        },
        b"x"
    ));
    assert!(is_refused(
        CopyCall::Compare {
            path: path(),
            offset: 0,
            len: u32::MAX
        },
        b""
    ));
    assert!(is_refused(
        CopyCall::End {
            path: b"other".to_vec().into(),
            is_complete: true
        },
        b""
    ));
    assert_eq!(names(&outside), ["kept"]);
    assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
    assert!(!dir.path().join("to/large").exists());
}

#[test]
fn a_side_that_chose_its_target_opens_no_other_and_none_twice() {
    let dir = temp();
    let to = dir.path().join("to");
    let target = opened(&to);
    let other = OpenTarget {
        path: dir
            .path()
            .join("other")
            .into_os_string()
            .into_encoded_bytes(),
        ..OpenTarget::default()
    };
    assert!(target.ask(CopyCall::Open(other), b"").is_err());
    assert_eq!(names(dir.path()), ["to"]);
    assert!(NearTarget::default().ask(CopyCall::List, b"").is_err());
    let relative = CopyCall::Open(OpenTarget::default());
    assert!(NearTarget::default().ask(relative, b"").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000), number in 0usize..12) {
        let dir = temp();
        let target = opened(&dir.path().join("to"));
        let _ = answer(&target, &bytes);
        let path = || b"a".to_vec().into();
        let calls = [
            CopyCall::Put { is_compressed: true }, CopyCall::Put { is_compressed: false }, CopyCall::Directories,
            CopyCall::Check { digests: bytes.clone().into() }, CopyCall::Describe, CopyCall::Begin { from: None },
            CopyCall::Compare { path: path(), offset: 1, len: 100 }, CopyCall::Write { path: path(), pieces: vec![(0, 10)] },
            CopyCall::End { path: path(), is_complete: true }, CopyCall::Link, CopyCall::List, CopyCall::Finish,
        ];
        let _ = answer(&target, &encode_call(&calls[number], &bytes));
        prop_assert_eq!(names(dir.path()), ["to"]);
    }
}
