//! The interface of a tape drive for writers and readers of backups.

use crate::device::{DeviceStatus, RecordLimits};
use fullbore_format::error::{Error, ErrorKind};
use std::{fmt, io};

/// The result of a call of a drive.
pub type DriveResult<T> = Result<T, DriveError>;

/// A tape drive with a medium. Records and marks are numbered together, from 0: see [`Place`].
///
/// One thread uses a drive at a time. A call returns when the drive has taken the command; records
/// are on the medium after [`Drive::flush`], or as far as [`Drive::position`] says.
pub trait Drive: Send {
    /// Returns the lengths of records that the drive takes.
    fn limits(&self) -> RecordLimits;

    /// Writes one record at the current place. Records and marks behind it are lost.
    ///
    /// # Errors
    /// [`Fault::Medium`] for an error that the drive reports, perhaps for an earlier record: ask for the
    /// position, locate, and write again from there.
    fn record(&mut self, bytes: &[u8]) -> DriveResult<RecordOutcome>;

    /// Writes a mark and does not wait for it.
    ///
    /// # Errors
    /// As [`Drive::record`].
    fn mark(&mut self) -> DriveResult<RecordOutcome>;

    /// Waits until all records and marks are on the medium. The drive stops.
    ///
    /// # Errors
    /// As [`Drive::record`]. After an error no record is known to be on the medium but those below
    /// [`Place::on_medium`].
    fn flush(&mut self) -> DriveResult<()>;

    /// Reads one record, at most `buffer.len()` bytes, which must not be above the limit of the drive.
    ///
    /// # Errors
    /// [`Fault::RecordTooLong`] if the record does not fit (it is passed), [`Fault::Medium`] if it is
    /// damaged.
    fn read(&mut self, buffer: &mut [u8]) -> DriveResult<ReadOutcome>;

    /// Returns the place of the next record, and how much is known to be on the medium.
    ///
    /// # Errors
    /// [`Fault::PositionLost`] after a reset, until [`Drive::rewind`].
    fn position(&mut self) -> DriveResult<Place>;

    /// Goes to the record or mark of this number. A drive without places is rewound and spaced.
    ///
    /// # Errors
    /// [`Fault::Medium`] if there is no such record.
    fn locate(&mut self, block: u64) -> DriveResult<()>;

    /// Goes over marks or records.
    ///
    /// # Errors
    /// [`Fault::Medium`] if there are not so many.
    fn space(&mut self, over: Space) -> DriveResult<()>;

    /// Returns the state of the drive and of the medium. Works without a medium.
    ///
    /// # Errors
    /// Those of the system.
    fn status(&mut self) -> DriveResult<DeviceStatus>;

    /// Returns the lowest speed of the drive with this medium in bytes a second; 0 if it is not known.
    fn lowest_rate(&mut self) -> f64;

    /// Goes to the begin of the medium. Ends the state [`Fault::PositionLost`].
    ///
    /// # Errors
    /// [`Fault::NoMedium`], or those of the system.
    fn rewind(&mut self) -> DriveResult<()>;

    /// Erases the medium from the current place to its end; takes hours.
    ///
    /// # Errors
    /// Those of the system.
    fn erase(&mut self) -> DriveResult<()>;

    /// Rewinds and takes the medium out.
    ///
    /// # Errors
    /// Those of the system.
    fn unload(&mut self) -> DriveResult<()>;

    /// Closes the drive. After a write without a mark, a mark is written.
    ///
    /// # Errors
    /// A medium counts as written only if this returns without error: errors of earlier writes
    /// appear here.
    fn close(self: Box<Self>) -> DriveResult<()>;
}

/// Where a drive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the next record or mark.
    pub next: u64,
    /// Records and marks below this number are on the medium; `None` if the drive does not tell.
    pub on_medium: Option<u64>,
}

/// What became of a record or a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutcome {
    /// Taken: on the medium or in the buffer of the drive.
    Taken,
    /// Taken, and the medium is behind its early warning: some room is left, for the end of a volume.
    TakenNearEnd,
    /// Not taken: the physical end of the medium.
    Full,
}

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// A record of this length.
    Record(usize),
    /// A mark; the head is behind it.
    Mark,
    /// No more data.
    EndOfData,
}

/// A way over marks or records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Forward behind the n-th mark; backward (negative) to before the n-th mark.
    Marks(i32),
    /// Over records of the same file; negative goes back.
    Records(i32),
    /// Behind the last record of the medium.
    EndOfData,
}

/// What kind of fault a drive has; decides how a writer goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The drive or the medium reported an error; the place is known.
    Medium,
    /// The place is not known, such as after a reset: every call fails until a rewind.
    PositionLost,
    /// The medium is write protected, or may only be appended to.
    WriteProtected,
    /// No medium is in the drive.
    NoMedium,
    /// Another program uses the drive.
    Busy,
    /// A record is longer than the buffer.
    RecordTooLong,
    /// The drive refuses this length of a record.
    RecordRefused,
    /// The host of the drive is lost.
    HostLost,
    /// The host of the drive does not allow it.
    NotAllowed,
    /// Any other error of the system.
    System,
}

/// A failed call of a drive.
#[derive(Debug)]
pub struct DriveError {
    /// The kind.
    pub fault: Fault,
    /// The operation, such as `write to`.
    pub action: &'static str,
    /// The device, as the user named it.
    pub device: String,
    /// The error of the system.
    pub error: io::Error,
}

impl Fault {
    /// Returns the sentence that tells the operator how to act.
    fn hint(self) -> Option<&'static str> {
        match self {
            Self::Medium => Some(
                "clean the drive or use another tape; `fullbore tape status` shows what the drive reports",
            ),
            Self::PositionLost => Some("the drive was reset: rewind the tape"),
            Self::WriteProtected => Some("move the switch of the cartridge, or use another tape"),
            Self::NoMedium => Some("insert a tape"),
            Self::Busy => Some("end the other program that uses the drive"),
            Self::RecordTooLong => Some("another program wrote this tape with longer records"),
            Self::RecordRefused => Some("use a smaller --record-size"),
            Self::HostLost | Self::NotAllowed | Self::System => None,
        }
    }

    /// Returns the kind of the crate's error.
    fn kind(self) -> ErrorKind {
        match self {
            Self::Medium | Self::RecordTooLong => ErrorKind::Corrupt,
            Self::WriteProtected | Self::NotAllowed => ErrorKind::Permission,
            Self::NoMedium => ErrorKind::NotFound,
            Self::Busy | Self::HostLost => ErrorKind::Unreachable,
            Self::PositionLost | Self::RecordRefused | Self::System => ErrorKind::System,
        }
    }
}

impl fmt::Display for DriveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {} \"{}\"", self.action, self.device)
    }
}

impl std::error::Error for DriveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl DriveError {
    /// Returns the error for a user.
    ///
    /// It is no `From`: with a second one for [`Error`], `?` in closures elsewhere would be ambiguous.
    pub fn into_error(self) -> Error {
        let message = self.to_string();
        let mut error = Error::io(message, self.error);
        error.kind = self.fault.kind();
        error.hint = self.fault.hint().map(Into::into);
        error
    }
}
