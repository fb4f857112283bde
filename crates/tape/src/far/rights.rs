//! What another host may do with a drive of this one.

use super::call::TapeUse;
use crate::{
    Drive, DriveResult, TapeBegin,
    drive::{Place, Space},
    label::read_begin,
};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use std::{ffi::OsString, os::unix::ffi::OsStrExt};

/// What a host may do with the one drive that it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TapeGrant {
    /// Read.
    Read,
    /// Read, and write behind the data; from the begin only on a tape without backups, or whose backups are expired.
    Append,
    /// Everything.
    Write,
}

/// The drives of this host that another one may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TapeRights {
    /// All, for all uses: whoever asks may log in.
    All,
    /// One.
    One {
        /// The name of the drive.
        drive: OsString,
        /// The operations that are allowed.
        grant: TapeGrant,
    },
}

impl TapeRights {
    /// Refuses a drive, or a use of it.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`].
    pub(super) fn check(&self, name: &[u8], usage: TapeUse) -> Result<()> {
        let Self::One { drive, grant } = self else {
            return Ok(());
        };
        let refused = |why: String| {
            let message = format!("cannot open {}", quoted(name));
            Err(Error::new(ErrorKind::Permission, message).because(why))
        };
        if drive.as_bytes() != name {
            let drive = quoted(drive.as_bytes());
            return refused(format!("this host may use {drive} only"));
        }
        let most = match grant {
            TapeGrant::Read => TapeUse::Read,
            TapeGrant::Append => TapeUse::Write,
            TapeGrant::Write => TapeUse::Erase,
        };
        match usage <= most {
            true => Ok(()),
            false if *grant == TapeGrant::Read => refused("this host may only read".to_owned()),
            false => refused("this host may not erase".to_owned()),
        }
    }

    /// Returns whether only data may be written that replaces no backup.
    pub(super) fn only_appends(&self) -> bool {
        matches!(
            self,
            Self::One {
                grant: TapeGrant::Append,
                ..
            }
        )
    }
}

/// Returns whether a write at the current place keeps all backups. The head stays there.
pub(super) fn keeps_backups(drive: &mut dyn Drive) -> DriveResult<bool> {
    let Place { next, .. } = drive.position()?;
    if next == 0 {
        let begin = read_begin(drive)?;
        drive.rewind()?;
        return Ok(match begin {
            TapeBegin::Blank => true,
            TapeBegin::Labelled(label) => label.set.is_empty() || label.is_expired(),
            TapeBegin::Foreign => false,
        });
    }
    drive.space(Space::EndOfData)?;
    let end = drive.position()?.next;
    drive.locate(next)?;
    Ok(end == next)
}
