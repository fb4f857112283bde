//! Which cluster is to be backed up, and how; and the first steps of it, until its sources are open.

use super::{
    archive,
    cluster::{Cluster, Sources},
    conninfo::Params,
    control::{self, Control},
    lsn::Lsn,
    manifest::Manifest,
    offline,
    opening::{self, Opening},
    session::{Catalog, Facts, Held, Session},
};
use crate::{
    error::{Error, Kind, Result},
    format::root,
    pipeline::waits::Waits,
    platform::Tricks,
    source::tree::Own,
};
use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// How long storage that is shared may take to show what the server wrote.
const CHECKPOINT_ARRIVES: Duration = Duration::from_secs(10);

/// Which cluster, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where it is.
    pub server: Server,
    /// Should the checkpoint at the start be done at once, or spread over time?
    pub fast: bool,
    /// Where the WAL is that the backup needs.
    pub wal: Wal,
}

/// Where a cluster is.
#[derive(Debug, Clone)]
pub enum Server {
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

impl Request {
    /// Connect, begin the backup `id`, and open the sources. Without an id nothing begins: it is only looked at.
    ///
    /// # Errors
    /// What the server says, or why its files cannot be read from here.
    pub fn open(&self, id: Option<&str>, reading: &Reading) -> Result<(Arc<Cluster>, Sources)> {
        let cluster = match &self.server {
            Server::Running(params) => self.running(params, id, reading)?,
            Server::Stopped(data) => stopped(data, reading)?,
        };
        Ok(cluster.sources())
    }

    fn running(&self, params: &Params, id: Option<&str>, reading: &Reading) -> Result<Cluster> {
        let mut session = Session::connect(params)?;
        let facts = session.facts()?;
        facts.warning.iter().for_each(|warning| crate::platform::debug(|| warning.clone()));
        let (data, control) = files_of(&facts)?;
        let catalog = session.catalog()?;
        let start = id.map(|id| self.begin(&mut session, &facts, id, &reading.waits)).transpose()?;
        // Tablespaces and databases as they are now that every change to them is in the WAL. Links first: what the catalog shows
        // only then is behind the start, or its link is among them.
        let links = opening::tablespaces(&data)?;
        let facts = session.facts()?;
        let tablespaces = opening::named(links, &facts.tablespaces);
        let now = started(&data, start)?;
        let opening = Opening { data: &data, major: facts.major, catalog: now.catalog, online: true };
        let (late, trees) = opening.trees(&tablespaces, reading)?;
        Ok(Cluster {
            wal: self.wal,
            session: Some(Held::new(session)?),
            control,
            catalog,
            sizes: now.sizes,
            start,
            manifest: Mutex::new(Some(Manifest::new(facts.major, facts.system_identifier)?)),
            facts: Mutex::new(root::Cluster { tablespaces, ..self.described(facts, &data, start) }),
            failed: Mutex::default(),
            data,
            late,
            trees,
            waits: reading.waits.clone(),
        })
    }

    /// The slot first: from then on the server keeps the WAL that the backup will need.
    fn begin(&self, session: &mut Session, facts: &Facts, id: &str, waits: &Waits) -> Result<Lsn> {
        match self.wal {
            Wal::Included => session.hold_wal()?,
            Wal::Archived => {
                waits.during(archive::AWAITED, || archive::prove(session, facts, archive::PATIENCE))?;
            }
            Wal::None => {}
        }
        waits.during("the server's checkpoint", || session.start(&format!("fullbore {id}"), self.fast))
    }

    fn described(&self, facts: Facts, data: &Path, start: Option<Lsn>) -> root::Cluster {
        root::Cluster {
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
            data_directory: root::Name(data.as_os_str().as_bytes().to_vec()),
            configuration: opening::configuration(data, facts.configuration),
            databases: facts.databases,
            ..root::Cluster::default()
        }
    }
}

/// The data directory of the server that answers, and its control file: the proof that the files here are that server's
/// (rule 5).
fn files_of(facts: &Facts) -> Result<(PathBuf, Vec<u8>)> {
    let Some(data) = facts.data_directory.clone() else {
        return Err(Error::new(Kind::Permission, "cannot find the data directory: the server does not tell this role")
            .hint("`GRANT pg_read_all_settings TO …`"));
    };
    let (bytes, control) = control::read(&control::path(&data)).map_err(|error| {
        let hint =
            format!("run fullbore on the server's host, as a user who may read {data:?}: root or the server's own");
        Error { what: format!("cannot read the data directory {data:?} of the server"), ..error }.hint(hint)
    })?;
    if control.system_identifier != facts.system_identifier {
        let what = format!("cannot back up the cluster: the files in {data:?} are those of another");
        let (here, there) = (control.system_identifier, facts.system_identifier);
        return Err(Error::new(Kind::Usage, what)
            .because(format!("system identifier {here} here, {there} at the server"))
            .hint("run fullbore on the host of that server"));
    }
    Ok((data, bytes))
}

/// The control file once the checkpoint of the start has arrived in it (rule 5).
fn started(data: &Path, start: Option<Lsn>) -> Result<Control> {
    let until = Instant::now() + CHECKPOINT_ARRIVES;
    loop {
        let (_, control) = control::read(&control::path(data))?;
        match start {
            Some(start) if control.redo_lsn < start.0 && Instant::now() < until => {
                thread::sleep(Duration::from_millis(50))
            }
            Some(start) if control.redo_lsn < start.0 => {
                let what = format!("cannot back up the cluster: the checkpoint at {start} is not in its files");
                return Err(Error::new(Kind::System, what)
                    .hint("is the data directory on storage whose changes this host sees late?"));
            }
            _ => return Ok(control),
        }
    }
}

/// A cluster that is stopped, and was shut down cleanly.
fn stopped(data: &Path, reading: &Reading) -> Result<Cluster> {
    let data = data.canonicalize().map_err(|e| Error::io(format!("could not open {data:?}"), e))?;
    let (bytes, control) = offline::clean(&data)?;
    let (version, major) = offline::version(&data)?;
    let tablespaces = opening::tablespaces(&data)?;
    let opening = Opening { data: &data, major, catalog: control.catalog, online: false };
    let (late, trees) = opening.trees(&tablespaces, reading)?;
    let facts = root::Cluster {
        version,
        major,
        system_identifier: control.system_identifier.to_string(),
        timeline: control.timeline,
        checksums: control.checksum_version > 0,
        wal: Wal::Included.name().to_owned(),
        wal_segment_bytes: control.wal_segment_bytes.into(),
        data_directory: root::Name(data.as_os_str().as_bytes().to_vec()),
        configuration: opening::configuration(&data, Vec::new()),
        tablespaces,
        ..root::Cluster::default()
    };
    Ok(Cluster {
        wal: Wal::Included,
        session: None,
        control: bytes,
        catalog: Catalog::default(),
        sizes: control.sizes,
        start: None,
        manifest: Mutex::new(Some(Manifest::new(major, control.system_identifier)?)),
        facts: Mutex::new(facts),
        failed: Mutex::default(),
        data,
        late,
        trees,
        waits: Arc::default(),
    })
}
