//! The check of a root before it is stored for a host that may only add backups.
//!
//! Pure: the caller has the bytes, and knows the backup and whose it must be. So a listed root is
//! always one that every command can read, and no host adds a backup in the name of another one.

use super::{Root, is_pseudonym};
use crate::{
    error::{Error, ErrorKind, Result},
    root_parts::SealedRoot,
    seal::MAX_BYTES,
};

/// Bytes that a root may have however little data its backup has.
pub const FREE_ROOT_BYTES: u64 = 8 << 20;

/// Stored bytes of a backup for each further byte of its root. A root has about 2 KiB for each GiB
/// of segments, and at most 4 KiB for a page, which is stored with 8,192 records.
const BYTES_PER_ROOT_BYTE: u64 = 4096;

/// Returns the largest number of bytes of the root of a backup that has stored so many bytes and
/// whose largest base has a root of `base_root_bytes`: an incremental root has an entry for each
/// segment and page that the root of its base has.
pub fn root_limit(stored_bytes: u64, base_root_bytes: u64) -> u64 {
    base_root_bytes
        .max(FREE_ROOT_BYTES)
        .saturating_add(stored_bytes / BYTES_PER_ROOT_BYTE)
        .min(MAX_BYTES)
}

/// The source or the key that a root must come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootOwner<'a> {
    /// A clear root, whose source is on this host.
    Host(&'a str),
    /// A root with a sealed body. A key proves who made it, which is not checked here.
    Sealed,
}

/// What a root must be before it is stored.
#[derive(Debug, Clone, Copy)]
pub struct RootGate<'a> {
    /// The backup that it belongs to, by its key.
    pub id: &'a str,
    /// The source or the key that it must come from.
    pub owner: RootOwner<'a>,
    /// The bytes that it may have, see [`root_limit`].
    pub max_bytes: u64,
}

impl RootGate<'_> {
    /// Checks a root, listed or partial, and returns it. Of a sealed one that is its clear head.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if it has the host of another or too many bytes,
    /// [`ErrorKind::Corrupt`] if it is damaged or no root of this backup, and
    /// [`ErrorKind::Unsupported`] for one of a newer program.
    pub fn check(&self, bytes: &[u8]) -> Result<Root> {
        let name = format!("the root of backup {:?}", self.id);
        // Before anything is parsed: the bytes are those of a host that is not trusted.
        if bytes.len() as u64 > self.max_bytes {
            let reason = format!(
                "it has {} bytes, and may have {}",
                bytes.len(),
                self.max_bytes
            );
            return Err(refused(&name)
                .because(reason)
                .hint("divide the source into several backups"));
        }
        let root = Root::of_backup_as_stored(self.id, bytes, &name)?;
        // The head alone is checked: the server that asks has no key for the body.
        let is_sealed = SealedRoot::open(bytes, &name)?.is_some();
        match self.owner {
            RootOwner::Sealed if is_sealed && is_pseudonym(&root.source) => Ok(root),
            RootOwner::Sealed => {
                Err(refused(&name).because("it is not sealed, and the repository is encrypted"))
            }
            RootOwner::Host(_) if is_sealed => {
                Err(refused(&name).because("it is sealed, and the repository is not encrypted"))
            }
            RootOwner::Host(host) if root.source.host == host => Ok(root),
            RootOwner::Host(host) => Err(refused(&name)
                .because(format!(
                    "it is a backup of host {:?}, and this host may add backups of {host:?}",
                    root.source.host
                ))
                .hint(format!("run the backup with --host {host}"))),
        }
    }
}

fn refused(name: &str) -> Error {
    Error::new(ErrorKind::Permission, format!("cannot store {name}"))
}

/// Checks a clear root of at most [`FREE_ROOT_BYTES`] bytes before it is stored as that of backup
/// `id` of `host`.
///
/// # Errors
/// As [`RootGate::check`].
pub fn check_new_root(bytes: &[u8], id: &str, host: &str) -> Result<()> {
    let gate = RootGate {
        id,
        owner: RootOwner::Host(host),
        max_bytes: FREE_ROOT_BYTES,
    };
    gate.check(bytes).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        root::{FORMAT, SourceInfo},
        root_parts::{RootParts, SealedBody},
        seal::seal,
    };

    const ID: &str = "20261121T054501Z-k3f9qz";

    fn root(id: &str, host: &str) -> Vec<u8> {
        let source = SourceInfo {
            host: host.into(),
            ..SourceInfo::default()
        };
        let root = Root {
            format: FORMAT,
            id: id.into(),
            source,
            ..Root::default()
        };
        seal(&root).unwrap()
    }

    fn sealed(root: &[u8]) -> Vec<u8> {
        let body = SealedBody {
            kind: "root.json".into(),
            generation: 1,
            author: "0".repeat(16),
            body: String::new(),
            proof: String::new(),
        };
        let parts = RootParts::cut(root).unwrap();
        parts
            .document("sealed-0123", body, |_| "proof".into())
            .unwrap()
    }

    #[test]
    fn a_root_of_the_host_and_the_backup_may_be_stored_and_no_other() {
        let kind = |bytes: &[u8]| check_new_root(bytes, ID, "web1").map_err(|error| error.kind);
        assert_eq!(kind(&root(ID, "web1")), Ok(()));
        assert_eq!(kind(&root(ID, "web2")), Err(ErrorKind::Permission));
        assert_eq!(kind(&root(ID, "")), Err(ErrorKind::Permission));
        let other = "20261121T054501Z-k3f9qy";
        assert_eq!(kind(&root(other, "web1")), Err(ErrorKind::Corrupt));
        assert_eq!(kind(b"no root at all"), Err(ErrorKind::Corrupt));
        assert_eq!(kind(b""), Err(ErrorKind::Corrupt));
        let sealed = sealed(&root(ID, "web1"));
        assert_eq!(kind(&sealed), Err(ErrorKind::Permission));
        let large = vec![b' '; FREE_ROOT_BYTES as usize + 1];
        assert_eq!(kind(&large), Err(ErrorKind::Permission));
    }

    #[test]
    fn an_encrypted_repository_takes_sealed_roots_only() {
        let gate = RootGate {
            id: ID,
            owner: RootOwner::Sealed,
            max_bytes: FREE_ROOT_BYTES,
        };
        let clear = root(ID, "web1");
        assert_eq!(gate.check(&clear).unwrap_err().kind, ErrorKind::Permission);
        assert_eq!(gate.check(&sealed(&clear)).unwrap().id, ID);
    }

    #[test]
    fn the_limit_of_a_root_follows_from_its_backup() {
        const TIB: u64 = 1 << 40;
        assert_eq!(root_limit(0, 0), FREE_ROOT_BYTES);
        assert_eq!(root_limit(0, 9 << 20), 9 << 20);
        // 16 digits for each 8 MiB, and about 160 bytes for each segment of a GiB.
        let of_ten_tib = 10 * TIB / (8 << 20) * 16 + 10 * 1024 * 160;
        assert!(root_limit(10 * TIB, 0) > 10 * of_ten_tib);
        assert_eq!(root_limit(u64::MAX, u64::MAX), MAX_BYTES);
    }
}
