//! The first steps of a backup of a cluster, until its sources are open.

use super::{
    access::{AS_CHOSEN, ClusterAccess, OpenedFiles},
    archiver, by_protocol,
    cluster_backup::ClusterBackup,
    conninfo::Params,
    init_forks::InitForks,
    inventory::ManifestInventory,
    lsn::Lsn,
    outside_config::OutsideConfig,
    request::{ClusterRequest, ClusterServer, Reading, Via, Wal},
    restore::advice,
    same_server,
    session::{Catalog, HeldSession, ServerFacts, Session},
    source::{ClusterSource, Sources},
    stopped,
    trees::{self, TreeOpener},
    wal_source::FollowedWal,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root,
};
use fullbore_platform::{dir::real_path, metrics::waits::Waits};
use std::{
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, Mutex},
};

const UNHELD_WAL: &str = "the role has no REPLICATION, so the server did not keep WAL for the backup: the backup fails if the \
    server removes WAL too early";

impl ClusterRequest {
    /// Connects, begins a backup, and opens the sources. `name` gets the system identifier of the
    /// cluster and returns the id of the backup. Without an id no backup begins: the sources only
    /// estimate.
    ///
    /// # Errors
    /// The server's, or the reason why its files cannot be read on this host.
    pub fn open(
        &self,
        name: &dyn Fn(&str) -> Result<Option<String>>,
        reading: &Reading,
    ) -> Result<(Arc<dyn ClusterBackup>, Sources)> {
        let cluster = match (&self.server, self.via) {
            (ClusterServer::Running(params), Via::Protocol) => {
                return by_protocol::open(self, params, name, (reading, AS_CHOSEN));
            }
            (ClusterServer::Running(params), via) => match self.open_access(params) {
                Err(error) if via == Via::Auto && error.kind == ErrorKind::Permission => {
                    return self.open_by_protocol(params, name, reading, error);
                }
                opened => self.open_running(opened?, params, name, reading)?,
            },
            (ClusterServer::Stopped(data), _) => open_stopped(data, reading)?,
        };
        let (cluster, sources) = cluster.sources(reading.split);
        Ok((cluster, sources))
    }

    /// Opens the way that is left if the role may use no other. `refused` says why.
    fn open_by_protocol(
        &self,
        params: &Params,
        name: &dyn Fn(&str) -> Result<Option<String>>,
        reading: &Reading,
        refused: Error,
    ) -> Result<(Arc<dyn ClusterBackup>, Sources)> {
        fullbore_platform::debug(|| format!("by protocol: {}", refused.line()));
        let reason = "the role may not read the files by SQL";
        by_protocol::open(self, params, name, (reading, reason)).map_err(|error| match error.kind {
            ErrorKind::Permission => refused.detail(format!("nor by protocol: {}", error.line())),
            _ => error,
        })
    }

    /// Connects, and opens the way to the files.
    fn open_access(&self, params: &Params) -> Result<(Session, ServerFacts, ClusterAccess)> {
        let mut session = Session::connect(params)?;
        let facts = session.facts()?;
        if let Some(warning) = &facts.warning {
            fullbore_platform::debug(|| warning.clone());
        }
        let access = ClusterAccess::open(self, params, &mut session, &facts)?;
        Ok((session, facts, access))
    }

    /// Opens the sources of a running cluster.
    fn open_running(
        &self,
        (mut session, facts, access): (Session, ServerFacts, ClusterAccess),
        params: &Params,
        name: &dyn Fn(&str) -> Result<Option<String>>,
        reading: &Reading,
    ) -> Result<ClusterSource> {
        let data = access.data();
        let mut warnings = access.warnings(&mut session)?;
        let config = access.outside_config()?;
        let is_wal_held = access.holds_wal(&facts);
        warnings.extend(config.warnings.iter().cloned());
        let catalog = session.catalog()?;
        let id = name(&facts.system_identifier.to_string())?;
        let request = match &id {
            Some(_) => self.resolved(&mut session, &facts)?,
            None => self.clone(),
        };
        if request.wal == Wal::Included && !is_wal_held {
            warnings.push(UNHELD_WAL.to_owned());
        }
        let start = id
            .map(|id| request.begin_backup(&mut session, &facts, (&access, &id), &reading.waits))
            .transpose()?;
        // Read tablespaces and databases again: from now on WAL has every change to them. Read the
        // links first: an entry that only the later catalog has is in the WAL, or its link was
        // read.
        let links = data.tablespaces()?;
        let facts = session.facts()?;
        let tablespaces = trees::add_names(&*data, links, &facts.tablespaces);
        let now = same_server::await_checkpoint(&*data, start)?;
        let OpenedFiles { data, late, trees } =
            access.open_files(&facts, now.catalog, &tablespaces, reading)?;
        Ok(ClusterSource {
            wal: request.wal,
            archive: request.archive.clone(),
            session: Some(HeldSession::new(session, params, access.wal_space())?),
            control: Vec::new(),
            is_wal_held,
            catalog,
            sizes: now.sizes,
            start,
            init_forks: InitForks::default(),
            inventory: ManifestInventory::new(facts.major, facts.system_identifier)?,
            warnings: Mutex::new(warnings),
            failed: Mutex::default(),
            facts: Mutex::new({
                let info = request.cluster_info(facts, &access, start);
                root::ClusterInfo {
                    tablespaces,
                    configuration: config.missing(info.configuration),
                    ..info
                }
            }),
            config,
            data,
            late,
            trees,
            waits: reading.waits.clone(),
            followed: Mutex::new(FollowedWal::since(start)),
            awaited: Mutex::default(),
        })
    }

    /// Returns the request with the WAL left to the archive, if that takes the WAL of this server. An archive in trouble is
    /// no reason to fail: the WAL is then stored in the backup.
    fn resolved(&self, session: &mut Session, facts: &ServerFacts) -> Result<Self> {
        let Some(archive) = &self.archive else {
            return Ok(self.clone());
        };
        let found = archiver::is_archived_to(&**archive, session, facts);
        let is_archived = match found {
            Err(error) => {
                fullbore_platform::debug(|| {
                    format!("the WAL is stored in the backup: {}", error.line())
                });
                false
            }
            Ok(is_archived) => is_archived,
        };
        Ok(Self {
            wal: if is_archived { Wal::Archived } else { self.wal },
            archive: self.archive.clone().filter(|_| is_archived),
            ..self.clone()
        })
    }

    /// Begins the backup `id`; returns its start. The slot comes first, so that the server keeps
    /// the WAL that the backup will need.
    ///
    /// If the server limits the WAL of a slot, the slot is made after the start. It would begin at
    /// the checkpoint before, and the start's checkpoint ends the session of a slot beyond the
    /// limit.
    fn begin_backup(
        &self,
        session: &mut Session,
        facts: &ServerFacts,
        (access, id): (&ClusterAccess, &str),
        waits: &Waits,
    ) -> Result<Lsn> {
        let is_held = self.wal == Wal::Included && access.holds_wal(facts);
        let is_held_later = is_held && session.has_slot_limit();
        if is_held {
            session.hold_wal()?;
        }
        access.check_same_server(session, facts)?;
        if is_held_later {
            session.release_wal()?;
        }
        if self.wal == Wal::Archived {
            waits.record(archiver::AWAITED, || {
                archiver::check_archiving(session, facts, archiver::PATIENCE)
            })?;
        }
        let start = waits.record("the server's checkpoint", || {
            session.start(&format!("fullbore {id}"), self.fast)
        })?;
        if is_held_later {
            session.hold_wal_from(start)?;
        }
        // Until now the slot held all WAL since the checkpoint before.
        session.advance_slot(start)?;
        Ok(start)
    }

    /// Returns the facts that the root records.
    fn cluster_info(
        &self,
        facts: ServerFacts,
        access: &ClusterAccess,
        start: Option<Lsn>,
    ) -> root::ClusterInfo {
        root::ClusterInfo {
            version: facts.version,
            major: facts.major,
            system_identifier: facts.system_identifier.to_string(),
            timeline: facts.timeline,
            online: true,
            standby: facts.standby,
            checksums: facts.checksums,
            start_lsn: start.map(|lsn| lsn.to_string()).unwrap_or_default(),
            wal: self.wal.name().to_owned(),
            wal_segment_bytes: facts.wal_segment_bytes,
            archives: advice::turns_archiving_on(&facts.archive_mode),
            has_restore_command: facts.has_restore_command,
            via: access.name().to_owned(),
            via_reason: access.reason.to_owned(),
            data_directory: root::EntryName(access.data().path().as_os_str().as_bytes().to_vec()),
            configuration: access.outside_config_files(facts.configuration),
            databases: facts.databases,
            ..root::ClusterInfo::default()
        }
    }
}

/// Opens the sources of a stopped cluster that was shut down cleanly.
fn open_stopped(data: &Path, reading: &Reading) -> Result<ClusterSource> {
    let data = real_path(data).map_err(|e| Error::io(format!("could not open {data:?}"), e))?;
    // The control file first: it says whether the cluster was shut down cleanly, without which
    // nothing else counts.
    let (bytes, control) = stopped::read_clean_control(&data)?;
    let (version, major) = stopped::read_version(&data)?;
    let tablespaces = trees::linked_tablespaces(&data)?;
    let opener = TreeOpener {
        data: &data,
        major,
        catalog: control.catalog,
        online: false,
    };
    let (late, trees) = opener.open_trees(&tablespaces, reading)?;
    let path = data;
    let OpenedFiles { data, late, trees } = OpenedFiles::of_trees(&path, late, trees);
    let facts = root::ClusterInfo {
        version,
        major,
        system_identifier: control.system_identifier.to_string(),
        timeline: control.timeline,
        stop_lsn: control.wal_end().to_string(),
        checksums: control.checksum_version > 0,
        wal: Wal::Included.name().to_owned(),
        wal_segment_bytes: control.wal_segment_bytes.into(),
        data_directory: root::EntryName(path.as_os_str().as_bytes().to_vec()),
        configuration: trees::outside_config_files(&path, Vec::new()),
        tablespaces,
        ..root::ClusterInfo::default()
    };
    Ok(ClusterSource {
        wal: Wal::Included,
        archive: None,
        session: None,
        control: bytes,
        is_wal_held: true,
        catalog: Catalog::default(),
        sizes: control.sizes,
        start: None,
        init_forks: InitForks::default(),
        inventory: ManifestInventory::new(major, control.system_identifier)?,
        warnings: Mutex::default(),
        failed: Mutex::default(),
        facts: Mutex::new(facts),
        config: OutsideConfig::default(),
        data,
        late,
        trees,
        waits: Arc::default(),
        followed: Mutex::new(FollowedWal::since(None)),
        awaited: Mutex::default(),
    })
}
