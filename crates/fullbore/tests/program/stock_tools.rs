//! A backup can be read without this program: by zstd, lz4, gzip, GNU tar, bsdtar and Python.

use crate::runs;
use crate::runs::{
    Shape, assert_same, fullbore, has, is_root, or_skip, sample, shape, shell, temp,
};
use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

/// Programs that write the plain tar of `$1`… to standard output, by codec. The last two are plain streams, of which there
/// are no repositories.
const DECODERS: [(&str, &str, &str); 5] = [
    ("zstd:1", "x.tar.zst", "zstd -dcq"),
    ("lz4", "x.tar.lz4", "lz4 -dcm"),
    ("none", "none.tar.zst", "zstd -dcq"),
    ("gzip:1", "x.tar.gz", "gzip -dc"),
    ("none", "x.tar", "cat"),
];

/// What is made with this codec under this name: a file, and a repository if there can be one.
fn destinations(dir: &Path, file: &str) -> Vec<PathBuf> {
    let is_archive = file.ends_with(".zst") || file.ends_with(".lz4");
    let repository = is_archive.then(|| dir.join(format!("repository of {file}")));
    [dir.join(file)].into_iter().chain(repository).collect()
}

const EXTRACTORS: [(&str, &str); 3] = [
    ("tar", "tar -xi --xattrs --xattrs-include='*' --acls -p -C"),
    (
        "bsdtar",
        "bsdtar -xpf - --options 'tar:read_concatenated_archives' -C",
    ),
    (
        "python3",
        "python3 -c '
import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode=\"r|\", ignore_zeros=True) as tar:
    tar.extractall(sys.argv[1], filter=\"fully_trusted\")
'",
    ),
];

/// What an extractor keeps: bsdtar and Python do not say where holes are and leave attributes away as we call them, and
/// Python knows no fractions of a microsecond and no times of symbolic links.
fn known_to(program: &str, mut shape: Shape) -> Shape {
    if program == "bsdtar" {
        shape.remove(&b""[..]); // nor does bsdtar touch the directory it extracts into
    }
    for node in shape.values_mut() {
        if program != "tar" {
            node.data.clear();
            node.xattrs.clear();
        }
        if program == "python3" {
            node.mtime.1 = node.mtime.1 / 10_000 * 10_000;
            if node.kind.starts_with("symlink") {
                node.mtime = (0, 0);
            }
        }
    }
    shape
}

/// Digests over all bytes, holes too.
fn with_whole_digests(dir: &Path, mut shape: Shape) -> Shape {
    for (path, node) in shape.iter_mut().filter(|(_, node)| node.kind == "file") {
        let path = dir.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(path));
        node.digest = blake3::hash(&fs::read(path).unwrap()).to_string();
    }
    shape
}

fn tree(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    sample(&tree);
    runs::write(
        tree.join(format!("{}/{}", "d".repeat(150), "f".repeat(200))),
        "a long path",
    );
    runs::write(tree.join("ümläut/☃"), "not ASCII");
    runs::set_xattr(&tree.join("words"), "user.note", b"kept");
    // Python restores a time as a fraction, which is not exact far from now.
    for path in shape(&tree).into_keys().rev() {
        runs::set_mtime(
            &tree.join(OsString::from_vec(path)),
            1_500_000_000,
            250_000_000,
        );
    }
    tree
}

/// Extract `files` by every extractor, and compare with the tree.
fn assert_extracts(tree: &Path, decoder: &str, files: &[PathBuf]) {
    let before = with_whole_digests(tree, shape(tree));
    for (program, line) in EXTRACTORS {
        if !or_skip(has(program), program) {
            continue;
        }
        let dir = temp();
        let out = dir.path().join("out");
        fs::create_dir(&out).unwrap();
        let line = format!("out=$1; shift; {decoder} \"$@\" | {line} \"$out\"");
        let args = [OsString::from(&out)]
            .into_iter()
            .chain(files.iter().map(OsString::from));
        let ran = shell(&line, args);
        assert_eq!((ran.code, &*ran.err), (0, ""), "{program} {decoder}");
        let after = with_whole_digests(&out, shape(&out));
        assert_same(
            &known_to(program, before.clone()),
            &known_to(program, after),
            &format!("{program} {decoder}"),
        );
    }
}

#[test]
fn every_extractor_restores_every_codec_from_segments_and_from_one_file() {
    if !or_skip(is_root(), "owners are set by root only") {
        return;
    }
    let dir = temp();
    let tree = tree(dir.path());
    for (codec, file, decoder) in DECODERS {
        for target in destinations(dir.path(), file) {
            let options = args![
                "--compress",
                codec,
                "--segment-size",
                "1M",
                "--frame-size",
                "64K",
                "--quiet"
            ];
            fullbore(
                args!["backup", tree, "--to", target]
                    .into_iter()
                    .chain(options),
            )
            .ends_with(0);
            if target.is_dir() {
                let segments = runs::segments(&target);
                assert!(segments.len() > 1, "{segments:?}");
                assert_extracts(&tree, decoder, &segments);
            } else {
                assert_extracts(&tree, decoder, &[target]);
            }
        }
    }
}

#[test]
fn the_tools_of_each_codec_accept_its_files() {
    let dir = temp();
    let tree = tree(dir.path());
    let tests = [
        "zstd -tq \"$1\" && zstd -lq \"$1\"",
        "lz4 -tq \"$1\"",
        "zstd -tq \"$1\" && zstd -lq \"$1\"",
        "gzip -t \"$1\"",
        "tar -tf \"$1\" >/dev/null",
    ];
    for ((codec, file, _), line) in DECODERS.into_iter().zip(tests) {
        for target in destinations(dir.path(), file) {
            fullbore(args![
                "backup",
                tree,
                "--to",
                target,
                "--compress",
                codec,
                "--segment-size",
                "1M",
                "--quiet"
            ])
            .ends_with(0);
            let files = if target.is_dir() {
                runs::segments(&target)
            } else {
                vec![target]
            };
            for file in files {
                shell(line, args![file]).ends_with(0);
            }
        }
    }
}

#[test]
fn zstd_lists_the_size_and_the_checksum_of_every_frame() {
    let dir = temp();
    let (tree, file) = (tree(dir.path()), dir.path().join("x.tar.zst"));
    fullbore(args!["backup", tree, "--to", file, "--quiet"]).ends_with(0);
    let listed = shell("zstd -lv \"$1\"", args![file]).ends_with(0).out;
    let size = shell("zstd -dc \"$1\" | wc -c", args![file])
        .ends_with(0)
        .out;
    assert!(
        listed.contains(&format!("({} B)", size.trim())),
        "{listed}{size}"
    );
    assert!(listed.contains("Check: XXH64"), "{listed}");
}

#[test]
fn tools_that_look_at_the_first_bytes_see_the_codec() {
    if !or_skip(has("bsdtar"), "there is no bsdtar") {
        return;
    }
    let dir = temp();
    let tree = tree(dir.path());
    for (codec, file, _) in DECODERS {
        let file = dir.path().join(file);
        fullbore(args![
            "backup",
            tree,
            "--to",
            file,
            "--compress",
            codec,
            "--quiet"
        ])
        .ends_with(0);
        let listed = shell("bsdtar -tf \"$1\" | wc -l", args![file])
            .ends_with(0)
            .out;
        assert_eq!(
            listed.trim().parse::<usize>().unwrap(),
            shape(&tree).len(),
            "{codec}"
        );
    }
}

#[test]
fn a_pipe_restores_backups_of_ours_and_tars_of_others() {
    let dir = temp();
    let tree = tree(dir.path());
    let before = shape(&tree);
    for codec in ["zstd", "lz4", "gzip", "none"] {
        let back = dir.path().join(codec);
        let line = "\"$1\" backup \"$2\" --to - --quiet --compress \"$4\" | \"$1\" restore - --to \"$3\" --quiet";
        let ran = shell(line, args![runs::FULLBORE, tree, back, codec]);
        assert_eq!((ran.code, &*ran.err), (0, ""), "{codec}");
        assert_same(&before, &shape(&back), codec);
    }
    for (n, line) in [
        "tar -cS --format=pax --xattrs -C \"$2\" .",
        "tar -cS --format=pax --xattrs -C \"$2\" . | zstd -q",
    ]
    .iter()
    .enumerate()
    {
        let back = dir.path().join(format!("tar{n}"));
        let ran = shell(
            &format!("{line} | \"$1\" restore - --to \"$3\" --quiet"),
            args![runs::FULLBORE, tree, back],
        );
        assert_eq!((ran.code, &*ran.err), (0, ""), "{line}");
        assert_same(&before, &shape(&back), line);
    }
}

/// The name of another user is the beginning of the owner's, just as much as the field of ustar holds.
#[test]
fn neither_tar_nor_fullbore_gives_a_file_to_a_user_whose_name_is_the_beginning_of_the_owners() {
    if !or_skip(is_root() && has("unshare"), "not root, or no unshare") {
        return;
    }
    let dir = temp();
    runs::write(dir.path().join("tree/file"), "content");
    std::os::unix::fs::chown(dir.path().join("tree/file"), Some(70_002), Some(70_002)).unwrap();
    for (codec, name, decoder) in DECODERS {
        let script = format!(
            "set -e; cd \"$1\"; name=$(printf 'u%.0s' $(seq 31)); cp /etc/passwd /etc/group .
             printf '%s:x:70001:70001:::/bin/sh\n%sv:x:70002:70002:::/bin/sh\n' $name $name >> passwd
             printf '%s:x:70001:\n%sv:x:70002:\n' $name $name >> group
             mount --bind passwd /etc/passwd; mount --bind group /etc/group
             \"$2\" backup tree --to {name} --compress {codec} --quiet
             mkdir by-tar; {decoder} < {name} | tar -x -C by-tar
             \"$2\" restore {name} --to by-fullbore --quiet
             tar -c -f gnu.tar -C tree file; \"$2\" restore gnu.tar --to from-tar --quiet
             stat -c %u:%g by-tar/file by-fullbore/file from-tar/file; rm -r by-tar by-fullbore from-tar"
        );
        let ran = shell(
            "exec unshare -m bash -c \"$1\" bash \"${@:2}\"",
            args![script, dir.path(), runs::FULLBORE],
        );
        assert_eq!(ran.ends_with(0).out, "70002:70002\n".repeat(3), "{codec}");
    }
}
