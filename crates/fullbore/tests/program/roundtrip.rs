//! What goes in comes out: any tree, every codec, every destination; and the same bytes however many threads there are.

use crate::runs::{
    self, assert_same, fullbore, is_root, noise, or_skip, sample, segments, set_mode, set_mtime,
    set_xattr, shape, shell, temp, text,
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{RngAlgorithm, TestRng, TestRunner},
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, symlink},
    },
    path::{Path, PathBuf},
};

const CODECS: [(&str, &str); 5] = [
    ("zstd:1", "x.tar.zst"),
    ("lz4", "x.tar.lz4"),
    ("none", "x.tar.zst"),
    ("zstd:-5", "x.tar.zst"),
    ("zstd:6", "x.tar.zst"),
];

/// One object of a generated tree.
#[derive(Debug, Clone)]
struct Thing {
    parent: usize,
    name: Vec<u8>,
    what: What,
    mode: u32,
    mtime: (i64, i64),
    xattrs: Vec<(String, Vec<u8>)>,
}

#[derive(Debug, Clone)]
enum What {
    Directory,
    File(u64, usize),
    Sparse(u64, Vec<(u64, usize)>),
    Symlink(Vec<u8>),
    HardLink(usize),
    Fifo,
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let bytes = vec(
        any::<u8>().prop_map(|c| if c == 0 || c == b'/' { b'_' } else { c }),
        1..24,
    );
    let long = (1usize..=255).prop_map(|len| vec![b'n'; len]);
    prop_oneof![3 => "[a-c][a-z.]{0,6}".prop_map(String::into_bytes), 3 => bytes, 1 => long]
        .prop_filter("a name", |name| name != b"." && name != b"..")
}

fn size() -> impl Strategy<Value = usize> {
    let edge = prop_oneof![
        Just(512usize),
        Just(4096),
        Just(65_536),
        Just(131_072),
        Just(1 << 20)
    ];
    let around =
        (edge, -1isize..=1).prop_map(|(edge, distance)| edge.saturating_add_signed(distance));
    prop_oneof![2 => 0usize..700, 2 => around, 2 => 0usize..200_000, 1 => 0usize..3 << 20]
}

fn what() -> impl Strategy<Value = What> {
    let runs = vec((0u64..3 << 20, 1usize..20_000), 0..5);
    prop_oneof![
        3 => Just(What::Directory),
        8 => (any::<u64>(), size()).prop_map(|(seed, len)| What::File(seed, len)),
        2 => (1u64..8 << 20, runs).prop_map(|(size, runs)| What::Sparse(size, runs)),
        1 => vec(1u8..=255, 1..150).prop_map(What::Symlink),
        2 => any::<usize>().prop_map(What::HardLink),
        1 => Just(What::Fifo),
    ]
}

fn thing() -> impl Strategy<Value = Thing> {
    let xattr = ("(user|trusted)\\.[a-z.]{1,12}", vec(any::<u8>(), 0..60));
    let mtime = (-1_000_000_000i64..10_000_000_000, 0i64..1_000_000_000);
    (
        any::<usize>(),
        name(),
        what(),
        0u32..0o10000,
        mtime,
        vec(xattr, 0..3),
    )
        .prop_map(|(parent, name, word, mode, mtime, xattrs)| Thing {
            parent,
            name,
            what: word,
            mode,
            mtime,
            xattrs,
        })
}

/// Make the tree; names that are taken are left out.
fn plant(root: &Path, things: &[Thing]) {
    let (mut dirs, mut files, mut made) =
        (vec![root.to_owned()], Vec::<PathBuf>::new(), Vec::new());
    for thing in things {
        let path = dirs[thing.parent % dirs.len()].join(OsStr::from_bytes(&thing.name));
        if path.symlink_metadata().is_ok()
            || path.as_os_str().len() > 3000
            || !put(&path, &thing.what, &files)
        {
            continue;
        }
        match thing.what {
            What::Directory => dirs.push(path.clone()),
            What::File(..) | What::Sparse(..) => files.push(path.clone()),
            _ => {}
        }
        if !matches!(thing.what, What::HardLink(_)) {
            made.push((path, thing));
        }
    }
    for (path, thing) in made.iter().rev() {
        let is_link = matches!(thing.what, What::Symlink(_));
        for (name, value) in &thing.xattrs {
            set_xattr(path, name, value); // not every kind takes every name
        }
        if !is_link {
            set_mode(
                path,
                if is_root() {
                    thing.mode
                } else {
                    thing.mode | 0o700
                },
            );
        }
        set_mtime(path, thing.mtime.0, thing.mtime.1);
    }
}

fn put(path: &Path, what: &What, files: &[PathBuf]) -> bool {
    match what {
        What::Directory => fs::create_dir(path).unwrap(),
        What::File(seed, len) => fs::write(
            path,
            if seed & 1 == 0 {
                noise(*seed, *len)
            } else {
                text(*seed, *len)
            },
        )
        .unwrap(),
        What::Sparse(size, runs) => {
            let file = File::create(path).unwrap();
            file.set_len(*size).unwrap();
            for (offset, len) in runs {
                file.write_all_at(&noise(*offset, *len), *offset).unwrap();
            }
        }
        What::Symlink(target) => symlink(OsStr::from_bytes(target), path).unwrap(),
        What::HardLink(of) if files.is_empty() => return *of == usize::MAX,
        What::HardLink(of) => fs::hard_link(&files[of % files.len()], path).unwrap(),
        What::Fifo => runs::make_fifo(path),
    }
    true
}

#[test]
fn any_tree_comes_back_exactly() {
    // The same trees each time; or as many others as are asked for.
    let asked = std::env::var("FULLBORE_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    let config = ProptestConfig {
        cases: asked.unwrap_or(24),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let config = ProptestConfig {
        max_shrink_iters: 60,
        ..config
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = if asked.is_some() {
        TestRunner::new(config)
    } else {
        TestRunner::new_with_rng(config, rng)
    };
    let cases = (
        vec(thing(), 0..40),
        0..CODECS.len(),
        any::<bool>(),
        any::<bool>(),
    );
    let result = runner.run(&cases, |(things, codec, one_file, tricks)| {
        let dir = temp();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        plant(&tree, &things);
        there_and_back(&tree, dir.path(), CODECS[codec], one_file, tricks);
        Ok(())
    });
    result.unwrap_or_else(|e| panic!("{e}"));
}

fn there_and_back(
    tree: &Path,
    dir: &Path,
    (codec, file): (&str, &str),
    one_file: bool,
    tricks: bool,
) {
    let (store, back) = (
        dir.join(if one_file { file } else { "repository" }),
        dir.join("back"),
    );
    let no_tricks = (!tricks).then(|| "--no-tricks".into());
    let before = shape(tree);
    let backup = args![
        "backup",
        tree,
        "--to",
        store,
        "--compress",
        codec,
        "--frame-size",
        "64K",
        "--quiet"
    ];
    fullbore(backup.into_iter().chain(no_tricks.clone())).ends_with(0);
    fullbore(
        args!["restore", store, "--to", back, "--quiet"]
            .into_iter()
            .chain(no_tricks),
    )
    .ends_with(0);
    assert_same(&before, &shape(&back), "restored");
    fullbore(args!["verify", store, "--data"]).ends_with(0);
    let found = fullbore(args!["verify", store, "--against", tree]);
    assert_eq!(found.code, 0, "{}{}", found.out, found.err);
}

#[test]
fn every_codec_and_destination_brings_the_same_tree_back() {
    let dir = temp();
    let tree = dir.path().join("tree");
    sample(&tree);
    for (codec, file) in CODECS {
        for one_file in [false, true] {
            let case = temp();
            there_and_back(&tree, case.path(), (codec, file), one_file, true);
        }
    }
}

/// What a backup stored, but for its own name in the label: the segments and the manifest.
fn stored(tree: &Path, codec: &str, options: &[&str]) -> Vec<Vec<u8>> {
    let dir = temp();
    let repository = dir.path().join("repository");
    let command = args![
        "backup",
        tree,
        "--to",
        repository,
        "--compress",
        codec,
        "--quiet",
        "--segment-size",
        "1M"
    ];
    let frame = args!["--frame-size", "64K"];
    fullbore(command.into_iter().chain(frame).chain(runs::args(options))).ends_with(0);
    let mut stored: Vec<_> = segments(&repository)
        .iter()
        .map(|path| after_label(&fs::read(path).unwrap()))
        .collect();
    stored.push(fs::read(runs::only(&repository.join("backups")).join("manifest")).unwrap());
    stored
}

/// The label is the second frame; it ends at its length.
fn after_label(bytes: &[u8]) -> Vec<u8> {
    let offset = bytes
        .windows(4)
        .position(|four| (four[0] & 0xf0, &four[1..]) == (0x50, &[0x2a, 0x4d, 0x18]))
        .unwrap();
    let len = u32::from_le_bytes(bytes[offset + 4..offset + 8].try_into().unwrap()) as usize;
    bytes[offset + 8 + len..].to_vec()
}

#[test]
fn one_worker_and_many_write_the_same_bytes() {
    let dir = temp();
    let tree = dir.path().join("tree");
    sample(&tree);
    for codec in ["zstd:1", "lz4", "none"] {
        let one = stored(&tree, codec, &["--workers", "1", "--readers", "1"]);
        assert!(one.len() > 2, "several segments and a manifest");
        for options in [
            &["--workers", "16", "--readers", "16"][..],
            &["--workers", "3"],
            &["--no-tricks"],
        ] {
            assert!(one == stored(&tree, codec, options), "{codec} {options:?}");
        }
    }
}

/// What a frame was to hold turns out not to fit, and large files wait behind it for theirs to be opened.
#[test]
fn attributes_that_overflow_frames_do_not_change_that() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    for offset in 0..120u64 {
        let path = tree.join(format!("f{offset:03}"));
        runs::write(
            &path,
            text(offset, if offset % 40 == 39 { 500_000 } else { 20 }),
        );
        if !or_skip(
            set_xattr(&path, "user.fork", &noise(offset, 30_000)),
            "no tmpfs has large attributes here",
        ) {
            return;
        }
    }
    let one = stored(&tree, "zstd:1", &["--workers", "1", "--readers", "1"]);
    for options in [
        &["--workers", "16", "--readers", "16"][..],
        &["--workers", "3"],
        &["--no-tricks"],
    ] {
        assert!(one == stored(&tree, "zstd:1", options), "{options:?}");
    }
    let (store, back) = (dir.path().join("store"), dir.path().join("back"));
    fullbore(args![
        "backup",
        tree,
        "--to",
        store,
        "--readers",
        "1",
        "--frame-size",
        "64K"
    ])
    .ends_with(0);
    fullbore(args!["restore", store, "--to", back]).ends_with(0);
    assert_same(&shape(&tree), &shape(&back), "restored");
}

#[test]
fn little_memory_writes_the_same_bytes_as_much() {
    let dir = temp();
    let tree = dir.path().join("tree");
    sample(&tree);
    assert!(
        stored(&tree, "zstd:1", &["--memory", "1M"])
            == stored(&tree, "zstd:1", &["--memory", "1G"])
    );
}

#[test]
fn standard_output_carries_what_a_file_would_hold() {
    let dir = temp();
    let tree = dir.path().join("tree");
    sample(&tree);
    let file = dir.path().join("x.tar.zst");
    fullbore(args!["backup", tree, "--to", file]).ends_with(0);
    let plain = shell("zstd -dc \"$1\" | sha256sum", args![file])
        .ends_with(0)
        .out;
    let line = "\"$1\" backup \"$2\" --to - | zstd -dc | sha256sum";
    assert_eq!(
        shell(line, args![runs::FULLBORE, tree]).ends_with(0).out,
        plain
    );
    let line = "\"$1\" backup \"$2\" --to - > \"$3\" && \"$1\" verify --data \"$3\"";
    shell(
        line,
        args![runs::FULLBORE, tree, dir.path().join("y.tar.zst")],
    )
    .ends_with(0);
}

#[test]
fn a_repository_without_its_manifest_restores_whatever_the_codec() {
    let dir = temp();
    let tree = dir.path().join("tree");
    sample(&tree);
    (0..5).for_each(|i| runs::write(tree.join(format!("noise-{i}")), noise(i, 900_000)));
    for (codec, _) in CODECS {
        let (repo, back) = (
            dir.path().join(format!("repo-{codec}")),
            dir.path().join(format!("back-{codec}")),
        );
        fullbore(args![
            "backup",
            tree,
            "--to",
            repo,
            "--compress",
            codec,
            "--segment-size",
            "1M"
        ])
        .ends_with(0);
        fullbore(args!["verify", repo, "--data"]).ends_with(0);
        fs::remove_file(runs::only(&repo.join("backups")).join("manifest")).unwrap();
        fullbore(args!["restore", repo, "--to", back, "--quiet"]).ends_with(0);
        assert_same(&shape(&tree), &shape(&back), codec);
        fullbore(args!["verify", repo, "--data"]).ends_with(4);
    }
}

#[test]
fn a_tree_is_compared_byte_by_byte_where_there_are_no_digests() {
    let dir = temp();
    let (tree, back) = (dir.path().join("t"), dir.path().join("b"));
    sample(&tree);
    runs::write(tree.join("large"), noise(1, (5 << 20) + 77));
    runs::write(tree.join("small"), noise(2, 77));
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    sparse.write_all_at(&noise(3, 100_000), 1 << 20).unwrap();
    for target in ["r", "x.tar.lz4"].map(|target| dir.path().join(target)) {
        fullbore(args![
            "backup",
            tree,
            "--to",
            target,
            "--digest",
            "none",
            "--frame-size",
            "256K",
            "-q"
        ])
        .ends_with(0);
        let ran = fullbore(args!["restore", target, "--to", back]).ends_with(0);
        assert!(
            !ran.err.contains("every digest") && ran.err.contains("no digests"),
            "{}",
            ran.err
        );
        fullbore(args!["verify", target, "--against", back]).ends_with(0);
        let cases = [
            ("large", 0),
            ("large", 4 << 20),
            ("large", (5 << 20) + 76),
            ("small", 9),
            ("sparse", (1 << 20) + 9),
        ];
        for (name, index) in cases.into_iter().chain([("sparse", 2 << 20)]) {
            let path = back.join(name);
            let (before, meta) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap());
            let file = File::options().write(true).open(&path).unwrap();
            for (byte, code) in [(before[index] ^ 1, 1), (before[index], 0)] {
                file.write_all_at(&[byte], index as u64).unwrap();
                set_mtime(&path, meta.mtime(), meta.mtime_nsec());
                let ran =
                    fullbore(args!["verify", target, "--data", "--against", back]).ends_with(code);
                assert_eq!(
                    ran.out,
                    if code == 1 {
                        format!("{name}: other content\n")
                    } else {
                        String::new()
                    },
                    "{index}"
                );
            }
        }
        fs::remove_dir_all(&back).unwrap();
    }
}
