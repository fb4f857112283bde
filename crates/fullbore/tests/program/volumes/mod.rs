//! A backup in volumes: each is readable alone, none is too large, and all together are the tree.

mod harm;
mod levels;
mod media;

pub(super) use levels::{change, settle};

use crate::runs::{
    self, Ran, assert_same, fullbore, has, names, noise, or_skip, shape, shell, temp, text,
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// Bytes of a volume in these tests: the least there is.
const VOLUME_BYTES: u64 = 1 << 20;

/// Small files, a file of several frames in one member, and one that is stored in pieces.
pub(super) fn tree(dir: &Path) {
    for number in 0..60 {
        let len = 1000 * (number as usize % 40);
        runs::write(
            dir.join(format!("d{}/f{number}", number % 5)),
            noise(number, len),
        );
    }
    runs::write(dir.join("large"), noise(99, 1_500_000));
    runs::write(dir.join("text"), text(7, 900_000));
    runs::write(dir.join("z/empty"), "");
    std::os::unix::fs::symlink("large", dir.join("z/link")).unwrap();
    fs::hard_link(dir.join("d4/f4"), dir.join("z/hard")).unwrap();
}

/// A tree, a directory for its volumes, and their location.
struct World {
    dir: tempfile::TempDir,
    tree: PathBuf,
    media: PathBuf,
}

impl World {
    fn new() -> Self {
        let dir = temp();
        let (source, media) = (dir.path().join("tree"), dir.path().join("media"));
        tree(&source);
        fs::create_dir(&media).unwrap();
        Self {
            tree: source,
            media,
            dir,
        }
    }

    fn location(&self) -> OsString {
        format!("volumes:{}", self.media.join("v").display()).into()
    }

    /// The catalog of these tests: every world has its own.
    fn catalog(&self) -> PathBuf {
        self.dir.path().join("catalog")
    }

    fn backup_args(&self, size: &str) -> Vec<OsString> {
        args![
            "backup",
            self.tree,
            "--to",
            self.location(),
            "--volume-size",
            size,
            "--frame-size",
            "64K",
            "--catalog",
            self.catalog(),
            "--quiet"
        ]
        .into()
    }

    /// Makes the backup; it has several volumes.
    fn backup(&self) -> Vec<String> {
        fullbore(self.backup_args("1M")).ends_with(0);
        let volumes = names(&self.media);
        assert!(volumes.len() >= 3, "{volumes:?}");
        volumes
    }

    /// Restores with an empty catalog, so that the volumes alone say what is there.
    fn restore(&self, more: &[&str]) -> (Ran, PathBuf, tempfile::TempDir) {
        let dir = temp();
        let back = dir.path().join("back");
        let none = dir.path().join("none");
        let line = args!["restore", self.location(), "--to", back, "--catalog", none];
        let ran = fullbore(line.into_iter().chain(more.iter().map(Into::into)));
        (ran, back, dir)
    }
}

/// The paths of all files and links below a directory.
pub(super) fn paths(dir: &Path) -> BTreeSet<String> {
    let found = shell("cd \"$1\" && find . -not -type d | sort", args![dir]).ends_with(0);
    found.out.lines().map(ToOwned::to_owned).collect()
}

#[test]
fn volumes_are_not_larger_than_asked_and_restore_the_tree() {
    for (size, most) in [("1M", VOLUME_BYTES), ("1500K,2M", 2 << 20), ("1G", 1 << 30)] {
        let world = World::new();
        fullbore(world.backup_args(size)).ends_with(0);
        for name in names(&world.media) {
            let bytes = fs::metadata(world.media.join(&name)).unwrap().len();
            assert!(bytes <= most, "{size} {name}: {bytes}");
        }
        let (ran, back, _dir) = world.restore(&[]);
        ran.ends_with(0);
        assert_same(&shape(&world.tree), &shape(&back), size);
        fullbore(args![
            "verify",
            world.location(),
            "--data",
            "--against",
            world.tree
        ])
        .ends_with(0);
    }
}

#[test]
fn volumes_waste_little() {
    let world = World::new();
    let volumes = world.backup();
    let last = volumes.len() - 1;
    for name in &volumes[..last] {
        let bytes = fs::metadata(world.media.join(name)).unwrap().len();
        assert!(bytes > VOLUME_BYTES * 8 / 10, "{name}: {bytes}");
    }
}

#[test]
fn each_volume_is_a_tar_of_its_own_and_all_together_are_the_tree() {
    let world = World::new();
    let volumes = world.backup();
    let out = world.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    for name in volumes {
        let line = "set -o pipefail; zstd -dc \"$1\" | tar -xif - -C \"$2\"";
        let ran = shell(line, args![world.media.join(&name), out]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
    }
    // Files above 1/64 of a volume are in pieces, named by their places.
    let join = "cd \"$1/.fullbore/parts\" && for f in $(find . -type d -links 2); do \
                cat $(ls -v -d $f/*) > \"$1/$f.joined\" && rm -rf \"$1/$f\" && mv \"$1/$f.joined\" \"$1/$f\"; done; \
                rm -rf \"$1/.fullbore\"";
    shell(join, args![out]).ends_with(0);
    shell(
        "diff -r --no-dereference \"$1\" \"$2\"",
        args![world.tree, out],
    )
    .ends_with(0);
}

#[test]
fn a_destination_in_the_source_or_without_a_size_is_refused() {
    let world = World::new();
    let into = format!("volumes:{}", world.tree.join("v").display());
    fullbore(args![
        "backup",
        world.tree,
        "--to",
        into,
        "--volume-size",
        "1M"
    ])
    .ends_with(2)
    .has_one_error("the volumes are written there");
    fullbore(args!["backup", world.tree, "--to", "volumes:/tmp/x"]).ends_with(2);
    fullbore(args![
        "backup",
        world.tree,
        "--to",
        "null:",
        "--volume-size",
        "1M"
    ])
    .ends_with(2);
}

#[test]
fn volumes_in_the_source_are_left_out_of_the_backup() {
    let world = World::new();
    let own = world.tree.join("own");
    fs::create_dir(&own).unwrap();
    let to = format!("volumes:{}", own.join("v").display());
    let line = args![
        "backup",
        world.tree,
        "--to",
        to,
        "--volume-size",
        "1M",
        "--frame-size",
        "64K"
    ];
    fullbore(line).ends_with(0);
    let listed = fullbore(args!["list", to]).ends_with(0);
    assert!(!listed.out.contains("v-2"), "{}", listed.out);
}

#[test]
fn encrypted_volumes_are_age_files_of_their_own() {
    if !or_skip(has("age"), "there is no age") {
        return;
    }
    let world = World::new();
    let key = world.dir.path().join("key");
    shell(
        "age-keygen -o \"$1\" 2>/dev/null && chmod 600 \"$1\"",
        args![key],
    )
    .ends_with(0);
    let public = shell("age-keygen -y \"$1\"", args![key]).ends_with(0);
    let to = args!["--encrypt-to", public.out.trim()];
    fullbore(world.backup_args("1M").into_iter().chain(to)).ends_with(0);
    let volumes = names(&world.media);
    assert!(volumes.len() >= 3 && volumes.iter().all(|name| name.ends_with(".tar.zst.age")));
    let out = world.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    for name in &volumes {
        let path = world.media.join(name);
        assert!(fs::metadata(&path).unwrap().len() <= VOLUME_BYTES, "{name}");
        let line = "set -o pipefail; age -d -i \"$1\" \"$2\" | zstd -dc | tar -xif - -C \"$3\"";
        shell(line, args![key, path, out]).ends_with(0);
    }
    assert_eq!(
        fs::read(out.join("d0/f5")).unwrap(),
        fs::read(world.tree.join("d0/f5")).unwrap()
    );
    world
        .restore(&[])
        .0
        .ends_with(1)
        .has_one_error("no key was given");
    let key = key.to_str().unwrap();
    let (ran, back, _dir) = world.restore(&["--key", key]);
    ran.ends_with(0);
    assert_same(&shape(&world.tree), &shape(&back), "encrypted");
    fs::remove_file(world.media.join(&volumes[1])).unwrap();
    let (ran, _, _dir) = world.restore(&["--key", key, "--keep-going"]);
    ran.ends_with(4);
}

#[test]
fn a_backup_of_a_repository_is_exported_to_volumes() {
    let world = World::new();
    let repository = world.dir.path().join("repository");
    let line = args![
        "backup",
        world.tree,
        "--to",
        repository,
        "--frame-size",
        "64K",
        "--quiet"
    ];
    fullbore(line).ends_with(0);
    let to = world.location();
    fullbore(args!["export", repository, "--to", to, "--quiet"]).ends_with(2);
    fullbore(args![
        "export",
        repository,
        "--to",
        to,
        "--volume-size",
        "1M",
        "--quiet"
    ])
    .ends_with(0);
    assert!(names(&world.media).len() >= 3);
    let (ran, back, _dir) = world.restore(&[]);
    ran.ends_with(0);
    assert_same(&shape(&world.tree), &shape(&back), "exported");
}

#[test]
fn a_stream_becomes_volumes_too() {
    let world = World::new();
    let to = world.location();
    let line = args![
        "backup",
        "--stdin-name",
        "dump.sql",
        "--to",
        to,
        "--volume-size",
        "1M",
        "--frame-size",
        "64K"
    ];
    let content = noise(5, 3_000_000);
    let ran = runs::fed(line, &content);
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    assert!(names(&world.media).len() >= 3);
    let (ran, back, _dir) = world.restore(&[]);
    ran.ends_with(0);
    assert!(fs::read(back.join("dump.sql")).unwrap() == content);
}

#[test]
fn one_worker_and_many_end_volumes_at_the_same_members() {
    let world = World::new();
    let sums = |workers: &str| {
        fs::remove_dir_all(&world.media).unwrap();
        fs::create_dir(&world.media).unwrap();
        fullbore(
            world
                .backup_args("1M")
                .into_iter()
                .chain(args!["--workers", workers]),
        )
        .ends_with(0);
        let listing = |name: &String| {
            let line = "zstd -dc \"$1\" | tar -tif -";
            shell(line, args![world.media.join(name)]).ends_with(0).out
        };
        names(&world.media).iter().map(listing).collect::<Vec<_>>()
    };
    assert_eq!(sums("1"), sums("4"));
}
