//! Checks recovery targets, and writes them as the server reads them.

use crate::lsn::Lsn;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::ClusterInfo,
};
use jiff::{Timestamp, Zoned, civil::DateTime, tz::TimeZone};

/// The point at which recovery ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecoveryTarget {
    /// The last transaction before this time, as the operator wrote it.
    Time(String),
    /// This WAL location, for example `0/2000028`.
    Lsn(String),
    /// This restore point.
    Name(String),
    /// This transaction.
    Xid(String),
    /// As soon as the cluster is consistent.
    Immediate,
}

impl RecoveryTarget {
    /// Returns the time, if it is one.
    pub fn time(&self) -> Option<Timestamp> {
        match self {
            Self::Time(text) => parse_time(text).ok(),
            _ => None,
        }
    }
}

const EARLIER: &str = "choose a backup that ended before that, if `fullbore list` shows one";

/// Returns the time in a form that the server reads in the same way in every time zone.
fn utc(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S.%6f+00").to_string()
}

/// Returns the note for a time target. `now` is the current time, to warn of a later target.
pub(crate) fn time_note(text: &str, now: Option<Timestamp>) -> Result<String> {
    let time = parse_time(text)?;
    let later = if now.is_some_and(|now| now < time) {
        "; that is later than now: if the WAL does not reach it, recovery ends with an error"
    } else {
        ""
    };
    Ok(format!("the server will recover to {}{later}", utc(time)))
}

/// Parses a time. Without an offset it is local time on this host.
fn parse_time(text: &str) -> Result<Timestamp> {
    let parsed = text
        .parse::<Timestamp>()
        .or_else(|_| text.parse::<Zoned>().map(|zoned| zoned.timestamp()));
    parsed
        .or_else(|_| {
            text.parse::<DateTime>().and_then(|time| {
                time.to_zoned(TimeZone::system())
                    .map(|zoned| zoned.timestamp())
            })
        })
        .map_err(|_| {
            let message = format!("cannot recover to time {text:?}: it is not a time");
            Error::new(ErrorKind::Usage, message).hint("use a time like \"2026-11-21 05:45:01+00\"")
        })
}

/// Returns the target time in UTC, if the backup had ended by then.
pub(crate) fn checked_time(text: &str, stopped: &str) -> Result<String> {
    let time = parse_time(text)?;
    if let Some(end) = stopped.parse::<Timestamp>().ok().filter(|end| time < *end) {
        let message = format!("cannot recover to {time}: the backup ended later, at {end}");
        return Err(Error::new(ErrorKind::Usage, message).hint(EARLIER));
    }
    Ok(utc(time))
}

/// Checks that the cluster is consistent at the target location.
pub(crate) fn checked_lsn<'a>(text: &'a str, cluster: &ClusterInfo) -> Result<&'a str> {
    let Ok(wanted) = text.parse::<Lsn>() else {
        let message = format!("cannot recover to LSN {text:?}: it is not an LSN");
        return Err(Error::new(ErrorKind::Usage, message).hint("use one like 0/2000028"));
    };
    let reason = match cluster.stop_lsn.parse::<Lsn>() {
        Ok(stop) if wanted < stop => format!("the backup is consistent only at {stop}"),
        Ok(_) => return Ok(text),
        // Some backups of clusters that were shut down have no stop location.
        Err(_) => "the backup does not say where it is consistent".to_owned(),
    };
    Err(Error::new(
        ErrorKind::Usage,
        format!("cannot recover to LSN {text}: {reason}"),
    )
    .hint(EARLIER))
}

/// Checks the name of a restore point. The server would ignore an empty name, and recover to the
/// end of the archive.
pub(crate) fn checked_name(text: &str) -> Result<&str> {
    if text.is_empty() {
        return Err(Error::new(
            ErrorKind::Usage,
            "cannot recover to a restore point without a name",
        ));
    }
    Ok(text)
}

/// Parses a transaction ID. The server would read a number with a leading 0 as octal.
pub(crate) fn checked_xid(text: &str) -> Result<u64> {
    match text.parse::<u64>() {
        Ok(number) => Ok(number),
        Err(_) => Err(Error::new(
            ErrorKind::Usage,
            format!("cannot recover to transaction {text:?}: it is not a number"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_warns_of_a_time_later_than_now() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let said = |now| time_note("2026-11-21T05:45:02Z", now).unwrap();
        assert!(
            said(Some(time("2026-11-21T05:45:01Z")))
                .contains("05:45:02.000000+00; that is later than now")
        );
        assert!(
            said(Some(time("2026-11-21T05:45:02Z"))).ends_with("+00")
                && said(None).ends_with("+00")
        );
    }
}
