//! Lists and changes the keys of an encrypted repository.

use fullbore_crypt::{Access, KeyOptions, KeyRing, UserRecipient, recipients_of_word};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{ROOT, is_backup_id},
    text::{self, columns::padded},
};
use fullbore_repository::{roots, verify_memory::carry_memory};
use fullbore_storage::{
    Location, Objects, SealedObjects, Storages,
    keys::{KeyFile, accept_root, add_key, list_keys, remove_key, rotate_key},
    lost_keys::restore_keys,
    seen_keys::{new_recipients, remember_recipients},
};
use serde_json::json;
use std::{io::Write, sync::Arc};

/// The line above the list of all keys.
pub(super) const ALL_KEYS: &str = "keys of this repository:";

/// Who uses a new key.
#[derive(Debug, Clone)]
pub(super) enum NewRecipient {
    /// Whoever has the key of this recipient, or of the one in `@FILE`.
    Named(String),
    /// Whoever knows the passphrase that these options give.
    Passphrase(KeyOptions),
}

/// How a user agrees to something that was shown.
#[derive(Debug, Clone, Copy)]
pub(super) enum Agreement {
    /// By an option.
    Given,
    /// By an answer to a question.
    Asked(fn(&str) -> Result<bool>),
    /// In no way: nobody is there to answer.
    Impossible,
}

/// The keys of a repository.
pub(super) struct RepositoryKeys<'a> {
    pub(super) storages: &'a Storages,
    pub(super) location: Location,
}

impl RepositoryKeys<'_> {
    /// Adds a key.
    ///
    /// # Errors
    /// As [`add_key`].
    pub(super) fn add(
        &self,
        name: &str,
        (recipient, access): (&NewRecipient, Access),
        out: &mut dyn Write,
    ) -> Result<()> {
        let (stored, ring) = self.storages.opened_key(&self.location)?;
        add_key(&*stored, &ring, name, &recipient.get()?, access)?;
        text::line(out, &format!("key {name:?} was added"))?;
        self.show_all(&*stored, &ring, out)
    }

    /// Removes a key. `access` is what it permits, if two keys have the name.
    ///
    /// # Errors
    /// As [`remove_key`].
    pub(super) fn remove(
        &self,
        name: &str,
        access: Option<Access>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let (stored, ring) = self.storages.opened_key(&self.location)?;
        let access = access_of(&list_keys(&*stored, Some(&ring))?, name, access)?;
        remove_key(&*stored, Some(&ring), name, access)?;
        text::line(out, &format!("key {name:?} was removed"))?;
        text::line(out, after_removal(access))
    }

    /// Writes the keys again, from a copy of the repository's key.
    ///
    /// # Errors
    /// As [`restore_keys`].
    pub(super) fn restore(
        &self,
        name: &str,
        recipient: &NewRecipient,
        out: &mut dyn Write,
    ) -> Result<()> {
        let (stored, ring) = self.storages.saved_key(&self.location)?;
        restore_keys(&stored, &ring, name, &recipient.get()?)?;
        self.remember(&ring, &list_keys(&*stored, Some(&ring))?);
        let line = format!("the keys were written anew, with key {name:?}");
        text::line(out, &line)?;
        text::line(out, &fingerprint_line(&ring))
    }

    /// Seals later backups with a new key.
    ///
    /// # Errors
    /// As [`rotate_key`].
    pub(super) fn rotate(&self, agreement: Agreement, out: &mut dyn Write) -> Result<()> {
        let (stored, ring) = self.storages.opened_key(&self.location)?;
        self.agree(&list_keys(&*stored, Some(&ring))?, &ring, agreement, out)?;
        let rotated = rotate_key(&*stored, &ring, &|_| {
            self.storages.new_passphrase().map(Some)
        })?;
        self.remember(&rotated, &list_keys(&*stored, Some(&rotated))?);
        text::line(out, "later backups are sealed with a new key")?;
        keep_memory(&stored, (ring, rotated), out)
    }

    /// Shows for whom a repository has keys.
    fn show_all(&self, stored: &dyn Objects, ring: &KeyRing, out: &mut dyn Write) -> Result<()> {
        let files = list_keys(stored, Some(ring))?;
        text::line(out, ALL_KEYS)?;
        for file in &files {
            text::line(out, &format!("  {}", line_of(file)))?;
        }
        self.remember(ring, &files);
        Ok(())
    }

    /// Shows all that get the next key, and asks if some are new to this user.
    fn agree(
        &self,
        files: &[KeyFile],
        ring: &KeyRing,
        by: Agreement,
        out: &mut dyn Write,
    ) -> Result<()> {
        text::line(out, "the new key is wrapped for:")?;
        let new = new_recipients(self.storages.state_dir(), ring, files);
        for file in files {
            let mark = if new.contains(&file) {
                "  new to this user"
            } else {
                ""
            };
            text::line(out, &format!("  {}{mark}", line_of(file)))?;
        }
        let names: Vec<&str> = new.iter().map(|file| &file.name[..]).collect();
        let is_agreed = new.is_empty()
            || match by {
                Agreement::Given => true,
                Agreement::Asked(ask) => ask("Give the new key to all of them?")?,
                Agreement::Impossible => false,
            };
        if is_agreed {
            self.remember(ring, files);
            return Ok(());
        }
        Err(Error::new(ErrorKind::Usage, "cannot rotate the key")
            .because(format!("keys that this user has not seen before would get it: {}", names.join(", ")))
            .hint("remove those that should not read or add (fullbore key remove); then run the same command with --yes"))
    }

    /// Lets a backup count that was sealed by a key that does not.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] without a root of this id that a key of this repository sealed.
    pub(super) fn accept(&self, backup: &str, out: &mut dyn Write) -> Result<()> {
        let (stored, ring) = self.storages.opened_key(&self.location)?;
        let message = format!("cannot accept backup {backup:?}");
        let cannot = Error::new(ErrorKind::NotFound, message);
        if !is_backup_id(backup) {
            return Err(cannot.because("it is not the id of a backup"));
        }
        if accept_root(&*stored, &ring, &roots::key(backup, ROOT))? {
            return text::line(out, &format!("backup {backup:?} counts from now on"));
        }
        let why = "there is no root of this id that a key of this repository sealed";
        Err(cannot.because(why))
    }

    /// Prints the keys.
    ///
    /// # Errors
    /// The storage's, and those of `out`.
    pub(super) fn list(&self, as_json: bool, out: &mut dyn Write) -> Result<()> {
        let (stored, ring) = self.storages.stored_and_key(&self.location)?;
        for key in list_keys(&*stored, ring.as_ref())? {
            let access = access_word(key.access);
            if as_json {
                text::json(
                    out,
                    &json!({"type": "key", "name": key.name, "access": access, "recipient": key.recipient}),
                )?;
            } else {
                text::line(out, &line_of(&key))?;
            }
        }
        match (ring, as_json) {
            (None, _) => Ok(()),
            (Some(ring), false) => text::line(out, &fingerprint_line(&ring)),
            (Some(ring), true) => {
                let fingerprint = json!({"type": "result", "fingerprint": ring.fingerprint()});
                text::json(out, &fingerprint)
            }
        }
    }

    /// Notes for whom the keys are, so that only new recipients are asked about.
    fn remember(&self, ring: &KeyRing, files: &[KeyFile]) {
        remember_recipients(self.storages.state_dir(), ring, files);
    }
}

impl NewRecipient {
    fn get(&self) -> Result<UserRecipient> {
        let text = match self {
            Self::Passphrase(options) => return Ok(options.new_passphrase()?.into()),
            Self::Named(text) => text,
        };
        let mut recipients = recipients_of_word(text)?;
        match (recipients.pop(), recipients.is_empty()) {
            (Some(recipient), true) => Ok(recipient),
            _ => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot make one key for {text:?}"),
            )
            .because("the file has several public keys")
            .hint("make a key with a name of its own for each of them")),
        }
    }
}

/// Which of the keys of a name is meant.
fn access_of(files: &[KeyFile], name: &str, wanted: Option<Access>) -> Result<Access> {
    let named = files.iter().filter(|key| key.name == name);
    let found: Vec<_> = named.map(|key| key.access).collect();
    match (wanted, &found[..]) {
        (Some(access), _) | (None, &[access]) => Ok(access),
        (None, []) => Ok(Access::Read), // the removal says that there is none
        (None, _) => Err(Error::new(ErrorKind::Usage, format!("cannot tell which key {name:?} is meant"))
            .because("one of this name reads, and another one only adds backups")
            .hint("--put removes the one that only adds; afterwards the same command without it removes the other one")),
    }
}

fn after_removal(access: Access) -> &'static str {
    match access {
        Access::Read => {
            "its owner can read what was stored before; `fullbore key rotate` seals later backups with a new key"
        }
        Access::Put => {
            "what it added so far still counts, and what it adds from now on does not; `fullbore key rotate` makes its old key useless"
        }
    }
}

/// Lets the results of verifications count after a rotation. They are of use, and not needed.
fn keep_memory(
    stored: &Arc<dyn Objects>,
    (before, after): (KeyRing, KeyRing),
    out: &mut dyn Write,
) -> Result<()> {
    let sealed_with = |ring| SealedObjects::new(stored.clone(), Arc::new(ring));
    match carry_memory(&sealed_with(before), &sealed_with(after)) {
        Ok(()) => Ok(()),
        Err(error) => {
            let lost = "results of earlier verifications do not count any more: run `fullbore verify --data`";
            text::line(out, &format!("{lost} ({})", error.line()))
        }
    }
}

fn fingerprint_line(ring: &KeyRing) -> String {
    format!("fingerprint of the keys: {}", ring.fingerprint())
}

fn line_of(file: &KeyFile) -> String {
    let access = access_word(file.access);
    let recipient = file.recipient.as_deref().unwrap_or("");
    format!("{} {access:<5} {recipient}", padded(&file.name, 20))
        .trim_end()
        .to_owned()
}

fn access_word(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Put => "add",
    }
}
