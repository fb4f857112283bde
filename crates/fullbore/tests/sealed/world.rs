//! A tree with a repository, people with keys, and runs of the program that know of no other key.

use super::runs::{self, Ran, Shape, command, noise, shape, temp};
use age::secrecy::ExposeSecret;
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

/// A name and a content that may be seen nowhere but with a key.
pub(crate) const HIDDEN: &str = "verysecretname";

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
}

/// A person with a key of age.
#[derive(Clone)]
pub(crate) struct Person {
    pub(crate) recipient: String,
    pub(crate) key: PathBuf,
}

impl World {
    pub(crate) fn new() -> Self {
        let world = Self { dir: temp() };
        let tree = world.tree();
        for number in 0..12 {
            runs::write(
                tree.join(format!("d/{HIDDEN}{number:02}")),
                noise(number, 9000),
            );
        }
        runs::write(tree.join("large"), noise(77, 2_500_000));
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.path("repo")
    }

    pub(crate) fn shape(&self) -> Shape {
        shape(&self.tree())
    }

    pub(crate) fn change(&self, turn: u64) {
        let name = format!("d/{HIDDEN}{:02}", turn % 12);
        runs::write(self.tree().join(name), noise(1000 + turn, 9100));
    }

    pub(crate) fn person(&self, name: &str) -> Person {
        let identity = age::x25519::Identity::generate();
        let key = self.path(&format!("{name}.key"));
        runs::write_private(&key, identity.to_string().expose_secret());
        Person {
            recipient: identity.to_public().to_string(),
            key,
        }
    }

    /// Runs the program without a key but those of the arguments.
    pub(crate) fn run(&self, args: impl IntoIterator<Item = OsString>) -> Ran {
        self.command(args).output().unwrap().into()
    }

    pub(crate) fn command(
        &self,
        args: impl IntoIterator<Item = OsString>,
    ) -> std::process::Command {
        let mut command = command(args);
        command
            .env_remove("FULLBORE_KEY_FILE")
            .env_remove("FULLBORE_PASSPHRASE")
            .env("FULLBORE_STATE_DIR", self.path("state"))
            .stdin(Stdio::null());
        command
    }

    /// Runs the program with a person's key, if the person has one.
    pub(crate) fn run_as(&self, person: &Person, args: impl IntoIterator<Item = OsString>) -> Ran {
        let key = (person.key != PathBuf::new()).then(|| args!["--key", person.key]);
        self.run(args.into_iter().chain(key.into_iter().flatten()))
    }

    /// A user of clear repositories.
    pub(crate) fn without_key(&self) -> Person {
        Person {
            recipient: String::new(),
            key: PathBuf::new(),
        }
    }

    /// A repository for a person.
    pub(crate) fn init(&self, repository: &Path, person: &Person) {
        let ran = self.run(args!["init", repository, "--encrypt-to", person.recipient]);
        ran.ends_with(0);
    }

    /// A backup of the tree; the result as JSON.
    pub(crate) fn backup(&self, repository: &Path, person: &Person) -> serde_json::Value {
        let small = [
            "--json",
            "--segment-size",
            "1M",
            "--frame-size",
            "64K",
            "--host",
            "hidden-host",
        ];
        let args = args!["backup", self.tree(), "--to", repository]
            .into_iter()
            .chain(small.map(Into::into));
        let ran = self.run_as(person, args).ends_with(0);
        ran.json().pop().unwrap()
    }

    /// Two backups, the second of which refers to the first; their ids.
    pub(crate) fn two_backups(&self, repository: &Path, person: &Person) -> [String; 2] {
        let first = id_of(&self.backup(repository, person));
        self.change(1);
        let second = self.backup(repository, person);
        assert_eq!(second["bases"][0], first.as_str());
        assert!(second["kept_bytes"].as_u64().unwrap() > 2_500_000);
        [first, id_of(&second)]
    }

    #[track_caller]
    pub(crate) fn assert_restores(&self, from: &Path, person: &Person, case: &str) {
        let out = temp();
        let target = out.path().join("out");
        self.run_as(person, args!["restore", from, "--to", target, "--quiet"])
            .ends_with(0);
        runs::assert_same(&self.shape(), &shape(&target), case);
    }
}

pub(crate) fn id_of(result: &serde_json::Value) -> String {
    result["id"].as_str().unwrap().to_owned()
}

/// All files below a directory.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => dirs.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}
