//! Begins a backup by protocol, with what a role with REPLICATION may ask.

use super::{SentCluster, SentFiles, SentSource, archives::SentArchives, sent_wal::SentWal};
use crate::{
    cluster_backup::ClusterBackup,
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
use fullbore_pipeline::source::Source;
use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex, OnceLock, atomic::AtomicBool},
};

/// Connects, begins a backup, and opens its source. `name` is as for [`ClusterRequest::open`], and
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
    let options = BaseBackupOptions {
        label: format!("fullbore {id}"),
        fast: request.fast,
        includes_wal: request.wal == Wal::Included,
        awaits_archive: request.wal == Wal::Archived,
    };
    let stream = reading
        .waits
        .record("the server's checkpoint", || client.base_backup(&options))?;
    let holder = hold_wal(params, request, &identity)?;
    let cluster = sent_cluster(
        request.wal,
        &identity,
        facts,
        (sizes, directory_mode),
        stream,
        holder,
    )?;
    let cluster = Arc::new(cluster);
    let source: Arc<dyn Source> = Arc::new(SentSource(cluster.clone()));
    Ok((cluster, vec![source]))
}

pub(super) fn sent_cluster(
    wal: Wal,
    identity: &ServerIdentity,
    facts: ClusterInfo,
    (sizes, directory_mode): (Sizes, u32),
    stream: BaseBackupStream,
    holder: ReplicationClient,
) -> Result<SentCluster> {
    let system_identifier = identity.system_identifier.parse();
    let system_identifier = system_identifier.map_err(|_| {
        let message = "cannot understand the system identifier of the server";
        Error::new(ErrorKind::Unsupported, message)
    })?;
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
        inventory: ManifestInventory::new(facts.major, system_identifier)?,
        layout: ClusterLayout::new(facts.major, 0, true),
        sent_wal: Mutex::new(SentWal::new(stream.start, facts.wal_segment_bytes)),
        facts: Mutex::new(facts),
        holder: Mutex::new(holder),
        sent: Mutex::new(SentFiles {
            archives: SentArchives::new(stream),
            pending: None,
            first: None,
            model: Entry::default(),
            has_control: false,
            has_label: false,
            wal: BTreeSet::new(),
        }),
        contents: Mutex::new(HashMap::new()),
        late: Mutex::new(HashMap::new()),
        warnings: Mutex::default(),
        failed: Mutex::default(),
        end: OnceLock::new(),
        names_bad_pages: AtomicBool::new(false),
        is_complete: OnceLock::new(),
    })
}

/// Opens a session that keeps the WAL of the backup as long as it lasts.
///
/// The slot begins at the last checkpoint, which is that of the backup. If another one came in between and
/// the server has removed WAL, it says so when it sends the WAL.
fn hold_wal(
    params: &Params,
    request: &ClusterRequest,
    identity: &ServerIdentity,
) -> Result<ReplicationClient> {
    let mut holder = ReplicationClient::connect(params)?;
    let found = holder.identify()?.system_identifier;
    if found != identity.system_identifier {
        let message = "cannot back up the cluster: a second session is with another server";
        return Err(Error::new(ErrorKind::Unsupported, message)
            .hint("name one server, without a proxy that distributes sessions"));
    }
    if request.wal == Wal::Included {
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
