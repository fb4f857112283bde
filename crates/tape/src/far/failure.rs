//! An error of a drive as it is sent.

use crate::drive::{DriveError, Fault};
use fullbore_format::error::{Error, ErrorKind, one_line};
use minicbor::{Decode, Encode};
use std::io;

/// Bytes of the reason at most.
const TEXT_BYTES: usize = 512;

/// Faults by the numbers that are sent.
const FAULTS: [Fault; 8] = [
    Fault::Medium,
    Fault::PositionLost,
    Fault::WriteProtected,
    Fault::NoMedium,
    Fault::Busy,
    Fault::RecordTooLong,
    Fault::RecordRefused,
    Fault::System,
];

/// A [`DriveError`] as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) struct FarFailure {
    #[n(0)]
    fault: u8,
    /// The number of the error, if it is one of the system.
    #[n(1)]
    number: Option<i32>,
    #[n(2)]
    text: String,
}

impl FarFailure {
    pub(super) fn of(error: &DriveError) -> Self {
        let fault = FAULTS.iter().position(|fault| *fault == error.fault);
        let text = error.error.to_string();
        Self {
            fault: fault.unwrap_or(FAULTS.len()) as u8,
            number: error.error.raw_os_error(),
            text: text.chars().take(TEXT_BYTES / 4).collect(),
        }
    }

    /// Returns the error of a drive that this side calls `device`.
    pub(super) fn into_error(self, action: &'static str, device: &str) -> DriveError {
        let fault = FAULTS.get(usize::from(self.fault)).copied();
        let error = match self.number {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::other(one_line(&self.text)),
        };
        DriveError {
            fault: fault.unwrap_or(Fault::System),
            action,
            device: device.to_owned(),
            error,
        }
    }
}

/// Returns the error of a question that was not answered.
pub(super) fn unanswered(error: &Error, action: &'static str, device: &str) -> DriveError {
    let fault = match error.kind {
        ErrorKind::Permission => Fault::NotAllowed,
        ErrorKind::Unreachable => Fault::HostLost,
        _ => Fault::System,
    };
    DriveError {
        fault,
        action,
        device: device.to_owned(),
        error: io::Error::other(error.line()),
    }
}
