//! Archives with names of any length that the file system takes.

use crate::runs;
use crate::runs::{fullbore, names, temp, write};
use rustix::fs::{FlockOperation, flock};
use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

const ENDINGS: [&str; 4] = [".tar.zst", ".tar.lz4", ".tar.gz", ".tar"];
/// Bytes of a name on Linux's own file systems.
const NAME_MAX: usize = 255;

/// Is it a plain stream? It cannot be told from one of another program, so it is never replaced.
fn is_plain_stream(ending: &str) -> bool {
    matches!(ending, ".tar.gz" | ".tar")
}

/// `text`, repeated to just `len` bytes together with `ending`.
fn named(dir: &Path, text: &[u8], len: usize, ending: &str) -> PathBuf {
    let stem: Vec<u8> = text
        .iter()
        .copied()
        .cycle()
        .take(len - ending.len())
        .collect();
    dir.join(OsString::from_vec([&stem, ending.as_bytes()].concat()))
}

#[test]
fn an_archive_has_any_name_that_the_file_system_takes() {
    let dir = temp();
    let [tree, out] = ["tree", "out"].map(|name| dir.path().join(name));
    write(tree.join("a"), "content");
    for ending in ENDINGS {
        for (text, len) in [
            ("n", 80),
            ("n", 81),
            ("n", 214),
            ("n", 223),
            ("n", NAME_MAX),
            ("é", 200),
            ("語", NAME_MAX),
        ] {
            // A name of two or three bytes a letter is cut to whole letters by this.
            let whole = text.len() * ((len - ending.len()) / text.len()) + ending.len();
            let archive = named(&out, text.as_bytes(), whole, ending);
            let case = format!("{ending}, {whole} bytes of {text}");
            fs::create_dir(&out).unwrap();
            for code in [0, if is_plain_stream(ending) { 1 } else { 0 }] {
                fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(code);
                assert_eq!(names(&out).len(), 1, "{case}");
            }
            fullbore(args!["verify", archive, "--data"]).ends_with(0);
            fullbore(args![
                "restore",
                archive,
                "--to",
                out.join("back"),
                "--quiet"
            ])
            .ends_with(0);
            assert_eq!(
                fs::read_to_string(out.join("back/a")).unwrap(),
                "content",
                "{case}"
            );
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn a_name_that_the_file_system_does_not_take_is_refused_before_anything_is_read() {
    let dir = temp();
    let [tree, out] = ["tree", "out"].map(|name| dir.path().join(name));
    write(tree.join("a"), "content");
    fs::create_dir(&out).unwrap();
    for (ending, len, hint) in [
        (".tar.zst", NAME_MAX + 1, "a shorter name"),
        (".tar", NAME_MAX + 1, "a shorter name"),
        (".tar.gz", NAME_MAX + 1, "a shorter name"),
    ] {
        let archive = named(&out, b"n", len, ending);
        let ran = fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(1);
        assert!(ran.err.contains(hint), "{}", ran.err);
        ran.has_one_error("file name too long");
        assert_eq!(names(&out), [""; 0]);
    }
}

/// The hidden name of the run that is writing `archive`.
fn hidden_names(dir: &Path) -> Vec<String> {
    names(dir)
        .into_iter()
        .filter(|name| name.ends_with(".partial"))
        .collect()
}

#[test]
fn a_killed_run_with_a_long_name_leaves_a_file_that_the_next_run_to_that_name_removes() {
    let dir = temp();
    let [tree, out] = ["tree", "out"].map(|name| dir.path().join(name));
    write(tree.join("a"), "content");
    fs::create_dir(&out).unwrap();
    for ending in [".tar.zst", ".tar.lz4"] {
        let [archive, other] = [b"n", b"m"].map(|last| {
            let archive = named(&out, b"n", 240 - 1 - ending.len(), "");
            let mut name = archive.into_os_string().into_vec();
            name.extend([last, ending.as_bytes()].concat());
            PathBuf::from(OsString::from_vec(name))
        });
        let inject = "unlink,rename:signal=KILL:when=1";
        let ran = runs::tampered(
            inject,
            None,
            args!["backup", tree, "--to", archive, "--quiet"],
        );
        assert_eq!(ran.code, -1, "{}", ran.err);
        let left = hidden_names(&out);
        assert!(!left.is_empty());
        // A name that differs only at its end has other hidden names.
        fullbore(args!["backup", tree, "--to", other, "--quiet"]).ends_with(0);
        assert_eq!(hidden_names(&out), left);
        // A run that still holds the lock is left alone.
        let held = fs::File::open(out.join(&left[0])).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
        assert_eq!(hidden_names(&out), left[..1]);
        drop(held);
        fullbore(args!["backup", tree, "--to", archive, "--quiet"]).ends_with(0);
        assert_eq!(hidden_names(&out), [""; 0]);
    }
}
