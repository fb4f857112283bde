//! Opens a drive by its name.

use crate::{DriveError, Fault, RingDrive, StDevice, TapeDrive, sim::SimDevice};
use fullbore_format::error::Result;
use rustix::io::Errno;
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt, path::Path};

/// Opens the drive of a location without its `tape:`. `sim:FILE` is a simulated drive with the
/// cartridge in this file, which is made if it is missing; anything else is a device, such as
/// `/dev/nst0`.
///
/// Waits until the drive is ready. The head is where the last program left it.
///
/// # Errors
/// Those of the system.
pub fn open_drive(name: &OsStr) -> Result<Box<dyn RingDrive>> {
    let shown = name.to_string_lossy();
    if let Some(path) = simulated(name) {
        let device = opened(SimDevice::open(path), name)?;
        return Ok(Box::new(TapeDrive::new(device, shown)));
    }
    let device = opened(StDevice::open(Path::new(name)), name)?;
    Ok(Box::new(TapeDrive::new(device, shown)))
}

/// As [`open_drive`], only to ask for the state: the drive need not have a medium.
///
/// # Errors
/// Those of the system.
pub fn open_to_ask(name: &OsStr) -> Result<Box<dyn RingDrive>> {
    if simulated(name).is_some() {
        return open_drive(name);
    }
    let device = opened(StDevice::open_to_ask(Path::new(name)), name)?;
    Ok(Box::new(TapeDrive::new(device, name.to_string_lossy())))
}

/// Returns the file of a simulated drive.
pub fn simulated(name: &OsStr) -> Option<&Path> {
    let path = name.as_bytes().strip_prefix(b"sim:")?;
    Some(Path::new(OsStr::from_bytes(path)))
}

fn opened<D>(device: io::Result<D>, name: &OsStr) -> Result<D> {
    device.map_err(|error| {
        let fault = match Errno::from_io_error(&error) {
            Some(Errno::BUSY) => Fault::Busy,
            Some(Errno::NOMEDIUM) => Fault::NoMedium,
            _ => Fault::System,
        };
        let failed = DriveError {
            fault,
            action: "open",
            device: name.to_string_lossy().into_owned(),
            error,
        };
        failed.into_error()
    })
}
