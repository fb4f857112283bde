//! Options for object stores and encryption, and the decision whether a new repository is encrypted.

use super::values::rate;
use crate::{
    crypt::{KeyOptions, UserRecipient, parse_recipients},
    error::{Error, ErrorKind, Result},
    plan::{OpenStorage, SinkSpec},
    repo::writer::must_be_possible,
    storage::{
        CloudEnvironment, CloudSettings, Location,
        access::{StorageAccess, encrypt_new, new_passphrase, set_access, stored_objects},
        keys::is_encrypted,
        probe,
        ssh::SshSettings,
    },
};
use clap::Args;
use std::{
    env,
    ffi::OsStr,
    fs,
    io::{IsTerminal, stdin},
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
};

/// How storages are reached, with every command.
#[derive(Debug, Args, Clone)]
#[command(next_help_heading = "Storage")]
pub(super) struct StorageArgs {
    /// Read an encrypted repository with this key: an age identity or an ssh-ed25519 key; can be repeated
    #[arg(long, value_name = "FILE", global = true, display_order = 910)]
    key: Vec<PathBuf>,
    /// Read an encrypted repository with the passphrase in this file
    #[arg(long, value_name = "FILE", global = true, display_order = 911)]
    passphrase_file: Option<PathBuf>,
    /// A setting of object stores, such as endpoint=URL or region=NAME; can be repeated
    #[arg(
        long,
        value_name = "KEY=VALUE",
        global = true,
        display_order = 912,
        hide_short_help = true
    )]
    storage: Vec<String>,
    /// Requests to an object store at the same time [default: auto]
    #[arg(long, value_name = "N|auto", value_parser = connections, global = true, display_order = 913, hide_short_help = true)]
    connections: Option<Connections>,
    /// Bytes a second sent to an object store, at most
    #[arg(long, value_name = "SIZE", value_parser = rate, global = true, display_order = 914, hide_short_help = true)]
    limit_upload: Option<NonZeroU64>,
    /// Bytes a second received from an object store, at most
    #[arg(long, value_name = "SIZE", value_parser = rate, global = true, display_order = 915, hide_short_help = true)]
    limit_download: Option<NonZeroU64>,
    /// The command that reaches other hosts, split at spaces [default: FULLBORE_SSH, or ssh]
    #[arg(
        long,
        value_name = "COMMAND",
        global = true,
        display_order = 916,
        hide_short_help = true
    )]
    ssh: Option<String>,
    /// The path of fullbore on other hosts [default: fullbore]
    #[arg(
        long,
        value_name = "PATH",
        global = true,
        display_order = 917,
        hide_short_help = true
    )]
    far_program: Option<String>,
}

/// A number of connections, or as many as are useful.
#[derive(Debug, Clone, Copy)]
struct Connections(Option<NonZeroUsize>);

fn connections(text: &str) -> Result<Connections, String> {
    if text == "auto" {
        return Ok(Connections(None));
    }
    text.parse()
        .map(|number| Connections(Some(number)))
        .map_err(|_| "a number above 0, or auto".to_owned())
}

impl StorageArgs {
    /// Sets the access of this process to storages.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a setting that does not exist.
    pub(super) fn apply(&self) -> Result<()> {
        let mut cloud = CloudSettings::from_environment(&CloudEnvironment::of_process())?;
        for pair in &self.storage {
            cloud.set_pair(pair)?;
        }
        cloud.connections = self.connections.and_then(|connections| connections.0);
        cloud.upload_limit = self.limit_upload;
        cloud.download_limit = self.limit_download;
        let keys = KeyOptions {
            key_files: self.key.clone(),
            passphrase_file: self.passphrase_file.clone(),
            passphrase: None,
            may_ask: stdin().is_terminal(),
        }
        .with_environment();
        let ssh = SshSettings {
            command: self.ssh.clone().or_else(|| env::var("FULLBORE_SSH").ok()),
            far_program: self.far_program.clone(),
        };
        set_access(StorageAccess { cloud, keys, ssh });
        Ok(())
    }
}

/// Whether a new repository is encrypted. It stays so for ever.
#[derive(Debug, Args, Clone, Default)]
#[command(next_help_heading = "Storage")]
pub(super) struct EncryptArgs {
    /// Encrypt a new repository to age1…, "ssh-ed25519 AAAA…", or the recipients in @FILE; can be repeated
    #[arg(long, value_name = "RECIPIENT", conflicts_with_all = ["passphrase", "no_encryption"])]
    encrypt_to: Vec<String>,
    /// Encrypt a new repository with a passphrase: of --passphrase-file, FULLBORE_PASSPHRASE or the terminal
    #[arg(long, conflicts_with = "no_encryption")]
    passphrase: bool,
    /// Do not encrypt a new repository; a new one in an object store wants this option or one of the other two
    #[arg(long)]
    no_encryption: bool,
}

impl EncryptArgs {
    fn is_wanted(&self) -> bool {
        self.passphrase || !self.encrypt_to.is_empty()
    }

    /// Makes a new destination encrypted if that is wanted. A dry run changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a repository that exists is clear, if a new one in an object store comes without a decision, and for
    /// other destinations.
    pub(super) fn apply(
        &self,
        to: SinkSpec,
        word: &OsStr,
        no_create: bool,
        dry_run: bool,
    ) -> Result<SinkSpec> {
        let location = Location::parse(word)?;
        let refused = |why: &str| {
            Err(Error::new(ErrorKind::Usage, format!("cannot encrypt {location}")).because(why))
        };
        if to.storage().is_none() {
            return match self.is_wanted() {
                true => refused(
                    "only repositories can be encrypted; age encrypts a stream: fullbore backup … --to - | age -r …",
                ),
                false => Ok(to),
            };
        }
        let stored = stored_objects(&location)?;
        if !to.is_new_repository() {
            return match self.is_wanted() && !is_encrypted(&*stored)? {
                true => refused("it is a repository that is not encrypted, and stays so"),
                false => Ok(to),
            };
        }
        if matches!(location, Location::Cloud { .. }) {
            self.check_new_store(&location, no_create)?;
        }
        if !self.is_wanted() || dry_run {
            return Ok(to);
        }
        must_be_possible(&*stored, no_create)?;
        if stored.as_local().is_none() && !probe(&*stored)? {
            return refused("its storage has no conditional writes, which the keys need");
        }
        let recipients = self.recipients()?;
        let Some((first, others)) = recipients.split_first() else {
            return refused("no recipient was given");
        };
        let sealed = encrypt_new(&location, first, others)?;
        Ok(SinkSpec::Repository(OpenStorage(sealed)))
    }

    fn check_new_store(&self, location: &Location, no_create: bool) -> Result<()> {
        if no_create || self.is_wanted() || self.no_encryption {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Usage,
            format!("cannot make a repository at {location}: decide whether it is encrypted"),
        )
        .because("whoever has access to the store could read it")
        .hint("use --encrypt-to RECIPIENT, --passphrase or --no-encryption; it cannot be changed later"))
    }

    fn recipients(&self) -> Result<Vec<UserRecipient>> {
        if self.passphrase {
            return Ok(vec![new_passphrase()?]);
        }
        let mut recipients = Vec::new();
        for text in &self.encrypt_to {
            match text.strip_prefix('@') {
                Some(path) => {
                    let lines = fs::read_to_string(path)
                        .map_err(|e| Error::io(format!("could not read {path:?}"), e))?;
                    recipients.extend(parse_recipients(&lines, &format!("{path:?}"))?);
                }
                None => recipients.push(UserRecipient::parse(text)?),
            }
        }
        Ok(recipients)
    }
}
