//! Refuses targets of a cluster's restore that would mix it with other files or another server.
//!
//! Everything here only reads the target. The owner of tablespaces is checked in
//! `tablespace_owner`.

use crate::restore::request::{Restore, RestoreInto};
use fullbore_format::{
    entry,
    error::{Error, ErrorKind, Result, quoted},
    root::ClusterInfo,
};
use fullbore_platform as platform;
use fullbore_platform::dir::real_path;
use fullbore_postgres::{
    restore::{
        plan::{ClusterPlan, PG_CONTROL, PG_WAL, POSTMASTER_PID},
        tablespaces,
    },
    stopped::{read_small_text, server_process},
};
use fullbore_repository::archive::{Archive, Selection};
use fullbore_tree::write::layout::{TargetMount, UNFINISHED};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, path::Path};

/// Refuses a target that must not be written to.
pub(super) fn refuse_target(restore: &Restore, selection: &Selection) -> Result<()> {
    refuse_live(&restore.to)?;
    if selection.takes(PG_WAL.as_bytes()) {
        refuse_linked_wal(restore)?;
    }
    if !selection.holds(PG_CONTROL) {
        return refuse_parts(&restore.to, selection);
    }
    match restore.into {
        RestoreInto::Overwrite { .. } => refuse_existing_cluster(&restore.to),
        RestoreInto::Delta { delete: None } => Err(keeps_newer_files()),
        RestoreInto::Empty | RestoreInto::Delta { .. } => Ok(()),
    }
}

fn keeps_newer_files() -> Error {
    let message =
        "cannot restore a cluster into an existing one and keep files newer than the backup";
    Error::new(ErrorKind::Usage, message)
        .because("the server would use these files as its own")
        .hint("add --delete")
}

/// Refuses patterns for a backup of a cluster.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub(crate) fn refuse_patterns(archive: &Archive) -> Result<()> {
    if archive.root.postgres.is_none() {
        return Ok(());
    }
    let message = "cannot restore a cluster with --include or --exclude";
    Err(Error::new(ErrorKind::Usage, message)
        .because("a server needs all of its files")
        .hint("--database restores one database"))
}

/// Refuses a target whose `pg_wal` is a link, unless the operator named the directory: in a copy of
/// a data directory the link leads to the live server's WAL.
fn refuse_linked_wal(restore: &Restore) -> Result<()> {
    let link = restore.to.join(PG_WAL);
    let Some(directory) = std::fs::read_link(&link)
        .ok()
        .filter(|_| restore.postgres.waldir.is_none())
    else {
        return Ok(());
    };
    let message = format!(
        "cannot restore to {:?}: {link:?} is a link to {directory:?}",
        restore.to
    );
    Err(Error::new(ErrorKind::Exists, message).hint(
        "--waldir DIR restores the WAL there; without the link it will be in the data directory",
    ))
}

/// Refuses to restore into a tablespace that another cluster uses. The original cluster at its old
/// place may use its own.
pub(super) fn refuse_used_tablespaces(
    restore: &Restore,
    cluster: &ClusterInfo,
    plan: &ClusterPlan,
) -> Result<()> {
    let data = Path::new(OsStr::from_bytes(&cluster.data_directory.0));
    // A restore in place of the cluster uses its tablespaces too.
    if is_same_place(data, &restore.to) {
        return Ok(());
    }
    let untold = cluster
        .tablespaces
        .iter()
        .filter(|space| tablespaces::keeps_location(&restore.postgres, space));
    let places =
        untold.filter_map(|space| plan.mounts.iter().find(|mount| mount.at == space.path()));
    let link = |mount: &TargetMount| data.join(OsStr::from_bytes(&mount.at));
    let mut places = places;
    let Some(used) = places.find(|mount| is_same_place(&link(mount), &mount.directory)) else {
        return Ok(());
    };
    let message = format!(
        "cannot restore to {:?} and {:?}: that is a tablespace of {data:?}",
        restore.to, used.directory
    );
    Err(Error::new(ErrorKind::Exists, message).hint(tablespaces::HINT))
}

/// Returns whether both paths exist and lead to the same place.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let real = real_path(a).ok();
    real.is_some() && real == real_path(b).ok()
}

/// Refuses a target in which a server runs (rule 33).
fn refuse_live(to: &Path) -> Result<()> {
    // Look for the process too: `postmaster.pid` may be gone, like any other file.
    if let Some(pid) = server_process(to) {
        let message = format!("cannot restore to {to:?}: a server runs there, process {pid}");
        return Err(Error::new(ErrorKind::Exists, message).hint("stop it"));
    }
    let path = to.join(OsStr::from_bytes(POSTMASTER_PID));
    let text = match read_small_text(&path) {
        Ok(text) => text,
        Err(e) => match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => return Ok(()),
            _ => return Err(Error::io(format!("could not read {path:?}"), e)),
        },
    };
    // A server in single-user mode writes the negative number.
    let pid = text
        .lines()
        .next()
        .and_then(|line| line.trim().parse::<i32>().ok())
        .map_or(0, i32::saturating_abs);
    if platform::process_is_alive(pid) {
        let message = format!("cannot restore to {to:?}: a server runs there, process {pid}");
        return Err(Error::new(ErrorKind::Exists, message).hint(format!(
            "stop it; if process {pid} is something else, remove {path:?}"
        )));
    }
    // Process IDs in a container are its own. The host sees the container's processes; the
    // container sees no others.
    if platform::sees_all_processes() {
        return Ok(());
    }
    let message = format!(
        "cannot restore to {to:?}: a server may run there, process {pid} of another container"
    );
    Err(Error::new(ErrorKind::Exists, message).hint(format!("if none does, remove {path:?}")))
}

/// Refuses to overwrite an existing cluster.
///
/// Files that the backup does not have would stay, and the server would use them: a visibility map,
/// the next segment of a table, newer WAL. An interrupted restore has no `pg_control` and may be
/// repeated; see [`leftover_error`].
fn refuse_existing_cluster(to: &Path) -> Result<()> {
    if !has_cluster(to) {
        return Ok(());
    }
    let message = format!(
        "cannot restore to {to:?}: a cluster is there, and files newer than the backup would stay"
    );
    Err(Error::new(ErrorKind::Exists, message).hint(
        "--delta --delete lists the files that are not in the backup, and removes them; or \
            choose another --to",
    ))
}

/// Refuses to restore single server files into an existing cluster: files from different moments do
/// not fit together. Files that people edit may be replaced.
fn refuse_parts(to: &Path, selection: &Selection) -> Result<()> {
    if !has_cluster(to) {
        return Ok(());
    }
    let Some(path) = selection.paths().iter().find(|path| is_server_file(path)) else {
        return Ok(());
    };
    let message = format!(
        "cannot restore {} into {to:?}: a cluster is there, and its files must be of one moment",
        quoted(path)
    );
    Err(Error::new(ErrorKind::Exists, message)
        .hint("choose another --to, or restore all of it with --delta --delete"))
}

/// Returns whether the directory has a control file.
fn has_cluster(to: &Path) -> bool {
    to.join(OsStr::from_bytes(PG_CONTROL))
        .symlink_metadata()
        .is_ok()
}

/// Returns whether the server itself writes this file.
fn is_server_file(path: &[u8]) -> bool {
    let first = path.split(|c| *c == b'/').next().unwrap_or_default();
    let own = [
        &b"base"[..],
        b"global",
        b"PG_VERSION",
        b"backup_label",
        b"tablespace_map",
    ];
    own.contains(&first) || first.starts_with(b"pg_") && !first.contains(&b'.')
}

/// Returns the error of a file that would be mixed with those of an interrupted restore of another
/// backup, for the same reason; `None` for one that this restore makes. A dead server's
/// `postmaster.pid` may stay: the next server handles it.
pub(super) fn leftover_error(to: &Path, plan: &ClusterPlan, path: &[u8]) -> Option<Error> {
    let is_made = entry::split(path).1 == UNFINISHED
        || plan.recovery.signal == Some(path)
        || path == POSTMASTER_PID;
    if is_made {
        return None;
    }
    let message = format!(
        "cannot restore to {to:?}: {} is there, which is not in the backup",
        quoted(path)
    );
    let error = Error::new(ErrorKind::Exists, message)
        .because("a server would use it as its own")
        .hint(
            "empty the directory and its tablespaces first, or use --delta --delete, which \
            lists what it removes",
        );
    Some(error)
}
