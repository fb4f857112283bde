//! The way to the files of a running cluster, and how it is chosen.

use super::{
    conninfo::{Host, Params, SettingPlace},
    control,
    data_dir::{
        DataDir, DataTree,
        local::LocalDir,
        remote_tree::{FileOwner, RemoteTree},
        sql::SqlDir,
    },
    late_files::LateFiles,
    layout::{ClusterLayout, PREPARED},
    outside_config::OutsideConfig,
    request::{ClusterRequest, Reading, Via},
    same_server,
    session::{ServerFacts, Session, WalSpace},
    trees::{self, TreeOpener},
};
use fullbore_format::{
    entry::{EntryPath, Owner},
    error::{Error, ErrorKind, Result},
    root::{EntryName, Tablespace},
};
use fullbore_platform as platform;
use std::{
    collections::HashSet,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The way was named by the user.
pub(super) const AS_CHOSEN: &str = "--via says so";

/// An open way to the files of a running cluster.
pub(super) struct ClusterAccess {
    way: FilesWay,
    /// Why this way was taken.
    pub(super) reason: &'static str,
}

enum FilesWay {
    /// The data directory on this host.
    Files(PathBuf),
    /// Sessions with the server.
    Sql(Arc<SqlDir>),
}

/// The files of a cluster, opened for a backup.
pub(super) struct OpenedFiles {
    pub(super) data: Arc<dyn DataDir>,
    pub(super) late: Arc<LateFiles>,
    pub(super) trees: Vec<Arc<dyn DataTree>>,
}

impl ClusterAccess {
    /// Chooses and opens the way.
    ///
    /// # Errors
    /// If the wanted way is not open; for [`Via::Auto`] if none is, with the reason of each.
    pub(super) fn open(
        request: &ClusterRequest,
        params: &Params,
        session: &mut Session,
        facts: &ServerFacts,
    ) -> Result<Self> {
        if request.via == Via::Sql {
            let way = open_sql(request, params, session, facts)?;
            return Ok(Self::new(way, AS_CHOSEN));
        }
        let local = same_server::find_data_directory(facts);
        if request.via == Via::Files {
            return Ok(Self::new(FilesWay::Files(local?.0), AS_CHOSEN));
        }
        let refused = match local {
            Ok((data, _)) if is_here(session, facts, &data) => {
                let reason = "the data directory is on this host";
                return Ok(Self::new(FilesWay::Files(data), reason));
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        let reason = not_local_reason(facts, refused.as_ref());
        if let Some(error) = &refused {
            platform::debug(|| format!("by SQL: {}", error.line()));
        }
        let by_sql = open_sql(request, params, session, facts);
        let way = by_sql.map_err(|error| match refused {
            Some(local) if error.kind == ErrorKind::Permission => {
                both_refused(params, local, error)
            }
            _ => error,
        })?;
        Ok(Self::new(way, reason))
    }

    fn new(way: FilesWay, reason: &'static str) -> Self {
        Self { way, reason }
    }

    /// Returns whether the server must keep WAL in a slot until it was read. By SQL the WAL is read as it is
    /// written, and a role without the right to make a slot takes the risk that a segment is removed.
    pub(super) fn holds_wal(&self, facts: &ServerFacts) -> bool {
        facts.may_hold_wal || matches!(self.way, FilesWay::Files(_))
    }

    /// The name of the way in the root.
    pub(super) fn name(&self) -> &'static str {
        match &self.way {
            FilesWay::Files(_) => "files",
            FilesWay::Sql(_) => "sql",
        }
    }

    /// The data directory, before its trees are open.
    pub(super) fn data(&self) -> Arc<dyn DataDir> {
        match &self.way {
            FilesWay::Files(path) => Arc::new(LocalDir::new(path)),
            FilesWay::Sql(data) => data.clone(),
        }
    }

    /// Checks that the files are those of the server (rule 5). By SQL they are.
    ///
    /// # Errors
    /// Those of [`same_server::check_same_server`].
    pub(super) fn check_same_server(
        &self,
        session: &mut Session,
        facts: &ServerFacts,
    ) -> Result<()> {
        match &self.way {
            FilesWay::Files(path) => {
                same_server::check_same_server(session, facts.may_hold_wal, path)
            }
            FilesWay::Sql(_) => Ok(()),
        }
    }

    /// Returns what the operator should know about this way.
    ///
    /// # Errors
    /// If the session is lost.
    pub(super) fn warnings(&self, session: &mut Session) -> Result<Vec<String>> {
        match &self.way {
            FilesWay::Files(_) => Ok(Vec::new()),
            FilesWay::Sql(_) => Ok(session.statement_log_warning()?.into_iter().collect()),
        }
    }

    /// The disk that holds the server's WAL, if this host sees it.
    pub(super) fn wal_space(&self) -> Option<WalSpace> {
        match &self.way {
            FilesWay::Files(path) => Some(WalSpace::new(path.join("pg_wal"))),
            FilesWay::Sql(_) => None,
        }
    }

    /// Reads the configuration outside of the data directory, if the backup shall have it.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn outside_config(&self) -> Result<OutsideConfig> {
        match &self.way {
            FilesWay::Files(_) => Ok(OutsideConfig::default()),
            FilesWay::Sql(data) => OutsideConfig::read(data),
        }
    }

    /// The configuration files outside of the data directory.
    pub(super) fn outside_config_files(&self, reported: Vec<EntryName>) -> Vec<EntryName> {
        match &self.way {
            FilesWay::Files(path) => trees::outside_config_files(path, reported),
            FilesWay::Sql(_) => reported,
        }
    }

    /// Opens the files. The backup has begun.
    ///
    /// # Errors
    /// The system's or the server's.
    pub(super) fn open_files(
        &self,
        facts: &ServerFacts,
        catalog: u32,
        spaces: &[Tablespace],
        reading: &Reading,
    ) -> Result<OpenedFiles> {
        match &self.way {
            FilesWay::Files(path) => {
                let opener = TreeOpener {
                    data: path,
                    major: facts.major,
                    catalog,
                    online: true,
                };
                let (late, trees) = opener.open_trees(spaces, reading)?;
                Ok(OpenedFiles::of_trees(path, late, trees))
            }
            FilesWay::Sql(data) => open_remote(data.clone(), facts, catalog, (spaces, reading)),
        }
    }
}

impl OpenedFiles {
    /// The files of a data directory on this host.
    pub(super) fn of_trees(
        path: &Path,
        late: Arc<LateFiles>,
        trees: Vec<Arc<fullbore_tree::read::SourceTree>>,
    ) -> Self {
        Self {
            data: Arc::new(LocalDir::of_trees(path, trees.clone())),
            late,
            trees: trees
                .into_iter()
                .map(|tree| tree as Arc<dyn DataTree>)
                .collect(),
        }
    }
}

/// Returns whether the files at `data`, which have the right system identifier, are those of the
/// server: a standby on this host may have the same path.
fn is_here(session: &mut Session, facts: &ServerFacts, data: &Path) -> bool {
    if platform::works_in(session.process().unsigned_abs(), data) {
        return true;
    }
    same_server::check_same_server(session, facts.may_hold_wal, data).is_ok()
}

/// Returns why the files are not read from a data directory of this host.
fn not_local_reason(facts: &ServerFacts, refused: Option<&Error>) -> &'static str {
    match refused.map(|error| error.kind) {
        None => "the data directory on this host belongs to another server",
        Some(_) if facts.data_directory.is_none() => {
            "the role may not see the path of the data directory"
        }
        Some(ErrorKind::NotFound) => "the data directory is not on this host",
        Some(ErrorKind::Permission) => "this user may not read the data directory",
        Some(ErrorKind::Usage) => "the data directory on this host belongs to another cluster",
        Some(_) => "the data directory on this host cannot be read",
    }
}

fn open_sql(
    request: &ClusterRequest,
    params: &Params,
    session: &mut Session,
    facts: &ServerFacts,
) -> Result<FilesWay> {
    let path = facts.data_directory.clone().unwrap_or_default();
    let data = SqlDir::open(params, session, path, request.sessions)?;
    // What may fail later for lack of a right is tried before the backup begins.
    data.list(b"")?;
    data.tablespaces()?;
    let (_, control) = control::read_in(&data)?;
    if control.system_identifier != facts.system_identifier {
        let message = "cannot read the files of the cluster by SQL";
        let why = "the control file has another system identifier than the server";
        return Err(Error::new(ErrorKind::Unsupported, message).because(why));
    }
    Ok(FilesWay::Sql(Arc::new(data)))
}

/// Returns the error if neither way is open: that of the files if the server is on this host, as
/// its socket is, and that of SQL otherwise. The other one is added to it.
fn both_refused(params: &Params, local: Error, by_sql: Error) -> Error {
    let (first, second) = if params.hosts.iter().all(is_socket) {
        (local, by_sql)
    } else {
        (by_sql, local)
    };
    let error = first.detail(format!("nor otherwise: {}", second.line()));
    second.detail.into_iter().fold(error, Error::detail)
}

fn is_socket(host: &Host) -> bool {
    matches!(host.place, SettingPlace::Socket(_))
}

/// Opens the files of a cluster that another host has.
fn open_remote(
    data: Arc<SqlDir>,
    facts: &ServerFacts,
    catalog: u32,
    (spaces, reading): (&[Tablespace], &Reading),
) -> Result<OpenedFiles> {
    let prepared = data.names(PREPARED)?.into_iter().map(|name| name.bytes);
    let layout = ClusterLayout::new(facts.major, catalog, true).with_prepared(prepared.collect());
    let stored = spaces.iter().map(Tablespace::path).collect();
    let late = Arc::new(LateFiles::new(layout, PathBuf::new(), stored));
    let owner = FileOwner {
        owner: server_owner(),
        directory_mode: facts.data_directory_mode,
    };
    let inside = |space| path_inside(data.path(), space);
    let elsewhere = spaces.iter().filter_map(inside).collect::<HashSet<_>>();
    let data: Arc<dyn DataDir> = data;
    let ahead = reading.ahead_bytes;
    let tree = RemoteTree::new(data.clone(), late.clone(), owner, elsewhere, ahead);
    Ok(OpenedFiles {
        data,
        late,
        trees: vec![Arc::new(tree)],
    })
}

/// Returns the owner of files that a server reads for us. It does not say who owns them; the names
/// are those that it writes itself into the tar streams of BASE_BACKUP.
fn server_owner() -> Owner {
    let (uid, gid) = platform::user();
    Owner {
        uid,
        gid,
        user: "postgres".into(),
        group: "postgres".into(),
    }
}

/// Returns the path of a tablespace inside the data directory, if the tablespace is there.
fn path_inside(data: &Path, space: &Tablespace) -> Option<EntryPath> {
    let data = data.as_os_str().as_bytes();
    let path = space.location.0.strip_prefix(data)?;
    (!data.is_empty()).then_some(path.strip_prefix(b"/")?.to_vec())
}
