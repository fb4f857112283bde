//! WAL that is in the server's archive, not in the backup: the proof that it gets there.

use super::session::{Facts, Session};
use crate::error::{Error, Kind, Result};
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a segment may take into the archive.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Archiving works: a segment that is ended now arrives before `patience` ends (rule 6). On a standby only the end of the
/// backup shows it.
///
/// # Errors
/// [`Kind::Unsupported`] if archiving is off, [`Kind::System`] if nothing arrives.
pub fn prove(session: &mut Session, facts: &Facts, patience: Duration) -> Result<()> {
    let wanted = if facts.standby { "always" } else { "on" };
    if facts.archive_mode != "always" && facts.archive_mode != wanted {
        let what = format!("cannot leave the WAL to the archive: archive_mode is {:?}", facts.archive_mode);
        let hint = format!("set archive_mode = {wanted} on the server, or take --wal included");
        return Err(Error::new(Kind::Unsupported, what).hint(hint));
    }
    if facts.standby {
        return Ok(());
    }
    let segment = session.switch_wal()?;
    wait(session, &segment, patience)
}

/// Wait until everything up to `segment` is in the archive (rule 25), at most for `patience`.
///
/// # Errors
/// [`Kind::System`] if it does not arrive, with what the archiver fails at.
pub fn wait(session: &mut Session, segment: &str, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        let archived = session.archived(segment)?;
        if archived.done {
            return Ok(());
        }
        if Instant::now() >= until {
            let what = format!("could not see WAL segment {segment:?} in the archive within {} s", patience.as_secs());
            let last = archived.last.unwrap_or_else(|| "nothing".to_owned());
            let failing = archived.failing.map(|name| format!("; it fails at {name}")).unwrap_or_default();
            return Err(Error::new(Kind::System, what)
                .because(format!("the last it archived is {last}{failing}"))
                .hint("the server's log says why; --wal included does without the archive"));
        }
        thread::sleep(Duration::from_millis(200));
    }
}
