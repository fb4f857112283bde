//! What a released version wrote is read for good: `testdata/` only ever grows.

use crate::runs;
use crate::runs::{Node, fullbore, shape, temp};
use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

fn testdata() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata")
}

/// Everything in a directory of one format that a restore is made from.
fn stored(format: &Path) -> Vec<String> {
    let names = runs::names(format).into_iter();
    names.filter(|name| name != "listing").collect()
}

/// One line for each path: kind, mode, time, size, digest of its data. Owners differ where a test runs.
fn listing(dir: &Path) -> String {
    let line = |(path, node): (&Vec<u8>, &Node)| {
        let name = std::ffi::OsStr::from_bytes(path);
        let first = std::ffi::OsStr::from_bytes(&node.first);
        let Node {
            kind,
            mode,
            mtime,
            size,
            digest,
            data,
            ..
        } = node;
        let holes = if data.iter().map(|run| run.1 - run.0).sum::<u64>() < *size {
            " with holes"
        } else {
            ""
        };
        format!(
            "{name:?} {kind} {mode:04o} {}.{:09} {size}{holes} {digest} {first:?}\n",
            mtime.0, mtime.1
        )
    };
    shape(dir).iter().map(line).collect()
}

#[test]
fn every_archive_of_every_format_restores_as_it_always_did() {
    for format in runs::names(&testdata())
        .into_iter()
        .filter(|name| name != "README.md")
    {
        let format = testdata().join(format);
        let mut wanted = fs::read_to_string(format.join("listing")).unwrap();
        if !runs::is_root() {
            wanted = wanted.replace(" 4711 ", " 0711 "); // no setuid for another owner than the one it had
        }
        let all = stored(&format);
        assert!(all.len() >= 5, "{all:?}");
        for source in all.iter().map(|name| format.join(name)) {
            let dir = temp();
            let back = dir.path().join("back");
            let ran = fullbore(args!["restore", source, "--to", back, "--quiet"]);
            assert_eq!(ran.code, 0, "{source:?}: {}", ran.err);
            assert_eq!(listing(&back), wanted, "{source:?}");
            // A repository remembers a check: testdata stays as it is.
            let copy = dir.path().join(source.file_name().unwrap());
            runs::shell("cp -a \"$1\" \"$2\"", args![source, copy]).ends_with(0);
            fullbore(args!["verify", copy, "--data"]).ends_with(0);
            fullbore(args!["list", format!("{}@latest", source.display())]).ends_with(0);
        }
    }
}

/// The tree that all of them hold, with the times it had.
fn plant(tree: &Path) {
    for i in 0..9u64 {
        runs::write(
            tree.join(format!("a/b/f{i}")),
            runs::text(i, (i * i * 37) as usize),
        );
    }
    runs::write(tree.join("large"), runs::text(9, 70_000));
    runs::write(tree.join("a/any \u{fc} \n name"), "x");
    fs::hard_link(tree.join("a/b/f5"), tree.join("hard")).unwrap();
    std::os::unix::fs::symlink("a/b/f5", tree.join("soft")).unwrap();
    runs::make_fifo(&tree.join("fifo"));
    let holes = fs::File::create(tree.join("holes")).unwrap();
    holes.set_len(5 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&holes, b"in the middle", 1 << 20).unwrap();
    settle(tree);
}

fn settle(tree: &Path) {
    runs::set_mode(&tree.join("large"), 0o4711);
    for (n, path) in shape(tree).keys().rev().enumerate() {
        runs::set_mtime(
            &tree.join(std::ffi::OsStr::from_bytes(path)),
            1_500_000_000 + n as i64,
            n as i64 * 1001,
        );
    }
}

const CODECS: [&str; 3] = ["zstd", "lz4", "none"];

/// Not a test: it makes archives of the current format, and repositories whose last backup refers to the one before it. See
/// `testdata/README.md`.
#[test]
#[ignore = "writes testdata for a new format"]
fn make_archives_of_the_current_format() {
    let format = testdata().join(format!("format-{}", fullbore_format::root::FORMAT));
    assert!(!format.exists(), "what is there is never written again");
    let dir = temp();
    let tree = dir.path().join("tree");
    plant(&tree);
    let large = fs::read(tree.join("large")).unwrap();
    runs::write(
        tree.join("large"),
        [b"another beginning", &large[17..]].concat(),
    );
    fs::remove_file(tree.join("a/b/f8")).unwrap();
    runs::write(tree.join("gone"), "not there any more");
    fs::create_dir_all(&format).unwrap();
    let repository = |codec: &str| format.join(format!("repository-{codec}"));
    for codec in CODECS {
        store(&tree, &repository(codec), codec);
    }
    runs::write(tree.join("large"), &large);
    runs::write(tree.join("a/b/f8"), runs::text(8, 8 * 8 * 37));
    fs::remove_file(tree.join("gone")).unwrap();
    settle(&tree);
    fs::write(format.join("listing"), listing(&tree)).unwrap();
    for codec in CODECS {
        store(&tree, &repository(codec), codec);
    }
    for (name, codec) in [("x.tar.zst", "zstd"), ("x.tar.lz4", "lz4")] {
        store(&tree, &format.join(name), codec);
    }
}

fn store(tree: &Path, to: &Path, codec: &str) {
    let options = args![
        "--compress",
        codec,
        "--frame-size",
        "64K",
        "--chunking",
        "content",
        "--quiet"
    ];
    fullbore(args!["backup", tree, "--to", to].into_iter().chain(options)).ends_with(0);
    let _ = fs::remove_dir(to.join("intents")); // git keeps no empty directory
}
