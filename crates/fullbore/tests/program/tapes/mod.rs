//! A backup on tapes of a simulated drive: it comes back, over several tapes, and a tape is written only if that is allowed.

mod counts;
mod harm;
mod levels;
mod media;

use crate::runs::{self, Ran, assert_same, fullbore, shape, shell, temp};
use crate::volumes::{paths, tree};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// The length of records in these tests: so that a small tree has many.
const RECORD_BYTES: usize = 64 << 10;

/// A tree, a drive, a shelf for tapes.
struct World {
    dir: tempfile::TempDir,
    tree: PathBuf,
}

impl World {
    fn new() -> Self {
        let dir = temp();
        let source = dir.path().join("tree");
        tree(&source);
        fs::create_dir(dir.path().join("shelf")).unwrap();
        Self { tree: source, dir }
    }

    fn cartridge(&self) -> PathBuf {
        self.dir.path().join("drive")
    }

    fn shelf(&self) -> PathBuf {
        self.dir.path().join("shelf")
    }

    fn location(&self) -> OsString {
        format!("tape:sim:{}", self.cartridge().display()).into()
    }

    fn catalog(&self) -> PathBuf {
        self.dir.path().join("catalog")
    }

    /// Puts a blank tape with these parameters into the drive.
    fn insert(&self, settings: &[&str]) {
        let line = args!["simtape", self.cartridge(), "-q"];
        let settings = [
            "clock=virtual",
            "most-record-bytes=64K",
            "buffer-bytes=128K",
        ]
        .iter()
        .chain(settings)
        .flat_map(|setting| args!["--set", setting]);
        fullbore(line.into_iter().chain(settings)).ends_with(0);
    }

    /// A program that puts tapes into the drive: a blank one with these parameters, or the wanted one of the shelf.
    fn changer(&self, settings: &str) -> String {
        let path = self.dir.path().join("changer");
        let script = format!(
            "#!/bin/sh\n\
             drive=${{FULLBORE_MEDIA_DRIVE#sim:}}; shelf={shelf}\n\
             echo \"$FULLBORE_MEDIA_ACTION $FULLBORE_MEDIA_VOLUME $FULLBORE_MEDIA_LABEL: $FULLBORE_MEDIA_REASON\" >> {log}\n\
             [ -e $drive ] && mv $drive $shelf/$(cat $shelf.in || echo 1)\n\
             echo $FULLBORE_MEDIA_VOLUME > $shelf.in\n\
             if [ $FULLBORE_MEDIA_ACTION = want ]; then mv $shelf/$FULLBORE_MEDIA_VOLUME $drive || exit 2; exit 0; fi\n\
             exec {fullbore} simtape $drive -q --set clock=virtual --set most-record-bytes=64K \
             --set buffer-bytes=128K {settings} > /dev/null\n",
            shelf = self.shelf().display(),
            log = self.dir.path().join("log").display(),
            fullbore = runs::FULLBORE,
        );
        runs::write(&path, script);
        runs::set_mode(&path, 0o755);
        path.display().to_string()
    }

    /// Puts a tape of the shelf into the drive, as the changer does.
    fn insert_from_shelf(&self, volume: u32) {
        let line =
            "[ $(cat $1.in) = $2 ] || { mv $3 $1/$(cat $1.in) && mv $1/$2 $3 && echo $2 > $1.in; }";
        shell(
            line,
            args![self.shelf(), volume.to_string(), self.cartridge()],
        )
        .ends_with(0);
    }

    /// Lines that the changer has written since the last call.
    fn asked(&self) -> Vec<String> {
        let log = self.dir.path().join("log");
        let lines = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        lines.lines().map(ToOwned::to_owned).collect()
    }

    fn backup_args(&self, more: &[&str]) -> Vec<OsString> {
        let mut line = args![
            "backup",
            self.tree,
            "--to",
            self.location(),
            "--frame-size",
            "64K",
            "--catalog",
            self.catalog(),
            "--quiet"
        ]
        .to_vec();
        for (option, usual) in [("--part-size", "1M"), ("--tape-buffer", "1M")] {
            if !more.contains(&option) {
                line.extend(args![option, usual]);
            }
        }
        line.extend(args_of(more));
        line
    }

    fn backup(&self, more: &[&str]) -> Ran {
        fullbore(self.backup_args(more))
    }

    /// Makes a backup over several tapes of the changer. Returns the lines that it was asked.
    fn backup_on_several(&self, settings: &[&str], more: &[&str]) -> Vec<String> {
        self.insert(settings);
        let set = settings.iter().map(|setting| format!("--set {setting} "));
        let changer = self.changer(&set.collect::<String>());
        let change = ["--change-command", &changer];
        self.backup(&[&change, more].concat()).ends_with(0);
        self.asked()
    }

    /// Restores by what the tapes say.
    fn restore(&self, more: &[&str]) -> (Ran, PathBuf, tempfile::TempDir) {
        let dir = temp();
        let none = dir.path().join("none");
        self.restore_by(&none, more, dir)
    }

    /// Restores by the catalog of the backup.
    fn restore_by_catalog(&self, more: &[&str]) -> (Ran, PathBuf, tempfile::TempDir) {
        self.restore_by(&self.catalog(), more, temp())
    }

    fn restore_by(
        &self,
        catalog: &Path,
        more: &[&str],
        dir: tempfile::TempDir,
    ) -> (Ran, PathBuf, tempfile::TempDir) {
        let back = dir.path().join("back");
        let line = args![
            "restore",
            self.location(),
            "--to",
            back,
            "--catalog",
            catalog
        ];
        let ran = fullbore(line.into_iter().chain(args_of(more)));
        (ran, back, dir)
    }

    fn assert_comes_back(&self, more: &[&str], case: &str) {
        for by_catalog in [true, false] {
            let (ran, back, _dir) = match by_catalog {
                true => self.restore_by_catalog(more),
                false => self.restore(more),
            };
            ran.ends_with(0);
            assert_same(&shape(&self.tree), &shape(&back), case);
        }
    }
}

fn args_of(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

/// The files between the marks of a cartridge, as `dd` reads them.
fn files(cartridge: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(cartridge).unwrap();
    let mut files = vec![Vec::new()];
    let mut rest = &bytes[4096..];
    while rest.len() >= 8 {
        let len = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]) as usize;
        match rest[0] {
            b'R' => {
                files.last_mut().unwrap().extend(&rest[8..8 + len]);
                rest = &rest[8 + len..];
            }
            _ => {
                files.push(Vec::new());
                rest = &rest[8..];
            }
        }
    }
    files.retain(|file| !file.is_empty());
    files
}

/// A key for these tests, and its recipient.
fn key(dir: &Path) -> (String, String) {
    use age::secrecy::ExposeSecret;
    let key = age::x25519::Identity::generate();
    let path = dir.join("key");
    runs::write_private(&path, key.to_string().expose_secret());
    (path.display().to_string(), key.to_public().to_string())
}

#[test]
fn a_tree_comes_back_from_a_tape() {
    let world = World::new();
    world.insert(&[]);
    world.backup(&[]).ends_with(0);
    world.assert_comes_back(&[], "one tape");
    let location = world.location();
    let none = world.dir.path().join("none");
    for catalog in [&world.catalog(), &none] {
        let line = args![
            "verify",
            location,
            "--data",
            "--against",
            world.tree,
            "--catalog",
            catalog
        ];
        fullbore(line).ends_with(0);
        let listed = fullbore(args!["list", location, "--catalog", catalog]).ends_with(0);
        assert!(listed.out.contains("d4/f4"), "{}", listed.out);
        let found = fullbore(args!["find", location, "f44", "--catalog", catalog]).ends_with(0);
        assert!(found.out.contains("d4/f44"), "{}", found.out);
        let one = fullbore(args!["cat", location, "text", "--catalog", catalog]).ends_with(0);
        assert_eq!(
            one.out.as_bytes(),
            fs::read(world.tree.join("text")).unwrap()
        );
    }
    let archive = world.dir.path().join("a.tar.zst");
    fullbore(args!["export", location, "--to", archive]).ends_with(0);
    let back = world.dir.path().join("back");
    fullbore(args!["restore", archive, "--to", back]).ends_with(0);
    assert_same(&shape(&world.tree), &shape(&back), "exported");
}

#[test]
fn each_part_is_a_tar_of_its_own_and_all_together_are_the_tree() {
    let world = World::new();
    world.insert(&[]);
    world.backup(&[]).ends_with(0);
    let out = world.dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let files = files(&world.cartridge());
    assert!(files.len() >= 4, "{}", files.len());
    for (number, file) in files.iter().enumerate().skip(1) {
        let part = world.dir.path().join("part");
        fs::write(&part, file).unwrap();
        let line = "set -o pipefail; zstd -dc \"$1\" | tar -xif - -C \"$2\"";
        let ran = shell(line, args![part, out]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{number}");
    }
    // A file that is stored in pieces is joined by hand.
    let pieces = out.join(".fullbore");
    if pieces.exists() {
        fs::remove_dir_all(pieces).unwrap();
    }
    let all = paths(&world.tree);
    let found = paths(&out);
    let missing: Vec<_> = all.difference(&found).collect();
    assert!(missing.is_empty() || missing == ["./large"], "{missing:?}");
}

#[test]
fn gnu_tar_and_age_read_a_sealed_part_from_the_drive() {
    if !runs::or_skip(runs::has("age"), "age is not installed") {
        return;
    }
    let world = World::new();
    let (key, recipient) = key(world.dir.path());
    world.insert(&[]);
    world.backup(&["--encrypt-to", &recipient]).ends_with(0);
    let (ran, ..) = world.restore(&[]);
    assert_ne!(ran.code, 0, "without a key nothing is read");
    world.assert_comes_back(&["--key", &key], "sealed");
    let tape = fs::read(world.cartridge()).unwrap();
    for secret in ["d4/f4", world.tree.to_str().unwrap()] {
        let is_in = tape
            .windows(secret.len())
            .any(|found| found == secret.as_bytes());
        assert!(!is_in, "{secret}");
    }
    let part = world.dir.path().join("part");
    fs::write(&part, &files(&world.cartridge())[1]).unwrap();
    let line = "set -o pipefail; age -d -i \"$2\" \"$1\" | zstd -dc | tar -tif -";
    let listed = shell(line, args![part, key]).ends_with(0);
    assert!(listed.out.contains("d0/f0"), "{}", listed.out);
}
