//! Opens tape drives, of this host and of others.
//!
//! A drive of another host is `ssh://[USER@]HOST[:PORT]/dev/nst0`, or `ssh://HOST/sim:FILE` for a simulated one. The session with
//! that host lasts until the last user of the drive is dropped: records that a tape did not take wait there for the next tape.

use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fullbore_storage::{
    Storages,
    wire::{Offer, ServiceNumber, Wire},
};
use fullbore_tape::{
    RingDrive, TapeChannel, TapeUse, open_drive, open_far, open_to_ask, simulated,
};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, Mutex},
};

/// A drive by its name, and the session with its host, if that is another one.
#[derive(Debug, Clone)]
pub struct NamedDrive {
    name: OsString,
    storages: Storages,
    channel: Arc<Mutex<Option<Arc<dyn TapeChannel>>>>,
}

#[derive(Debug)]
struct WireChannel(Wire);

impl TapeChannel for WireChannel {
    fn ask(&self, question: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        self.0.peer().ask(ServiceNumber::TAPE, question, max_bytes)
    }
}

impl NamedDrive {
    /// The drive with the name of a location, without its `tape:`. Nothing is opened.
    pub fn new(storages: &Storages, name: &OsStr) -> Self {
        Self {
            name: name.to_owned(),
            storages: storages.clone(),
            channel: Arc::default(),
        }
    }

    /// Returns the name, as the user gave it.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the file of a simulated drive of this host.
    pub fn simulated(&self) -> Option<&Path> {
        simulated(&self.name)
    }

    /// Opens the drive. Waits until it is ready, unless it is only asked for its state.
    ///
    /// # Errors
    /// Those of the drive and of the session; [`ErrorKind::Usage`] for a name without a host or a drive.
    pub fn open(&self, usage: TapeUse) -> Result<Box<dyn RingDrive>> {
        match far_name(&self.name)? {
            Some(far) => open_far(
                &self.channel(far.host)?,
                &far.drive,
                usage,
                &self.name.to_string_lossy(),
            ),
            None => open_here(&self.name, usage),
        }
    }

    fn channel(&self, host: &str) -> Result<Arc<dyn TapeChannel>> {
        let mut channel = self.channel.locked();
        if let Some(open) = &*channel {
            return Ok(open.clone());
        }
        let wire = self.storages.connect_to_host(host, Offer::none())?;
        let open: Arc<dyn TapeChannel> = Arc::new(WireChannel(wire));
        Ok(channel.insert(open).clone())
    }
}

/// Opens a drive of this host.
///
/// # Errors
/// Those of the drive.
pub fn open_here(name: &OsStr, usage: TapeUse) -> Result<Box<dyn RingDrive>> {
    match usage {
        TapeUse::Ask => open_to_ask(name),
        _ => open_drive(name),
    }
}

/// The name of a drive of another host.
#[derive(Debug, PartialEq, Eq)]
struct FarName<'n> {
    host: &'n str,
    /// The name of the drive there.
    drive: Vec<u8>,
}

fn far_name(name: &OsStr) -> Result<Option<FarName<'_>>> {
    let Some(rest) = name.as_bytes().strip_prefix(b"ssh://") else {
        return Ok(None);
    };
    let slash = rest.iter().position(|byte| *byte == b'/');
    let (host, path) = rest.split_at(slash.unwrap_or(rest.len()));
    let host = std::str::from_utf8(host).unwrap_or_default();
    if host.is_empty() || path.len() < 2 {
        let message = format!("cannot use \"tape:{}\"", name.display());
        return Err(Error::new(ErrorKind::Usage, message)
            .because("it names no host and drive")
            .hint("a drive of another host is tape:ssh://HOST/dev/nst0"));
    }
    let drive = match &path[1..] {
        simulated if simulated.starts_with(b"sim:") => simulated,
        _ => path,
    };
    let drive = drive.to_vec();
    Ok(Some(FarName { host, drive }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_far_drive_has_a_host_and_the_name_there() {
        let far = |name: &str| {
            let found = far_name(OsStr::new(name)).unwrap();
            found.map(|far| (far.host.to_owned(), String::from_utf8(far.drive).unwrap()))
        };
        let named = |host: &str, drive: &str| Some((host.to_owned(), drive.to_owned()));
        assert_eq!(far("/dev/nst0"), None);
        assert_eq!(far("sim:ssh://x"), None);
        assert_eq!(far("ssh://db1/dev/nst0"), named("db1", "/dev/nst0"));
        assert_eq!(
            far("ssh://me@[::1]:22/dev/tape/by-id/x"),
            named("me@[::1]:22", "/dev/tape/by-id/x")
        );
        assert_eq!(far("ssh://db1/sim:/tmp/a"), named("db1", "sim:/tmp/a"));
        for bad in ["ssh://", "ssh://db1", "ssh://db1/", "ssh:///dev/nst0"] {
            let error = far_name(OsStr::new(bad)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{bad}");
        }
    }
}
