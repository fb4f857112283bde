//! The use of keys apart from opening a repository: archives, streams, passphrases, and commands that change keys.

use super::Storages;
use crate::{Location, Objects, keys::RepositoryKey};
use fullbore_crypt::{
    KIND_BYTES, KeyRing, OpeningReader, UserIdentity, UserRecipient, is_sealed, wants_passphrase,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    io::{Cursor, Read},
    sync::Arc,
};

impl Storages {
    /// Returns whether keys or a passphrase were given.
    pub fn has_keys(&self) -> bool {
        self.access().keys.is_given()
    }

    /// Returns the keys for an archive or a stream that begins with `header`, [`KIND_BYTES`] of it, and that messages call `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if none was given; those of reading them.
    pub fn archive_keys(&self, header: &[u8], name: &str) -> Result<Vec<UserIdentity>> {
        let keys = &self.access().keys;
        let identities = if wants_passphrase(header) {
            let passphrase = keys.passphrase_for(name)?;
            let identity = passphrase.map(|passphrase| UserIdentity::of_passphrase(&passphrase));
            identity.into_iter().collect()
        } else {
            keys.identities()?
        };
        if identities.is_empty() {
            return Err(Error::new(ErrorKind::Permission, format!("cannot read {name}"))
                .because("it is encrypted, and no key was given that fits")
                .hint("give the key that it was encrypted to: --key FILE, or a passphrase with --passphrase-file FILE"));
        }
        Ok(identities)
    }

    /// Returns a stream, opened with the keys that were given if it is encrypted. Messages call it `name`.
    ///
    /// # Errors
    /// As [`Storages::archive_keys`] and [`OpeningReader::new`], or the stream's.
    pub fn opened_stream<R: Read + Send + 'static>(
        &self,
        mut input: R,
        name: &str,
    ) -> Result<Box<dyn Read + Send>> {
        let failed = |error| Error::io(format!("could not read {name}"), error);
        let mut head = Vec::new();
        let mut first = (&mut input).take(KIND_BYTES as u64);
        first.read_to_end(&mut head).map_err(failed)?;
        if !is_sealed(&head) {
            return Ok(Box::new(Cursor::new(head).chain(input)));
        }
        let keys = self.archive_keys(&head, name)?;
        let whole = Cursor::new(head).chain(input);
        Ok(Box::new(OpeningReader::new(whole, &keys, name)?))
    }

    /// Returns a recipient from a new passphrase: that of the options, or one that a person types twice.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there is none.
    pub fn new_passphrase(&self) -> Result<UserRecipient> {
        Ok(self.access().keys.new_passphrase()?.into())
    }

    /// Returns the objects of an encrypted repository as they are stored, and its key, if one was given.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the repository is clear; as [`open_repository`](crate::keys::open_repository).
    pub fn stored_and_key(
        &self,
        location: &Location,
    ) -> Result<(Arc<dyn Objects>, Option<KeyRing>)> {
        let stored = self.stored_objects(location)?;
        let (key, _) = self.open_repository(&*stored, &self.memory_of(location)?)?;
        match key {
            RepositoryKey::Opened(ring) => Ok((stored, Some(*ring))),
            RepositoryKey::Locked => Ok((stored, None)),
            RepositoryKey::Clear => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot list or change the keys of {location}"),
            )
            .because("it is not encrypted, or it is no repository")
            .hint("`fullbore init REPO --encrypt-to RECIPIENT` makes an encrypted repository, and `fullbore sync` copies the backups of this one into it")),
        }
    }

    /// Returns the objects of an encrypted repository as they are stored, and its key.
    ///
    /// # Errors
    /// As [`Storages::stored_and_key`]; [`ErrorKind::Permission`] if no key was given.
    pub fn opened_key(&self, location: &Location) -> Result<(Arc<dyn Objects>, KeyRing)> {
        let (stored, ring) = self.stored_and_key(location)?;
        let ring = ring.ok_or_else(|| {
            let message = format!("cannot change the keys of {location}");
            Error::new(ErrorKind::Permission, message)
                .because("no key was given that reads it")
                .hint("give a key of the repository: --key FILE, or a passphrase with --passphrase-file FILE")
        })?;
        Ok((stored, ring))
    }

    /// Returns the objects of a repository as they are stored, and the copy of its key that was given, which is compared with the
    /// key that is remembered.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] unless one copy was given; [`ErrorKind::Permission`] for the key of another repository.
    pub fn saved_key(&self, location: &Location) -> Result<(Arc<dyn Objects>, KeyRing)> {
        let access = self.access();
        let mut rings = access.keys.saved_rings()?;
        let (Some(ring), true) = (rings.pop(), rings.is_empty()) else {
            let message = format!("cannot write the keys of {location} anew");
            return Err(Error::new(ErrorKind::Usage, message)
                .because("one copy of the repository's key is needed")
                .hint("give the file that `age -d` made of a key file: --key SAVED"));
        };
        let expected = &access.trust.expected_keys;
        let memory = self.memory_of(location)?;
        memory.check_keys(&ring, expected, &location.to_string())?;
        Ok((self.stored_objects(location)?, ring))
    }
}
