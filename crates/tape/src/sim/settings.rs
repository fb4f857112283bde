//! The parameters of a simulated drive and its cartridge. They stand in the cartridge's file.

use fullbore_format::text::size;
use serde::{Deserialize, Serialize};
use serde_json::Value;

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

/// The speeds of drives of full height, in MB/s, as IBM publishes them: lowest, and the others.
const GENERATIONS: [(&str, &[u64]); 3] = [
    (
        "lto-7",
        &[
            101, 118, 134, 151, 168, 185, 202, 219, 236, 253, 270, 287, 306,
        ],
    ),
    (
        "lto-8",
        &[112, 135, 158, 181, 204, 227, 250, 273, 296, 319, 342, 365],
    ),
    (
        "lto-9",
        &[177, 203, 223, 244, 263, 284, 305, 325, 347, 366, 385, 408],
    ),
];

impl SimSettings {
    /// Takes the speeds of a generation of drives: `lto-7`, `lto-8`, `lto-9`.
    ///
    /// # Errors
    /// A sentence that names the generations.
    pub fn set_generation(&mut self, name: &str) -> Result<(), String> {
        let found = GENERATIONS.iter().find(|(known, _)| *known == name);
        let (_, steps) = found.ok_or("it is \"lto-7\", \"lto-8\" or \"lto-9\"")?;
        self.steps = steps.iter().map(|step| step * 1_000_000).collect();
        Ok(())
    }

    /// Sets a parameter by its name in JSON: `capacity_bytes=30G`, `steps=110M,300M`, `clock=real`,
    /// `faults=write@120,reset@300`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the text.
    pub fn set(&mut self, assignment: &str) -> Result<(), String> {
        let (name, text) = assignment.split_once('=').ok_or("it is KEY=VALUE")?;
        let name = name.replace('-', "_");
        let mut all = serde_json::to_value(&*self).map_err(|error| error.to_string())?;
        let known = all
            .as_object()
            .map(|keys| keys.keys().cloned().collect::<Vec<_>>());
        let known = known.unwrap_or_default().join(", ");
        let place = all.get_mut(&name).ok_or(format!("it is one of {known}"))?;
        *place = match (&name[..], &*place) {
            ("faults", _) => faults(text)?,
            (_, Value::Array(_)) => text.split(',').map(number).collect::<Result<_, _>>()?,
            (_, Value::Number(_)) => number(text)?,
            (_, Value::Bool(_)) => Value::Bool(text.parse().map_err(|_| "it is true or false")?),
            _ => text.into(),
        };
        *self = serde_json::from_value(all).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// Reads a size, or a number of seconds.
fn number(text: &str) -> Result<Value, String> {
    match text.parse::<f64>() {
        Ok(number) if number.fract() != 0.0 && number.is_finite() => Ok(number.into()),
        _ => size::parse(text).map(Value::from),
    }
}

/// Reads `KIND@BLOCK,…`.
fn faults(text: &str) -> Result<Value, String> {
    let one = |word: &str| {
        let (kind, block) = word.split_once('@')?;
        let block: u64 = block.parse().ok()?;
        Some(serde_json::json!({"kind": kind, "block": block}))
    };
    let all: Option<Vec<_>> = text
        .split(',')
        .filter(|word| !word.is_empty())
        .map(one)
        .collect();
    let all = all.ok_or("it is KIND@BLOCK, such as write@120")?;
    Ok(Value::Array(all))
}

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
