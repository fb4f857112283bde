//! Where tablespaces and the WAL are to be.

use super::plan::{ClusterOptions, PG_WAL};
use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::root::{ClusterInfo, Tablespace},
    target::layout::{SharedDirectory, TargetMount},
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// What to try if a tablespace cannot be where it is to be.
pub const HINT: &str = "--tablespace OLD=NEW restores a tablespace elsewhere, --tablespaces-under DIR all of them, --waldir DIR the WAL";

/// A mount for each tablespace that is not in the data directory.
pub(super) fn mounts(options: &ClusterOptions, cluster: &ClusterInfo) -> Result<Vec<TargetMount>> {
    for (old, _) in &options.tablespaces {
        if !cluster
            .tablespaces
            .iter()
            .any(|tablespace| is_called(tablespace, old))
        {
            return Err(unknown(old, cluster));
        }
    }
    // One that was made in place is at its location.
    let elsewhere = |tablespace: &&Tablespace| tablespace.location.0 != tablespace.path();
    cluster
        .tablespaces
        .iter()
        .filter(elsewhere)
        .map(|tablespace| mount(options, tablespace, cluster.major))
        .collect()
}

/// In one location clusters of several versions may have a directory each, as after `pg_upgrade` (rule 10).
pub fn shared(major: u32) -> SharedDirectory {
    SharedDirectory {
        all: b"PG_".to_vec(),
        own: format!("PG_{major}_").into_bytes(),
    }
}

/// Is it restored to where the backup says that it was, and not to where the operator says?
pub fn is_where_it_was(options: &ClusterOptions, tablespace: &Tablespace) -> bool {
    options.tablespaces_under.is_none() && chosen(options, tablespace).is_none()
}

fn chosen<'a>(
    options: &'a ClusterOptions,
    tablespace: &Tablespace,
) -> Option<&'a (Vec<u8>, PathBuf)> {
    options
        .tablespaces
        .iter()
        .find(|(old, _)| is_called(tablespace, old))
}

fn mount(options: &ClusterOptions, tablespace: &Tablespace, major: u32) -> Result<TargetMount> {
    let chosen = chosen(options, tablespace);
    let directory = match (chosen, &options.tablespaces_under) {
        (Some((_, new)), _) => new.clone(),
        (None, Some(dir)) => absolute(dir)?.join(own_name(tablespace)),
        (None, None) => PathBuf::from(OsStr::from_bytes(&tablespace.location.0)),
    };
    match plain(&directory) {
        Some(directory) => Ok(TargetMount {
            at: tablespace.path(),
            directory,
            shared: Some(shared(major)),
            ..TargetMount::default()
        }),
        None => Err(misplaced(
            &format!("tablespace {}", quoted(&tablespace.name.0)),
            &directory,
        )),
    }
}

/// A mount for the WAL.
pub(super) fn wal(dir: &Path) -> Result<TargetMount> {
    let directory = plain(&absolute(dir)?).ok_or_else(|| misplaced("the WAL", dir))?;
    Ok(TargetMount {
        at: PG_WAL.into(),
        directory,
        ..TargetMount::default()
    })
}

/// Without a slash at its end, as the server writes its links. It refuses relative ones; `..` would be another directory for it
/// than for us if a link is on the way.
fn plain(directory: &Path) -> Option<PathBuf> {
    let is_plain = directory.is_absolute()
        && !directory
            .components()
            .any(|part| part == Component::ParentDir);
    is_plain.then(|| directory.components().collect())
}

fn misplaced(what: &str, directory: &Path) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("cannot restore {what} to {directory:?}: that is no absolute path"),
    )
    .hint(HINT)
}

fn absolute(dir: &Path) -> Result<PathBuf> {
    std::path::absolute(dir).map_err(|e| Error::io(format!("could not look at {dir:?}"), e))
}

/// Its name, if that can be the name of a directory, else its number.
fn own_name(tablespace: &Tablespace) -> OsString {
    let name = &tablespace.name.0[..];
    let is_plain =
        !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_plain {
        OsStr::from_bytes(name).into()
    } else {
        tablespace.oid.to_string().into()
    }
}

fn is_called(tablespace: &Tablespace, old: &[u8]) -> bool {
    let location = |path: &[u8]| {
        Path::new(OsStr::from_bytes(path))
            .components()
            .collect::<PathBuf>()
    };
    old == tablespace.name.0
        || old == tablespace.oid.to_string().as_bytes()
        || location(old) == location(&tablespace.location.0)
}

fn unknown(old: &[u8], cluster: &ClusterInfo) -> Error {
    let known = |t: &Tablespace| {
        format!(
            "{} ({}) at {}",
            quoted(&t.name.0),
            t.oid,
            quoted(&t.location.0)
        )
    };
    let known: Vec<String> = cluster.tablespaces.iter().map(known).collect();
    let known = if known.is_empty() {
        "no tablespaces".to_owned()
    } else {
        known.join(", ")
    };
    Error::new(
        ErrorKind::Usage,
        format!(
            "cannot restore tablespace {} elsewhere: the backup does not have it",
            quoted(old)
        ),
    )
    .hint(format!("it has {known}"))
}
