//! What somebody else wrote into a repository: refused, whoever reads, copies or repairs it.

#![allow(missing_docs)]

mod runs;

use fullbore::format::{
    root::{Live, Root},
    seal::seal,
};
use runs::{Ran, fullbore, names, only, temp, text, write};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// A repository with one backup of a few files, and the directory of that backup.
fn repository(dir: &Path) -> (PathBuf, PathBuf) {
    write(dir.join("tree/a"), text(1, 30_000));
    write(dir.join("tree/b"), text(2, 300));
    let repository = dir.join("repository");
    fullbore(args!["backup", dir.join("tree"), "--to", repository]).ends_with(0);
    let backup = only(&repository.join("backups"));
    (repository, backup)
}

/// Write the root of a backup anew, with a seal that fits.
fn reseal(backup: &Path, change: impl FnOnce(&mut Root)) {
    let path = backup.join("root.json");
    let mut root = Root::open(&fs::read(&path).unwrap(), "the root").unwrap();
    change(&mut root);
    fs::write(path, seal(&root).unwrap()).unwrap();
}

/// Commands that read a repository, or change it or another one.
fn commands(dir: &Path, repository: &Path) -> Vec<Vec<OsString>> {
    let all = [
        args!["restore", repository, "--to", dir.join("to")].to_vec(),
        args!["copy-backup", repository, "--to", dir.join("copy")].to_vec(),
        args!["repair", repository, "--yes"].to_vec(),
        args!["verify", repository].to_vec(),
        args!["verify", repository, "--sample", "50"].to_vec(),
        args!["prune", repository].to_vec(),
        args!["list", repository].to_vec(),
    ];
    all.to_vec()
}

/// A run that must not take long.
fn in_time(args: impl IntoIterator<Item = OsString>) -> Ran {
    let line = "exec timeout 60 \"$@\"";
    runs::shell(line, [OsString::from(runs::FULLBORE)].into_iter().chain(args))
}

#[test]
fn a_root_that_names_a_path_as_a_backup_is_refused() {
    let dir = temp();
    let (repository, backup) = repository(dir.path());
    // What it would lead to is there, beside the repository and beside its copy.
    let places = ["x", "copy/x"].map(|place| dir.path().join(place).join("manifest"));
    places.iter().for_each(|place| write(place, "what is there"));
    let root = fs::read(backup.join("root.json")).unwrap();
    for case in ["liveness", "pages", "bases"] {
        for command in commands(dir.path(), &repository) {
            fs::write(backup.join("root.json"), &root).unwrap();
            reseal(&backup, |root| match case {
                "liveness" => {
                    root.liveness.push(Live { backup: "../../x".into(), stream: 1, number: 1, ..Live::default() })
                }
                "pages" => root.pages[0].backup = "../../x".into(),
                _ => root.bases.push("../../x".into()),
            });
            let ran = in_time(command.clone());
            let code = if command[0] == "repair" { 0 } else { 4 };
            assert_eq!(ran.code, code, "{case} {command:?}: {}{}", ran.out, ran.err);
            for place in &places {
                assert_eq!(names(place.parent().unwrap()), ["manifest"], "{case} {command:?}");
                assert_eq!(fs::read(place).unwrap(), b"what is there", "{case} {command:?}");
            }
        }
    }
}
