//! The words of `wal push` and `wal get`, read without clap: a server starts one for each segment, and the table of all
//! commands and options takes longer to build than the rest.
//!
//! Only words that are simple are read here; all others, and all if a variable of the environment may add options, are left to
//! clap. Both ways give the same arguments.

use super::wal::{WalArgs, WalSpoolArgs, WalStoreArgs, WalSystemArgs, WalVerb, copy_name, segment};
use crate::cli::{
    storage::StorageArgs,
    values::{destination, interval, threads},
};
use fullbore_format::wal::SegmentName;
use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    time::Duration,
};

/// Variables that are no options.
const PLAIN_VARIABLES: [&str; 4] = [
    "FULLBORE_STATE_DIR",
    "FULLBORE_DEBUG",
    "FULLBORE_NO_TRICKS",
    "FULLBORE_SSH",
];

/// The arguments of a push or a fetch.
#[derive(Debug, Clone)]
pub(in crate::cli) struct PlainWalWords {
    pub(in crate::cli) wal: WalArgs,
    pub(in crate::cli) storage: StorageArgs,
    pub(in crate::cli) is_quiet: bool,
}

/// The options that are read here, as they were given.
#[derive(Debug, Default)]
struct GivenOptions {
    positionals: Vec<OsString>,
    place: Option<OsString>,
    patience: Option<Duration>,
    system: WalSystemArgs,
    store: WalStoreArgs,
    spool: WalSpoolArgs,
    through: Option<SegmentName>,
    until: Option<SegmentName>,
    wal_from: Option<String>,
    keys: Vec<PathBuf>,
    passphrase_file: Option<PathBuf>,
    storage: Vec<String>,
    flags: Vec<&'static str>,
}

/// Reads the words of a push or a fetch; `None` leaves them to clap.
pub(in crate::cli) fn read(words: &[OsString]) -> Option<PlainWalWords> {
    let is_plain = |name: &OsStr| {
        let is_ours = name.as_bytes().starts_with(b"FULLBORE_");
        !is_ours || PLAIN_VARIABLES.iter().any(|plain| name == *plain)
    };
    if !env::vars_os().all(|(name, _)| is_plain(&name)) {
        return None;
    }
    match words {
        [_, wal, verb, rest @ ..] if wal == "wal" && verb == "push" => push(rest),
        [_, wal, verb, rest @ ..] if wal == "wal" && verb == "get" => get(rest),
        _ => None,
    }
}

fn push(words: &[OsString]) -> Option<PlainWalWords> {
    let flags = ["--alone", "--no-serve", "--quiet", "-q"];
    let given = GivenOptions::read(words, "--to", &flags)?;
    let [path] = &given.positionals[..] else {
        return None;
    };
    let has_both = given.spool.spool.is_some() && given.flags.contains(&"--alone");
    if given.is_of_fetch() || has_both {
        return None;
    }
    let verb = WalVerb::Push {
        path: Some(path.into()),
        catch_up: None,
        to: given.place.clone()?,
        system: given.system.clone(),
        store: given.store.clone(),
        spool: given.spool.clone(),
        patience: given.patience.unwrap_or(Duration::from_secs(60)),
        alone: given.flags.contains(&"--alone"),
        no_serve: given.flags.contains(&"--no-serve"),
    };
    Some(given.with(verb))
}

fn get(words: &[OsString]) -> Option<PlainWalWords> {
    let given = GivenOptions::read(words, "--from", &["--standby", "--alone", "--quiet", "-q"])?;
    let [name, path] = &given.positionals[..] else {
        return None;
    };
    let verb = WalVerb::Get {
        name: name.to_str()?.to_owned(),
        path: path.into(),
        from: given.place.clone()?,
        system: given.system.clone(),
        through: given.through,
        until: given.until,
        wal_from: given.wal_from.clone(),
        standby: given.flags.contains(&"--standby"),
        alone: given.flags.contains(&"--alone"),
        patience: given.patience.unwrap_or(Duration::from_secs(600)),
    };
    Some(given.with(verb))
}

impl GivenOptions {
    fn read(words: &[OsString], place: &str, flags: &[&'static str]) -> Option<Self> {
        let mut given = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if !word.as_bytes().starts_with(b"-") {
                given.positionals.push(word.clone());
                continue;
            }
            if let Some(flag) = flags.iter().find(|flag| word == **flag) {
                given.flags.push(flag);
                continue;
            }
            let text = word.to_str()?;
            let (option, value) = match text.split_once('=') {
                Some((option, value)) => (option, OsString::from(value)),
                None => (text, words.next()?.clone()),
            };
            given.take(option, value, place)?;
        }
        Some(given)
    }

    /// Takes an option with a value; `None` if it is another one, or given twice, or not right.
    fn take(&mut self, option: &str, value: OsString, place: &str) -> Option<()> {
        let text = value.to_str();
        match option {
            option if option == place => {
                let is_first = self.place.replace(destination(value).ok()?).is_none();
                return is_first.then_some(());
            }
            "--patience" => self.patience = Some(interval(text?).ok()?),
            "--system" => self.system.system = Some(text?.parse().ok()?),
            "--as" => self.system.copy_name = Some(copy_name(text?).ok()?),
            "--through" => self.through = Some(segment(text?).ok()?),
            "--until" => self.until = Some(segment(text?).ok()?),
            "--wal-from" => self.wal_from = Some(text?.to_owned()),
            "--workers" | "-j" if place == "--to" => {
                self.store.workers = Some(threads(text?).ok()?)
            }
            "--spool" if place == "--to" => self.spool.spool = Some(value.into()),
            "--key" => self.keys.push(value.into()),
            "--passphrase-file" => self.passphrase_file = Some(value.into()),
            "--storage" => self.storage.push(text?.to_owned()),
            _ => return None,
        }
        Some(())
    }

    /// Returns whether there is an option that only a fetch has.
    fn is_of_fetch(&self) -> bool {
        self.through.is_some() || self.until.is_some() || self.wal_from.is_some()
    }

    fn with(self, verb: WalVerb) -> PlainWalWords {
        PlainWalWords {
            is_quiet: self.flags.contains(&"--quiet") || self.flags.contains(&"-q"),
            wal: WalArgs { verb },
            storage: StorageArgs::of_keys(self.keys, self.passphrase_file, self.storage),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    #[test]
    fn both_ways_give_the_same_arguments() {
        let file = "pg_wal/000000010000000000000002";
        for line in [
            format!("f wal push {file} --to /r"),
            format!("f wal push --to=/r {file} --system 7 --as x -j 2 --alone -q"),
            format!("f wal push {file} --to /r --spool /s --no-serve"),
            format!("f wal push {file} --to s3://b/p --key k --key=l --no-serve --patience 5s --storage a=b"),
            "f wal get 000000010000000000000002 pg_wal/RECOVERYXLOG --from /r".to_owned(),
            "f wal get x y --from=/r --through 000000010000000000000002 --until 000000010000000000000002 --wal-from h --standby --passphrase-file p".to_owned(),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let plain = match &words[2] {
                verb if verb == "push" => push(&words[3..]),
                _ => get(&words[3..]),
            };
            let plain = plain.expect(&line);
            let cli = Cli::try_parse_from(&words).unwrap();
            let Command::Wal(wal) = cli.command else {
                panic!("{line}");
            };
            assert_eq!(format!("{wal:?}"), format!("{:?}", plain.wal), "{line}");
            assert_eq!(format!("{:?}", cli.storage), format!("{:?}", plain.storage), "{line}");
            assert_eq!(cli.global.quiet, plain.is_quiet, "{line}");
        }
    }

    #[test]
    fn other_words_are_left_to_clap() {
        for line in [
            "x",
            "x --to",
            "x --to a --to b",
            "x --to a --level 3",
            "x y --to a",
            "--help",
            "x --to a --json",
            "x --to a --alone --spool b",
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(push(&words).is_none(), "{line}");
        }
    }
}
