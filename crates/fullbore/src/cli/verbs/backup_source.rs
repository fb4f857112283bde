//! The source of a backup: a cluster, or a tree that is none.

use super::backup_args::BackupArgs;
use crate::cli::{output::aside, report, values::CheckpointArg};
use fullbore_engine::{backup::paths::warning_of, wal::RepositoryArchive};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_postgres::{
    archiver::SegmentArchive,
    conninfo::{Environment, Params},
    request::{ClusterRequest, ClusterServer, SESSIONS, Via, Wal},
    stopped,
};
use fullbore_repository::open::is_repository;
use fullbore_storage::Storages;
use std::{
    io::{IsTerminal, stderr},
    path::Path,
    sync::Arc,
};

/// The cluster to back up, if the source is one.
pub(super) fn requested_cluster(
    args: &BackupArgs,
    storages: &Storages,
) -> Result<Option<ClusterRequest>> {
    if args.stdin_name.is_some() && !args.scope.paths.is_empty() {
        return stream(args).map(|()| None);
    }
    let url = |path: &Path| path.to_str().filter(|text| is_url(text)).map(str::to_owned);
    let server = match (&args.connect, &args.scope.paths[..]) {
        (Some(settings), _) => ClusterServer::Running(params(settings)?),
        (None, [path]) => match url(path) {
            Some(_) if args.offline => {
                let message = "--offline wants the data directory of a cluster that is shut down, not the address of a server";
                return Err(Error::new(ErrorKind::Usage, message));
            }
            Some(url) => {
                let params = params(&url)?;
                say_all_databases(args, &url, &params);
                ClusterServer::Running(params)
            }
            None if args.offline => ClusterServer::Stopped(path.clone()),
            None if is_settings(path) => {
                // It may contain a password.
                let message = "cannot back up what looks like the settings of a connection";
                return Err(Error::new(ErrorKind::Usage, message)
                    .hint("give them to --connect, or say postgres://user@host/"));
            }
            None => return tree(args).map(|()| None),
        },
        (None, _) if args.offline => {
            return Err(Error::new(
                ErrorKind::Usage,
                "--offline takes exactly one PATH",
            ));
        }
        (None, _) => return tree(args).map(|()| None),
    };
    if args.scope.selects_files() {
        let message = "cannot leave anything out of a cluster, or store it under other paths";
        return Err(
            Error::new(ErrorKind::Usage, message).hint("options such as --exclude are for trees")
        );
    }
    let fast = args.checkpoint != Some(CheckpointArg::Spread);
    Ok(Some(ClusterRequest {
        server,
        fast,
        wal: args.wal.unwrap_or(Wal::Included),
        archive: archive_of(args, storages),
        via: args.via,
        sessions: args.readers.0.unwrap_or(SESSIONS),
    }))
}

/// Says that a database in the address is not the only one that is backed up, to somebody who looks.
fn say_all_databases(args: &BackupArgs, url: &str, params: &Params) {
    let output = &args.output;
    let is_looked_at = stderr().is_terminal() || output.verbose;
    let database = &params.dbname;
    let address = url.split('?').next().unwrap_or_default();
    let is_named = address.ends_with(&format!("/{database}")) && database != "postgres";
    if is_named && is_looked_at && !output.quiet && !output.json {
        aside(format_args!(
            "note: all databases of the cluster are backed up; {database:?} is only where the session is"
        ));
    }
}

/// The archive in the repository of the backup, unless an option says where the WAL is. Of several
/// repositories, one alone may have the WAL of the server: the backup then includes it.
fn archive_of(args: &BackupArgs, storages: &Storages) -> Option<Arc<dyn SegmentArchive>> {
    if args.wal.is_some() || args.to.len() > 1 || !is_repository(args.first_to()) {
        return None;
    }
    let archive = RepositoryArchive::new(storages.clone(), args.first_to().to_owned());
    Some(Arc::new(archive))
}

/// Refuses PATHs beside a stream, unless they are a command.
fn stream(args: &BackupArgs) -> Result<()> {
    if args.stdin_from_command {
        return check_stream(args);
    }
    let message = "cannot back up standard input and PATHs in one backup";
    Err(Error::new(ErrorKind::Usage, message).hint(
        "leave out the PATHs; or, to back up the output of a command, use --stdin-from-command -- COMMAND",
    ))
}

/// Refuses options that do not apply: PostgreSQL options without a cluster, options that exclude files with a stream.
fn tree(args: &BackupArgs) -> Result<()> {
    check_stream(args)?;
    let warnings: Vec<String> = args
        .scope
        .paths
        .iter()
        .filter_map(|path| warning_of(path))
        .collect();
    report::warnings(&warnings).for_each(aside);
    let paths = &args.scope.paths;
    paths.iter().try_for_each(|path| not_running(path))
}

fn check_stream(args: &BackupArgs) -> Result<()> {
    if args.wal.is_some() || args.checkpoint.is_some() || args.via != Via::Auto {
        let message = "--wal, --checkpoint and --via are for running clusters: postgres://… as the PATH, or --connect";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    if args.stdin_name.is_some() && args.scope.selects_files() {
        let message = "cannot leave anything out of standard input, or store it under other paths";
        return Err(
            Error::new(ErrorKind::Usage, message).hint("options such as --exclude are for trees")
        );
    }
    Ok(())
}

/// Reads the settings of a connection, and prints what is wrong with them.
pub(super) fn params(text: &str) -> Result<Box<Params>> {
    let params = Params::new(text, &Environment::of_process())?;
    params
        .warnings
        .iter()
        .for_each(|warning| aside(format_args!("warning: {warning}")));
    Ok(Box::new(params))
}

/// Refuses the data directory of a running cluster as a path: its files would not be consistent.
fn not_running(path: &Path) -> Result<()> {
    if path.to_str().is_some_and(is_url) {
        return Err(Error::new(
            ErrorKind::Usage,
            "cannot back up a cluster beside other paths",
        )
        .hint("give it alone"));
    }
    if !stopped::is_data_directory(path) {
        return Ok(());
    }
    if stopped::is_running(path) {
        let message = format!(
            "cannot back up the cluster at {path:?}: it is running and no connection was given"
        );
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("use postgres://… as the source, so that the server is told when the backup starts and ends"));
    }
    aside(format_args!(
        "warning: {path:?} is the data directory of a cluster, and is backed up like any other tree: --offline makes sure that it \
         was shut down, and takes its tablespaces too"
    ));
    Ok(())
}

/// Is it a connection string such as `host=… user=…`, and not an existing file?
fn is_settings(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let mut names = text
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(name, _)| name);
    !path.exists()
        && names.any(|name| {
            ["host", "hostaddr", "dbname", "user", "password", "service"].contains(&name)
        })
}

/// Returns whether this is the address of a server.
pub(super) fn is_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    ["postgres", "postgresql"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
}
