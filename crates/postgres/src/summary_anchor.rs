//! Proves that the server's past includes an earlier backup.
//!
//! WAL locations do not prove it. A server restored from an older backup that continues on the same
//! timeline, a clone, and a machine that was reset have another past with the same locations. Their
//! checkpoints can be at the same locations too, because a backup switches to a new segment before
//! it begins.
//!
//! So a backup records two facts that only its own past has: the start time of the server, and the
//! file of a WAL summary that reaches the start of the backup. Anyone who resets the files must
//! start the server again. If the machine's memory is reset with them, that summary does not exist,
//! or is made again at another time.

use super::{
    data_dir::{DataDir, FileIdentity},
    lsn::Lsn,
    session::Session,
    wal_summaries::{PATIENCE, Span},
};
use fullbore_format::{
    error::Result,
    root::{ClusterInfo, Witness},
};
use std::time::Duration;

/// Returns the anchor that the backup `now` records at its end; `None` if the server does not
/// summarize its WAL, or has not reached `start`.
///
/// # Errors
/// If the session is lost, or the role may not read summaries.
pub fn find(
    session: &mut Session,
    data: &dyn DataDir,
    now: &ClusterInfo,
    start: Lsn,
) -> Result<Option<Witness>> {
    let Some(last) = last_summary(session, now, start)? else {
        return Ok(None);
    };
    current_anchor(session, data, file_name(now.timeline, last))
}

/// Returns the last summary, if the server has summarized its WAL up to `start`.
fn last_summary(session: &mut Session, now: &ClusterInfo, start: Lsn) -> Result<Option<Span>> {
    // A primary summarizes up to the backup's checkpoint at once; a standby waits for more WAL.
    let patience = if now.standby {
        Duration::ZERO
    } else {
        PATIENCE
    };
    if !session.await_summaries(start, patience)? {
        return Ok(None);
    }
    let reaching = session
        .summaries(now.timeline)?
        .into_iter()
        .filter(|(_, end)| *end >= start);
    Ok(reaching.max_by_key(|(_, end)| *end))
}

/// Returns whether the anchor of the backup `base` still exists: then the summaries cover
/// everything the server did since.
///
/// # Errors
/// If the session is lost.
pub fn still_exists(session: &mut Session, data: &dyn DataDir, base: &ClusterInfo) -> Result<bool> {
    let Some(witness) = base
        .witness
        .as_ref()
        .filter(|witness| !witness.summary.contains('/'))
    else {
        return Ok(false);
    };
    Ok(current_anchor(session, data, witness.summary.clone())?.as_ref() == Some(witness))
}

/// Returns the anchor for the summary file `summary`, as it is now; `None` if the file does not
/// exist.
fn current_anchor(
    session: &mut Session,
    data: &dyn DataDir,
    summary: String,
) -> Result<Option<Witness>> {
    let path = format!("pg_wal/summaries/{summary}");
    let Some(FileIdentity { inode, ctime }) = data.identity(path.as_bytes())? else {
        return Ok(None);
    };
    Ok(Some(Witness {
        server_start: session.server_start()?,
        summary,
        inode,
        ctime,
    }))
}

/// As [`find`], where the files of the server cannot be seen: without the inode and the change time of
/// the summary.
///
/// # Errors
/// As [`find`].
pub fn find_by_name(
    session: &mut Session,
    now: &ClusterInfo,
    start: Lsn,
) -> Result<Option<Witness>> {
    let Some(last) = last_summary(session, now, start)? else {
        return Ok(None);
    };
    Ok(Some(Witness {
        server_start: session.server_start()?,
        summary: file_name(now.timeline, last),
        ..Witness::default()
    }))
}

/// Returns whether the server was not started since the backup `base`, and still has the summary of its
/// anchor. Unlike [`still_exists`], this does not notice that the memory of a machine was reset
/// together with its disks.
///
/// # Errors
/// If the session is lost.
pub fn is_still_named(session: &mut Session, base: &ClusterInfo) -> Result<bool> {
    let Some(witness) = &base.witness else {
        return Ok(false);
    };
    let summaries = session.summaries(base.timeline)?;
    let mut names = summaries
        .into_iter()
        .map(|span| file_name(base.timeline, span));
    Ok(
        session.server_start()? == witness.server_start
            && names.any(|name| name == witness.summary),
    )
}

/// Returns the server's name of a summary file (walsummary.c): the timeline, the start and the end.
fn file_name(timeline: u32, (from, to): Span) -> String {
    format!("{timeline:08X}{:016X}{:016X}.summary", from.0, to.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_file_has_the_name_that_the_server_gives_it() {
        let name = "0000000100000000010000280000000A0115AEE0.summary";
        assert_eq!(file_name(1, (Lsn(0x100_0028), Lsn(0xA_0115_AEE0))), name);
    }
}
