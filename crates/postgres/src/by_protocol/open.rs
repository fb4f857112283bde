//! Begins a backup by protocol, with what a role with REPLICATION may ask.

use super::{
    SentCluster, SentFiles, archives::SentArchives, deferred::SentBackup, earlier,
    sent_wal::SentWal,
};
use crate::{
    cluster_backup::{ClusterBackup, EarlierBackup},
    conninfo::Params,
    inventory::ManifestInventory,
    layout::ClusterLayout,
    relation::Sizes,
    replication::{
        BaseBackupOptions, BaseBackupStream, ReplicationClient, SentTablespace, ServerIdentity,
    },
    request::{ClusterRequest, Reading, Wal},
    restore::advice,
    source::Sources,
};
use fullbore_format::{
    entry::{Entry, is_within},
    error::{Error, ErrorKind, Result},
    root::{ClusterInfo, EntryName, Tablespace},
};
use fullbore_platform::{self as platform, metrics::waits::Waits};
use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

/// Answers that take so long come over a line that is slower than a server sends.
const LATE: Duration = Duration::from_millis(1);

/// The first version that sends changed blocks only.
const INCREMENTAL_SINCE: u32 = 17;

/// Connects, and opens a source that begins the backup when its base is known. `name` is as for [`ClusterRequest::open`], and
/// `reason` says why this way was taken.
///
/// # Errors
/// The server's; [`ErrorKind::Unsupported`] if nothing but an estimate is wanted.
pub(crate) fn open(
    request: &ClusterRequest,
    params: &Params,
    name: &dyn Fn(&str) -> Result<Option<String>>,
    (reading, reason): (&Reading, &str),
) -> Result<(Arc<dyn ClusterBackup>, Sources)> {
    let mut client = ReplicationClient::connect(params)?;
    let identity = client.identify()?;
    let facts = ClusterInfo {
        via_reason: reason.to_owned(),
        ..facts(&mut client, &identity, request.wal)?
    };
    let sizes = sizes(&mut client)?;
    let is_compressed = answers_late(&mut client)?;
    let directory_mode = client.setting("data_directory_mode")?;
    let directory_mode = u32::from_str_radix(&directory_mode, 8).unwrap_or(0o700) & 0o777;
    let Some(id) = name(&identity.system_identifier)? else {
        let message = "cannot estimate a backup by protocol";
        let error = Error::new(ErrorKind::Unsupported, message);
        return Err(error.because("a server lists its files only by sending them"));
    };
    if request.wal == Wal::Archived && !facts.archives {
        let message = "cannot leave the WAL of the backup to the archive";
        return Err(Error::new(ErrorKind::Unsupported, message)
            .because("archive_mode is off")
            .hint("leave out --wal archived: the WAL is then in the backup"));
    }
    let backup = Arc::new(SentBackup::new(RunningServer {
        client: Some(client),
        params: params.clone(),
        identity,
        facts,
        sizes,
        directory_mode,
        wal: request.wal,
        options: BaseBackupOptions {
            label: format!("fullbore {id}"),
            fast: request.fast,
            includes_wal: request.wal == Wal::Included,
            awaits_archive: request.wal == Wal::Archived,
            is_incremental: false,
            is_compressed,
        },
        waits: reading.waits.clone(),
    }));
    Ok((backup.clone(), vec![backup]))
}

/// A server that was not told to begin.
pub(super) struct RunningServer {
    /// An open session.
    client: Option<ReplicationClient>,
    pub(super) params: Params,
    identity: ServerIdentity,
    pub(super) facts: ClusterInfo,
    pub(super) sizes: Sizes,
    directory_mode: u32,
    wal: Wal,
    options: BaseBackupOptions,
    waits: Arc<Waits>,
}

/// A backup that has begun.
pub(super) struct BegunBackup {
    pub(super) wal: Wal,
    pub(super) identity: ServerIdentity,
    pub(super) facts: ClusterInfo,
    pub(super) sizes: Sizes,
    pub(super) directory_mode: u32,
    pub(super) stream: BaseBackupStream,
    pub(super) holder: ReplicationClient,
    /// For questions by SQL; `None` in tests.
    pub(super) params: Option<Params>,
    pub(super) is_incremental: bool,
    pub(super) warnings: Vec<String>,
}

impl RunningServer {
    /// Begins the backup: an incremental one, if the server can tell what changed since the earlier
    /// one.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn begin(mut self, earlier: Option<&EarlierBackup<'_>>) -> Result<BegunBackup> {
        match self.begin_once(earlier) {
            // Such a server was built without lz4.
            Err(error) if self.options.is_compressed && is_about_compression(&error) => {
                platform::debug(|| error.line());
                self.options.is_compressed = false;
                self.begin_once(earlier)
            }
            begun => begun,
        }
    }

    fn begin_once(&mut self, earlier: Option<&EarlierBackup<'_>>) -> Result<BegunBackup> {
        let mut warnings = Vec::new();
        let holder = hold_wal(&self.params, self.wal, &self.identity)?;
        let incremental = match earlier.filter(|_| self.facts.major >= INCREMENTAL_SINCE) {
            Some(earlier) => self.begin_incremental(earlier, &mut warnings)?,
            None => None,
        };
        let is_incremental = incremental.is_some();
        let stream = match incremental {
            Some(stream) => stream,
            None => start(self.take_client()?, &self.options, &self.waits)?,
        };
        Ok(BegunBackup {
            wal: self.wal,
            identity: self.identity.clone(),
            facts: self.facts.clone(),
            sizes: self.sizes,
            directory_mode: self.directory_mode,
            stream,
            holder,
            params: Some(self.params.clone()),
            is_incremental,
            warnings,
        })
    }

    /// Asks for a setting that every role may read.
    ///
    /// # Errors
    /// The server's.
    pub(super) fn setting(&mut self, name: &str) -> Result<String> {
        let mut client = self.take_client()?;
        let value = client.setting(name);
        self.client = Some(client);
        value
    }

    /// Takes the open session, or opens another one with the same server: a backup that does not begin ends
    /// its session.
    fn take_client(&mut self) -> Result<ReplicationClient> {
        if let Some(client) = self.client.take() {
            return Ok(client);
        }
        let mut client = ReplicationClient::connect(&self.params)?;
        let found = client.identify()?.system_identifier;
        if found != self.identity.system_identifier {
            return Err(other_server());
        }
        Ok(client)
    }

    /// Begins an incremental backup; returns `None` with a warning if the server sends whole files.
    fn begin_incremental(
        &mut self,
        earlier: &EarlierBackup<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<BaseBackupStream>> {
        let mut warn = |why: &str| {
            warnings.push(format!(
                "the server sent all files, not only blocks that changed: {why}"
            ));
        };
        if let Some(why) = earlier::refusal(self, earlier)? {
            warn(why);
            return Ok(None);
        }
        let mut client = self.take_client()?;
        let options = BaseBackupOptions {
            is_incremental: true,
            ..self.options.clone()
        };
        let system_identifier = system_number(&self.identity)?;
        let begun = earlier::upload(&mut client, earlier, system_identifier)
            .and_then(|()| start(client, &options, &self.waits));
        match begun {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if error.kind == ErrorKind::Unreachable || is_about_compression(&error) => {
                Err(error)
            }
            Err(error) => {
                warn(
                    &error
                        .source
                        .as_ref()
                        .map_or(error.what.clone(), ToString::to_string),
                );
                Ok(None)
            }
        }
    }
}

fn start(
    client: ReplicationClient,
    options: &BaseBackupOptions,
    waits: &Waits,
) -> Result<BaseBackupStream> {
    waits.record("the server's checkpoint", || client.base_backup(options))
}

fn is_about_compression(error: &Error) -> bool {
    error.line().contains("compression")
}

/// Returns whether the line to the server is slow, as its answers come late: then the server compresses. That costs the
/// server 0.3 s of processor time a GB, and moves a seventh of the bytes.
fn answers_late(client: &mut ReplicationClient) -> Result<bool> {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let begun = Instant::now();
        client.setting("block_size")?;
        fastest = fastest.min(begun.elapsed());
    }
    Ok(fastest >= LATE)
}

fn system_number(identity: &ServerIdentity) -> Result<u64> {
    identity.system_identifier.parse().map_err(|_| {
        let message = "cannot understand the system identifier of the server";
        Error::new(ErrorKind::Unsupported, message)
    })
}

pub(super) fn sent_cluster(begun: BegunBackup) -> Result<SentCluster> {
    let BegunBackup {
        wal,
        identity,
        facts,
        sizes,
        directory_mode,
        stream,
        holder,
        ..
    } = begun;
    let system_identifier = system_number(&identity)?;
    let facts = ClusterInfo {
        start_lsn: stream.start.to_string(),
        tablespaces: tablespaces(&stream.tablespaces),
        ..facts
    };
    Ok(SentCluster {
        wal,
        start: stream.start,
        start_timeline: stream.start_timeline,
        system_identifier,
        sizes,
        directory_mode,
        is_incremental: begun.is_incremental,
        params: begun.params,
        inventory: ManifestInventory::new(facts.major, system_identifier)?,
        layout: ClusterLayout::new(facts.major, 0, true),
        sent_wal: Mutex::new(SentWal::new(stream.start, facts.wal_segment_bytes)),
        facts: Mutex::new(facts),
        holder: Mutex::new(holder),
        sent: Mutex::new(SentFiles {
            archives: SentArchives::new(stream),
            pending: None,
            patch: None,
            first: None,
            model: Entry::default(),
            has_control: false,
            has_label: false,
            wal: BTreeSet::new(),
        }),
        contents: Mutex::new(HashMap::new()),
        spare: Mutex::default(),
        late: Mutex::new(HashMap::new()),
        warnings: Mutex::new(begun.warnings),
        failed: Mutex::default(),
        end: OnceLock::new(),
        names_bad_pages: AtomicBool::new(false),
        is_complete: OnceLock::new(),
    })
}

fn other_server() -> Error {
    let message = "cannot back up the cluster: a second session is with another server";
    Error::new(ErrorKind::Unsupported, message)
        .hint("name one server, without a proxy that distributes sessions")
}

/// Opens a session that keeps the WAL of the backup as long as it lasts.
///
/// The slot is made before the backup begins, and begins at an earlier checkpoint. If it were made behind, the server could remove WAL of
/// the backup in between: `CREATE DATABASE` and `DROP TABLESPACE` make checkpoints at once.
fn hold_wal(params: &Params, wal: Wal, identity: &ServerIdentity) -> Result<ReplicationClient> {
    let mut holder = ReplicationClient::connect(params)?;
    let found = holder.identify()?.system_identifier;
    if found != identity.system_identifier {
        return Err(other_server());
    }
    if wal == Wal::Included {
        let number = RandomState::new().build_hasher().finish() as u32;
        holder.hold_wal(&format!("fullbore_{}_{number:08x}", std::process::id()))?;
    }
    Ok(holder)
}

/// Asks for the facts that the root records.
fn facts(
    client: &mut ReplicationClient,
    identity: &ServerIdentity,
    wal: Wal,
) -> Result<ClusterInfo> {
    let version = client.setting("server_version")?;
    let version = version.split_whitespace().next().unwrap_or_default();
    // Only some roles may read these.
    let restore_command = client.setting("restore_command").unwrap_or_default();
    let data_directory = client.setting("data_directory").unwrap_or_default();
    Ok(ClusterInfo {
        version: version.to_owned(),
        major: client.major(),
        system_identifier: identity.system_identifier.clone(),
        timeline: identity.timeline,
        online: true,
        checksums: client.setting("data_checksums")? == "on",
        wal: wal.name().to_owned(),
        wal_segment_bytes: client.segment_bytes()?,
        archives: advice::turns_archiving_on(&client.setting("archive_mode")?),
        has_restore_command: !restore_command.is_empty(),
        via: "protocol".to_owned(),
        configuration: outside_files(client, &data_directory),
        data_directory: EntryName(data_directory.into_bytes()),
        ..ClusterInfo::default()
    })
}

/// Returns the configuration files outside of the data directory, if the role may know.
fn outside_files(client: &mut ReplicationClient, data_directory: &str) -> Vec<EntryName> {
    let ask = |name: &&str| client.setting(name).ok();
    let files = ["config_file", "hba_file", "ident_file"];
    let found = files.iter().filter_map(ask);
    found
        .map(String::into_bytes)
        .filter(|file| !file.is_empty() && !is_within(file, data_directory.as_bytes()))
        .map(EntryName)
        .collect()
}

/// Asks for the sizes of pages and of files.
fn sizes(client: &mut ReplicationClient) -> Result<Sizes> {
    let page = client.setting("block_size")?;
    let file = client.setting("segment_size")?;
    let unknown = || {
        let message = format!("cannot understand the sizes {page:?} and {file:?} of the server");
        Error::new(ErrorKind::Unsupported, message)
    };
    let page_bytes: u32 = page.parse().map_err(|_| unknown())?;
    let is_size = page_bytes.is_power_of_two() && (1024..=32_768).contains(&page_bytes);
    let file_bytes = bytes_of(&file).filter(|_| is_size).ok_or_else(unknown)?;
    let segment_blocks = u32::try_from(file_bytes / u64::from(page_bytes));
    match segment_blocks {
        Ok(segment_blocks @ 1..) => Ok(Sizes {
            page_bytes,
            segment_blocks,
        }),
        _ => Err(unknown()),
    }
}

/// Returns the bytes of a size that a server prints with a unit.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "kB" => 10,
        "MB" => 20,
        "GB" => 30,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

/// The tablespaces that have a directory of their own. The protocol does not tell their names.
fn tablespaces(sent: &[SentTablespace]) -> Vec<Tablespace> {
    let is_elsewhere = |space: &&SentTablespace| space.location.starts_with(b"/");
    let mut spaces: Vec<Tablespace> = sent
        .iter()
        .filter(is_elsewhere)
        .map(|space| Tablespace {
            oid: space.oid,
            name: EntryName(space.location.clone()),
            location: EntryName(space.location.clone()),
        })
        .collect();
    spaces.sort_by_key(|space| space.oid);
    spaces
}
