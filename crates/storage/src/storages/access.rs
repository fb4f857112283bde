//! The settings and keys of one run.

use crate::{
    CacheSpec, CloudEnvironment, MediaChange, RepositoryTrust, StoreSettings, ssh::HostSettings,
};
use fullbore_crypt::KeyOptions;
use std::path::PathBuf;

/// The settings and keys with which a run reaches storages.
#[derive(Debug, Clone, Default)]
pub struct StorageAccess {
    /// Settings of object stores.
    pub cloud: StoreSettings,
    /// Variables that hold the credentials of object stores.
    pub environment: CloudEnvironment,
    /// Keys of encrypted repositories.
    pub keys: KeyOptions,
    /// Where parts of object stores are kept, if they are. Of an encrypted repository they are kept encrypted.
    pub cache: Option<CacheSpec>,
    /// How other hosts are reached.
    pub hosts: HostSettings,
    /// Which repositories the command may use.
    pub trust: RepositoryTrust,
    /// How media of volumes are changed.
    pub change: MediaChange,
    /// The directory with catalogs of volumes, if it is not in the state directory.
    pub catalog: Option<PathBuf>,
    /// The state directory, in which this user remembers repositories and backups; `None` remembers nothing.
    pub state_dir: Option<PathBuf>,
    /// The directory of caches, if there may be some.
    pub cache_dir: Option<PathBuf>,
}
