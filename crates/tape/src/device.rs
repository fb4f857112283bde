//! The calls of the `st` driver: one method a system call, with the errors of the system.

use std::io;

/// A tape device as the `st` driver shows it, or one that behaves so.
///
/// All errors are those of the system call, unchanged: `ENOSPC` at the early warning, `EIO` after
/// a fault, `ENOMEM` for a record that is larger than the buffer.
pub trait Device: Send {
    /// Writes one record. In fixed mode, writes `record.len() / block size` records.
    ///
    /// # Errors
    /// `ENOSPC` near the end of the medium. The record may be on the medium all the same: see
    /// [`crate::TapeDrive`].
    fn write(&mut self, record: &[u8]) -> io::Result<usize>;

    /// Reads one record into the buffer and returns its length. 0 is a mark, or the end of the data.
    ///
    /// # Errors
    /// `ENOMEM` if the record is larger than the buffer (the record is passed), `EINVAL` if the buffer
    /// is larger than the limit of the device.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Performs an operation of `MTIOCTOP`.
    ///
    /// # Errors
    /// Those of the ioctl.
    fn operate(&mut self, operation: Operation) -> io::Result<()>;

    /// Returns the number of the record or mark that comes next (`MTIOCPOS`), counted from 0.
    ///
    /// # Errors
    /// `EIO` if the device has no places or has lost its own.
    fn place(&mut self) -> io::Result<u64>;

    /// Returns which records are on the medium and which are only in the buffer of the drive
    /// (READ POSITION).
    ///
    /// # Errors
    /// Those of `SG_IO`, and `Unsupported` if the drive does not know.
    fn buffer_positions(&mut self) -> io::Result<BufferPositions>;

    /// Returns the flags of `MTIOCGET`.
    ///
    /// # Errors
    /// Those of the ioctl.
    fn status(&mut self) -> io::Result<DeviceStatus>;

    /// Returns the lengths of records that the drive takes (READ BLOCK LIMITS).
    fn limits(&mut self) -> RecordLimits;

    /// Returns the lowest speed of the drive in bytes a second; 0 if it is not known.
    fn lowest_rate(&mut self) -> f64 {
        self.status()
            .map_or(0.0, |status| crate::pace::lowest_rate(status.density))
    }

    /// Closes the device. After a write this writes a mark, and errors of earlier writes appear here.
    ///
    /// # Errors
    /// `EIO` if the mark or buffered data could not be written.
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// An operation of `MTIOCTOP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `MTREW`: to the begin of the medium.
    Rewind,
    /// `MTWEOFI`: writes a mark and does not wait for it.
    MarkNow,
    /// `MTWEOF`: writes this number of marks and waits until all is on the medium; 0 only waits.
    MarksAndWait(u32),
    /// `MTFSF`: forward behind this number of marks.
    ForwardMarks(u32),
    /// `MTBSF`: back, to before the last of this number of marks.
    BackwardMarks(u32),
    /// `MTFSR`: forward over records.
    ForwardRecords(u32),
    /// `MTBSR`: back over records.
    BackwardRecords(u32),
    /// `MTEOM`: behind the last record.
    EndOfData,
    /// `MTSEEK`: before the record of this number.
    Seek(u64),
    /// `MTERASE`: erases from here to the end of the medium.
    Erase,
    /// `MTOFFL`: rewinds and unloads.
    Unload,
    /// `MTLOAD`: loads the medium.
    Load,
}

/// Two places of a drive that buffers (READ POSITION, short form).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferPositions {
    /// The number of the next record that the drive takes ("first").
    pub next: u64,
    /// Records below this number are on the medium ("last").
    pub on_medium: u64,
}

/// What `MTIOCGET` tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceStatus {
    /// A medium is loaded and ready.
    pub online: bool,
    /// The door is open or no medium is in the drive.
    pub no_medium: bool,
    /// The medium is write protected.
    pub write_protected: bool,
    /// The head is at the begin of the medium.
    pub at_start: bool,
    /// The last call passed a mark.
    pub at_mark: bool,
    /// The last call met the end of the data.
    pub at_end_of_data: bool,
    /// The last write met the early warning.
    pub near_end: bool,
    /// The drive asks to be cleaned.
    pub cleaning: bool,
    /// Length of a record in fixed mode; 0 in variable mode.
    pub block_bytes: u32,
    /// The density code of the medium.
    pub density: u8,
}

/// Lengths of records that a drive takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimits {
    /// The shortest record.
    pub least_bytes: u32,
    /// The longest record.
    pub most_bytes: u32,
}
