//! How this process reaches storages: the settings of object stores and the keys, set once by the command line.

use super::{
    CacheSpec, CachedObjects, CloudAddress, CloudCounts, CloudEnvironment, CloudObjects,
    CloudSettings, CoalescedObjects, KeptBackups, LocalObjects, Location, Objects, SealedObjects,
    keys::{self, RepositoryKey},
    remembered::{AcceptedRepositories, LocationMemory},
    seen_keys, server,
    ssh::{self, HostSettings},
    trust::{ClearUse, RepositoryTrust},
    watched::WatchedObjects,
    wire::{TlsFiles, Wire, WireService},
};
use fullbore_crypt::{
    Access, KIND_BYTES, KeyOptions, KeyRing, OpeningReader, UserIdentity, UserRecipient, is_sealed,
    wants_passphrase,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::{BACKUPS, REPOSITORY},
};
use fullbore_platform::{queue::Locked, secrecy::forbid_core_dumps};
use std::{
    collections::BTreeMap,
    io::{Cursor, Read},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
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
    /// How other hosts are reached.
    pub hosts: HostSettings,
    /// Which repositories the command may use.
    pub trust: RepositoryTrust,
}

/// The name of the first key file of a repository.
const FIRST_KEY: &str = "owner";

static ACCESS: OnceLock<StorageAccess> = OnceLock::new();

/// Object stores, repositories on other hosts and encrypted ones that are open, by their names: a passphrase is asked for once, and connections are shared.
static OPEN: Mutex<BTreeMap<String, Arc<dyn Objects>>> = Mutex::new(BTreeMap::new());

/// Object stores that are open, to say what was asked of them.
static CLOUDS: Mutex<Vec<CloudObjects>> = Mutex::new(Vec::new());

/// Has a key that was given opened a repository?
static HAS_OPENED: AtomicBool = AtomicBool::new(false);

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

/// Returns whether keys or a passphrase were given to this process.
pub fn has_keys() -> bool {
    access().keys.is_given()
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
        Location::Cloud { .. } => cloud_objects(location)?,
        Location::Ssh { host, path } => {
            let objects = ssh::connect(host, path, &access().hosts)?;
            Arc::new(CoalescedObjects::new(Arc::new(objects)))
        }
        Location::Server(server) => {
            let objects = server::connect(server, &access().hosts)?;
            Arc::new(CoalescedObjects::new(Arc::new(objects)))
        }
        Location::Peer(name) => {
            let objects = ssh::peer_objects(name)?;
            Arc::new(CoalescedObjects::new(Arc::new(objects)))
        }
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
    ssh::connect_to(host, &access().hosts, service)
}

/// The files by which this process and other hosts know each other.
pub fn tls_files() -> TlsFiles {
    access().hosts.tls.clone()
}

fn cloud_objects(location: &Location) -> Result<Arc<dyn Objects>> {
    let address = CloudAddress::parse(&location.text())?;
    let address = address.ok_or_else(|| location.refused())?;
    let environment = CloudEnvironment::of_process();
    let cloud = CloudObjects::open(&address, &access().cloud, &environment)?;
    CLOUDS.locked().push(cloud.clone());
    let cloud = Arc::new(CoalescedObjects::new(Arc::new(cloud)));
    Ok(match &access().cache {
        Some(spec) => Arc::new(CachedObjects::new(cloud, spec.clone())),
        None => cloud,
    })
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
    let is_local = stored.as_local().is_some();
    let memory = memory_of(location)?;
    // What is wrong with a directory shows when it is used, with the words of that use.
    let is_usable = !is_local || has_duty() || keys::is_encrypted(&*stored).is_ok();
    let (key, has_known_keys) = match is_usable {
        true => open_repository(&*stored, &memory)?,
        false => (RepositoryKey::Clear, false),
    };
    let is_clear = matches!(key, RepositoryKey::Clear);
    let objects: Arc<dyn Objects> = match key {
        RepositoryKey::Clear => stored,
        RepositoryKey::Opened(ring) => opened_objects(stored, *ring)?,
        RepositoryKey::Locked => Arc::new(SealedObjects::locked(stored)),
    };
    let trust = &access().trust;
    let accepts = AcceptedRepositories {
        others: has_known_keys && has_expected_keys() || trust.accepts_others,
        clear: trust.accepts_others && trust.clear == ClearUse::Decided,
        is_made: false,
    };
    let objects = Arc::new(WatchedObjects::new(
        objects,
        memory,
        accepts,
        has_known_keys,
    ));
    if !(is_local && is_clear) {
        OPEN.locked().insert(name, objects.clone());
    }
    Ok(objects)
}

fn opened_objects(stored: Arc<dyn Objects>, ring: KeyRing) -> Result<Arc<dyn Objects>> {
    forbid_core_dumps().map_err(|e| Error::io("could not forbid core dumps", e))?;
    let access = ring.access();
    let sealed = SealedObjects::new(stored, Arc::new(ring));
    Ok(match access {
        Access::Read => Arc::new(sealed),
        Access::Put => Arc::new(KeptBackups::new(sealed)),
    })
}

fn memory_of(location: &Location) -> Result<LocationMemory> {
    let access = access();
    let endpoint = access.cloud.endpoint.as_deref();
    LocationMemory::read(access.trust.state_dir.as_deref(), location, endpoint)
}

/// Does the command have to open something with a key?
fn has_duty() -> bool {
    has_keys() || has_expected_keys()
}

fn has_expected_keys() -> bool {
    !access().trust.expected_keys.is_empty()
}

/// Opens the key of a repository, and compares it with what is remembered. Returns also whether it is known.
fn open_repository(stored: &dyn Objects, memory: &LocationMemory) -> Result<(RepositoryKey, bool)> {
    let options = &access().keys;
    let expected = &access().trust.expected_keys;
    // The first request to a store is one whose answer has a body: in it the store says what is wrong.
    let key = match keys::open_repository(stored, options) {
        Err(error) if error.kind == ErrorKind::Usage && !options.is_empty() => {
            if keys::is_encrypted(stored)? {
                return Err(error);
            }
            check_clear_use(stored, error)?;
            RepositoryKey::Clear
        }
        key => key?,
    };
    let name = stored.describe("");
    let is_known = match &key {
        RepositoryKey::Opened(ring) => {
            let is_known = memory.check_keys(ring, expected, &name)?;
            HAS_OPENED.store(true, Relaxed);
            is_known
        }
        RepositoryKey::Locked if has_expected_keys() => {
            return Err(unchecked(&name, "no key was given that opens it"));
        }
        RepositoryKey::Clear if options.is_empty() && has_expected_keys() => {
            check_clear_use(stored, unchecked(&name, "it is not encrypted"))?;
            false
        }
        _ => false,
    };
    Ok((key, is_known))
}

fn unchecked(name: &str, why: &str) -> Error {
    let what = format!("cannot compare the keys of {name} with --expect-keys");
    Error::new(ErrorKind::Usage, what).because(why.to_owned())
}

/// Returns `error` if a clear repository may not be used beside a key. Where there is none yet, the decision comes when one is made.
fn check_clear_use(stored: &dyn Objects, error: Error) -> Result<()> {
    if access().trust.clear != ClearUse::Refused {
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
pub fn check_key_use() -> Result<()> {
    let is_used = HAS_OPENED.load(Relaxed) || access().trust.clear == ClearUse::Decided;
    if is_used || !has_duty() {
        return Ok(());
    }
    Err(
        Error::new(ErrorKind::Usage, "cannot use the key that was given")
            .because(
                "none of the repositories of this command is encrypted, or their keys were removed",
            )
            .hint("leave the key out if they should be clear"),
    )
}

/// Refuses to make a repository where one was that is missing.
///
/// # Errors
/// [`ErrorKind::NotFound`] if this host knows one there.
pub fn check_new_place(location: &Location) -> Result<()> {
    match access().trust.accepts_others {
        true => Ok(()),
        false => memory_of(location)?.check_new(&location.to_string()),
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
    check_new_place(location)?;
    let stored = stored_objects(location)?;
    let ring = keys::encrypt_repository(&*stored, FIRST_KEY, first)?;
    for (number, recipient) in others.iter().enumerate() {
        let name = format!("{FIRST_KEY}-{}", number + 2);
        keys::add_key(&*stored, &ring, &name, recipient, Access::Read)?;
    }
    seen_keys::remember_recipients(&ring, &keys::list_keys(&*stored, Some(&ring))?);
    forbid_core_dumps().map_err(|e| Error::io("could not forbid core dumps", e))?;
    let sealed: Arc<dyn Objects> = Arc::new(SealedObjects::new(stored, Arc::new(ring)));
    HAS_OPENED.store(true, Relaxed);
    let accepts = AcceptedRepositories {
        others: true,
        clear: false,
        is_made: true,
    };
    let memory = memory_of(location)?;
    let sealed = Arc::new(WatchedObjects::new(sealed, memory, accepts, true));
    OPEN.locked().insert(location.to_string(), sealed.clone());
    Ok(sealed)
}

/// The keys for an archive or a stream that begins with `header`, [`KIND_BYTES`] of it, and that messages call `name`.
///
/// # Errors
/// [`ErrorKind::Permission`] if none was given; those of reading them.
pub fn archive_keys(header: &[u8], name: &str) -> Result<Vec<UserIdentity>> {
    let keys = &access().keys;
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

/// A stream, opened with the keys of this process if it is encrypted. Messages call it `name`.
///
/// # Errors
/// As [`archive_keys`] and [`OpeningReader::new`], or the stream's.
pub fn opened_stream<R: Read + Send + 'static>(
    mut input: R,
    name: &str,
) -> Result<Box<dyn Read + Send>> {
    let failed = |error| Error::io(format!("could not read {name}"), error);
    let mut head = Vec::new();
    let mut first = (&mut input).take(KIND_BYTES as u64);
    first.read_to_end(&mut head).map_err(failed)?;
    let is_sealed = is_sealed(&head);
    let keys = if is_sealed {
        archive_keys(&head, name)?
    } else {
        Vec::new()
    };
    let whole = Cursor::new(head).chain(input);
    if is_sealed {
        Ok(Box::new(OpeningReader::new(whole, &keys, name)?))
    } else {
        Ok(Box::new(whole))
    }
}

/// A recipient from a new passphrase: that of the options, or one that a person types twice.
///
/// # Errors
/// [`ErrorKind::Usage`] if there is none.
///
/// [`ErrorKind::Usage`]: fullbore_format::error::ErrorKind::Usage
pub fn new_passphrase() -> Result<UserRecipient> {
    Ok(access().keys.new_passphrase()?.into())
}

/// The objects of an encrypted repository as they are stored, and its key, if one was given.
///
/// # Errors
/// [`ErrorKind::Usage`] if the repository is clear; as [`keys::open_repository`].
pub fn stored_and_key(location: &Location) -> Result<(Arc<dyn Objects>, Option<KeyRing>)> {
    let stored = stored_objects(location)?;
    let (key, _) = open_repository(&*stored, &memory_of(location)?)?;
    match key {
        RepositoryKey::Opened(ring) => Ok((stored, Some(*ring))),
        RepositoryKey::Locked => Ok((stored, None)),
        RepositoryKey::Clear => Err(Error::new(
            ErrorKind::Usage,
            format!("cannot list or change the keys of {location}"),
        )
        .because("it is not encrypted, or it is no repository")),
    }
}

/// The objects of a repository as they are stored, and the copy of its key that was given, which is compared with what is remembered.
///
/// # Errors
/// [`ErrorKind::Usage`] unless one copy was given; [`ErrorKind::Permission`] for the key of another repository.
pub fn saved_key(location: &Location) -> Result<(Arc<dyn Objects>, KeyRing)> {
    let access = access();
    let mut rings = access.keys.saved_rings()?;
    let (Some(ring), true) = (rings.pop(), rings.is_empty()) else {
        let what = format!("cannot write the keys of {location} anew");
        return Err(Error::new(ErrorKind::Usage, what)
            .because("one copy of the repository's key is needed")
            .hint("give the file that `age -d` made of a key file: --key SAVED"));
    };
    let expected = &access.trust.expected_keys;
    memory_of(location)?.check_keys(&ring, expected, &location.to_string())?;
    Ok((stored_objects(location)?, ring))
}

/// The objects of an encrypted repository as they are stored, and its key.
///
/// # Errors
/// As [`stored_and_key`]; [`ErrorKind::Permission`] if no key was given.
pub fn opened_key(location: &Location) -> Result<(Arc<dyn Objects>, KeyRing)> {
    let (stored, ring) = stored_and_key(location)?;
    let ring = ring.ok_or_else(|| {
        let what = format!("cannot change the keys of {location}");
        Error::new(ErrorKind::Permission, what)
            .because("no key was given that reads it")
            .hint("give a key of the repository: --key FILE, or a passphrase with --passphrase-file FILE")
    })?;
    Ok((stored, ring))
}
