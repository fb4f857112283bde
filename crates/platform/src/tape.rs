//! The `st` driver: a tape device and its ioctls, and SCSI commands that only ask (`SG_IO`).
//!
//! The numbers are those of `linux/mtio.h` and `scsi/sg.h`.
#![allow(unsafe_code)]

use rustix::{
    fd::{AsRawFd, IntoRawFd, OwnedFd},
    fs::{FileType, Mode, OFlags, Stat},
    ioctl::{Opcode, opcode},
};
use std::{
    ffi::{c_int, c_long, c_short, c_uchar, c_uint, c_ushort, c_void},
    fs, io,
    path::Path,
    ptr,
};

/// Operations of `MTIOCTOP`.
pub mod operation {
    /// Forward over marks.
    pub const FORWARD_MARKS: i16 = 1;
    /// Back over marks.
    pub const BACKWARD_MARKS: i16 = 2;
    /// Forward over records.
    pub const FORWARD_RECORDS: i16 = 3;
    /// Back over records.
    pub const BACKWARD_RECORDS: i16 = 4;
    /// Writes marks and waits.
    pub const MARKS: i16 = 5;
    /// To the begin.
    pub const REWIND: i16 = 6;
    /// Rewinds and unloads.
    pub const UNLOAD: i16 = 7;
    /// Behind the last record.
    pub const END_OF_DATA: i16 = 12;
    /// Erases to the end of the medium.
    pub const ERASE: i16 = 13;
    /// Sets the length of records; 0: any.
    pub const SET_BLOCK: i16 = 20;
    /// To a record.
    pub const SEEK: i16 = 22;
    /// Sets options of the driver.
    pub const SET_OPTIONS: i16 = 24;
    /// Loads the medium.
    pub const LOAD: i16 = 30;
    /// Hardware compression: 0 is off.
    pub const COMPRESSION: i16 = 32;
    /// Writes marks and does not wait.
    pub const MARKS_NOW: i16 = 35;
}

/// Flags of [`TapeRegisters::flags`].
pub mod flag {
    /// Behind a mark.
    pub const MARK: i64 = 0x8000_0000;
    /// At the begin.
    pub const START: i64 = 0x4000_0000;
    /// Near the end.
    pub const END: i64 = 0x2000_0000;
    /// At the end of the data.
    pub const END_OF_DATA: i64 = 0x0800_0000;
    /// Write protected.
    pub const WRITE_PROTECTED: i64 = 0x0400_0000;
    /// Ready.
    pub const ONLINE: i64 = 0x0100_0000;
    /// No medium.
    pub const DOOR_OPEN: i64 = 0x0004_0000;
    /// Asks to be cleaned.
    pub const CLEANING: i64 = 0x8000;
}

/// Options of the driver, as `SET_OPTIONS` and the file `options` in /sys have them.
pub mod option {
    /// Places are logical block numbers, the same on all drives.
    pub const LOGICAL_PLACES: u32 = 0x800;
    /// A close does not wait for the mark, and hides its errors.
    pub const NO_WAIT_AT_CLOSE: u32 = 0x8000;
    /// Together with options: sets these.
    pub(super) const SET: u32 = 0x3000_0000;
    /// Together with options: clears these.
    pub(super) const CLEAR: u32 = 0x4000_0000;
}

#[repr(C)]
struct MtOp {
    operation: c_short,
    count: c_int,
}

#[repr(C)]
#[derive(Default)]
struct MtGet {
    kind: c_long,
    rest: c_long,
    registers: c_long,
    flags: c_long,
    errors: c_long,
    file: c_int,
    block: c_int,
}

#[repr(C)]
#[derive(Default)]
struct MtPos {
    block: c_long,
}

/// The number that Linux gives the devices of `st`.
const ST_MAJOR: u32 = 9;

const OPERATE: Opcode = opcode::write::<MtOp>(b'm', 1);
const GET: Opcode = opcode::read::<MtGet>(b'm', 2);
const PLACE: Opcode = opcode::read::<MtPos>(b'm', 3);
const SG_IO: Opcode = 0x2285;

#[repr(C)]
struct SgIo {
    interface: c_int,
    direction: c_int,
    command_len: c_uchar,
    max_sense_len: c_uchar,
    vectors: c_ushort,
    len: c_uint,
    data: *mut c_void,
    command: *const c_uchar,
    sense: *mut c_uchar,
    timeout_ms: c_uint,
    flags: c_uint,
    pack_id: c_int,
    user: *mut c_void,
    status: c_uchar,
    masked_status: c_uchar,
    message_status: c_uchar,
    sense_len: c_uchar,
    host_status: c_ushort,
    driver_status: c_ushort,
    rest: c_int,
    duration_ms: c_uint,
    info: c_uint,
}

/// What `MTIOCGET` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TapeRegisters {
    /// Flags, see [`flag`].
    pub flags: i64,
    /// The length of records in fixed mode; else 0.
    pub block_bytes: u32,
    /// The density code.
    pub density: u8,
}

/// An open tape device.
#[derive(Debug)]
pub struct TapeFile(OwnedFd);

impl TapeFile {
    /// Opens a device for reading and writing. Waits until the drive is ready.
    ///
    /// # Errors
    /// `EACCES` or `EROFS` for a protected medium, `ENOMEDIUM`, `EBUSY`, `EIO` if it does not become ready.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OFlags::RDWR)
    }

    /// Opens a device for reading.
    ///
    /// # Errors
    /// As [`TapeFile::open`].
    pub fn open_to_read(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OFlags::RDONLY)
    }

    /// Opens a device only to ask for its state: it need not be ready.
    ///
    /// # Errors
    /// `EBUSY`.
    pub fn open_to_ask(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OFlags::RDONLY | OFlags::NONBLOCK)
    }

    /// Opens nothing but a device of `st`: some devices do something when they are opened, such as a watchdog.
    fn open_with(path: &Path, flags: OFlags) -> io::Result<Self> {
        is_tape(rustix::fs::stat(path)?)?;
        let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?;
        // The path may lead elsewhere by now.
        is_tape(rustix::fs::fstat(&fd)?)?;
        Ok(Self(fd))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn write(&self, record: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(&self.0, record)?)
    }

    /// Reads a record.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.0, buffer)?)
    }

    /// Performs an [`operation`].
    ///
    /// # Errors
    /// Those of the driver.
    pub fn operate(&self, operation: i16, count: i32) -> io::Result<()> {
        let mut op = MtOp { operation, count };
        self.ioctl(OPERATE, &mut op)
    }

    /// Returns the flags and settings.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn registers(&self) -> io::Result<TapeRegisters> {
        let mut got = MtGet::default();
        self.ioctl(GET, &mut got)?;
        Ok(TapeRegisters {
            flags: got.flags & 0xffff_ffff,
            block_bytes: (got.registers & 0xff_ffff) as u32,
            density: ((got.registers >> 24) & 0xff) as u8,
        })
    }

    /// Returns the number of the next record (`MTIOCPOS`).
    ///
    /// # Errors
    /// `EIO` if the drive has no places.
    pub fn place(&self) -> io::Result<u64> {
        let mut got = MtPos::default();
        self.ioctl(PLACE, &mut got)?;
        u64::try_from(got.block).map_err(io::Error::other)
    }

    fn ioctl<T>(&self, request: Opcode, argument: &mut T) -> io::Result<()> {
        // SAFETY: the request reads or writes one `T`, as its number says.
        let answer =
            unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, ptr::from_mut(argument)) };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Sends a SCSI command that returns data. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of the driver; `Unsupported` if the drive refuses the command.
    pub fn ask(&self, command: &[u8], answer: &mut [u8]) -> io::Result<usize> {
        let mut sense = [0u8; 32];
        let mut io = SgIo {
            interface: c_int::from(b'S'),
            direction: -3, // SG_DXFER_FROM_DEV
            command_len: command.len() as c_uchar,
            max_sense_len: sense.len() as c_uchar,
            vectors: 0,
            len: answer.len() as c_uint,
            data: answer.as_mut_ptr().cast(),
            command: command.as_ptr(),
            sense: sense.as_mut_ptr(),
            timeout_ms: 60_000,
            flags: 0,
            pack_id: 0,
            user: ptr::null_mut(),
            status: 0,
            masked_status: 0,
            message_status: 0,
            sense_len: 0,
            host_status: 0,
            driver_status: 0,
            rest: 0,
            duration_ms: 0,
            info: 0,
        };
        // The pointers in `io` stay valid during the call, which is synchronous.
        self.ioctl(SG_IO, &mut io)?;
        if io.status != 0 || io.host_status != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let rest = usize::try_from(io.rest).unwrap_or(0);
        Ok(answer.len().saturating_sub(rest))
    }

    /// Returns the options of the driver for this device; `None` if the system does not show them.
    pub fn options(&self) -> Option<u32> {
        let device = rustix::fs::fstat(&self.0).ok()?.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let text = fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/options")).ok()?;
        let text = text.trim();
        let hexadecimal = text.strip_prefix("0x").unwrap_or(text);
        u32::from_str_radix(hexadecimal, 16).ok()
    }

    /// Sets or clears options of the driver. Only root may.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn set_options(&self, options: u32, is_on: bool) -> io::Result<()> {
        let action = if is_on { option::SET } else { option::CLEAR };
        self.operate(operation::SET_OPTIONS, (action | options) as i32)
    }

    /// Closes the device. After a write the driver writes a mark, and earlier errors appear here.
    ///
    /// # Errors
    /// `EIO`.
    pub fn close(self) -> io::Result<()> {
        let fd = self.0.into_raw_fd();
        // SAFETY: the descriptor was owned here, and nothing uses it later.
        match unsafe { libc::close(fd) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Refuses what is no device of the driver `st`.
fn is_tape(facts: Stat) -> io::Result<()> {
    let is_device = FileType::from_raw_mode(facts.st_mode).is_char_device();
    if is_device && rustix::fs::major(facts.st_rdev) == ST_MAJOR {
        return Ok(());
    }
    let why = "it is no tape drive";
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<MtOp>(), 8);
        assert_eq!(size_of::<MtGet>(), 48);
        assert_eq!(size_of::<SgIo>(), 88);
    }

    #[test]
    fn files_and_other_devices_are_not_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for path in [file.path(), Path::new("/dev/null"), Path::new("/")] {
            for opened in [
                TapeFile::open(path),
                TapeFile::open_to_read(path),
                TapeFile::open_to_ask(path),
            ] {
                let error = opened.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
            }
        }
    }

    #[test]
    fn a_file_is_no_tape() {
        let tape = TapeFile(tempfile::tempfile().unwrap().into());
        for error in [
            tape.operate(operation::REWIND, 1).unwrap_err(),
            tape.place().unwrap_err(),
            tape.registers().map(drop).unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        }
        assert!(tape.options().is_none());
        tape.close().unwrap();
    }
}
