//! Which cluster is to be backed up, and how; and the first steps of it, until its sources are open.

use super::{
    archiver,
    conninfo::Params,
    inventory::ManifestInventory,
    lsn::Lsn,
    restore::advice,
    same_server,
    session::{Catalog, HeldSession, Room, ServerFacts, Session},
    source::{ClusterSource, Sources},
    stopped,
    trees::{self, Opening},
    wal_source::FollowedWal,
};
use crate::{
    error::{Error, Result},
    format::root,
    metrics::waits::Waits,
    platform::{Tricks, dir::real_path},
    source::tree::Own,
};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Which cluster, and how.
#[derive(Debug, Clone)]
pub struct ClusterRequest {
    /// Where it is.
    pub server: ClusterServer,
    /// Should the checkpoint at the start be done at once, or spread over time?
    pub fast: bool,
    /// Where the WAL is that the backup needs.
    pub wal: Wal,
}

/// Where a cluster is.
#[derive(Debug, Clone)]
pub enum ClusterServer {
    /// It runs, and answers here.
    Running(Box<Params>),
    /// It is stopped; this is its data directory.
    Stopped(PathBuf),
}

/// Where the WAL is that a backup needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wal {
    /// In the backup, so that it starts on its own.
    Included,
    /// In the archive of the server, which is looked at.
    Archived,
    /// That is the operator's business.
    None,
}

impl Wal {
    /// As the root has it.
    fn name(self) -> &'static str {
        match self {
            Self::Included => "included",
            Self::Archived => "archived",
            Self::None => "none",
        }
    }
}

/// How its files are read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// A stream for each device?
    pub split: bool,
    /// Directories listed at the same time.
    pub walkers: usize,
    /// May tricks be played?
    pub tricks: Tricks,
    /// Where the backup goes.
    pub own: Own,
    /// What the server is waited for.
    pub waits: Arc<Waits>,
}

impl ClusterRequest {
    /// Connect, begin the backup `id`, and open the sources. Without an id nothing begins: it is only looked at.
    ///
    /// # Errors
    /// What the server says, or why its files cannot be read from here.
    pub fn open(
        &self,
        id: Option<&str>,
        reading: &Reading,
    ) -> Result<(Arc<ClusterSource>, Sources)> {
        let cluster = match &self.server {
            ClusterServer::Running(params) => self.running(params, id, reading)?,
            ClusterServer::Stopped(data) => stopped(data, reading)?,
        };
        Ok(cluster.sources(reading.split))
    }

    fn running(
        &self,
        params: &Params,
        id: Option<&str>,
        reading: &Reading,
    ) -> Result<ClusterSource> {
        let mut session = Session::connect(params)?;
        let facts = session.facts()?;
        facts
            .warning
            .iter()
            .for_each(|warning| crate::platform::debug(|| warning.clone()));
        let (data, control) = same_server::files_of(&facts)?;
        let catalog = session.catalog()?;
        let start = id
            .map(|id| self.begin(&mut session, &facts, (&data, id), &reading.waits))
            .transpose()?;
        // Tablespaces and databases as they are now that every change to them is in the WAL. Links first: what the catalog shows
        // only then is behind the start, or its link is among them.
        let links = trees::tablespaces(&data)?;
        let facts = session.facts()?;
        let tablespaces = trees::named(links, &facts.tablespaces);
        let now = same_server::started(&data, start)?;
        let opening = Opening {
            data: &data,
            major: facts.major,
            catalog: now.catalog,
            online: true,
        };
        let (late, trees) = opening.trees(&tablespaces, reading)?;
        Ok(ClusterSource {
            wal: self.wal,
            session: Some(HeldSession::new(
                session,
                params,
                Some(Room::of(data.join("pg_wal"))),
            )?),
            control,
            catalog,
            sizes: now.sizes,
            start,
            inventory: ManifestInventory::new(facts.major, facts.system_identifier)?,
            failed: Mutex::default(),
            facts: Mutex::new(root::ClusterInfo {
                tablespaces,
                ..self.described(facts, &data, start)
            }),
            data,
            late,
            trees,
            waits: reading.waits.clone(),
            followed: Mutex::new(FollowedWal::since(start)),
            awaited: Mutex::default(),
        })
    }

    /// The slot first: from then on the server keeps the WAL that the backup will need. Not where it keeps only so much: a slot begins
    /// at the checkpoint before, and the one of the start would end the session of a slot that is beyond the limit.
    fn begin(
        &self,
        session: &mut Session,
        facts: &ServerFacts,
        (data, id): (&Path, &str),
        waits: &Waits,
    ) -> Result<Lsn> {
        let is_held = self.wal == Wal::Included;
        let is_held_later = is_held && session.has_slot_limit();
        if is_held {
            session.hold_wal()?;
        }
        same_server::same_server(session, facts.may_hold_wal, data)?;
        if is_held_later {
            session.release_wal()?;
        }
        match self.wal {
            Wal::Archived => {
                waits.record(archiver::AWAITED, || {
                    archiver::prove(session, facts, archiver::PATIENCE)
                })?;
            }
            Wal::Included | Wal::None => {}
        }
        let start = waits.record("the server's checkpoint", || {
            session.start(&format!("fullbore {id}"), self.fast)
        })?;
        if is_held_later {
            session.hold_wal_from(start)?;
        }
        // Until now it held all since the checkpoint before.
        session.keep_from(start)?;
        Ok(start)
    }

    fn described(&self, facts: ServerFacts, data: &Path, start: Option<Lsn>) -> root::ClusterInfo {
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
            archives: advice::archives(&facts.archive_mode),
            has_restore_command: facts.has_restore_command,
            data_directory: root::EntryName(data.as_os_str().as_bytes().to_vec()),
            configuration: trees::configuration(data, facts.configuration),
            databases: facts.databases,
            ..root::ClusterInfo::default()
        }
    }
}

/// A cluster that is stopped, and was shut down cleanly.
fn stopped(data: &Path, reading: &Reading) -> Result<ClusterSource> {
    let data = real_path(data).map_err(|e| Error::io(format!("could not open {data:?}"), e))?;
    let (bytes, control) = stopped::clean(&data)?;
    let (version, major) = stopped::version(&data)?;
    let tablespaces = trees::tablespaces(&data)?;
    let opening = Opening {
        data: &data,
        major,
        catalog: control.catalog,
        online: false,
    };
    let (late, trees) = opening.trees(&tablespaces, reading)?;
    let facts = root::ClusterInfo {
        version,
        major,
        system_identifier: control.system_identifier.to_string(),
        timeline: control.timeline,
        stop_lsn: control.end().to_string(),
        checksums: control.checksum_version > 0,
        wal: Wal::Included.name().to_owned(),
        wal_segment_bytes: control.wal_segment_bytes.into(),
        data_directory: root::EntryName(data.as_os_str().as_bytes().to_vec()),
        configuration: trees::configuration(&data, Vec::new()),
        tablespaces,
        ..root::ClusterInfo::default()
    };
    Ok(ClusterSource {
        wal: Wal::Included,
        session: None,
        control: bytes,
        catalog: Catalog::default(),
        sizes: control.sizes,
        start: None,
        inventory: ManifestInventory::new(major, control.system_identifier)?,
        failed: Mutex::default(),
        facts: Mutex::new(facts),
        data,
        late,
        trees,
        waits: Arc::default(),
        followed: Mutex::new(FollowedWal::since(None)),
        awaited: Mutex::default(),
    })
}
