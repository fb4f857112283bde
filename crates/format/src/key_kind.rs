//! The kinds of objects of a repository, by their keys, and the rules for each kind.
//!
//! A wrapper of a storage that treats objects differently asks here; no other code knows rules by prefix. A new kind
//! of object is a variant here.

use super::{
    layout::{
        BACKUPS, CONTENTS, COVERED, FORGOTTEN, HOSTS, INTENTS, KEYS, MANIFEST, NOTES, PARTIAL,
        PROBES, REPOSITORY, ROOT, TOMBSTONES, UNPROVEN, WAL, is_backup_id, segment_numbers,
    },
    seal::MAX_BYTES,
    wal::WalKey,
};

/// What an object is.
///
/// Directories of maintenance (`keys/`, `intents/` …) have the rest of the key, whatever it is: an object there
/// with a foreign name follows the rules of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind<'a> {
    /// [`REPOSITORY`].
    Repository,
    /// [`COVERED`].
    Covered,
    /// A wrapped key of an encrypted repository, or the list of them.
    KeyFile(&'a str),
    /// The intent of a backup under way.
    Intent(&'a str),
    /// The mark of an object that prune wants to delete.
    Tombstone(&'a str),
    /// The list of backups that a host has begun.
    Host(&'a str),
    /// An object by which a storage is tried.
    Probe(&'a str),
    /// A part of the backup with this id.
    Backup(&'a str, BackupPart),
    /// Archived WAL of this system; its key is as [`WalKey`] writes it.
    Wal(&'a str),
    /// Anything else; sealed in an encrypted repository.
    Other,
}

/// What an object in the directory of a backup is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupPart {
    /// [`ROOT`].
    Root,
    /// [`PARTIAL`].
    Partial,
    /// [`FORGOTTEN`].
    Forgotten,
    /// [`NOTES`].
    Notes,
    /// [`MANIFEST`].
    Manifest,
    /// [`CONTENTS`].
    Contents,
    /// [`UNPROVEN`].
    Unproven,
    /// A segment.
    Segment,
    /// A name that fullbore does not give.
    Foreign,
}

/// Which host may add an object of a kind, if it may only add backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MayAdd<'a> {
    /// A part of a backup that the host has announced, and that has no root yet.
    OfBackup(&'a str, BackupPart),
    /// WAL of this system, once.
    OfSystem(&'a str),
    /// An object that belongs to the making of a repository, or to the trial of a storage.
    Once,
    /// No such host.
    Never,
}

impl BackupPart {
    /// Returns the part that has this name.
    pub fn of(name: &str) -> Self {
        match name {
            ROOT => Self::Root,
            PARTIAL => Self::Partial,
            FORGOTTEN => Self::Forgotten,
            NOTES => Self::Notes,
            MANIFEST => Self::Manifest,
            CONTENTS => Self::Contents,
            UNPROVEN => Self::Unproven,
            name if segment_numbers(name).is_some() => Self::Segment,
            _ => Self::Foreign,
        }
    }

    /// Returns whether this is content that other backups may refer to: a manifest or a segment.
    pub fn is_object(self) -> bool {
        matches!(self, Self::Manifest | Self::Segment)
    }

    /// Returns whether this is uploaded front to back, and written once: an object, or the list of contents.
    pub fn is_uploaded(self) -> bool {
        self.is_object() || self == Self::Contents
    }

    /// Returns whether this is a root: of a listed backup, of one under way or of a forgotten one.
    pub fn is_root(self) -> bool {
        matches!(self, Self::Root | Self::Partial | Self::Forgotten)
    }
}

impl<'a> KeyKind<'a> {
    /// Returns the kind of the object with this key.
    pub fn of(key: &'a str) -> Self {
        let Some((room, rest)) = key.split_once('/') else {
            return match key {
                REPOSITORY => Self::Repository,
                COVERED => Self::Covered,
                _ => Self::Other,
            };
        };
        match room {
            KEYS => Self::KeyFile(rest),
            INTENTS => Self::Intent(rest),
            TOMBSTONES => Self::Tombstone(rest),
            HOSTS => Self::Host(rest),
            PROBES => Self::Probe(rest),
            BACKUPS => Self::of_backup(rest),
            WAL if WalKey::parse(key).is_some() => {
                Self::Wal(rest.split_once('/').map_or(rest, |(system, _)| system))
            }
            _ => Self::Other,
        }
    }

    fn of_backup(rest: &'a str) -> Self {
        match rest.split_once('/') {
            Some((id, name)) if is_backup_id(id) => Self::Backup(id, BackupPart::of(name)),
            _ => Self::Other,
        }
    }

    /// Returns the id of the backup that an intent is of.
    pub fn announced(self) -> Option<&'a str> {
        let Self::Intent(name) = self else {
            return None;
        };
        let id = name.strip_suffix(".json")?;
        is_backup_id(id).then_some(id)
    }

    /// Returns whether an encrypted repository stores the object sealed. The others are needed without a key.
    pub fn is_sealed(self) -> bool {
        match self {
            Self::Repository | Self::Covered => false,
            Self::KeyFile(_) | Self::Intent(_) | Self::Tombstone(_) => false,
            Self::Host(_) | Self::Probe(_) => false,
            Self::Backup(_, part) => !matches!(part, BackupPart::Notes | BackupPart::Unproven),
            Self::Wal(_) | Self::Other => true,
        }
    }

    /// Returns whether the object keeps its bytes from the moment it is stored until it is deleted.
    pub fn is_immutable(self) -> bool {
        match self {
            Self::Backup(_, part) => part.is_uploaded() || part == BackupPart::Root,
            Self::Tombstone(_) | Self::Repository | Self::Wal(_) => true,
            _ => false,
        }
    }

    /// Returns who may add the object that may only add backups.
    pub fn may_be_added(self) -> MayAdd<'a> {
        match self {
            Self::Backup(id, part) => match part {
                BackupPart::Root | BackupPart::Partial => MayAdd::OfBackup(id, part),
                BackupPart::Manifest | BackupPart::Contents | BackupPart::Segment => {
                    MayAdd::OfBackup(id, part)
                }
                BackupPart::Forgotten | BackupPart::Notes => MayAdd::Never,
                BackupPart::Unproven | BackupPart::Foreign => MayAdd::Never,
            },
            Self::Wal(system) => MayAdd::OfSystem(system),
            Self::Repository => MayAdd::Once,
            Self::KeyFile(name) | Self::Probe(name) if !name.contains('/') => MayAdd::Once,
            _ => MayAdd::Never,
        }
    }

    /// Returns whether a command that only reads may take the object from a cache on this machine.
    pub fn is_cached(self) -> bool {
        use BackupPart::{Forgotten, Manifest, Notes, Root};
        matches!(self, Self::Backup(_, Root | Notes | Manifest | Forgotten))
    }

    /// Returns whether a backup may take the object from a cache on this machine: whether it is still there is
    /// listed before it is relied on.
    pub fn is_cached_for_backups(self) -> bool {
        use BackupPart::{Manifest, Root};
        matches!(self, Self::Repository | Self::Backup(_, Root | Manifest))
    }

    /// Returns backup and part, if a host that cannot read keeps a copy of the object that it stored.
    pub fn is_kept(self) -> Option<(&'a str, BackupPart)> {
        match self {
            Self::Backup(id, part @ (BackupPart::Root | BackupPart::Manifest)) => Some((id, part)),
            _ => None,
        }
    }

    /// Returns the largest number of bytes of the object, if it is small and read as a whole.
    ///
    /// A root grows with the data (about 2 KiB for each GiB, for the checksums of its parts), and `verify.json`
    /// with the repository. All others have a few members.
    pub fn max_document_bytes(self) -> u64 {
        match self {
            Self::Repository | Self::Intent(_) | Self::Tombstone(_) | Self::Probe(_) => 64 << 10,
            Self::Backup(_, BackupPart::Notes) | Self::Host(_) => 1 << 20,
            Self::Covered | Self::Backup(_, BackupPart::Root) => MAX_BYTES,
            Self::Backup(_, BackupPart::Forgotten | BackupPart::Partial) => MAX_BYTES,
            Self::KeyFile(name) if name.ends_with(".json") => 64 << 10,
            Self::KeyFile(name) if name.ends_with(".age") => 2 << 20,
            Self::KeyFile(_) | Self::Wal(_) => 64 << 20,
            _ => 8 << 20,
        }
    }
}

/// Returns the largest number of bytes of a small object that is read as a whole.
pub fn max_document_bytes(key: &str) -> u64 {
    KeyKind::of(key).max_document_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "20261121T054501Z-k3f9qz";

    fn of_backup(name: &str) -> String {
        format!("{BACKUPS}/{ID}/{name}")
    }

    #[test]
    fn names_that_no_command_knows_are_not_added() {
        let may_add = |key: &str| KeyKind::of(key).may_be_added() != MayAdd::Never;
        for own in [
            of_backup("manifest"),
            of_backup("contents"),
            of_backup("s01-000001.tar.lz4"),
            of_backup("root.json"),
            "probes/x".to_owned(),
        ] {
            assert!(may_add(&own), "{own}");
        }
        for other in [
            of_backup("notes.json"),
            of_backup("unproven"),
            of_backup("s01-000001.tar.zst.orig"),
            of_backup("a/manifest"),
            "backups/x/manifest".to_owned(),
            "probe-x".to_owned(),
            "probes/a/b".to_owned(),
            "keys/a/b".to_owned(),
            "hosts/web1.json".to_owned(),
            "intents/x.json".to_owned(),
            "verify.json".to_owned(),
            format!("tombstones/{ID}/manifest"),
        ] {
            assert!(!may_add(&other), "{other}");
        }
    }

    #[test]
    fn only_what_maintenance_needs_is_clear() {
        for clear in [
            "fullbore-repo.json".to_owned(),
            "verify.json".to_owned(),
            "keys/me.age".to_owned(),
            format!("intents/{ID}.json"),
            format!("tombstones/{ID}/manifest"),
            of_backup("notes.json"),
            of_backup("unproven"),
        ] {
            assert!(!KeyKind::of(&clear).is_sealed(), "{clear}");
        }
        for sealed in [
            of_backup("manifest"),
            of_backup("contents"),
            of_backup("root.json"),
            of_backup("s01-000001.tar.zst"),
            of_backup("x/notes.json"),
            "notes.json".to_owned(),
            "keysx/a".to_owned(),
            "x/1/keys/a".to_owned(),
        ] {
            assert!(KeyKind::of(&sealed).is_sealed(), "{sealed}");
        }
    }

    #[test]
    fn an_intent_is_of_a_backup_only_with_its_id() {
        let announced = |key: &'static str| KeyKind::of(key).announced();
        assert_eq!(announced("intents/20261121T054501Z-k3f9qz.json"), Some(ID));
        assert_eq!(announced("intents/x.json"), None);
        assert_eq!(announced("intents/20261121T054501Z-k3f9qz"), None);
    }
}
