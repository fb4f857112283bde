//! Opens repositories: finds their keys, and compares them with those that are remembered.

use super::Storages;
use crate::{
    KeptBackups, Location, Objects, SealedObjects,
    keys::{self, RepositoryKey},
    remembered::{AcceptedRepositories, LocationMemory},
    seen_keys,
    trust::ClearUse,
    watched::WatchedObjects,
};
use fullbore_crypt::{Access, KeyRing, UserRecipient};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, REPOSITORY},
};
use fullbore_platform::secrecy::forbid_core_dumps;
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// The name of the first key file of a repository.
const FIRST_KEY: &str = "owner";

impl Storages {
    /// Returns the objects at a location, opened with the keys that were given if the repository there is encrypted.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for standard input and output and for `null:`; as [`keys::open_repository`]; the storage's.
    pub fn objects(&self, location: &Location) -> Result<Arc<dyn Objects>> {
        let name = location.to_string();
        if let Some(open) = self.opened(&name) {
            return Ok(open);
        }
        let stored = self.stored_objects(location)?;
        // The host that offers a repository has opened it with its own keys.
        if matches!(location, Location::Peer(_)) {
            return Ok(stored);
        }
        let is_local = stored.as_local().is_some();
        let memory = self.memory_of(location)?;
        // An error of a directory shows when it is used, with the words of that use.
        let is_usable = !is_local || self.has_duty() || keys::is_encrypted(&*stored).is_ok();
        let (key, has_known_keys) = match is_usable {
            true => self.open_repository(&*stored, &memory)?,
            false => (RepositoryKey::Clear, false),
        };
        let is_clear = matches!(key, RepositoryKey::Clear);
        let objects: Arc<dyn Objects> = match key {
            RepositoryKey::Clear => stored,
            RepositoryKey::Opened(ring) => self.opened_objects(stored, *ring)?,
            RepositoryKey::Locked => Arc::new(SealedObjects::locked(stored)),
        };
        let accepts = self.accepted(has_known_keys);
        let watched = WatchedObjects::new(objects, memory, accepts, has_known_keys);
        let objects: Arc<dyn Objects> = Arc::new(watched);
        // A clear directory costs nothing to open.
        if !(is_local && is_clear) {
            self.keep_open(name, &objects);
        }
        Ok(objects)
    }

    fn opened_objects(&self, stored: Arc<dyn Objects>, ring: KeyRing) -> Result<Arc<dyn Objects>> {
        refuse_core_dumps()?;
        let access = ring.access();
        let sealed = SealedObjects::new(stored, Arc::new(ring));
        Ok(match access {
            Access::Read => Arc::new(sealed),
            Access::Put => Arc::new(KeptBackups::new(sealed, self.state_dir())),
        })
    }

    /// Returns the repositories that are taken for the right ones, although they are not remembered.
    fn accepted(&self, has_known_keys: bool) -> AcceptedRepositories {
        let trust = &self.access().trust;
        AcceptedRepositories {
            others: has_known_keys && self.has_expected_keys() || trust.accepts_others,
            clear: trust.accepts_others && trust.clear == ClearUse::Decided,
            is_made: false,
        }
    }

    pub(super) fn memory_of(&self, location: &Location) -> Result<LocationMemory> {
        let settings = self.cloud_settings(location);
        let endpoint = settings.and_then(|settings| settings.endpoint.as_deref());
        LocationMemory::read(self.state_dir(), location, endpoint)
    }

    /// Returns whether the command has to open something with a key.
    fn has_duty(&self) -> bool {
        self.has_keys() || self.has_expected_keys()
    }

    fn has_expected_keys(&self) -> bool {
        !self.access().trust.expected_keys.is_empty()
    }

    /// Opens the key of a repository, and compares it with the remembered one. Returns also whether it is known.
    pub(super) fn open_repository(
        &self,
        stored: &dyn Objects,
        memory: &LocationMemory,
    ) -> Result<(RepositoryKey, bool)> {
        let options = &self.access().keys;
        let expected = &self.access().trust.expected_keys;
        // The first request to a store is one whose answer has a body: in it the store says what is wrong.
        let key = match keys::open_repository(stored, options) {
            Err(error) if error.kind == ErrorKind::Usage && !options.is_empty() => {
                if keys::is_encrypted(stored)? {
                    return Err(error);
                }
                self.check_clear_use(stored, error)?;
                RepositoryKey::Clear
            }
            key => key?,
        };
        let name = stored.describe("");
        let is_known = match &key {
            RepositoryKey::Opened(ring) => {
                let is_known = memory.check_keys(ring, expected, &name)?;
                self.0.has_opened.store(true, Relaxed);
                is_known
            }
            RepositoryKey::Locked if self.has_expected_keys() => {
                return Err(unchecked(&name, "no key was given that opens it"));
            }
            RepositoryKey::Clear if options.is_empty() && self.has_expected_keys() => {
                self.check_clear_use(stored, unchecked(&name, "it is not encrypted"))?;
                false
            }
            _ => false,
        };
        Ok((key, is_known))
    }

    /// Returns `error` if a clear repository may not be used beside a key. Where there is none yet, the decision comes when one is made.
    fn check_clear_use(&self, stored: &dyn Objects, error: Error) -> Result<()> {
        if self.access().trust.clear != ClearUse::Refused {
            return Ok(());
        }
        let is_there = match stored.as_local() {
            Some(local) => [REPOSITORY, BACKUPS]
                .iter()
                .any(|name| local.root().join(name).exists()),
            None => stored.stat(REPOSITORY)?.is_some(),
        };
        if is_there { Err(error) } else { Ok(()) }
    }

    /// Checks that a key that was given has opened one of the two repositories of a command.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it has opened none, and the user has not decided that they are clear.
    pub fn check_key_use(&self) -> Result<()> {
        let is_decided = self.access().trust.clear == ClearUse::Decided;
        let is_used = self.0.has_opened.load(Relaxed) || is_decided;
        if is_used || !self.has_duty() {
            return Ok(());
        }
        Err(
            Error::new(ErrorKind::Usage, "cannot use the key that was given")
                .because("none of the repositories of this command is encrypted, or their keys were removed")
                .hint("leave the key out if they should be clear"),
        )
    }

    /// Refuses to make a repository where one was that is missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if this host knows one there.
    pub fn check_new_place(&self, location: &Location) -> Result<()> {
        match self.access().trust.accepts_others {
            true => Ok(()),
            false => self.memory_of(location)?.check_new(&location.to_string()),
        }
    }

    /// Encrypts the repository that is about to be made at a location. Its keys are called `owner`, `owner-2` and so on.
    ///
    /// # Errors
    /// As [`keys::encrypt_repository`].
    pub fn encrypt_new(
        &self,
        location: &Location,
        first: &UserRecipient,
        others: &[UserRecipient],
    ) -> Result<Arc<dyn Objects>> {
        self.check_new_place(location)?;
        let stored = self.stored_objects(location)?;
        let ring = keys::encrypt_repository(&*stored, FIRST_KEY, first)?;
        for (number, recipient) in others.iter().enumerate() {
            let name = format!("{FIRST_KEY}-{}", number + 2);
            keys::add_key(&*stored, &ring, &name, recipient, Access::Read)?;
        }
        let files = keys::list_keys(&*stored, Some(&ring))?;
        // The user has just named all of them.
        seen_keys::remember_recipients(self.state_dir(), &ring, &files);
        refuse_core_dumps()?;
        let sealed: Arc<dyn Objects> = Arc::new(SealedObjects::new(stored, Arc::new(ring)));
        self.0.has_opened.store(true, Relaxed);
        let accepts = AcceptedRepositories {
            others: true,
            clear: false,
            is_made: true,
        };
        let watched = WatchedObjects::new(sealed, self.memory_of(location)?, accepts, true);
        let objects: Arc<dyn Objects> = Arc::new(watched);
        self.keep_open(location.to_string(), &objects);
        Ok(objects)
    }
}

fn refuse_core_dumps() -> Result<()> {
    forbid_core_dumps().map_err(|e| Error::io("could not forbid core dumps", e))
}

fn unchecked(name: &str, why: &str) -> Error {
    let message = format!("cannot compare the keys of {name} with --expect-keys");
    Error::new(ErrorKind::Usage, message).because(why.to_owned())
}
