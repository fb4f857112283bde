//! Refuses a drill whose recovery could write to a tablespace that another server uses.
//!
//! The replay of CREATE TABLESPACE makes the tablespace at its original location, also if a server of this host has it
//! there, and no setting of a server prevents that. Tablespaces that are in the backup are restored elsewhere.

use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    root::{ClusterInfo, EntryName},
};
use fullbore_postgres::control;
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt,
    path::Path,
};

/// Fails if a tablespace was made after the beginning of the backup, and its location is on this host.
///
/// # Errors
/// [`ErrorKind::Exists`].
pub(super) fn refuse_live_tablespaces(cluster: &ClusterInfo) -> Result<()> {
    let meanwhile = &cluster.tablespaces_meanwhile;
    if let Some(space) = meanwhile.iter().find(|space| is_here(&space.location)) {
        return Err(refusal(&quoted(&space.name.0), &quoted(&space.location.0)));
    }
    let data = path_of(&cluster.data_directory);
    if !is_same_system(data, cluster) {
        return Ok(());
    }
    match newer_tablespace(data, cluster) {
        Some((oid, location)) => {
            let location = quoted(location.as_bytes());
            Err(refusal(&quoted(oid.as_bytes()), &location))
        }
        None => Ok(()),
    }
}

fn is_here(location: &EntryName) -> bool {
    path_of(location).symlink_metadata().is_ok()
}

fn refusal(name: &str, location: &str) -> Error {
    let message = format!("cannot drill on this host: recovery could write to {location}");
    Error::new(ErrorKind::Exists, message)
        .because(format!(
            "tablespace {name} was made after the backup began, and a server makes it at its original location"
        ))
        .hint("choose a later backup, or run the drill on another host")
}

/// Returns whether the cluster of the backup, or a copy of it, is at its place on this host.
fn is_same_system(data: &Path, cluster: &ClusterInfo) -> bool {
    let found = control::read(&control::path(data)).ok();
    found.is_some_and(|(_, control)| {
        control.system_identifier.to_string() == cluster.system_identifier
    })
}

/// Returns the number and the location of a tablespace that the cluster has and the backup has not.
fn newer_tablespace(data: &Path, cluster: &ClusterInfo) -> Option<(OsString, OsString)> {
    let links = fs::read_dir(data.join("pg_tblspc")).ok()?.flatten();
    let is_known = |name: &OsStr| {
        let known = &cluster.tablespaces;
        known
            .iter()
            .any(|space| space.oid.to_string().as_bytes() == name.as_bytes())
    };
    let new = links.filter(|link| !is_known(&link.file_name()));
    let mut new = new.filter_map(|link| {
        let location = fs::read_link(link.path()).ok()?;
        Some((link.file_name(), location.into_os_string()))
    });
    new.next()
}

fn path_of(name: &EntryName) -> &Path {
    Path::new(OsStr::from_bytes(&name.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::root::Tablespace;

    #[test]
    fn a_tablespace_that_recovery_would_make_on_this_host_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let cluster_of = |location: &Path| ClusterInfo {
            tablespaces_meanwhile: vec![Tablespace {
                location: EntryName(location.as_os_str().as_bytes().to_vec()),
                ..Tablespace::default()
            }],
            ..ClusterInfo::default()
        };
        let error = refuse_live_tablespaces(&cluster_of(dir.path())).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Exists);
        refuse_live_tablespaces(&cluster_of(&dir.path().join("missing"))).unwrap();
    }

    #[test]
    fn a_tablespace_that_the_backup_does_not_have_is_found_in_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let links = dir.path().join("pg_tblspc");
        fs::create_dir(&links).unwrap();
        for oid in ["16400", "16500"] {
            std::os::unix::fs::symlink("/srv/space", links.join(oid)).unwrap();
        }
        let cluster = ClusterInfo {
            tablespaces: vec![Tablespace {
                oid: 16400,
                ..Tablespace::default()
            }],
            ..ClusterInfo::default()
        };
        let (oid, location) = newer_tablespace(dir.path(), &cluster).unwrap();
        assert_eq!(
            (&*oid, &*location),
            (OsStr::new("16500"), OsStr::new("/srv/space"))
        );
    }
}
