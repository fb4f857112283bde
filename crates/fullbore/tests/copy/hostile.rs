//! The other side may say anything: nothing is written outside of the target.

use super::runs::{names, temp, write};
use fullbore_engine::copy::{
    CopyOptions, CopyTarget,
    call::{CopyCall, OpenTarget, encode_call},
    far::answer,
    near::NearTarget,
    rules::{CopyPlace, CopyRules},
};
use fullbore_format::{
    entry::{Entry, EntryKind},
    error::ErrorKind,
    pax::write_header,
};
use fullbore_tree::file_rules::FileRules;
use fullbore_tree::write::deletion_limit::DeletionLimit;
use proptest::prelude::*;
use std::{fs, os::unix::fs::symlink, path::Path};

/// A target that deletes.
fn opened(dir: &Path) -> NearTarget {
    opened_with(
        dir,
        CopyOptions {
            delete: true,
            ..CopyOptions::default()
        },
    )
}

/// A target that is opened as the command line of its side says, and listed.
fn opened_with(dir: &Path, options: CopyOptions) -> NearTarget {
    let target = NearTarget::granted(options.target(dir, false));
    let asked = options.target(Path::new(""), false);
    let opened = target.ask(CopyCall::Open(asked), b"").unwrap();
    let mut has_more = opened.has_content;
    while has_more {
        has_more = target.list().unwrap().has_more;
    }
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
    let (destination, outside) = (dir.path().join("to"), dir.path().join("outside"));
    write(outside.join("kept"), "kept");
    write(destination.join("file"), "there");
    symlink(&outside, destination.join("link")).unwrap();
    let target = opened(&destination);
    let ask = |call: CopyCall, body: &[u8]| target.ask(call, body);
    let is_refused = |call: CopyCall, body: &[u8]| match ask(call.clone(), body) {
        Ok(answer) => answer.refused.count() > 0,
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
    assert!(is_refused(CopyCall::Remove, b"../outside/kept\0"));
    let _ = ask(CopyCall::Remove, b"link/kept\0");
    assert!(is_refused(CopyCall::Remove, b"/etc/x\0"));
    assert!(is_refused(CopyCall::Remove, b"\0"));
    let large = EntryKind::File {
        size: 9 << 20,
        map: None,
    };
    assert!(is_refused(
        CopyCall::Begin { from: None },
        &header("link/large", large.clone())
    ));
    let source = Some(b"../outside/kept".to_vec().into());
    assert!(is_refused(
        CopyCall::Begin { from: source },
        &header("large", large.clone())
    ));
    let source = Some(b"link/kept".to_vec().into());
    ask(CopyCall::Begin { from: source }, &header("large", large)).unwrap();
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
            is_complete: true,
            shrunk: None
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
    let destination = dir.path().join("to");
    let other = CopyOptions::default().target(&dir.path().join("other"), false);
    let target = NearTarget::granted(CopyOptions::default().target(&destination, false));
    target.ask(CopyCall::Open(other.clone()), b"").unwrap();
    assert!(target.ask(CopyCall::Open(other), b"").is_err());
    assert_eq!(names(dir.path()), ["to"]);
    assert!(NearTarget::default().ask(CopyCall::List, b"").is_err());
    let relative = CopyCall::Open(OpenTarget::default());
    assert!(NearTarget::default().ask(relative, b"").is_err());
}

/// Options with an exclude.
fn excluding(delete: bool) -> CopyOptions {
    CopyOptions {
        delete,
        limit: at_most(100),
        rules: CopyRules {
            files: FileRules {
                exclude: vec!["*.key".into(), "/kept/".into()],
                exclude_if_present: vec![".nobackup".into()],
                ..FileRules::default()
            },
            ..CopyRules::default()
        },
        ..CopyOptions::default()
    }
}

#[test]
fn a_target_has_only_the_rights_of_the_command_line_of_its_side() {
    let dir = temp();
    let destination = dir.path().join("to");
    write(destination.join("mine"), "mine");
    let wanted = [
        CopyOptions {
            delete: true,
            ..CopyOptions::default()
        },
        CopyOptions {
            numeric_owner: true,
            ..CopyOptions::default()
        },
        CopyOptions {
            checksum: true,
            ..CopyOptions::default()
        },
        excluding(false),
        CopyOptions {
            limit: at_most(7),
            ..CopyOptions::default()
        },
    ];
    for options in wanted {
        for (granted, asked) in [
            (CopyOptions::default(), options.clone()),
            (options, CopyOptions::default()),
        ] {
            let target = NearTarget::granted(granted.target(&destination, false));
            let asked = CopyCall::Open(asked.target(Path::new(""), false));
            assert!(target.ask(asked, b"").is_err(), "{granted:?}");
        }
    }
    let put = CopyCall::Put {
        is_compressed: false,
    };
    let new = header("new", EntryKind::default());
    let dry = CopyOptions {
        delete: true,
        dry_run: true,
        ..CopyOptions::default()
    };
    let target = opened_with(&destination, dry);
    assert!(target.ask(CopyCall::Remove, b"mine\0").is_err());
    assert!(target.ask(put.clone(), &new).is_err());
    assert!(target.ask(CopyCall::Finish, b"").is_err());
    let target = opened_with(&destination, CopyOptions::default());
    assert!(target.ask(CopyCall::Remove, b"mine\0").is_err());
    let large = EntryKind::File {
        size: 9 << 20,
        map: None,
    };
    let source = Some(b"mine".to_vec().into());
    let begin = CopyCall::Begin { from: source };
    assert!(target.ask(begin, &header("large", large)).is_err());
    assert_eq!(names(&destination), ["mine"]);
    target.ask(put, &new).unwrap();
    assert_eq!(names(&destination), ["mine", "new"]);
}

#[test]
fn a_target_writes_and_deletes_nothing_that_its_command_line_leaves_out() {
    let dir = temp();
    let destination = dir.path().join("to");
    for path in [
        "a.key",
        "d/b.key",
        "kept/x",
        "marked/.nobackup",
        "marked/x",
        "other",
    ] {
        write(destination.join(path), "there");
    }
    let put = || CopyCall::Put {
        is_compressed: false,
    };
    let target = opened_with(&destination, excluding(true));
    for path in ["a.key", "d/b.key", "kept", "kept/x", "marked/x"] {
        let paths = format!("other\0{path}\0");
        assert!(
            target.ask(CopyCall::Remove, paths.as_bytes()).is_err(),
            "{path}"
        );
        let large = EntryKind::File {
            size: 9 << 20,
            map: None,
        };
        let source = Some(path.as_bytes().to_vec().into());
        let begun = target.ask(CopyCall::Begin { from: source }, &header("large", large));
        assert!(begun.is_err(), "{path}");
    }
    for path in ["a.key", "d/new.key", "kept/new"] {
        let new = header(path, EntryKind::default());
        assert!(target.ask(put(), &new).is_err(), "{path}");
        assert!(target.ask(CopyCall::Describe, &new).is_err(), "{path}");
        let links = format!("{path}\0other\0");
        assert!(
            target.ask(CopyCall::Link, links.as_bytes()).is_err(),
            "{path}"
        );
    }
    // A directory with something that is left out is not empty afterwards.
    target.ask(CopyCall::Remove, b"other\0").unwrap();
    target.ask(CopyCall::Remove, b"marked\0d\0").unwrap();
    assert_eq!(names(&destination), ["a.key", "d", "kept", "marked"]);
    assert!(destination.join("d/b.key").exists() && destination.join("marked/x").exists());
}

fn at_most(entries: u64) -> DeletionLimit {
    DeletionLimit {
        max: Some(entries),
        allow_empty: false,
    }
}

/// A target that deletes, with ten files and a directory of four.
fn of_fifteen(to: &Path, limit: DeletionLimit) -> NearTarget {
    let _ = fs::remove_dir_all(to);
    for number in 0..10 {
        write(to.join(format!("file{number}")), "there");
    }
    for number in 0..4 {
        write(to.join(format!("dir/{number}")), "there");
    }
    let options = CopyOptions {
        delete: true,
        limit,
        ..CopyOptions::default()
    };
    opened_with(to, options)
}

fn put_new(target: &NearTarget, path: &str) {
    let put = CopyCall::Put {
        is_compressed: false,
    };
    target
        .ask(put, &header(path, EntryKind::default()))
        .unwrap();
}

#[test]
fn the_limit_of_deletions_is_kept_by_the_side_that_writes() {
    let dir = temp();
    let destination = dir.path().join("to");
    let half = DeletionLimit::default();
    let remove = |target: &NearTarget, paths: &str| {
        let paths: Vec<&str> = paths.split(' ').collect();
        let body = paths.join("\0") + "\0";
        let removed = target.ask(CopyCall::Remove, body.as_bytes());
        removed.map(drop).map_err(|error| error.line())
    };
    // A directory counts with its content.
    let target = of_fifteen(&destination, half);
    let error = remove(&target, "dir file0 file1 file2").unwrap_err();
    assert!(error.contains("cannot delete 8 of the 15"), "{error}");
    assert_eq!(names(&destination).len(), 11);
    // A refusal is final.
    assert!(remove(&target, "file0").is_err());
    assert_eq!(names(&destination).len(), 11);
    // So does the sum of all questions.
    let target = of_fifteen(&destination, half);
    remove(&target, "dir file0").unwrap();
    remove(&target, "file1").unwrap();
    remove(&target, "file2").unwrap_err();
    assert_eq!(names(&destination).len(), 8);
    // What the source made does not raise the limit, also if it is listed.
    let target = of_fifteen(&destination, half);
    (0..40).for_each(|number| put_new(&target, &format!("new{number}")));
    target.ask(CopyCall::Rewind, b"").unwrap();
    while target.list().unwrap().has_more {}
    remove(&target, "dir file0 file1 file2").unwrap_err();
    // A tree that was not listed has no half.
    fs::remove_dir_all(&destination).unwrap();
    write(destination.join("mine"), "mine");
    let options = CopyOptions {
        delete: true,
        ..CopyOptions::default()
    };
    let target = NearTarget::granted(options.target(&destination, false));
    let open = CopyCall::Open(options.target(Path::new(""), false));
    target.ask(open, b"").unwrap();
    remove(&target, "mine").unwrap_err();
    assert_eq!(names(&destination), ["mine"]);
    // Another limit.
    let target = of_fifteen(&destination, at_most(2));
    remove(&target, "file0 file1").unwrap();
    remove(&target, "file2").unwrap_err();
    let target = of_fifteen(&destination, at_most(14));
    put_new(&target, "new");
    remove(&target, "dir file0 file1 file2").unwrap();
}

#[test]
fn an_empty_source_deletes_nothing_whatever_the_side_that_reads_says() {
    let dir = temp();
    let destination = dir.path().join("to");
    let all = (0..10).map(|number| format!("file{number}\0"));
    let all = all.collect::<String>() + "dir\0";
    let remove = |target: &NearTarget| target.ask(CopyCall::Remove, all.as_bytes());
    let target = of_fifteen(&destination, at_most(15));
    let error = remove(&target).unwrap_err().line();
    assert!(error.contains("the source is empty"), "{error}");
    assert_eq!(names(&destination).len(), 11);
    let allowed = DeletionLimit {
        max: None,
        allow_empty: true,
    };
    remove(&of_fifteen(&destination, allowed)).unwrap();
    assert_eq!(names(&destination), [""; 0]);
}

#[test]
fn a_file_that_loses_its_name_counts_as_a_deletion() {
    let dir = temp();
    let destination = dir.path().join("to");
    let target = of_fifteen(&destination, at_most(1));
    let begin = |source: &str, name: &str| {
        let large = EntryKind::File {
            size: 9 << 20,
            map: None,
        };
        let source = Some(source.as_bytes().to_vec().into());
        target.ask(CopyCall::Begin { from: source }, &header(name, large))
    };
    begin("file0", "large0").unwrap();
    assert!(!destination.join("file0").exists());
    // Its removal counts once, and that of a file which was not there not at all.
    target.ask(CopyCall::Remove, b"file0\0none\0").unwrap();
    assert!(begin("file1", "large1").is_err());
    assert!(destination.join("file1").exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn any_bytes_are_an_answer_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000), number in 0usize..14) {
        let dir = temp();
        let target = opened(&dir.path().join("to"));
        let _ = answer(&target, &bytes);
        let path = || b"a".to_vec().into();
        let calls = [
            CopyCall::Put { is_compressed: true }, CopyCall::Put { is_compressed: false }, CopyCall::Directories,
            CopyCall::Check { digests: bytes.clone().into() }, CopyCall::Describe, CopyCall::Begin { from: None },
            CopyCall::Compare { path: path(), offset: 1, len: 100 }, CopyCall::Write { path: path(), pieces: vec![(0, 10)] },
            CopyCall::End { path: path(), is_complete: true, shrunk: Some(1) }, CopyCall::Link, CopyCall::List, CopyCall::Rewind, CopyCall::Remove, CopyCall::Finish,
        ];
        let _ = answer(&target, &encode_call(&calls[number], &bytes));
        prop_assert_eq!(names(dir.path()), ["to"]);
    }
}

#[test]
fn a_side_that_copies_some_names_writes_and_deletes_nothing_beside_them() {
    let dir = temp();
    let place = |name: &str| CopyPlace::new(name.as_bytes(), []);
    let with = |names: &[&str]| CopyOptions {
        delete: true,
        rules: CopyRules {
            places: names.iter().map(|name| place(name)).collect(),
            ..CopyRules::default()
        },
        ..CopyOptions::default()
    };
    write(dir.path().join("a/x"), "x");
    write(dir.path().join("beside/x"), "kept");
    write(dir.path().join("file"), "kept");
    let opened = |granted: &CopyOptions, asked: &CopyOptions, may_be_file: bool, to: &str| {
        let to = dir.path().join(to);
        let target = NearTarget::granted(granted.target(&to, may_be_file));
        let asked = CopyCall::Open(asked.target(Path::new(""), may_be_file));
        target.ask(asked, b"").map(|answer| (target, answer))
    };
    // Other names than those of the command line, and names that lead elsewhere.
    for (granted, asked) in [
        (&["a"][..], &["beside"][..]),
        (&["a"], &[]),
        (&["a"], &["a", "beside"]),
        (&["a", "b"], &["a"]),
        (&[], &[".."]),
        (&[], &["a/../.."]),
        (&[], &["a", "a"]),
        (&[], &["a", ""]),
    ] {
        let tried = opened(&with(granted), &with(asked), false, "");
        assert!(tried.is_err(), "{granted:?} {asked:?}");
    }
    // Of a whole target, a part may be asked for, and then no more of it.
    for granted in [&["a"][..], &[]] {
        let (target, _) = opened(&with(granted), &with(&["a"]), false, "").unwrap();
        let mut listed = Vec::new();
        loop {
            let page = target.list().unwrap();
            listed.extend(page.records.into_iter().map(|record| record.entry.path));
            if !page.has_more {
                break;
            }
        }
        assert_eq!(listed, [b"a".to_vec(), b"a/x".to_vec()]);
        let put = || CopyCall::Put {
            is_compressed: false,
        };
        for path in ["beside/x", "ab", "file"] {
            assert!(
                target
                    .ask(put(), &header(path, EntryKind::default()))
                    .is_err(),
                "{path}"
            );
            let removed = target.ask(CopyCall::Remove, format!("{path}\0").as_bytes());
            assert!(removed.is_err(), "{path}");
            let link = format!("{path}\0a/x\0");
            assert!(
                target.ask(CopyCall::Link, link.as_bytes()).is_err(),
                "{path}"
            );
        }
        assert!(
            target
                .ask(put(), &header("a/y", EntryKind::default()))
                .is_ok()
        );
        drop(target);
        fs::remove_file(dir.path().join("a/y")).unwrap();
    }
    // A target that is a file has the name that this side chose, whatever the other one says.
    let (target, answer) = opened(&with(&[]), &with(&["evil"]), true, "file").unwrap();
    assert_eq!(
        answer.opened.name.as_ref().map(|name| &name[..]),
        Some(&b"file"[..])
    );
    let put = CopyCall::Put {
        is_compressed: false,
    };
    assert!(
        target
            .ask(put.clone(), &header("evil", EntryKind::default()))
            .is_err()
    );
    assert!(
        target
            .ask(put, &header("file", EntryKind::default()))
            .is_ok()
    );
    assert!(!dir.path().join("evil").exists());
    assert_eq!(fs::read(dir.path().join("beside/x")).unwrap(), b"kept");
}
