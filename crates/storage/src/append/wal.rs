//! WAL of a session that adds: of systems that no other host has begun to archive.

use super::{AddedBytes, AppendSession};
use crate::{Put, PutIf};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::HOSTS,
    root::{FORMAT, RootOwner},
    seal::{open_sealed, seal},
    wal::WalKey,
};
use fullbore_platform::queue::Locked;
use serde::{Deserialize, Serialize};

/// Which host archives the WAL of a system: `hosts/wal-SYSTEM.json`. Only a server writes it.
#[derive(Debug, Serialize, Deserialize)]
struct SystemOwner {
    format: u32,
    system: String,
    host: String,
}

/// Pieces of unfinished segments that a session remembers as its own, at most.
const MAX_PIECES: usize = 4096;

fn owner_key(system: &str) -> String {
    format!("{HOSTS}/wal-{system}.json")
}

impl AppendSession {
    /// Stores WAL that is absent. Nothing of it can be replaced by this host, and it can be of no system that another host has
    /// begun to archive. Of it only pieces of unfinished segments can be deleted, by the session that added them.
    pub(super) fn put_wal(
        &self,
        key: &str,
        system: &str,
        bytes: &[u8],
        condition: &PutIf,
    ) -> Result<Put> {
        if *condition != PutIf::Absent {
            return Err(self.refused("replace", key));
        }
        if !self.added.locked().systems.contains(system) {
            self.claim_system(system)?;
            self.added.locked().systems.insert(system.to_owned());
        }
        self.charge(AddedBytes::Object(bytes.len() as u64))?;
        let put = self.inner.put(key, bytes, condition)?;
        if matches!(put, Put::Done(_)) && matches!(WalKey::parse(key), Some(WalKey::Piece(_))) {
            self.remember_piece(key);
        }
        Ok(put)
    }

    /// Remembers a piece that this session stored. Those that do not fit are left to a prune.
    fn remember_piece(&self, key: &str) {
        let mut added = self.added.locked();
        if added.pieces.len() < MAX_PIECES {
            added.pieces.insert(key.to_owned());
        }
    }

    /// Notes that WAL of a system is of this host.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if the system is of another host, or it is not known which host this is.
    fn claim_system(&self, system: &str) -> Result<()> {
        let is_sealed = self.is_sealed()?;
        let host = match (&self.rules.host, self.owner(is_sealed)?) {
            (Some(host), _) => host.clone(),
            // A key proves who adds it.
            (None, RootOwner::Sealed) => return Ok(()),
            (None, RootOwner::Host(host)) => host.to_owned(),
        };
        let key = owner_key(system);
        let owner = SystemOwner {
            format: FORMAT,
            system: system.to_owned(),
            host: host.clone(),
        };
        self.inner.put(&key, &seal(&owner)?, &PutIf::Absent)?;
        let stored = self.inner.get(&key)?;
        let (stored, _) = stored.ok_or_else(|| self.refused("add", &key))?;
        let stored: SystemOwner = open_sealed(&stored, &self.inner.describe(&key))?;
        if stored.host == host && stored.system == system {
            return Ok(());
        }
        let message = format!("cannot add WAL of system {system}");
        let why = format!("host {:?} archives it, and this is {host:?}", stored.host);
        Err(Error::new(ErrorKind::Permission, message)
            .because(why)
            .hint("the hosts of one cluster need one name on the server: --host NAME, or certificates of the same name"))
    }
}
