//! The base of a backup by protocol, from version 17 on: the server gets a manifest of it, and sends the blocks that changed
//! since.
//!
//! The server compares positions in the WAL only. A server that was rolled back, or a copy of it, can
//! have the same positions and another past; so the base must have been made since the server was started, and
//! the server must still have the WAL summary that the base has noted. That is asked by SQL. A role that may not connect to a
//! database gets whole files.

use super::open::RunningServer;
use crate::{
    cluster_backup::EarlierBackup,
    conninfo::Params,
    lsn::Lsn,
    manifest::{Manifest, WalRange},
    relation::{RelationFork, relation_of},
    replication::ReplicationClient,
    session::Session,
    summary_anchor,
    wal_summaries::comparable_starts,
};
use fullbore_format::{
    entry::Entry,
    error::{Error, Result},
    root::{ClusterInfo, Witness},
};
use fullbore_platform::read::{self, PageCacheUse};

/// Bytes of the manifest in one message.
const MESSAGE_BYTES: usize = 64 << 10;

/// Asks whether the server can send the blocks that changed since a backup. Returns the reason why it cannot.
pub(super) fn refusal(
    server: &mut RunningServer,
    earlier: &EarlierBackup<'_>,
) -> Result<Option<&'static str>> {
    if server.setting("summarize_wal")? != "on" {
        return Ok(Some("summarize_wal is off"));
    }
    let facts = &server.facts;
    let base = earlier.facts;
    let page_bytes = u64::from(server.sizes.page_bytes);
    let timeline = format!("{:08X}", facts.timeline);
    let begins_on = |name: &String| name.starts_with(&timeline);
    Ok(match () {
        () if !page_bytes.is_multiple_of(earlier.block_bytes) => {
            Some("its blocks are larger than pages")
        }
        // The position at which the new backup begins is not known yet.
        () if comparable_starts(base, &with_start(facts, base)).is_none()
            || base.system_identifier != facts.system_identifier
            || !base.wal_segments.first().is_some_and(begins_on) =>
        {
            Some("the last backup has another timeline or kind")
        }
        () => match is_past_of(&server.params, facts, base) {
            Ok(true) => None,
            Ok(false) => Some("the server was started since the last backup"),
            Err(error) => {
                fullbore_platform::debug(|| error.line());
                Some("the role may not ask by SQL when the server was started")
            }
        },
    })
}

fn with_start(now: &ClusterInfo, base: &ClusterInfo) -> ClusterInfo {
    ClusterInfo {
        start_lsn: base.stop_lsn.clone(),
        ..now.clone()
    }
}

fn is_past_of(params: &Params, now: &ClusterInfo, base: &ClusterInfo) -> Result<bool> {
    let mut session = session(params, now)?;
    summary_anchor::is_still_named(&mut session, base)
}

/// Opens a session of SQL with the server.
fn session(params: &Params, now: &ClusterInfo) -> Result<Session> {
    let mut session = Session::connect(params)?;
    let is_same = session.system_identifier()?.to_string() == now.system_identifier;
    is_same
        .then_some(session)
        .ok_or_else(|| Error::corrupt("another server answered"))
}

/// Returns what the next backup needs to know about the server's past.
pub(super) fn anchor(params: &Params, now: &ClusterInfo, start: Lsn) -> Option<Witness> {
    if now.major < 17 {
        return None;
    }
    let found = session(params, now)
        .and_then(|mut session| summary_anchor::find_by_name(&mut session, now, start));
    found.unwrap_or_else(|error| {
        fullbore_platform::debug(|| {
            format!(
                "the next backup will not ask which blocks changed: {}",
                error.line()
            )
        });
        None
    })
}

/// Sends the server a manifest of the files of which single blocks can be referred to.
///
/// # Errors
/// The server's; the system's about a temporary file.
pub(super) fn upload(
    client: &mut ReplicationClient,
    earlier: &EarlierBackup<'_>,
    system_identifier: u64,
) -> Result<()> {
    let base = earlier.facts;
    let mut manifest = Manifest::new(base.major, system_identifier)?;
    let mut failed = Ok(());
    (earlier.for_each_file)(&mut |entry| {
        if failed.is_ok() && has_logged_blocks(entry) {
            failed = manifest.add(&entry.path, entry.size(), entry.mtime.seconds, None);
        }
    });
    failed?;
    let start: Lsn = base.start_lsn.parse()?;
    let stop: Lsn = base.stop_lsn.parse()?;
    let manifest = manifest.finish(&[WalRange {
        timeline: base.timeline,
        start_lsn: start.0,
        end_lsn: stop.0,
    }])?;
    client.upload_manifest(
        manifest.bytes.div_ceil(MESSAGE_BYTES as u64),
        &mut |number| {
            let mut piece = Vec::with_capacity(MESSAGE_BYTES);
            let offset = number * MESSAGE_BYTES as u64;
            read::read_full(
                &manifest.file,
                &mut piece,
                offset,
                MESSAGE_BYTES,
                PageCacheUse::Keep,
            )
            .map_err(|error| Error::io("could not read a temporary file", error))?;
            Ok(piece)
        },
    )
}

/// Returns whether the WAL has every change of the blocks of a file (rule 23).
fn has_logged_blocks(entry: &Entry) -> bool {
    relation_of(&entry.path)
        .is_some_and(|(.., file)| matches!(file.fork, RelationFork::Main | RelationFork::Init))
}
