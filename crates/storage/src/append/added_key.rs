//! The names that a host may add.

use crate::KEYS;
use fullbore_format::layout::{
    BACKUPS, FORGOTTEN, INTENTS, PARTIAL, PROBES, REPOSITORY, ROOT, is_backup_id, is_object,
};

/// What a key means to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddedKey<'a> {
    /// A segment or the manifest of a backup.
    Object(&'a str),
    Root(&'a str),
    Partial(&'a str),
    Forgotten(&'a str),
    Intent(&'a str),
    Repository,
    KeyFile,
    Probe,
    Other,
}

impl<'a> AddedKey<'a> {
    pub(super) fn of(key: &'a str) -> Self {
        let (room, rest) = key.split_once('/').unwrap_or(("", key));
        match room {
            "" if key == REPOSITORY => Self::Repository,
            INTENTS => {
                let id = rest.strip_suffix(".json").filter(|id| is_backup_id(id));
                id.map_or(Self::Other, Self::Intent)
            }
            BACKUPS => Self::of_backup(rest),
            KEYS if !rest.contains('/') => Self::KeyFile,
            PROBES if !rest.contains('/') => Self::Probe,
            _ => Self::Other,
        }
    }

    fn of_backup(rest: &'a str) -> Self {
        let Some((id, name)) = rest.split_once('/').filter(|(id, _)| is_backup_id(id)) else {
            return Self::Other;
        };
        match name {
            ROOT => Self::Root(id),
            PARTIAL => Self::Partial(id),
            FORGOTTEN => Self::Forgotten(id),
            name if is_object(name) => Self::Object(id),
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_command_knows_are_others() {
        let id = "20261121T054501Z-k3f9qz";
        let of = |name: &str| format!("backups/{id}/{name}");
        assert_eq!(AddedKey::of(&of("manifest")), AddedKey::Object(id));
        assert_eq!(
            AddedKey::of(&of("s01-000001.tar.lz4")),
            AddedKey::Object(id)
        );
        assert_eq!(AddedKey::of(&of("root.json")), AddedKey::Root(id));
        assert_eq!(AddedKey::of("probes/x"), AddedKey::Probe);
        for other in [
            of("notes.json"),
            of("s01-000001.tar.zst.orig"),
            of("a/manifest"),
            "backups/x/manifest".to_owned(),
            "probe-x".to_owned(),
            "probes/a/b".to_owned(),
            "keys/a/b".to_owned(),
            "hosts/web1.json".to_owned(),
            "intents/x.json".to_owned(),
            "verify.json".to_owned(),
            format!("tombstones/{id}/manifest"),
        ] {
            assert_eq!(AddedKey::of(&other), AddedKey::Other, "{other}");
        }
    }
}
