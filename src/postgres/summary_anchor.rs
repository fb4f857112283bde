//! Has the server the past that an earlier backup was a part of?
//!
//! No place in the WAL tells. A server that was restored from an older backup and went on along the same timeline, a clone
//! and a machine that was set back have another past with the same places, and with checkpoints at them: a backup switches to a new
//! segment before it begins. So a backup notes what only its own past has: when the server was started, and the file of a summary
//! of the WAL that reaches the start of the backup. Whoever sets files back has to start the server anew; where the memory of a
//! machine is set back with them, that summary is not there, or is made once more, at another time.

use super::{
    lsn::Lsn,
    session::Session,
    wal_summaries::{PATIENCE, Span},
};
use crate::{
    error::Result,
    format::root::{ClusterInfo, Witness},
};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
    time::Duration,
};

/// What the backup `now` notes at its end; `None` if the server does not summarize its WAL, or did not come so far.
///
/// # Errors
/// If the session is lost, or the role may not ask.
pub fn of(session: &mut Session, now: &ClusterInfo, start: Lsn) -> Result<Option<Witness>> {
    // A primary summarizes as soon as the checkpoint is done that a backup begins with; a standby when something comes.
    let patience = if now.standby {
        Duration::ZERO
    } else {
        PATIENCE
    };
    if !session.summarizes(start, patience)? {
        return Ok(None);
    }
    let reaching = session
        .summaries(now.timeline)?
        .into_iter()
        .filter(|(_, end)| *end >= start);
    let Some(last) = reaching.max_by_key(|(_, end)| *end) else {
        return Ok(None);
    };
    seen(session, now, file_name(now.timeline, last))
}

/// Is what the backup `base` noted still there, so that everything the server has done since is in its summaries?
///
/// # Errors
/// If the session is lost.
pub fn is_there(session: &mut Session, base: &ClusterInfo, now: &ClusterInfo) -> Result<bool> {
    let Some(witness) = base
        .witness
        .as_ref()
        .filter(|witness| !witness.summary.contains('/'))
    else {
        return Ok(false);
    };
    Ok(seen(session, now, witness.summary.clone())?.as_ref() == Some(witness))
}

/// As it is now.
fn seen(session: &mut Session, now: &ClusterInfo, summary: String) -> Result<Option<Witness>> {
    let data = Path::new(OsStr::from_bytes(&now.data_directory.0));
    let Ok(file) = fs::metadata(data.join("pg_wal/summaries").join(&summary)) else {
        return Ok(None);
    };
    let (inode, ctime) = (
        file.ino(),
        format!("{}.{:09}", file.ctime(), file.ctime_nsec()),
    );
    Ok(Some(Witness {
        server_start: session.server_start()?,
        summary,
        inode,
        ctime,
    }))
}

/// As the server calls it (walsummary.c): the timeline, from where, to where.
fn file_name(timeline: u32, (from, to): Span) -> String {
    format!("{timeline:08X}{:016X}{:016X}.summary", from.0, to.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_called_as_the_server_calls_them() {
        let name = "0000000100000000010000280000000A0115AEE0.summary";
        assert_eq!(file_name(1, (Lsn(0x100_0028), Lsn(0xA_0115_AEE0))), name);
    }
}
