//! The decision whether a new repository or an archive is encrypted, and what a copy may make plain.

use clap::Args;
use fullbore_crypt::{KIND_BYTES, UserRecipient, is_sealed, recipients_of_word};
use fullbore_engine::plan::{OpenStorage, Recipients, SEALED_ENDING, SinkSpec};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::safe_file;
use fullbore_repository::{archive::object::Sealing, open::place, writer::must_be_possible};
use fullbore_storage::{Location, Storages, keys::is_encrypted, probe};
use std::{ffi::OsStr, io::Read, os::unix::ffi::OsStrExt, path::Path};

/// Whether a new repository or an archive is encrypted. It stays so for ever.
#[derive(Debug, Args, Clone, Default)]
#[command(next_help_heading = "Storage")]
pub(super) struct EncryptArgs {
    /// Encrypt to age1…, an ssh-ed25519 key or @FILE (repeatable)
    ///
    /// A new repository or an archive is encrypted to this recipient: age1…, "ssh-ed25519 AAAA…",
    /// or the recipients in @FILE.
    #[arg(long, value_name = "RECIPIENT", conflicts_with_all = ["passphrase", "no_encryption"])]
    encrypt_to: Vec<String>,
    /// Encrypt a new repository or an archive with a passphrase
    ///
    /// The passphrase is read from --passphrase-file, from FULLBORE_PASSPHRASE or from the
    /// terminal.
    #[arg(long, conflicts_with = "no_encryption")]
    passphrase: bool,
    /// Do not encrypt a new repository
    ///
    /// In an object store, or if a key is given, a new repository needs one of --encrypt-to,
    /// --passphrase and --no-encryption.
    #[arg(long)]
    pub(super) no_encryption: bool,
}

impl EncryptArgs {
    fn is_wanted(&self) -> bool {
        self.passphrase || !self.encrypt_to.is_empty()
    }

    /// Whether [`EncryptArgs::apply`] depends on whether the destination is new.
    ///
    /// # Errors
    /// As [`Location::parse`].
    pub(super) fn asks_for_new(&self, storages: &Storages, word: &OsStr) -> Result<bool> {
        let is_cloud = matches!(Location::parse(word)?, Location::Cloud { .. });
        Ok(self.is_wanted() || is_cloud || storages.has_keys())
    }

    /// Makes a destination encrypted if it is new and that is wanted. A dry run changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a repository that exists is clear, if a new one in an object store comes without a decision, and for
    /// other destinations.
    pub(super) fn apply(
        &self,
        storages: &Storages,
        to: SinkSpec,
        word: &OsStr,
        is_new: bool,
        no_create: bool,
        dry_run: bool,
    ) -> Result<SinkSpec> {
        let location = Location::parse(word)?;
        if to.storage().is_none() {
            return self.apply_to_stream(storages, to, word);
        }
        let stored = storages.stored_objects(&location)?;
        if !is_new {
            return match self.is_wanted() && !is_encrypted(&*stored)? {
                true => cannot_encrypt(
                    "it is a repository that is not encrypted, and stays so",
                    &location,
                )
                .map_err(keep_clear),
                false => Ok(to),
            };
        }
        self.check_decision(storages, &location, no_create)?;
        storages.check_new_place(&location)?;
        if !self.is_wanted() || dry_run {
            return Ok(to);
        }
        must_be_possible(&*stored, no_create)?;
        if stored.as_local().is_none() && !probe(&*stored)? {
            return cannot_encrypt(
                "its storage has no conditional writes, which the keys need",
                &location,
            );
        }
        let recipients = self.recipients(storages)?;
        let Some((first, others)) = recipients.split_first() else {
            return cannot_encrypt("no recipient was given", &location);
        };
        let sealed = storages.encrypt_new(&location, first, others)?;
        Ok(SinkSpec::Repository(OpenStorage(sealed)))
    }

    /// Encrypts an archive or standard output. The name of an archive says whether it is.
    fn apply_to_stream(&self, storages: &Storages, to: SinkSpec, word: &OsStr) -> Result<SinkSpec> {
        let refused = |subject: &str| Error::new(ErrorKind::Usage, format!("{subject} {word:?}"));
        let has_ending = word.as_bytes().ends_with(SEALED_ENDING.as_bytes());
        match (&to, has_ending, self.is_wanted()) {
            (SinkSpec::Null, _, true) => {
                Err(refused("cannot encrypt").because("nothing is stored there"))
            }
            (SinkSpec::File(_), true, false) => Err(refused("cannot write")
                .because("its name says that it is encrypted")
                .hint("use --encrypt-to RECIPIENT or --passphrase, or leave .age out of the name")),
            (SinkSpec::File(_), false, true) => Err(refused("cannot encrypt")
                .because("the name of an encrypted archive ends in .age")
                .hint("use a name such as data.tar.zst.age")),
            (_, _, false) => Ok(to),
            (_, _, true) => {
                let recipients = self.recipients(storages)?;
                if recipients.is_empty() {
                    return Err(refused("cannot encrypt").because("no recipient was given"));
                }
                Ok(SinkSpec::Sealed(to.into(), Recipients(recipients.into())))
            }
        }
    }

    /// As [`EncryptArgs::apply`], for the destination of a copy. What is encrypted does not become clear without a decision; a new
    /// destination of what no key was given for gets the same keys.
    ///
    /// # Errors
    /// As [`EncryptArgs::apply`].
    pub(super) fn apply_to_copy(
        &self,
        storages: &Storages,
        from: Sealing,
        to: SinkSpec,
        word: &OsStr,
        is_new: bool,
        no_create: bool,
    ) -> Result<SinkSpec> {
        self.check_copy_decision(storages, from, &to, word, is_new)?;
        if !is_new || no_create || from == Sealing::Clear {
            return self.apply(storages, to, word, is_new, no_create, false);
        }
        if from == Sealing::Opened && (self.is_wanted() || self.no_encryption) {
            return self.apply(storages, to, word, is_new, no_create, false);
        }
        let location = Location::parse(word)?;
        let message =
            format!("cannot make a repository at {location}: decide whether it is encrypted");
        match from {
            Sealing::Opened => Err(Error::new(ErrorKind::Usage, message)
                .because("the backup is encrypted")
                .hint("use --encrypt-to RECIPIENT, --passphrase or --no-encryption; it cannot be changed later")),
            _ if self.is_wanted() || self.no_encryption => {
                Err(Error::new(ErrorKind::Permission, format!("cannot store it otherwise at {location}"))
                    .because("the backup is encrypted, and no key was given that reads it")
                    .hint("give its key: --key FILE, or --passphrase-file FILE"))
            }
            _ => {
                storages.check_new_place(&location)?;
                Ok(to)
            }
        }
    }

    /// What is copied to a clear repository becomes plain there, also if the repository exists. A key has to open one of the two.
    fn check_copy_decision(
        &self,
        storages: &Storages,
        from: Sealing,
        to: &SinkSpec,
        word: &OsStr,
        is_new: bool,
    ) -> Result<()> {
        let Some(objects) = to.storage().filter(|_| !is_new) else {
            return Ok(());
        };
        if Sealing::of(&**objects) == Sealing::Clear
            && from == Sealing::Opened
            && !self.no_encryption
        {
            let location = Location::parse(word)?;
            return Err(
                Error::new(ErrorKind::Usage, format!("cannot copy to {location}"))
                    .because("the backup is encrypted, and the repository there is not")
                    .hint("use --no-encryption if the backup is to become plain"),
            );
        }
        storages.check_key_use()
    }

    /// A new repository needs a decision in an object store, and wherever a key is given, which it would not be encrypted for.
    fn check_decision(
        &self,
        storages: &Storages,
        location: &Location,
        no_create: bool,
    ) -> Result<()> {
        if no_create || self.is_wanted() || self.no_encryption {
            return Ok(());
        }
        let why = if matches!(location, Location::Cloud { .. }) {
            "whoever has access to the store could read it"
        } else if storages.has_keys() {
            "a key or passphrase only opens a repository that is encrypted"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Usage,
            format!("cannot make a repository at {location}: decide whether it is encrypted"),
        )
        .because(why)
        .hint("use --encrypt-to RECIPIENT, --passphrase or --no-encryption; it cannot be changed later"))
    }

    fn recipients(&self, storages: &Storages) -> Result<Vec<UserRecipient>> {
        if self.passphrase {
            return Ok(vec![storages.new_passphrase()?]);
        }
        let mut recipients = Vec::new();
        for text in &self.encrypt_to {
            recipients.extend(recipients_of_word(text)?);
        }
        Ok(recipients)
    }
}

fn cannot_encrypt(why: &str, location: &Location) -> Result<SinkSpec> {
    Err(Error::new(ErrorKind::Usage, format!("cannot encrypt {location}")).because(why))
}

fn keep_clear(error: Error) -> Error {
    error.hint(
        "make an encrypted one with `fullbore init`, and copy the backups with `fullbore copy`",
    )
}

/// Whether a file is an encrypted archive. What is wrong with it shows when it is read.
fn is_sealed_file(path: &Path) -> bool {
    let mut head = Vec::new();
    let read =
        safe_file::open(path).map(|file| file.take(KIND_BYTES as u64).read_to_end(&mut head));
    read.is_ok() && is_sealed(&head)
}

/// Returns whether the backup that is copied is encrypted.
///
/// # Errors
/// The storage's.
pub(super) fn sealing_of(storages: &Storages, from: &OsStr) -> Result<Sealing> {
    if from == "-" {
        return Ok(Sealing::Clear);
    }
    let (location, _) = place(from)?;
    if !location.is_repository() {
        return Ok(match location.as_local().is_some_and(is_sealed_file) {
            true => Sealing::Opened,
            false => Sealing::Clear,
        });
    }
    Ok(Sealing::of(&*storages.objects(&location)?))
}
