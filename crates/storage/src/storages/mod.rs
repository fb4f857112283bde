//! How a run reaches storages: a value with all settings and keys, and with the storages that are open.
//!
//! The command line makes one [`Storages`] and passes it to everything that opens a location. Nothing here is a setting of the
//! process, so two values in one process know nothing of each other, and one value may reach two stores in different ways.

mod access;
mod key_use;
mod opening;

pub use access::StorageAccess;

use super::{
    CachedObjects, CloudAddress, CloudCounts, CloudObjects, CloudSettings, CoalescedObjects,
    LocalObjects, Location, MediaChange, Objects, server, ssh,
    wire::{Offer, TlsFiles, Wire},
};
use fullbore_format::error::Result;
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicBool},
};

/// How a run reaches storages. Clones share what is open.
#[derive(Clone, Default)]
pub struct Storages(Arc<OpenStorages>);

#[derive(Default)]
struct OpenStorages {
    access: StorageAccess,
    /// Object stores, repositories on other hosts and encrypted ones that are open, by their names: a passphrase is asked for
    /// once, and connections are shared.
    open: Mutex<BTreeMap<String, Arc<dyn Objects>>>,
    /// Object stores that are open, to say what was asked of them.
    clouds: Mutex<Vec<CloudObjects>>,
    /// Whether a key that was given has opened a repository.
    has_opened: AtomicBool,
}

impl fmt::Debug for Storages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.open.locked().keys().cloned().collect();
        f.debug_tuple("Storages").field(&names).finish()
    }
}

impl Storages {
    /// Reaches storages with these settings and keys. Nothing is opened yet.
    pub fn new(access: StorageAccess) -> Self {
        Self(Arc::new(OpenStorages {
            access,
            ..OpenStorages::default()
        }))
    }

    /// Returns the same settings and keys with nothing open: a connection that was lost is made anew.
    pub fn reopened(&self) -> Self {
        Self::new(self.access().clone())
    }

    fn access(&self) -> &StorageAccess {
        &self.0.access
    }

    /// Returns the requests to all object stores so far; `None` if none was opened.
    pub fn cloud_counts(&self) -> Option<CloudCounts> {
        let clouds = self.0.clouds.locked();
        let counts = clouds.iter().map(CloudObjects::counts);
        counts.reduce(|all, more| all.plus(&more))
    }

    /// Returns the directory in which this user remembers something between runs; `None` remembers nothing.
    pub fn state_dir(&self) -> Option<&Path> {
        self.access().state_dir.as_deref()
    }

    /// Returns the directory with catalogs of volumes; `None` keeps none.
    pub fn catalog_dir(&self) -> Option<PathBuf> {
        let access = self.access();
        let state = access.state_dir.as_ref().map(|dir| dir.join("volumes"));
        access.catalog.clone().or(state)
    }

    /// Returns the directory of caches; `None` keeps none.
    pub fn index_dir(&self) -> Option<PathBuf> {
        self.access().cache_dir.clone()
    }

    /// Returns how media of volumes are changed.
    pub fn media_change(&self) -> &MediaChange {
        &self.access().change
    }

    /// Returns the files by which this host and other hosts know each other.
    pub fn tls_files(&self) -> &TlsFiles {
        &self.access().hosts.tls
    }

    /// Connects to another host, and offers it services.
    ///
    /// # Errors
    /// As [`ssh::connect_to`].
    pub fn connect_to_host(&self, host: &str, offer: Offer) -> Result<Wire> {
        ssh::connect_to(host, &self.access().hosts, offer)
    }

    /// Returns the repository that a word of the command line names.
    ///
    /// # Errors
    /// As [`Location::parse`] and [`Storages::objects`].
    pub fn repository_at(&self, word: impl AsRef<OsStr>) -> Result<Arc<dyn Objects>> {
        self.objects(&Location::parse(word.as_ref())?)
    }

    /// Returns the objects at a location as they are stored, sealed or not.
    ///
    /// # Errors
    /// As [`Storages::objects`].
    pub fn stored_objects(&self, location: &Location) -> Result<Arc<dyn Objects>> {
        match location.as_local() {
            Some(path) => Ok(Arc::new(LocalObjects::new(path))),
            None => self.far_objects(location),
        }
    }

    /// Returns the objects of a store or of another host; one connection for all that use them.
    fn far_objects(&self, location: &Location) -> Result<Arc<dyn Objects>> {
        let name = format!("stored {location}");
        if let Some(open) = self.opened(&name) {
            return Ok(open);
        }
        let hosts = &self.access().hosts;
        let objects: Arc<dyn Objects> = match location {
            Location::Cloud { .. } => self.cloud_objects(location)?,
            Location::Ssh { host, path } => {
                self.cached(coalesced(ssh::connect(host, path, hosts)?))
            }
            Location::Server(server) => self.cached(coalesced(server::connect(server, hosts)?)),
            Location::Peer(name) => coalesced(ssh::peer_objects(name)?),
            _ => return Err(location.refused()),
        };
        self.keep_open(name, &objects);
        Ok(objects)
    }

    fn cloud_objects(&self, location: &Location) -> Result<Arc<dyn Objects>> {
        let address = CloudAddress::parse(&location.text())?;
        let address = address.ok_or_else(|| location.refused())?;
        let access = self.access();
        let settings = access.cloud.for_address(&address);
        let cloud = CloudObjects::open(&address, settings, &access.environment)?;
        self.0.clouds.locked().push(cloud.clone());
        Ok(self.cached(coalesced(cloud)))
    }

    /// Returns these objects with a cache on this machine, if there may be one.
    fn cached(&self, objects: Arc<dyn Objects>) -> Arc<dyn Objects> {
        match &self.access().cache {
            Some(spec) => Arc::new(CachedObjects::new(objects, spec.clone())),
            None => objects,
        }
    }

    /// Returns the settings of the store at a location, if it is one.
    fn cloud_settings(&self, location: &Location) -> Option<&CloudSettings> {
        let address = CloudAddress::parse(&location.text()).ok().flatten()?;
        Some(self.access().cloud.for_address(&address))
    }

    /// Returns how the store at a location is reached, as a part of its name in notes of this user. Empty for other locations.
    pub fn way_to(&self, location: &Location) -> String {
        let Some(settings) = self.cloud_settings(location) else {
            return String::new();
        };
        let environment = &self.access().environment;
        let named = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
        let of_environment = named.iter().find_map(|name| environment.get(name));
        let endpoint = settings.endpoint.as_deref().or(of_environment);
        let words = [endpoint, settings.profile.as_deref()];
        words.map(Option::unwrap_or_default).join(" ")
    }

    fn opened(&self, name: &str) -> Option<Arc<dyn Objects>> {
        self.0.open.locked().get(name).cloned()
    }

    fn keep_open(&self, name: String, objects: &Arc<dyn Objects>) {
        self.0.open.locked().insert(name, objects.clone());
    }
}

fn coalesced(objects: impl Objects + 'static) -> Arc<dyn Objects> {
    Arc::new(CoalescedObjects::new(Arc::new(objects)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::error::ErrorKind;

    #[test]
    fn a_storage_that_is_not_known_is_refused_and_a_directory_is_not() {
        let storages = Storages::default();
        for bad in [
            "fullbore://h/n",
            "fullbore://h:1/n",
            "ssh://-oProxyCommand=x/p",
            "-",
        ] {
            let error = storages.repository_at(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
        let directory = storages.repository_at("./s3:/x").unwrap();
        assert!(directory.as_local().is_some());
    }
}
