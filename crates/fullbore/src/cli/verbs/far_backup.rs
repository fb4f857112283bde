//! Backups whose source or destination is on another host: the whole command runs there, with this host's repository or files; or
//! here, with the files of that host.

use super::{
    backup_args::BackupArgs,
    far::{FarArguments, PEER, Replaced, offered_name, printing, run_there},
};
use crate::cli::{options::UNREADABLE, scope_args::looks_twice, values::RunOn};
use fullbore_engine::backup::{
    far_source::{FarSubject, SourceRights},
    file_service::{FileService, PassedFiles},
    paths::Scope,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
};
use fullbore_repository::writer::must_be_possible;
use fullbore_storage::{
    FarBackup, Location, Storages,
    ssh::connect_to_peer,
    wire::{Offer, OfferedObjects, ServiceNumber},
};
use std::{ffi::OsString, path::PathBuf, sync::Arc};

/// Runs a backup on the host of its source, if that is another one. Returns the exit code.
///
/// # Errors
/// [`ErrorKind::Usage`] if the paths are on several hosts, or if the destination is no repository; those of the connection.
pub(super) fn backup(args: &BackupArgs, storages: &Storages) -> Result<Option<u8>> {
    if args.on.as_deref() == Some(PEER) {
        return Ok(None);
    }
    let source = source_host(args)?;
    if source.is_some() || args.run_on == RunOn::Dest {
        args.must_have_one_destination("the source or the run is on another host")?;
    }
    if runs_at_destination(args)? {
        return run_at_destination(args, storages, source);
    }
    let Some((host, paths)) = source else {
        return Ok(None);
    };
    let (target, _) = args.sink(storages)?;
    let Some(objects) = target.storage() else {
        let message = format!("cannot back up another host to {}", target.name());
        return Err(Error::new(ErrorKind::Usage, message).because("it is no repository"));
    };
    // The other host cannot look at a place of this one.
    if objects.as_local().is_some() && objects.stat(REPOSITORY)?.is_none() {
        must_be_possible(&**objects, args.no_create)?;
    }
    let name = args.host.clone().unwrap_or_else(|| name_of(&host));
    let arguments = FarArguments {
        to: offered_name(args.first_to()),
        words: paths,
        added: match &args.host {
            Some(_) => Vec::new(),
            None => vec!["--host".into(), name.clone().into()],
        },
    };
    let report = args.run.report.as_deref();
    let rights = Arc::new(FarBackup::new(objects.clone(), &name));
    let offer = printing().objects(OfferedObjects::new(rights.clone()));
    let code = run_there(storages, &host, &arguments, offer, report)?;
    let is_done = [0, UNREADABLE].contains(&code) && !args.dry_run;
    if is_done && !rights.has_root() {
        return Err(stored_nothing(&host));
    }
    Ok(Some(code))
}

/// Returns whether the host of the destination does the work: if that is asked for, and for volumes, whose media are changed there.
fn runs_at_destination(args: &BackupArgs) -> Result<bool> {
    let is_in_volumes = matches!(Location::parse(args.first_to())?, Location::Volumes(_));
    Ok(args.run_on == RunOn::Dest || is_in_volumes)
}

/// The name of a host in its backups: without the user and the port by which ssh reaches it.
fn name_of(host: &str) -> String {
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    match name.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address.to_owned(),
        None => name.split(':').next().unwrap_or(name).to_owned(),
    }
}

fn stored_nothing(host: &str) -> Error {
    let message = format!("could not back up host {host:?}: it has stored no backup here");
    Error::new(ErrorKind::System, message)
        .because("the command there said that it was done")
        .hint("check fullbore on that host; it may have been replaced")
}

/// Runs a backup on the host of its destination, if that is another one. Returns the exit code.
fn run_at_destination(
    args: &BackupArgs,
    storages: &Storages,
    source: Option<FarSource>,
) -> Result<Option<u8>> {
    check_trees(args)?;
    let Location::Ssh { host, path } = Location::parse(args.first_to())? else {
        return Ok(None);
    };
    let (origin, words) = match source {
        Some((from, words)) => (Some(from), words),
        None => (None, Vec::new()),
    };
    let scope = far_scope(args, &words);
    let mut added: Vec<OsString> = vec!["--on".into(), PEER.into()];
    if let (Some(origin), None) = (&origin, &args.host) {
        added.extend(["--host".into(), name_of(origin).into()]);
    }
    let arguments = FarArguments {
        to: path.into(),
        words,
        added,
    };
    let offer = match origin {
        Some(from) => {
            let wire = storages.connect_to_host(&from, Offer::none())?;
            printing().service(ServiceNumber::FILES, PassedFiles { wire, scope })
        }
        None => {
            let files = FileService::new(SourceRights::Scope(scope));
            printing().service(ServiceNumber::FILES, files)
        }
    };
    let report = args.run.report.as_deref();
    run_there(storages, &host, &arguments, offer, report).map(Some)
}

/// Only trees are read for a backup that runs on another host.
fn check_trees(args: &BackupArgs) -> Result<()> {
    let is_url = |path: &PathBuf| path.to_string_lossy().starts_with("postgres");
    let is_cluster = args.connect.is_some() || args.offline || args.scope.paths.iter().any(is_url);
    if !is_cluster && args.stdin_name.is_none() {
        return Ok(());
    }
    // A cluster of this host goes to volumes of this host.
    if args.run_on != RunOn::Dest && source_host(args)?.is_none() {
        return Ok(());
    }
    let because = "only files and directories are read from another host";
    Err(match args.run_on {
        RunOn::Dest => {
            let message = "cannot use --run-on dest with a cluster or standard input";
            let hint = "leave it out: the host of the source does the work";
            Error::new(ErrorKind::Usage, message)
                .because(because)
                .hint(hint)
        }
        RunOn::Source => {
            let message = "cannot write a cluster of another host to volumes";
            let hint = "back it up to a repository, and export that to volumes";
            Error::new(ErrorKind::Usage, message)
                .because(because)
                .hint(hint)
        }
    })
}

/// The files that the command line names, by what they are called on the host that has them.
fn far_scope(args: &BackupArgs, words: &[Replaced]) -> Scope {
    let mut scope = args.scope.scope(looks_twice(args.compare));
    for path in &mut scope.paths {
        let replaced = words.iter().find(|(word, _)| word == path.as_os_str());
        if let Some((_, far)) = replaced {
            *path = far.into();
        }
    }
    scope
}

/// The files of another host that a backup here reads.
///
/// # Errors
/// [`ErrorKind::Usage`] for what is no tree; those of the connection.
pub(super) fn subject(args: &BackupArgs, storages: &Storages) -> Result<Option<FarSubject>> {
    if args.on.as_deref() == Some(PEER) {
        return FarSubject::new(connect_to_peer()?, far_scope(args, &[])).map(Some);
    }
    let source = source_host(args)?;
    let Some((host, paths)) = source else {
        return Ok(None);
    };
    if !runs_at_destination(args)? {
        return Ok(None);
    }
    let scope = far_scope(args, &paths);
    let wire = storages.connect_to_host(&host, Offer::none())?;
    Ok(Some(FarSubject::new(wire, scope)?.of_host(name_of(&host))))
}

/// A host, and what paths are called there.
type FarSource = (String, Vec<Replaced>);

fn several_hosts() -> Error {
    let message = "cannot back up several hosts in one backup";
    Error::new(ErrorKind::Usage, message).hint(
        "make a backup for each host, with a profile of its own; all may go to one repository",
    )
}

/// Refuses sources of several hosts.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub(super) fn check_hosts(args: &BackupArgs) -> Result<()> {
    source_host(args).map(drop)
}

/// The host that all paths are on, and what they are called there; `None` if it is this one.
fn source_host(args: &BackupArgs) -> Result<Option<FarSource>> {
    let mut host = args.on.clone();
    let mut paths = Vec::new();
    for word in &args.scope.paths {
        let Location::Ssh { host: of, path } = Location::parse(word.as_os_str())? else {
            continue;
        };
        if host.get_or_insert_with(|| of.clone()) != &of {
            return Err(several_hosts());
        }
        paths.push((word.clone().into(), path.into()));
    }
    // With --on, paths without a host are on that host too.
    let is_mixed = !paths.is_empty() && paths.len() < args.scope.paths.len();
    if is_mixed && args.on.is_none() {
        return Err(several_hosts());
    }
    if host.is_some() && args.stdin_name.is_some() {
        let message = "cannot back up standard input on another host";
        return Err(Error::new(ErrorKind::Usage, message).hint(
            "send it here: `ssh HOST COMMAND | fullbore backup --stdin-name NAME --to REPO`",
        ));
    }
    Ok(host.map(|host| (host, paths)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_the_name_by_which_its_backups_are_found() {
        for (host, name) in [("db1", "db1"), ("me@db1:22", "db1"), ("me@[::1]:22", "::1")] {
            assert_eq!(name_of(host), name);
        }
    }
}
