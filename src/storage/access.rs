//! How this process reaches storages: the settings of object stores and the keys, set once by the command line.

use super::{
    CloudAddress, CloudEnvironment, CloudObjects, CloudSettings, LocalObjects, Location, Objects,
    SealedObjects,
    keys::{self, RepositoryKey},
    ssh::{self, SshSettings},
    wire::{Wire, WireService},
};
use crate::{
    crypt::{Access, KeyOptions, KeyRing, UserRecipient},
    error::{Error, ErrorKind, Result},
    platform::secrecy::forbid_core_dumps,
    queue::Locked,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
};

/// The settings and keys of all storages of this process.
#[derive(Debug, Clone, Default)]
pub struct StorageAccess {
    /// Settings of object stores.
    pub cloud: CloudSettings,
    /// Keys of encrypted repositories.
    pub keys: KeyOptions,
    /// How other hosts are reached.
    pub ssh: SshSettings,
}

/// The name of the first key file of a repository.
const FIRST_KEY: &str = "owner";

static ACCESS: OnceLock<StorageAccess> = OnceLock::new();

/// Object stores, repositories on other hosts and encrypted ones that are open, by their names: a passphrase is asked for once, and connections are shared.
static OPEN: Mutex<BTreeMap<String, Arc<dyn Objects>>> = Mutex::new(BTreeMap::new());

/// Sets the settings and keys of this process. Only the first call counts.
pub fn set_access(access: StorageAccess) {
    let _ = ACCESS.set(access);
}

fn access() -> &'static StorageAccess {
    ACCESS.get_or_init(StorageAccess::default)
}

/// The objects at a location as they are stored, sealed or not.
///
/// # Errors
/// As [`objects`].
pub fn stored_objects(location: &Location) -> Result<Arc<dyn Objects>> {
    let Some(local) = location.as_local() else {
        return far_objects(location);
    };
    Ok(Arc::new(LocalObjects::new(local)))
}

/// The objects of a store or of another host; one connection for all that use them.
fn far_objects(location: &Location) -> Result<Arc<dyn Objects>> {
    let name = format!("stored {location}");
    if let Some(open) = OPEN.locked().get(&name) {
        return Ok(open.clone());
    }
    let objects: Arc<dyn Objects> = match location {
        Location::Cloud { .. } => Arc::new(cloud_objects(location)?),
        Location::Ssh { host, path } => Arc::new(ssh::connect(host, path, &access().ssh)?),
        Location::Peer(name) => Arc::new(ssh::peer_objects(name)?),
        _ => return Err(location.refused()),
    };
    OPEN.locked().insert(name, objects.clone());
    Ok(objects)
}

/// A connection to another host, over which it is offered a service.
///
/// # Errors
/// As [`ssh::connect_to`].
pub fn connect_to_host(host: &str, service: Arc<dyn WireService>) -> Result<Wire> {
    ssh::connect_to(host, &access().ssh, service)
}

fn cloud_objects(location: &Location) -> Result<CloudObjects> {
    let address = CloudAddress::parse(&location.text())?;
    let address = address.ok_or_else(|| location.refused())?;
    let environment = CloudEnvironment::of_process();
    CloudObjects::open(&address, &access().cloud, &environment)
}

/// The objects at a location, opened with the keys of this process if the repository there is encrypted.
///
/// # Errors
/// [`ErrorKind::Usage`] for standard input and output and for `null:`, [`ErrorKind::Unsupported`] for a storage that this program
/// does not know yet; as [`keys::open_repository`]; the storage's.
pub fn objects(location: &Location) -> Result<Arc<dyn Objects>> {
    let name = location.to_string();
    if let Some(open) = OPEN.locked().get(&name) {
        return Ok(open.clone());
    }
    let stored = stored_objects(location)?;
    // The host that offers a repository has opened it with its own keys.
    if matches!(location, Location::Peer(_)) {
        return Ok(stored);
    }
    // What is wrong with a directory shows when it is used, with the words of that use.
    if stored.as_local().is_some() && !matches!(keys::is_encrypted(&*stored), Ok(true)) {
        return Ok(stored);
    }
    let objects: Arc<dyn Objects> = match keys::open_repository(&*stored, &keys_for(&*stored)?)? {
        RepositoryKey::Clear => stored,
        RepositoryKey::Opened(ring) => {
            forbid_core_dumps().map_err(|e| Error::io("could not forbid core dumps", e))?;
            Arc::new(SealedObjects::new(stored, Arc::new(*ring)))
        }
        RepositoryKey::Locked => Arc::new(SealedObjects::locked(stored)),
    };
    OPEN.locked().insert(name, objects.clone());
    Ok(objects)
}

/// A command may use two repositories, and one of them may be clear.
fn keys_for(stored: &dyn Objects) -> Result<KeyOptions> {
    Ok(if keys::is_encrypted(stored)? {
        access().keys.clone()
    } else {
        KeyOptions::default()
    })
}

/// Encrypts the repository that is about to be made at a location. Its keys are called `owner`, `owner-2` and so on.
///
/// # Errors
/// As [`keys::encrypt_repository`].
pub fn encrypt_new(
    location: &Location,
    first: &UserRecipient,
    others: &[UserRecipient],
) -> Result<Arc<dyn Objects>> {
    let stored = stored_objects(location)?;
    let ring = keys::encrypt_repository(&*stored, FIRST_KEY, first)?;
    for (number, recipient) in others.iter().enumerate() {
        let name = format!("{FIRST_KEY}-{}", number + 2);
        keys::add_key(&*stored, &ring, &name, recipient, Access::Read)?;
    }
    forbid_core_dumps().map_err(|e| Error::io("could not forbid core dumps", e))?;
    let sealed: Arc<dyn Objects> = Arc::new(SealedObjects::new(stored, Arc::new(ring)));
    OPEN.locked().insert(location.to_string(), sealed.clone());
    Ok(sealed)
}

/// A recipient from a new passphrase: that of the options, or one that a person types twice.
///
/// # Errors
/// [`ErrorKind::Usage`] if there is none.
///
/// [`ErrorKind::Usage`]: crate::error::ErrorKind::Usage
pub fn new_passphrase() -> Result<UserRecipient> {
    Ok(access().keys.new_passphrase()?.into())
}

/// The key of an encrypted repository, for the commands that change its keys.
///
/// # Errors
/// [`ErrorKind::Usage`] if the repository is clear, [`ErrorKind::Permission`] without a key of it.
pub fn opened_key(location: &Location) -> Result<(Arc<dyn Objects>, Box<KeyRing>)> {
    let stored = stored_objects(location)?;
    let refused = |kind, why: &str| {
        Err(Error::new(kind, format!("cannot change the keys of {location}")).because(why))
    };
    match keys::open_repository(&*stored, &keys_for(&*stored)?)? {
        RepositoryKey::Opened(ring) => Ok((stored, ring)),
        RepositoryKey::Clear => refused(ErrorKind::Usage, "it is not encrypted"),
        RepositoryKey::Locked => refused(ErrorKind::Permission, "no key was given"),
    }
}
