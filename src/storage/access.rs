//! How this process reaches storages: the settings of object stores and the keys, set once by the command line.

use super::{
    CacheSpec, CachedObjects, CloudAddress, CloudCounts, CloudEnvironment, CloudObjects,
    CloudSettings, LocalObjects, Location, Objects, SealedObjects,
    keys::{self, RepositoryKey},
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
    /// Where parts of object stores are kept, if they are. Of an encrypted repository they are kept encrypted.
    pub cache: Option<CacheSpec>,
}

/// The name of the first key file of a repository.
const FIRST_KEY: &str = "owner";

static ACCESS: OnceLock<StorageAccess> = OnceLock::new();

/// Object stores and encrypted repositories that are open, by their names: a passphrase is asked for once, and connections are shared.
static OPEN: Mutex<BTreeMap<String, Arc<dyn Objects>>> = Mutex::new(BTreeMap::new());

/// Object stores that are open, to say what was asked of them.
static CLOUDS: Mutex<Vec<CloudObjects>> = Mutex::new(Vec::new());

/// What this process asked of all object stores so far; `None` if it opened none.
pub fn cloud_counts() -> Option<CloudCounts> {
    let clouds = CLOUDS.locked();
    let counts = clouds.iter().map(CloudObjects::counts);
    counts.reduce(|all, more| all.plus(&more))
}

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
        return cloud_objects(location);
    };
    Ok(Arc::new(LocalObjects::new(local)))
}

fn cloud_objects(location: &Location) -> Result<Arc<dyn Objects>> {
    let address = match location {
        Location::Cloud { .. } => CloudAddress::parse(&location.text())?,
        _ => None,
    };
    let Some(address) = address else {
        return Err(location.refused());
    };
    let name = format!("stored {location}");
    if let Some(open) = OPEN.locked().get(&name) {
        return Ok(open.clone());
    }
    let environment = CloudEnvironment::of_process();
    let cloud = CloudObjects::open(&address, &access().cloud, &environment)?;
    CLOUDS.locked().push(cloud.clone());
    let cloud: Arc<dyn Objects> = match &access().cache {
        Some(spec) => Arc::new(CachedObjects::new(Arc::new(cloud), spec.clone())),
        None => Arc::new(cloud),
    };
    OPEN.locked().insert(name, cloud.clone());
    Ok(cloud)
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
    // What is wrong with a directory shows when it is used, with the words of that use.
    if stored.as_local().is_some() && !matches!(keys::is_encrypted(&*stored), Ok(true)) {
        return Ok(stored);
    }
    let objects: Arc<dyn Objects> = match open_repository(&*stored)? {
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
fn open_repository(stored: &dyn Objects) -> Result<RepositoryKey> {
    let options = &access().keys;
    // The first request to a store is one whose answer has a body: in it the store says what is wrong.
    match keys::open_repository(stored, options) {
        Err(error) if error.kind == ErrorKind::Usage && !options.is_empty() => {
            match keys::is_encrypted(stored)? {
                true => Err(error),
                false => Ok(RepositoryKey::Clear),
            }
        }
        opened => opened,
    }
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
    match open_repository(&*stored)? {
        RepositoryKey::Opened(ring) => Ok((stored, ring)),
        RepositoryKey::Clear => refused(ErrorKind::Usage, "it is not encrypted"),
        RepositoryKey::Locked => refused(ErrorKind::Permission, "no key was given"),
    }
}
