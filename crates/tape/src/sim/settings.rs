//! The parameters of a simulated drive and its cartridge. They stand in the cartridge's file.

use serde::{Deserialize, Serialize};

/// Parameters of a simulated drive. Lengths in bytes, rates in bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimSettings {
    /// What fits on the medium.
    pub capacity_bytes: u64,
    /// Room between the early warning and the end.
    pub warning_bytes: u64,
    /// How the early warning is told.
    pub early_warning: EarlyWarning,
    /// The buffer of the drive.
    pub buffer_bytes: u64,
    /// The speeds of the drive, the lowest first.
    pub steps: Vec<u64>,
    /// Seconds from a stop until the drive writes again: it goes back and starts.
    pub start_seconds: f64,
    /// Seconds to wind the whole medium.
    pub wind_seconds: f64,
    /// Seconds that a wait for the medium (a mark that is waited for, a close) costs beside the start.
    pub mark_seconds: f64,
    /// The longest record.
    pub most_record_bytes: u32,
    /// The length of all records; 0: records may have any length.
    pub block_bytes: u32,
    /// The drive tells places and finds them.
    pub has_places: bool,
    /// READ POSITION tells which records are only in the buffer.
    pub tells_buffer: bool,
    /// The switch of the cartridge.
    pub write_protected: bool,
    /// Written once: records can only be added behind the last.
    pub worm: bool,
    /// The drive asks to be cleaned.
    pub cleaning: bool,
    /// Real time, or virtual time.
    pub clock: ClockKind,
    /// Faults to come, each of them once.
    pub faults: Vec<SimFault>,
}

/// What the drive does when a write meets the early warning. Drives of both kinds exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EarlyWarning {
    /// The write succeeds and the end bit is set; the next write is refused with `ENOSPC` and not
    /// on the medium; then every second one succeeds.
    Refused,
    /// The write is answered with `ENOSPC` and is on the medium, the end bit is not set; the next one
    /// is refused; then every second one succeeds.
    Taken,
}

/// The time of a simulated drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockKind {
    /// The drive waits as a real one.
    Real,
    /// Waiting costs no time and is counted.
    Virtual,
}

/// A fault that happens once, when the drive writes this record or mark to the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimFault {
    /// The number of the record or mark.
    pub block: u64,
    /// Its kind.
    pub kind: SimFaultKind,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimFaultKind {
    /// The record could not be written. It and all behind it in the buffer are lost; the next call
    /// fails with `EIO`, and the place is that of the record.
    Write,
    /// The drive is reset: what was in its buffer is lost, and all calls fail with `EIO` until a
    /// rewind.
    Reset,
    /// The record is on the medium and cannot be read: `EIO`, and the head is behind it. Not only once.
    Read,
}

const MIB: u64 = 1 << 20;

impl Default for SimSettings {
    /// The lower and upper speeds of an LTO-8 drive of half height, and a cartridge of 30 GB.
    fn default() -> Self {
        Self {
            capacity_bytes: 30_000_000_000,
            warning_bytes: 1_000_000_000,
            early_warning: EarlyWarning::Refused,
            buffer_bytes: 1024 * MIB,
            steps: [110, 130, 150, 170, 190, 210, 230, 250, 275, 300]
                .map(|step| step * 1_000_000)
                .to_vec(),
            start_seconds: 3.0,
            wind_seconds: 100.0,
            mark_seconds: 0.1,
            most_record_bytes: MIB as u32,
            block_bytes: 0,
            has_places: true,
            tells_buffer: true,
            write_protected: false,
            worm: false,
            cleaning: false,
            clock: ClockKind::Virtual,
            faults: Vec::new(),
        }
    }
}
