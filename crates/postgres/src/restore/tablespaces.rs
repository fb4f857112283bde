//! Decides where tablespaces and the WAL are restored.

use super::plan::{ClusterOptions, PG_WAL};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    root::{ClusterInfo, Tablespace},
};
use fullbore_tree::write::layout::{SharedDirectory, TargetMount};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

/// Hint for a tablespace that cannot be restored to its place.
pub const HINT: &str = "--tablespace OLD=NEW restores a tablespace elsewhere, --tablespaces-under \
    DIR all of them, --waldir DIR the WAL";

/// Returns a mount for each tablespace outside the data directory.
pub(super) fn tablespace_mounts(
    options: &ClusterOptions,
    cluster: &ClusterInfo,
) -> Result<Vec<TargetMount>> {
    for (old, _) in &options.tablespaces {
        if !cluster
            .tablespaces
            .iter()
            .any(|tablespace| is_named(tablespace, old))
        {
            return Err(unknown_tablespace(old, cluster));
        }
    }
    // An in-place tablespace has its own path as its location.
    cluster
        .tablespaces
        .iter()
        .filter(|tablespace| tablespace.location.0 != tablespace.path())
        .map(|tablespace| mount(options, tablespace, cluster.major))
        .collect()
}

/// Clusters of several versions may each have a directory in one location, for example after
/// `pg_upgrade` (rule 10).
pub fn shared(major: u32) -> SharedDirectory {
    SharedDirectory {
        all: b"PG_".to_vec(),
        own: format!("PG_{major}_").into_bytes(),
    }
}

/// Returns whether the tablespace is restored to its location in the backup, because the operator
/// chose no other.
pub fn keeps_location(options: &ClusterOptions, tablespace: &Tablespace) -> bool {
    options.tablespaces_under.is_none() && chosen_directory(options, tablespace).is_none()
}

/// Returns the operator's choice for this tablespace.
fn chosen_directory<'a>(
    options: &'a ClusterOptions,
    tablespace: &Tablespace,
) -> Option<&'a (Vec<u8>, PathBuf)> {
    options
        .tablespaces
        .iter()
        .find(|(old, _)| is_named(tablespace, old))
}

fn mount(options: &ClusterOptions, tablespace: &Tablespace, major: u32) -> Result<TargetMount> {
    let chosen = chosen_directory(options, tablespace);
    let directory = match (chosen, &options.tablespaces_under) {
        (Some((_, new)), _) => new.clone(),
        (None, Some(dir)) => absolute(dir)?.join(directory_name(tablespace)),
        (None, None) => PathBuf::from(OsStr::from_bytes(&tablespace.location.0)),
    };
    match plain_path(&directory) {
        Some(directory) => Ok(TargetMount {
            at: tablespace.path(),
            directory,
            shared: Some(shared(major)),
            ..TargetMount::default()
        }),
        None => Err(not_absolute(
            &format!("tablespace {}", quoted(&tablespace.name.0)),
            &directory,
        )),
    }
}

pub(super) fn wal_mount(dir: &Path) -> Result<TargetMount> {
    let directory = plain_path(&absolute(dir)?).ok_or_else(|| not_absolute("the WAL", dir))?;
    Ok(TargetMount {
        at: PG_WAL.into(),
        directory,
        ..TargetMount::default()
    })
}

/// Returns the path without a slash at its end, as the server writes its links; `None` if the path
/// is relative or has `..`.
///
/// The server refuses relative links. `..` after a link would be another directory for the server
/// than for fullbore.
fn plain_path(directory: &Path) -> Option<PathBuf> {
    let is_plain = directory.is_absolute()
        && !directory
            .components()
            .any(|part| part == Component::ParentDir);
    is_plain.then(|| directory.components().collect())
}

/// Returns the error for a directory that cannot be used.
fn not_absolute(subject: &str, directory: &Path) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("cannot restore {subject} to {directory:?}: that is not an absolute path"),
    )
    .hint(HINT)
}

fn absolute(dir: &Path) -> Result<PathBuf> {
    std::path::absolute(dir).map_err(|e| Error::io(format!("could not look at {dir:?}"), e))
}

/// Returns the tablespace's name if it can be a directory name, otherwise its OID.
fn directory_name(tablespace: &Tablespace) -> OsString {
    let name = &tablespace.name.0[..];
    let is_plain =
        !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_plain {
        OsStr::from_bytes(name).into()
    } else {
        tablespace.oid.to_string().into()
    }
}

/// Returns whether `old` is the name, the OID or the location of the tablespace.
fn is_named(tablespace: &Tablespace, old: &[u8]) -> bool {
    old == tablespace.name.0
        || old == tablespace.oid.to_string().as_bytes()
        || normal_path(old) == normal_path(&tablespace.location.0)
}

fn normal_path(path: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(path))
        .components()
        .collect::<PathBuf>()
}

/// Returns the error for a tablespace that the backup does not have.
fn unknown_tablespace(old: &[u8], cluster: &ClusterInfo) -> Error {
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
