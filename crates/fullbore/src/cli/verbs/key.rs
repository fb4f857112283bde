//! Arguments of `fullbore key`.

use super::key_change::{Agreement, NewRecipient, RepositoryKeys};
use crate::cli::{
    options::EXIT_CODES,
    output::{aside, terminal_columns, told, told_within},
    values::{any_bytes, destination},
};
use clap::{Args, Subcommand, ValueHint};
use fullbore_crypt::{Access, KeyOptions};
use fullbore_format::{
    error::{Error, Result},
    text,
};
use fullbore_storage::{Location, Storages};
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    io::{IsTerminal, Write, stderr, stdin},
    path::PathBuf,
};

/// `fullbore key`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(in crate::cli) struct KeyArgs {
    #[command(subcommand)]
    verb: KeyVerb,
    #[arg(from_global)]
    json: bool,
}

/// The repository of a key.
#[derive(Debug, Args)]
struct KeyRepository {
    /// An encrypted repository
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
    repository: OsString,
}

#[derive(Debug, Subcommand)]
enum KeyVerb {
    /// List the keys of a repository
    List {
        #[command(flatten)]
        place: KeyRepository,
        #[arg(from_global)]
        json: bool,
    },
    /// Add a key that reads and writes
    Add {
        #[command(flatten)]
        place: KeyRepository,
        /// The name of the key
        #[arg(long, value_name = "NAME")]
        name: String,
        /// age1…, "ssh-ed25519 AAAA…" or @FILE [default: a new passphrase]
        ///
        /// @FILE is a file with one recipient.
        #[arg(long = "for", value_name = "RECIPIENT")]
        recipient: Option<String>,
        /// The file with the new passphrase [default: ask on the terminal]
        #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
        new_passphrase_file: Option<PathBuf>,
    },
    /// Add a key with which a host adds backups, but cannot read any
    Put {
        #[command(flatten)]
        place: KeyRepository,
        /// The name of the key
        #[arg(long, value_name = "NAME")]
        name: String,
        /// The key of the host: age1…, "ssh-ed25519 AAAA…" or @FILE
        ///
        /// @FILE is a file with one recipient.
        #[arg(long = "for", value_name = "RECIPIENT")]
        recipient: String,
    },
    /// Remove a key
    Remove {
        #[command(flatten)]
        place: KeyRepository,
        /// The name of the key
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Remove a key that `key put` added
        ///
        /// The option is needed if another key has the same name.
        #[arg(long)]
        put: bool,
    },
    /// Write lost keys again, from a copy of the repository's key
    ///
    /// The option --key gives the copy, which is the output of `age -d -i KEY REPO/keys/NAME.age`.
    /// The repository must have no keys. If only some key files are lost, `fullbore key add` with
    /// --key and the copy adds them again.
    Restore {
        #[command(flatten)]
        place: KeyRepository,
        /// The name of the new key
        #[arg(long, value_name = "NAME", default_value = "owner")]
        name: String,
        /// age1…, "ssh-ed25519 AAAA…" or @FILE [default: a new passphrase]
        ///
        /// @FILE is a file with one recipient.
        #[arg(long = "for", value_name = "RECIPIENT")]
        recipient: Option<String>,
        /// The file with the new passphrase [default: ask on the terminal]
        #[arg(long, value_name = "FILE", conflicts_with = "recipient")]
        new_passphrase_file: Option<PathBuf>,
    },
    /// Seal later backups with a new key
    Rotate {
        #[command(flatten)]
        place: KeyRepository,
        /// Agree to keys that this user has not seen before
        #[arg(long)]
        yes: bool,
    },
    /// Trust a backup that was sealed with a removed or old key
    Accept {
        #[command(flatten)]
        place: KeyRepository,
        /// The id of the backup
        #[arg(value_name = "BACKUP")]
        backup: String,
    },
}

fn new_recipient(named: Option<String>, passphrase_file: Option<PathBuf>) -> NewRecipient {
    match named {
        Some(recipient) => NewRecipient::Named(recipient),
        None => NewRecipient::Passphrase(KeyOptions {
            passphrase_file,
            may_ask: stdin().is_terminal(),
            ..KeyOptions::default()
        }),
    }
}

pub(in crate::cli) fn run(args: KeyArgs, storages: &Storages) -> Result<u8> {
    let Some(change) = args.verb.change().filter(|_| args.json) else {
        let columns = terminal_columns().filter(|_| !args.json);
        return told_within(columns, |out| args.verb.run(storages, out).map(|()| 0));
    };
    // The words for a person would not be JSON.
    let mut said = Vec::new();
    args.verb.run(storages, &mut said)?;
    String::from_utf8_lossy(&said).lines().for_each(aside);
    told(|out| text::json(out, &change).map(|()| 0))
}

impl KeyVerb {
    /// Returns the result of a change, for `--json`; `None` if the command changes nothing.
    fn change(&self) -> Option<Value> {
        let result = |change: &str, name: Option<&String>| json!({"type": "result", "change": change, "name": name});
        Some(match self {
            Self::List { .. } => return None,
            Self::Add { name, .. } | Self::Put { name, .. } => result("added", Some(name)),
            Self::Remove { name, .. } => result("removed", Some(name)),
            Self::Restore { name, .. } => result("restored", Some(name)),
            Self::Rotate { .. } => result("rotated", None),
            Self::Accept { backup, .. } => {
                json!({"type": "result", "change": "accepted", "id": backup})
            }
        })
    }

    /// Carries out the change, and prints what was done.
    ///
    /// # Errors
    /// As the functions of [`keys`](fullbore_storage::keys).
    fn run(self, storages: &Storages, out: &mut dyn Write) -> Result<()> {
        match self {
            Self::List { place, json } => place.keys(storages)?.list(json, out),
            Self::Add {
                place,
                name,
                recipient,
                new_passphrase_file,
            } => {
                let recipient = new_recipient(recipient, new_passphrase_file);
                place
                    .keys(storages)?
                    .add(&name, (&recipient, Access::Read), out)
            }
            Self::Put {
                place,
                name,
                recipient,
            } => {
                let recipient = NewRecipient::Named(recipient);
                place
                    .keys(storages)?
                    .add(&name, (&recipient, Access::Put), out)
            }
            Self::Remove { place, name, put } => {
                let access = put.then_some(Access::Put);
                place.keys(storages)?.remove(&name, access, out)
            }
            Self::Restore {
                place,
                name,
                recipient,
                new_passphrase_file,
            } => {
                let recipient = new_recipient(recipient, new_passphrase_file);
                place.keys(storages)?.restore(&name, &recipient, out)
            }
            Self::Rotate { place, yes } => {
                let agreement = match yes {
                    true => Agreement::Given,
                    false if stdin().is_terminal() => Agreement::Asked(asked),
                    false => Agreement::Impossible,
                };
                place.keys(storages)?.rotate(agreement, out)
            }
            Self::Accept { place, backup } => place.keys(storages)?.accept(&backup, out),
        }
    }
}

impl KeyRepository {
    fn keys<'a>(&self, storages: &'a Storages) -> Result<RepositoryKeys<'a>> {
        Ok(RepositoryKeys {
            storages,
            location: Location::parse(&self.repository)?,
        })
    }
}

/// Asks a person on the terminal.
fn asked(question: &str) -> Result<bool> {
    let failed = |error| Error::io("could not ask", error);
    write!(stderr(), "{question} [y/N] ").map_err(failed)?;
    let mut answer = String::new();
    stdin().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
