//! Tape drives: records, marks and places, without knowledge of backups.
//!
//! [`Drive`] is the interface for writers and readers of tapes. [`TapeDrive`] implements it by the
//! calls of Linux's `st` driver, which are the trait [`Device`]. A real drive and a simulated one
//! ([`sim`]) are devices, so the rules of `st` (which record was written when the end of the
//! medium comes, when a mark is the end of the data) are in one place and are tested without a drive.
//!
//! A drive of another host ([`open_far`], [`ServedDrive`]) has the same interface.
//!
//! Belongs here: drives, labels of tapes, the ring before a drive, the questions about a drive of another host. Does not belong here: what is in
//! a record, and how questions are sent.

mod device;
mod drive;
mod driver;
mod far;
mod kept;
mod label;
mod open;
mod pace;
mod ring;
mod ring_drive;
pub mod sim;
mod st;
#[cfg(test)]
mod tests;

pub use device::{BufferPositions, Device, DeviceStatus, Operation, RecordLimits};
pub use drive::{Drive, DriveError, DriveResult, Fault, Place, ReadOutcome, RecordOutcome, Space};
pub use driver::TapeDrive;
pub use far::{ServedDrive, TapeChannel, TapeGrant, TapeRights, TapeUse, open_far, question_room};
pub use label::{LABEL_BYTES, TapeBegin, TapeLabel, is_tape_name, read_begin, read_label};
pub use open::{open_drive, open_to_ask, simulated};
pub use pace::{Pace, PaceSettings, PaceStep};
pub use ring_drive::{DriveRing, RingDrive, RingEnd, RingItem, RingSettings, RingStop};
pub use st::StDevice;
