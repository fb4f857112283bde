//! `global/pg_control`: the facts that a server reads about its cluster before anything else.
//!
//! Offsets are those of the 64-bit layouts of versions 13 to 16 (control version 1300), 17 (1700)
//! and 18 (1800). Only the last differs, after the checksum version. Numbers are in the machine's
//! byte order: a server reads no other.

use super::{data_dir::DataDir, lsn::Lsn, relation::Sizes};
use fullbore_format::{
    digest::crc32c,
    error::{Error, Result},
};
use fullbore_platform::safe_file;
use std::{
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

/// Offset of the LSN of the last checkpoint.
const CHECKPOINT: usize = 32;

/// Offset of the constant that proves that floating-point numbers have the cluster's format.
const FLOAT: usize = 208;

/// A location where recovery cannot begin: the first record of segment 0 of the WAL. Servers never
/// write that segment, whatever the segment size, so that 0 can mean an invalid location. The value
/// is a possible record location, so the server looks for the record and does not find it.
const NOWHERE: u64 = 0x28;

/// Reads before giving up; a server writes the file in one call that takes microseconds.
const READS: u32 = 50;
/// Limit of a read; the file has 8 KiB. The owner of the directory may have put any file in its
/// place.
const MOST_BYTES: u64 = 64 << 10;

/// State of the server when it last wrote the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlState {
    /// Being made, or started.
    Startup,
    /// Shut down in order: all data is in the files.
    /// Shut down in order: all data is in the files.
    ShutDown,
    /// Shut down in order, as a standby.
    ShutDownInRecovery,
    /// Shutting down, or killed meanwhile.
    ShuttingDown,
    /// Recovering from a crash, or killed meanwhile.
    CrashRecovery,
    /// A standby, or recovering from an archive; or killed meanwhile.
    ArchiveRecovery,
    /// Running, or killed meanwhile.
    Production,
}

/// The fields of the file that a backup uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Identifies the cluster; its standbys have the same identifier.
    pub system_identifier: u64,
    /// Format of this file: 1300, 1700 or 1800.
    pub control_version: u32,
    /// Format of the catalogs, for example 202209061.
    pub catalog: u32,
    pub state: ControlState,
    /// LSN of the last checkpoint record.
    pub checkpoint_lsn: u64,
    /// LSN where recovery from that checkpoint begins.
    pub redo_lsn: u64,
    /// Timeline of that checkpoint.
    pub timeline: u32,
    /// LSN from which a standby's data is consistent; 0 once recovery is done.
    pub min_recovery_lsn: u64,
    /// Timeline of `min_recovery_lsn`.
    pub min_recovery_timeline: u32,
    /// Bytes of a page, and pages of a segment file.
    pub sizes: Sizes,
    pub wal_segment_bytes: u32,
    /// Version of the page checksums; 0 without checksums.
    pub checksum_version: u32,
}

impl Control {
    /// Parses the bytes of the file; `None` if they are torn, damaged or of an unknown version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let crc_at = crc_at(bytes)?;
        let intact = read_u32(bytes, crc_at)? == crc32c(bytes.get(..crc_at)?);
        // The server writes this number so that a file of another byte order or float format is
        // recognized.
        let same_floats = f64::from_ne_bytes(read_array(bytes, FLOAT)?) == 1_234_567.0;
        if !intact || !same_floats {
            return None;
        }
        Some(Self {
            system_identifier: read_u64(bytes, 0)?,
            control_version: read_u32(bytes, 8)?,
            catalog: read_u32(bytes, 12)?,
            state: ControlState::from_number(read_u32(bytes, 16)?)?,
            checkpoint_lsn: read_u64(bytes, CHECKPOINT)?,
            redo_lsn: read_u64(bytes, 40)?,
            timeline: read_u32(bytes, 48)?,
            min_recovery_lsn: read_u64(bytes, 136)?,
            min_recovery_timeline: read_u32(bytes, 144)?,
            sizes: checked_sizes(read_u32(bytes, FLOAT + 8)?, read_u32(bytes, FLOAT + 12)?)?,
            wal_segment_bytes: read_u32(bytes, FLOAT + 20)?,
            checksum_version: read_u32(bytes, FLOAT + 44)?,
        })
    }
}

impl Control {
    /// Returns the end of the WAL in the files of a cluster that was shut down.
    pub fn wal_end(&self) -> Lsn {
        Lsn(self.checkpoint_lsn.max(self.min_recovery_lsn))
    }
}

/// Returns the sizes if a server can be built for them: pages of 1 to 32 KiB.
fn checked_sizes(page_bytes: u32, segment_blocks: u32) -> Option<Sizes> {
    let can_be =
        page_bytes.is_power_of_two() && (1024..=32_768).contains(&page_bytes) && segment_blocks > 0;
    can_be.then_some(Sizes {
        page_bytes,
        segment_blocks,
    })
}

impl ControlState {
    fn from_number(number: u32) -> Option<Self> {
        const ALL: [ControlState; 7] = [
            ControlState::Startup,
            ControlState::ShutDown,
            ControlState::ShutDownInRecovery,
            ControlState::ShuttingDown,
            ControlState::CrashRecovery,
            ControlState::ArchiveRecovery,
            ControlState::Production,
        ];
        ALL.get(number as usize).copied()
    }
}

/// Path of the control file, relative to a data directory.
pub const PATH: &[u8] = b"global/pg_control";

/// Path of the control file in a data directory.
pub fn path(data: &Path) -> PathBuf {
    data.join("global/pg_control")
}

/// Reads the file at `path` until it is whole: a running server may be writing it (rule 15).
///
/// # Errors
/// The system's; [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if two reads return the
/// same bytes and they are not understood, or if the file was never whole within half a second.
pub fn read(path: &Path) -> Result<(Vec<u8>, Control)> {
    read_until_whole(&format!("{path:?}"), || {
        safe_file::read(path, MOST_BYTES)
            .map_err(|e| Error::io(format!("could not read {path:?}"), e))
    })
}

/// Reads the file of a data directory, wherever that is, see [`read`].
///
/// # Errors
/// As [`read`]; those of the data directory.
pub fn read_in(data: &dyn DataDir) -> Result<(Vec<u8>, Control)> {
    let name = format!("{:?}", path(data.path()));
    read_until_whole(&name, || data.read_small(PATH, MOST_BYTES))
}

fn read_until_whole(
    name: &str,
    mut read: impl FnMut() -> Result<Vec<u8>>,
) -> Result<(Vec<u8>, Control)> {
    let mut previous = Vec::new();
    for _ in 0..READS {
        let bytes = read()?;
        if let Some(control) = Control::parse(&bytes) {
            return Ok((bytes, control));
        }
        if bytes == previous {
            break;
        }
        previous = bytes;
        sleep(Duration::from_millis(10));
    }
    let error =
        Error::corrupt(format!("cannot understand {name}")).because(parse_failure(&previous));
    Err(error.hint(
        "fullbore knows PostgreSQL 13 to 18; `pg_controldata` says whether the file is damaged",
    ))
}

/// Returns the reason why the bytes cannot be parsed.
fn parse_failure(bytes: &[u8]) -> String {
    match (crc_at(bytes), read_u32(bytes, 8)) {
        (None, Some(version)) => format!("its format is {version}; 1300, 1700 and 1800 are known"),
        (None, None) => "it is too short".into(),
        _ => "its checksum does not match its contents".into(),
    }
}

/// Returns the file with an invalid location for the last checkpoint, and a matching checksum.
/// `None` if the file is not understood.
///
/// A copy of a running cluster must be recovered from the location in its `backup_label`. Without
/// the label, a server would begin at the checkpoint of the control file. That is too late, and
/// silently damages the data. With this file it refuses to start (rules 7 and 9). With the label,
/// the server ignores the changed field.
pub fn without_checkpoint(bytes: &[u8]) -> Option<Vec<u8>> {
    Control::parse(bytes)?;
    let mut bytes = bytes.to_vec();
    let crc_at = crc_at(&bytes)?;
    bytes
        .get_mut(CHECKPOINT..CHECKPOINT + 8)?
        .copy_from_slice(&NOWHERE.to_ne_bytes());
    let crc = crc32c(bytes.get(..crc_at)?).to_ne_bytes();
    bytes.get_mut(crc_at..crc_at + 4)?.copy_from_slice(&crc);
    Some(bytes)
}

/// Returns the offset of the CRC-32C of all bytes before it. Version 18 has one more flag after the
/// checksum version, before 32 random bytes.
fn crc_at(bytes: &[u8]) -> Option<usize> {
    match read_u32(bytes, 8)? {
        1300 | 1700 => Some(FLOAT + 80),
        1800 => Some(FLOAT + 84),
        _ => None,
    }
}

fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    read_array(bytes, offset).map(u32::from_ne_bytes)
}

fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    read_array(bytes, offset).map(u64::from_ne_bytes)
}

fn read_array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use fullbore_format::error::ErrorKind;

    /// A file with a different number in every place.
    pub(crate) fn made(version: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut put = |position: usize, value: &[u8]| {
            bytes[position..position + value.len()].copy_from_slice(value)
        };
        put(0, &7_000_000_000_000_000_001u64.to_ne_bytes());
        put(8, &version.to_ne_bytes());
        put(16, &6u32.to_ne_bytes());
        put(FLOAT, &1_234_567f64.to_ne_bytes());
        for (index, value) in [
            (12, 12u32),
            (48, 48),
            (144, 144),
            (216, 8192),
            (220, 131_072),
            (228, 16 << 20),
            (252, 1),
        ] {
            put(index, &value.to_ne_bytes());
        }
        for offset in [32usize, 40, 136] {
            put(offset, &(offset as u64).to_ne_bytes());
        }
        let index = if version < 1800 { 288 } else { 292 };
        let crc = crc32c(&bytes[..index]);
        bytes[index..index + 4].copy_from_slice(&crc.to_ne_bytes());
        bytes
    }

    fn wanted(control_version: u32) -> Control {
        Control {
            system_identifier: 7_000_000_000_000_000_001,
            control_version,
            catalog: 12,
            state: ControlState::Production,
            checkpoint_lsn: 32,
            redo_lsn: 40,
            timeline: 48,
            min_recovery_lsn: 136,
            min_recovery_timeline: 144,
            sizes: Sizes::default(),
            wal_segment_bytes: 16 << 20,
            checksum_version: 1,
        }
    }

    #[test]
    fn the_layouts_of_13_to_18_are_understood_and_no_other() {
        for version in [1300, 1700, 1800] {
            assert_eq!(Control::parse(&made(version)), Some(wanted(version)));
        }
        assert_eq!(Control::parse(&made(1201)), None);
        assert_eq!(Control::parse(&made(1900)), None);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        for (version, end) in [(1300, 292), (1800, 296)] {
            let bytes = made(version);
            for bit in 0..end * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Control::parse(&bytes), None, "bit {bit}");
            }
            assert!((0..end).all(|len| Control::parse(&bytes[..len]).is_none()));
        }
    }

    #[test]
    fn without_its_checkpoint_the_file_differs_in_nothing_else() {
        for version in [1300, 1700, 1800] {
            let changed = Control::parse(&without_checkpoint(&made(version)).unwrap());
            assert_eq!(
                changed,
                Some(Control {
                    checkpoint_lsn: NOWHERE,
                    ..wanted(version)
                })
            );
        }
        assert_eq!(without_checkpoint(&[0; 8192]), None);
    }

    #[test]
    fn a_damaged_file_is_an_error_after_two_reads_and_says_why() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (bytes, why) in [
            (made(1300), None),
            (made(999), Some("format is 999")),
            (vec![0; 3], Some("too short")),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            match (read(file.path()), why) {
                (Ok((bytes, control)), None) => {
                    assert_eq!((bytes, control), (made(1300), wanted(1300)))
                }
                (Err(error), Some(why)) => {
                    assert!(error.kind == ErrorKind::Corrupt && error.line().contains(why))
                }
                (got, _) => panic!("{got:?}"),
            }
        }
    }

    #[test]
    fn a_pipe_or_a_large_file_in_its_place_is_neither_waited_for_nor_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("fifo"),
            fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        std::fs::File::create(path("large"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        std::os::unix::fs::symlink("large", path("link")).unwrap();
        for name in ["fifo", "large", "link"] {
            assert_eq!(
                read(&path(name)).unwrap_err().kind,
                fullbore_format::error::ErrorKind::Corrupt,
                "{name}"
            );
        }
    }
}
